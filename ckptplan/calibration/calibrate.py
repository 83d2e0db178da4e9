"""Measures a cell on a machine, and returns a workload and a profile with their basis."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ckptplan.calibration.backend import Announce, Backend
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.fit import Fit
from ckptplan.calibration.host import set_threads
from ckptplan.calibration.measuring import LEAST_ROUNDS, Measuring
from ckptplan.calibration.workloads import make_calibration, make_counted, make_measured, make_profile
from ckptplan.cost.roofline import complete_times
from ckptplan.errors import CkptplanError
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress
from ckptplan.model.workload import Workload
from ckptplan.storage.remote_folder import make_parent
from ckptplan.units import format_share
from ckptplan.wording import Argument

#: Times of a quick calibration are not known better than this, whatever its rounds say.
_QUICK_UNCERTAINTY = 0.1


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


def _judge_noise(fit: Fit, *, tolerance: float) -> Noisy | None:
    """Return what is noisy: a time whose rounds spread by more than half of the tolerance, else None."""
    field, spread = fit.widest
    return Noisy(field=field, spread=spread, most=tolerance / 2) if spread > tolerance / 2 else None


def open_backend(
    spec: CellSpec,
    *,
    device: str = "cpu",
    thread_count: int | None = None,
    tape: str | None = None,
    remote_dir: str | os.PathLike[str] | None = None,
    states: int = 1,
) -> Backend:
    """Return what runs a cell. Raises InputError.

    Arguments:
        spec: the cell, whose name says the runtime.
        device: 'cpu' or 'cuda'; cells of JAX are measured on processors only.
        thread_count: the number of threads; None keeps it.
        tape: the kind of tapes in JAX (docs/jax.md); None is 'residuals', or that of a plan.
        remote_dir: the folder that is remote memory, which is made if it is missing; None for host memory.
        states: how many states may be in the folder at once.
    """
    folder = None if remote_dir is None else make_parent(remote_dir).resolve()
    if spec.runtime == "jax":
        # They are fixed when JAX is imported.
        threads = set_threads(thread_count)
        from ckptplan.calibration.jax_backend import JaxBackend

        return JaxBackend(threads=threads, tape=tape, remote_dir=folder, states=states)
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
            choose=lambda pilot: backend.choose(pilot, rounds=LEAST_ROUNDS if quick else repeats, quick=quick),
            max_seconds=max_seconds,
            announce=announce,
            progress=progress,
            tolerance=None if quick else tolerance,
        )
        sizes = measuring.count_sizes()
        if keep is not None:
            keep(make_counted(spec, sizes, batch=batch, steps=steps, name=name))
        roofline = backend.roofline(network, measuring.pilot)
        rounds = measuring.time_rounds(sizes)
        environment = backend.environment
    sizes = rounds.complete(sizes)
    fit = Fit(measuring.rounds)
    times = fit.times
    if quick or measuring.fewer_chunks:
        low, high = 1 - _QUICK_UNCERTAINTY, 1 + _QUICK_UNCERTAINTY
        times = {field: one.widened(low, high) for field, one in times.items()}
    calibration = make_calibration(environment, sizes, times, repeats=len(measuring.rounds), seed=seed)
    profile = make_profile(environment, sizes, times, calibration, roofline, name=profile_name)
    left_out = measuring.left_out
    if quick:
        left_out = (f"quick: {len(measuring.rounds)} rounds of few sizes", *left_out)
    workload = make_measured(
        spec,
        sizes,
        times,
        calibration,
        ways=rounds.explain(),
        profile=profile,
        roofline=roofline,
        left_out=left_out,
        batch=batch,
        steps=steps,
        name=name,
        remark=environment.remark,
    )
    uncounted = (roofline.why,) if roofline is not None and roofline.operations is None else ()
    return Calibrated(
        workload=workload,
        profile=profile,
        workspace_residual=sizes.residual,
        # A quick calibration promises little, and its uncertainty says how little.
        noisy=None if quick else _judge_noise(fit, tolerance=tolerance),
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

    Such a workload shows what fits and plans for the least memory. Its times are ``times``, or those of a few
    steps that were timed once; `validate` does not compare them with measurements. Of a cell of JAX, nothing
    runs: bytes come from shapes, and times from operations.

    The arguments are those of ``calibrate``, and ``times``: fields of a workload that are times; the others
    follow from ``forward_seconds``. Raises InputError.
    """
    given = complete_times(times) if times else None
    backend = open_backend(spec, device=device, thread_count=thread_count, tape=tape)
    with backend.prepare():
        sizes = Measuring(
            backend,
            backend.build(spec, batch=batch, seed=seed, announce=announce),
            choose=lambda pilot: backend.choose(pilot, rounds=0),
            max_seconds=max_seconds,
            announce=announce,
            progress=progress,
        ).count_sizes()
    return make_counted(spec, sizes, given, batch=batch, steps=steps, name=name)
