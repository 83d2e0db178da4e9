"""Implements ``calibrate``: measures a cell on a machine, and makes a workload and a profile."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, ClassVar

from ckptplan.calibration.bench import LEAST_ROUNDS, Bench
from ckptplan.calibration.files import MeasuredCell, make_counted
from ckptplan.calibration.fit import Fit, Round
from ckptplan.calibration.runtimes import build_network, open_backend, open_bench
from ckptplan.cost.roofline import complete_times
from ckptplan.errors import CkptplanError, InputError
from ckptplan.execution.backend import Pace, measure_rounds
from ckptplan.model.cell_spec import Announce, CellSpec
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress
from ckptplan.model.workload import Workload
from ckptplan.planning.optimize import INTERVAL, optimize
from ckptplan.units import format_bytes, format_share, format_wait
from ckptplan.wording import Argument

#: The least uncertainty of times of a quick calibration, even if its rounds agree better.
_QUICK_UNCERTAINTY = 0.1
#: A suggested time limit is this many times the estimate, which may be off.
_SPARE = 1.5


class Noisy(CkptplanError):  # noqa: N818 - names the state of the machine
    """The machine was too noisy for times within the requested tolerance."""

    exit_code: ClassVar[int] = 4
    kind: ClassVar[str] = "noisy"

    def __init__(self, *, field: str, spread: float, most: float) -> None:
        self.field, self.spread, self.most = field, spread, most
        super().__init__(
            f"the machine is noisy: rounds of {field} differ by {format_share(spread)} about their estimate, "
            f"and a tolerance of {format_share(2 * most)} needs {format_share(most)} at most; close other "
            f"programs, lower {Argument('thread_count')}, or raise {Argument('repeats')} or "
            f"{Argument('tolerance')}"
        )

    def details(self) -> dict[str, Any]:
        """Return the quantity, its spread and the largest acceptable spread."""
        return {"field": self.field, "spread": self.spread, "most": self.most}


class RunCounter:
    """Reports progress as the number of completed runs, out of the expected number."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, max(1, total), progress
        if progress is not None:
            progress(0, self._total)

    def __call__(self) -> None:
        """Count a run. Runs beyond the expected number, as repeated ones, are not reported."""
        self._done += 1
        if self._progress is not None and self._done <= self._total:
            self._progress(self._done, self._total)


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The result of a calibration. ``noisy`` is the error to raise on a noisy machine, None on a quiet one."""

    workload: Workload
    profile: HardwareProfile
    #: The range of the measured workspaces, as a share of the peak.
    workspace_residual: float
    noisy: Noisy | None
    #: The parts of a calibration that were left out, and why. The basis of each time has the same text.
    left_out: tuple[str, ...] = ()
    #: The exception that ended the measurement before its last round, such as KeyboardInterrupt.
    ended_by: BaseException | None = None

    def propose_budget(self) -> int:
        """Return a local budget in bytes, of two digits: enough for all caches and a tenth of base's tapes."""
        workload = self.workload
        per_step = workload.resident_bytes_per_step + workload.cache_bytes
        resident = workload.resident_bytes + workload.steps * per_step
        resident += workload.workspace_bytes + workload.chunk_workspace_bytes
        tapes = max(0.1 * workload.steps, 4.0) * (workload.tape_bytes + workload.state_bytes)
        return int(float(f"{1.05 * (resident + tapes):.1e}"))

    def explain_uncertainty(self, *, tolerance: float, budget: int) -> str | None:
        """Return the effect of uncertain times on a plan in words, None if they are within the tolerance."""
        calibration = self.workload.calibration
        share = 0.0 if calibration is None else calibration.uncertainty
        if share <= tolerance and self.noisy is None:
            return None
        plan = optimize(self.workload, self.profile, local_bytes=budget)
        interval = next((entry.text for entry in plan.estimate_basis if entry.field == INTERVAL), "")
        return (
            f"times of steps are only known to within {format_share(share)}, as rounds, or chunks of several "
            f"sizes, differ; a plan for {format_bytes(budget)} takes {interval}"
        )


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
    interval. Messages are fitted over several numbers of states. If Ctrl-C, or a signal that the caller turns
    into an exception, ends the measurement after three or more rounds, the result is based on these rounds.

    Arguments:
        spec: the cell and its sizes.
        batch: the number of samples.
        steps: T of the workload.
        name: the name of the workload.
        profile_name: the name of the profile.
        device: 'cpu' or 'cuda'.
        thread_count: the number of threads; None keeps it.
        tape: the kind of tapes of a cell of JAX (docs/jax.md); None is 'residuals'.
        remote_dir: the folder that is measured as remote memory, in place of host memory. States are written
            and read as ``offload=`` does. All times are wall time, since processor time leaves out a disk.
        repeats: the number of rounds.
        tolerance: if a time of a step spreads over the rounds by more than half of this share, the result is
            ``noisy``, and its intervals are wide.
        seed: the seed of weights and data.
        quick: whether to measure in a few seconds: three rounds of a few short schedules. Their times are
            known to 10 % at best. The result is never ``noisy``.
        max_seconds: the longest time that all runs may take, as estimated from a few steps; None for no limit.
        announce: called with lines that say how long the measurement takes.
        keep: called with the workload that `count_sizes` would return, as soon as sizes are counted.
        progress: called with the number of runs done and the number of all runs.

    Raises InputError, also before anything is measured if it would take longer than ``max_seconds``.
    """
    backend = open_backend(spec, device=device, thread_count=thread_count, tape=tape, remote_dir=remote_dir)
    rounds = LEAST_ROUNDS if quick else repeats
    measured: list[Round] = []
    ended_by: BaseException | None = None
    with backend.prepare():
        network = build_network(backend, spec, batch=batch, seed=seed, announce=announce)
        pace = backend.time_steps(network)
        bench = open_bench(backend, spec, network, pace, is_quick=quick, states=steps)
        _check_seconds(
            bench,
            rounds,
            max_seconds=max_seconds,
            quick=None if quick else open_bench(backend, spec, network, pace, is_quick=True, states=steps),
        )
        _say(announce, bench.describe(rounds))
        counter = RunCounter(bench.size_runs + 1 + rounds * bench.round_runs, progress)
        sizes = bench.count_sizes(counter)
        make = partial(make_counted, spec, batch=batch, steps=steps, name=name)
        if keep is not None:
            keep(make(sizes))
        roofline = bench.roofline()
        try:
            runs = bench.start()
            counter()
            for reports in measure_rounds(runs, rounds=rounds, count=counter):
                measured.append(bench.read(reports))
        except Exception:
            raise
        except BaseException as end:
            # Ctrl-C, or an exception that the caller raises on a signal.
            if len(measured) < LEAST_ROUNDS:
                raise
            ended_by = end
        environment = backend.environment
    sizes = bench.complete(sizes)
    fit = Fit(measured)
    times, left_out = fit.times, list[str]()
    if quick:
        low, high = 1 - _QUICK_UNCERTAINTY, 1 + _QUICK_UNCERTAINTY
        times = {field: time.widened(low, high) for field, time in times.items()}
        left_out.append(f"quick: {len(measured)} rounds of few sizes")
    if ended_by is not None and len(measured) < rounds:
        left_out.append(f"interrupted after {len(measured)} of {rounds} rounds")
    cell = MeasuredCell(
        counted=make(sizes),
        seed=seed,
        environment=environment,
        sizes=sizes,
        times=times,
        roofline=roofline,
        rounds=len(measured),
        ways=bench.ways,
        left_out=left_out,
    )
    profile = cell.make_profile(profile_name)
    uncounted = (roofline.why,) if roofline is not None and roofline.operations is None else ()
    field, spread = fit.widest
    # A quick calibration is never noisy, since its uncertainty is large anyway.
    is_noisy = spread > tolerance / 2 and not quick
    return Calibrated(
        workload=cell.make_workload(profile),
        profile=profile,
        workspace_residual=sizes.residual,
        noisy=Noisy(field=field, spread=spread, most=tolerance / 2) if is_noisy else None,
        left_out=(*left_out, *uncounted),
        ended_by=ended_by,
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

    Such a workload shows which plans fit, and suits plans for the least memory. Its times are ``times``, or the
    least of a few short runs, on one thread if that is quicker and ``thread_count`` is None. `validate` does
    not compare these times with measurements. A cell of JAX does not run: bytes come from shapes, and times
    from operations.

    The arguments are those of ``calibrate``, and ``times`` by field of a workload; times that are not given
    follow from ``forward_seconds``. Raises InputError.
    """
    given_times = complete_times(times) if times else None
    backend = open_backend(spec, device=device, thread_count=thread_count, tape=tape)
    with backend.prepare():
        network = build_network(backend, spec, batch=batch, seed=seed, announce=announce)
        # A cell of JAX does not run here, so its pace is not needed.
        pace = Pace(step_seconds=1.0)
        if spec.runtime == "torch":
            if thread_count is None:
                backend.choose_threads(network)
            pace = backend.time_steps(network)
        bench = open_bench(backend, spec, network, pace)
        _check_seconds(bench, 0, max_seconds=max_seconds)
        _say(announce, bench.describe(0))
        sizes = bench.count_sizes(RunCounter(bench.size_runs, progress))
    return make_counted(spec, sizes, given_times, batch=batch, steps=steps, name=name)


def _check_seconds(bench: Bench, rounds: int, *, max_seconds: float | None, quick: Bench | None = None) -> None:
    """Raise InputError, with suggestions, if a bench takes longer than ``max_seconds``."""
    limit, seconds = inf if max_seconds is None else max_seconds, bench.seconds(rounds)
    if seconds <= limit:
        return
    fewer = [number for number in range(LEAST_ROUNDS, rounds) if bench.seconds(number) <= limit]
    ways = [f"{Argument('repeats', fewer[-1])}"] if fewer else []
    if quick is not None and quick.seconds(LEAST_ROUNDS) <= limit:
        ways.append(f"{Argument('quick', True)} ({format_wait(quick.seconds(LEAST_ROUNDS))})")
    if rounds and bench.size_seconds <= limit:
        ways.append(f"sizes without times ({Argument('bytes_only', True)})")
    ways += ["a smaller batch or fewer neurons", str(Argument("max_seconds", _round_up(_SPARE * seconds)))]
    raise InputError(
        f"measuring this cell takes {bench.describe(rounds)}; the limit is {limit:g} s",
        field="max_seconds",
        value=max_seconds,
        accepted=f"{', '.join(ways[:-1])} or {ways[-1]}",
    )


def _round_up(seconds: float) -> int:
    """Round seconds up to a whole number, above 20 to a multiple of ten."""
    unit = 10 if seconds > 20 else 1
    return unit * (int(seconds // unit) + 1)


def _say(announce: Announce | None, text: str) -> None:
    if announce is not None:
        announce(text)
