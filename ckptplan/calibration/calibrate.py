"""Measures a cell on a machine, and returns a workload and a profile with their basis.

Of the cell, as much is measured as fits in a given time; what is left out is told.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from math import inf
from time import perf_counter
from typing import Any, ClassVar

from ckptplan.calibration.backend import (
    LEAST_ROUNDS,
    Announce,
    Backend,
    CountedSizes,
    Extent,
    PilotTimes,
    Rounds,
    RunCounter,
)
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.fit import Fit, Round
from ckptplan.calibration.host import set_threads
from ckptplan.calibration.workloads import MeasuredCell, make_counted
from ckptplan.cost.roofline import complete_times
from ckptplan.errors import CkptplanError, InputError
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress
from ckptplan.model.workload import Workload
from ckptplan.planning.optimize import INTERVAL, optimize
from ckptplan.storage.remote_folder import make_parent
from ckptplan.units import format_bytes, format_share, format_wait
from ckptplan.wording import Argument

#: So many times as many rounds follow at most while they differ by too much.
_MORE = 4
#: The share of the limit that estimates may take, since they may be off.
_SHARE = 0.8
#: The share of the limit by which three rounds may end late, if the first one took longer than estimated.
_TOLERATED = 0.1
#: Times of a quick calibration are not known better than this, whatever its rounds say.
_QUICK_UNCERTAINTY = 0.1


def fit_in(extent: Extent, *, max_seconds: float, seconds_left: float | None = None) -> Extent:
    """Return ``extent``, or as much of it as fits in ``max_seconds``.

    ``seconds_left``: what is left of the time for the rounds, if bytes are counted already. Raises InputError
    if even the least takes too long.
    """
    for candidate in (extent, *extent.reduce()):
        if seconds_left is None:
            seconds, most = candidate.seconds, max_seconds
        else:
            seconds, most = sum(candidate.time_seconds), seconds_left
        if seconds <= _SHARE * most:
            return candidate
    alone = f"sizes without times ({Argument('bytes_only', True)}), " if extent.chunks else ""
    longer = Argument("max_seconds", _round_up(seconds / _SHARE + max_seconds - most))
    raise InputError(
        f"measuring this cell takes {format_wait(seconds)} even with the fewest runs, and may take "
        f"{max_seconds:g} s at most, of which estimates may take {100 * _SHARE:g} %, as they may be off",
        field="max_seconds",
        value=max_seconds,
        accepted=f"a smaller batch or fewer neurons, {alone}or {longer}",
    )


def _round_up(seconds: float) -> int:
    """Return whole seconds, the next ten from 20 on."""
    unit = 10 if seconds > 20 else 1
    return unit * (int(seconds // unit) + 1)


class Noisy(CkptplanError):  # noqa: N818 - what the machine is
    """The machine was too noisy for times within the requested tolerance."""

    exit_code: ClassVar[int] = 4
    kind: ClassVar[str] = "noisy"

    def __init__(self, *, field: str, spread: float, most: float) -> None:
        self.field, self.spread, self.most = field, spread, most
        self.text = (
            f"the machine is noisy: rounds of {field} differ by {format_share(spread)} about their estimate, "
            f"and a tolerance of {format_share(2 * most)} needs {format_share(most)} at most"
        )
        super().__init__(
            f"{self.text}; close other programs, lower {Argument('thread_count')}, or raise "
            f"{Argument('repeats')} or {Argument('tolerance')}"
        )

    def details(self) -> dict[str, Any]:
        """Return the quantity, its spread and the largest acceptable spread."""
        return {"field": self.field, "spread": self.spread, "most": self.most}


class Measuring:
    """A measurement of a cell: times a few steps first, and decides how much to measure. Raises InputError.

    Arguments:
        backend: what runs the cell.
        network: the cell.
        choose: returns what to measure if there is enough time.
        max_seconds: the time that it may take.
        announce: called with lines on how long it takes, and on what is left out.
        progress: called with the time done and the time expected, in milliseconds.
        tolerance: more rounds follow while those of a time of a step spread by more than half of this.
    """

    def __init__(
        self,
        backend: Backend,
        network: Any,
        *,
        choose: Callable[[PilotTimes], Extent],
        max_seconds: float,
        announce: Announce | None,
        progress: Progress | None,
        tolerance: float = inf,
    ) -> None:
        self._backend, self._network, self._tolerance = backend, network, tolerance
        self._max_seconds, self._announce = max_seconds, announce
        self._began = perf_counter()
        *_, pilot = backend.pilot(network)
        self._full = choose(pilot)
        self.extent = fit_in(self._full, max_seconds=max_seconds)
        self.counter = RunCounter([*self.extent.size_seconds, *self.extent.time_seconds], progress=progress)
        #: What ended the rounds before the last one, such as KeyboardInterrupt.
        self.ended_by: BaseException | None = None
        #: The rows of the rounds that are complete; others do not count.
        self.rounds: list[Round] = []
        self._say(self.extent.text)
        self._say_left_out()

    @property
    def runs(self) -> tuple[Extent, RunCounter]:
        """What is measured, and what counts its runs."""
        return self.extent, self.counter

    @property
    def fewer_chunks(self) -> bool:
        """Whether sizes of chunks were left out: nothing then shows how far times hold for others."""
        return self.extent.chunks != self._full.chunks

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was not measured for want of time, or since something ended the rounds."""
        found = self.extent.left_out(self._full)
        if len(self.rounds) < self.extent.rounds:
            why = "interrupted" if self.ended_by is not None else f"{self._max_seconds:g} s were over"
            found = (*found, f"{why} after {len(self.rounds)} of {self.extent.rounds} rounds")
        return found

    @property
    def noisy(self) -> Noisy | None:
        """The error for the time whose rounds spread most, if by more than half of the tolerance."""
        field, spread = Fit(self.rounds).widest
        most = self._tolerance / 2
        return Noisy(field=field, spread=spread, most=most) if spread > most else None

    def time_rounds(self, sizes: CountedSizes) -> Rounds:
        """Time steps and messages in rounds, which end early after three if time is over or anything ends them.

        More rounds follow, as long as there is time, while they differ by too much.

        Raises InputError if the first round shows that not even the fewest rounds fit in the time.
        """
        rounds = self._backend.rounds(self._network, self.extent, sizes)
        longest = 0.0
        try:
            while self._needs_more() and not self._is_over(longest):
                if not self.rounds:
                    rounds.start(self.counter)
                began = perf_counter()
                self.rounds.append(rounds.run(self.counter))
                longest = max(longest, perf_counter() - began)
                if self._takes_too_long(longest):
                    self._leave_out_more(longest)
                    rounds = self._backend.rounds(self._network, self.extent, sizes)
                    self.rounds, longest = [], 0.0
        except Exception:
            raise
        except BaseException as end:
            # Ctrl-C, or what the caller makes of a signal.
            if len(self.rounds) < LEAST_ROUNDS:
                raise
            self.ended_by = end
        else:
            self.counter.end()
        return rounds

    @property
    def _seconds_left(self) -> float:
        return self._max_seconds - (perf_counter() - self._began)

    def _needs_more(self) -> bool:
        """Return whether rounds are missing, or differ by too much; the counter then expects another one."""
        done, wanted = len(self.rounds), self.extent.rounds
        if done < wanted:
            return True
        if done >= _MORE * wanted or self.noisy is None:
            return False
        if done == wanted:
            self._say("rounds differ: more follow")
        self.counter.expect(self.extent.round_seconds)
        return True

    def _is_over(self, longest: float) -> bool:
        """Return whether there are enough rounds, and no time for another one."""
        return len(self.rounds) >= LEAST_ROUNDS and longest > self._seconds_left

    def _takes_too_long(self, longest: float) -> bool:
        """Return whether the fewest rounds would take too long, by the first one."""
        if len(self.rounds) > 1:
            return False
        missing = min(LEAST_ROUNDS, self.extent.rounds) - 1
        return missing * longest > self._seconds_left + _TOLERATED * self._max_seconds

    def _leave_out_more(self, longest: float) -> None:
        """Choose less to measure, because steps take longer than the first few did. Raises InputError."""
        extent = self.extent
        slower = extent.pilot.scaled(longest / sum(extent.round_seconds))
        self.extent = fit_in(
            replace(extent, pilot=slower), max_seconds=self._max_seconds, seconds_left=self._seconds_left
        )
        self._say("rounds take longer than estimated")
        self._say_left_out()
        self.counter.expect(self.extent.time_seconds)

    def _say_left_out(self) -> None:
        texts = self.extent.left_out(self._full)
        if texts:
            self._say(f"less is measured, to end within {self._max_seconds:g} s: {'; '.join(texts)}")

    def _say(self, text: str) -> None:
        if self._announce is not None:
            self._announce(text)


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The result of a calibration; ``noisy`` is the error that a strict one raises, None on a quiet machine."""

    workload: Workload
    profile: HardwareProfile
    #: The range of the workspaces of several runs, as a share of the peak.
    workspace_residual: float
    noisy: Noisy | None
    #: What was left out of a whole calibration, and why; the basis of each time says it, too.
    left_out: tuple[str, ...] = ()
    #: What ended the measurement before its last round, such as KeyboardInterrupt.
    ended_by: BaseException | None = None

    def propose_budget(self) -> int:
        """Return a local budget with room for a tenth of base's tapes, in bytes of two digits."""
        workload = self.workload
        resident = workload.resident_bytes + workload.steps * workload.resident_bytes_per_step
        resident += workload.workspace_bytes + workload.chunk_workspace_bytes
        tapes = max(0.1 * workload.steps, 4.0) * (workload.tape_bytes + workload.state_bytes)
        return int(float(f"{1.05 * (resident + tapes):.1e}"))

    def explain_uncertainty(self, *, tolerance: float, budget: int) -> str | None:
        """Return what unknown times mean for a plan, None if they are known to within the tolerance."""
        calibration = self.workload.calibration
        known = 0.0 if calibration is None else calibration.uncertainty
        if known <= tolerance and self.noisy is None:
            return None
        plan = optimize(self.workload, self.profile, local_bytes=budget)
        interval = next((entry.text for entry in plan.estimate_basis if entry.field == INTERVAL), "")
        return (
            f"times of steps are only known to within {format_share(known)}, as rounds, or chunks of several "
            f"sizes, differ; a plan for {format_bytes(budget)} takes {interval}"
        )


def open_backend(
    spec: CellSpec,
    *,
    device: str = "cpu",
    thread_count: int | None = None,
    tape: str | None = None,
    remote_dir: str | os.PathLike[str] | None = None,
    states: int = 1,
) -> Backend:
    """Return what runs a cell. Raises InputError, and MissingExtra if its runtime is not installed.

    Arguments:
        spec: the cell, whose name says the runtime.
        device: 'cpu' or 'cuda'; cells of JAX are measured on processors only.
        thread_count: the number of threads; None keeps it.
        tape: the kind of tapes in JAX (docs/jax.md); None is 'residuals', or that of a plan.
        remote_dir: the folder that is remote memory, which is made if it is missing; None for host memory,
            where remote checkpoints of cells of JAX always are.
        states: how many states may be in the folder at once.
    """
    if spec.runtime == "jax" and device != "cpu":
        raise InputError(
            "cells of JAX are measured on processors only", field="device", value=device, accepted="cpu"
        )
    if spec.runtime == "jax" and remote_dir is not None:
        raise InputError(
            "is for cells of PyTorch: in JAX, remote checkpoints are in host memory",
            field="remote_dir",
            value=str(remote_dir),
            accepted="a cell of JAX without a folder",
        )
    if spec.runtime == "torch" and tape is not None:
        raise InputError("is for cells of JAX", field="tape", value=tape, accepted=f"the cell jax:{spec.name}")
    folder = None if remote_dir is None else make_parent(remote_dir).resolve()
    if spec.runtime == "jax":
        # They are fixed when JAX is imported.
        threads = set_threads(thread_count)
        import_module("ckptplan.jax")  # raises MissingExtra
        from ckptplan.calibration.jax_backend import JaxBackend

        return JaxBackend(threads=threads, tape=tape)
    import_module("ckptplan.torch")  # raises MissingExtra
    from ckptplan.calibration.torch_backend import TorchBackend

    return TorchBackend(device=device, thread_count=thread_count, remote_dir=folder, states=states)


def calibrate(
    spec: CellSpec,
    *,
    batch: int,
    steps: int,
    name: str = "my-workload",
    profile_name: str = "my-machine",
    device: str = "cpu",
    thread_count: int | None = None,
    tape: str | None = None,
    remote_dir: str | os.PathLike[str] | None = None,
    repeats: int = 5,
    tolerance: float = 0.1,
    seed: int = 0,
    quick: bool = False,
    max_seconds: float | None = None,
    announce: Announce | None = None,
    keep: Callable[[Workload], None] | None = None,
    progress: Progress | None = None,
) -> Calibrated:
    """Measure a cell and return a workload and a profile.

    Bytes are counted. Times are lower quartiles of rounds, fitted over several chunk sizes, each with an
    interval; messages are fitted over several numbers of states. If Ctrl-C, or a signal that the caller turns
    into an exception, ends the measurement after three rounds or more, the result is that of these rounds.

    Arguments:
        spec: the cell and its sizes.
        batch: the number of samples.
        steps: T of the workload.
        name: the name of the workload.
        profile_name: the name of the profile.
        device: 'cpu' or 'cuda'.
        thread_count: the number of threads; None keeps it.
        tape: the kind of tapes of a cell of JAX (docs/jax.md); None is 'residuals'.
        remote_dir: the folder that is measured as remote memory, in place of host memory: states are written
            and read as ``offload=`` does, and all times are wall time, as processor time does not see a disk.
        repeats: the number of rounds.
        tolerance: while the rounds of a time of a step spread by more than half of this share, up to four times
            as many follow; if they still do, the result is ``noisy``, and its intervals are wide.
        seed: the seed of weights and data.
        quick: whether to measure in a few seconds: three rounds of a few short schedules, whose times are
            known to 10 % at best; it is never ``noisy``.
        max_seconds: less is measured if all of it would take longer; None means no limit.
        announce: called with lines on how long it takes, and on what is left out.
        keep: called with the workload that `count_sizes` would return, as soon as sizes are counted.
        progress: called with the time done and the time expected, in milliseconds.

    Raises InputError, also if even the least takes longer than ``max_seconds``.
    """
    backend = open_backend(
        spec, device=device, thread_count=thread_count, tape=tape, remote_dir=remote_dir, states=steps
    )
    with backend.prepare():
        network = backend.build(spec, batch=batch, seed=seed, announce=announce)
        measuring = Measuring(
            backend,
            network,
            choose=partial(backend.choose, rounds=LEAST_ROUNDS if quick else repeats, quick=quick),
            max_seconds=inf if max_seconds is None else max_seconds,
            announce=announce,
            progress=progress,
            # A quick one promises little, and its uncertainty says how little.
            tolerance=inf if quick else tolerance,
        )
        sizes = backend.sizes(network, lambda: measuring.runs)
        make = partial(make_counted, spec, batch=batch, steps=steps, name=name)
        if keep is not None:
            keep(make(sizes))
        roofline = backend.roofline(network, measuring.extent.pilot)
        rounds = measuring.time_rounds(sizes)
        environment = backend.environment
    sizes = rounds.complete(sizes)
    times = Fit(measuring.rounds).times
    if quick or measuring.fewer_chunks:
        low, high = 1 - _QUICK_UNCERTAINTY, 1 + _QUICK_UNCERTAINTY
        times = {field: one.widened(low, high) for field, one in times.items()}
    left_out = measuring.left_out
    if quick:
        left_out = (f"quick: {len(measuring.rounds)} rounds of few sizes", *left_out)
    found = MeasuredCell(
        counted=make(sizes),
        seed=seed,
        environment=environment,
        sizes=sizes,
        times=times,
        roofline=roofline,
        rounds=len(measuring.rounds),
        ways=measuring.extent.ways,
        left_out=left_out,
    )
    profile = found.make_profile(profile_name)
    uncounted = (roofline.why,) if roofline is not None and roofline.operations is None else ()
    return Calibrated(
        workload=found.make_workload(profile),
        profile=profile,
        workspace_residual=sizes.residual,
        noisy=measuring.noisy,
        left_out=(*left_out, *uncounted),
        ended_by=measuring.ended_by,
    )


def count_sizes(
    spec: CellSpec,
    *,
    batch: int,
    steps: int,
    name: str = "my-workload",
    device: str = "cpu",
    thread_count: int | None = None,
    tape: str | None = None,
    seed: int = 0,
    times: Mapping[str, float] | None = None,
    max_seconds: float | None = None,
    announce: Announce | None = None,
    progress: Progress | None = None,
) -> Workload:
    """Count the bytes of a cell, and return a workload whose times are assumed.

    Such a workload shows what fits and plans for the least memory. Its times are ``times``, or the least
    of a few short runs, on one thread if that is quicker and ``thread_count`` does not say how many; `validate`
    does not compare them with measurements. Of a cell of JAX, nothing runs: bytes come from shapes, and times
    from operations.

    The arguments are those of ``calibrate``, and ``times``: fields of a workload that are times; the others
    follow from ``forward_seconds``. Raises InputError.
    """
    given = complete_times(times) if times else None
    backend = open_backend(spec, device=device, thread_count=thread_count, tape=tape)
    with backend.prepare():
        network = backend.build(spec, batch=batch, seed=seed, announce=announce)
        if thread_count is None:
            backend.choose_threads(network)
        measure = partial(
            Measuring,
            backend,
            network,
            choose=partial(backend.choose, rounds=0),
            max_seconds=inf if max_seconds is None else max_seconds,
            announce=announce,
            progress=progress,
        )
        sizes = backend.sizes(network, lambda: measure().runs)
    return make_counted(spec, sizes, given, batch=batch, steps=steps, name=name)
