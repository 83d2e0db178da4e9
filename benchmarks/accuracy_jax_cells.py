"""Calibrates cells of JAX, and measures plans that the calibration did not see."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.accuracy_plans import (
    BATCH,
    BUDGETS,
    CALIBRATION_ROUNDS,
    LENGTHS,
    REFERENCE_STEPS,
    ROUNDS,
    Candidates,
    Point,
    find_candidates,
    list_parameters,
    run_in_turn,
)
from ckptplan import Plan
from ckptplan.calibration.calibrate import Calibrated, calibrate
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.compared import byte_rows
from ckptplan.calibration.fit import Sample
from ckptplan.calibration.jax_backend.cells import JaxNetwork, build_jax_network
from ckptplan.calibration.jax_backend.programs import CompiledLoop, compile_gradient, settle
from ckptplan.calibration.jax_backend.sizes import CompiledSizes, choose_sizes, count_sizes
from ckptplan.planning.playback import make_schedule

#: Cells and the kinds of their tapes; inputs and neurons are those of benchmarks/accuracy.py.
CELLS = (
    ("jax:gru(inputs=64, neurons=256)", "residuals"),
    ("jax:lif(inputs=64, neurons=256)", "residuals"),
    ("jax:lstm(inputs=64, neurons=128)", "residuals"),
    ("jax:lstm(inputs=64, neurons=128)", "products"),
)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a run took, in seconds; or how many times as long as another one."""

    processor: float
    wall: float

    def over(self, other: Taken) -> Taken:
        """Return this as a multiple of another one."""
        return Taken(processor=self.processor / other.processor, wall=self.wall / other.wall)


def measure(program: CompiledLoop) -> Taken:
    """Run a program, and return what it took.

    The process is at rest before: a thread of JAX gives the buffers of the program before back, and what starts
    at once takes longer for it (64 steps of a GRU after a program with 423 MiB: 62 ms, at rest 39 ms).
    """
    settle()
    wall, processor = time.perf_counter(), time.process_time()
    program.call()
    return Taken(processor=time.process_time() - processor, wall=time.perf_counter() - wall)


class Reference:
    """Measures the pace of the machine by runs of a fixed program, plain backpropagation of a few steps."""

    def __init__(self, network: JaxNetwork) -> None:
        plan = make_schedule("base", steps=REFERENCE_STEPS)
        self._program = compile_gradient(network, plan, steps=REFERENCE_STEPS)
        self._program.call()
        self._calibrated: list[Taken] = []

    def measure(self) -> Taken:
        """Return what a run takes."""
        return measure(self._program)

    def add(self, *_: object) -> None:
        """Measure during the calibration."""
        self._calibrated.append(self.measure())

    def pace(self, *taken: Taken) -> Taken:
        """Return how many times as long as during the calibration the reference took."""
        return _middle(statistics.mean, taken).over(_middle(statistics.median, self._calibrated))


def _middle(kind: Callable[[Iterable[float]], float], taken: Sequence[Taken]) -> Taken:
    return Taken(processor=kind(one.processor for one in taken), wall=kind(one.wall for one in taken))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is measured, and how often."""

    cells: tuple[tuple[str, str], ...] = CELLS
    lengths: tuple[int, ...] = LENGTHS
    calibration_rounds: int = CALIBRATION_ROUNDS
    rounds: int = ROUNDS
    quick: bool = False
    strategies: str | None = None

    @classmethod
    def small(cls, *, strategies: str | None) -> Setting:
        """Return a setting that shows in a minute whether everything runs; its times say little."""
        return cls(cells=CELLS[-1:], lengths=(96,), rounds=2, quick=True, strategies=strategies)


@dataclass(frozen=True, kw_only=True)
class JaxPoint(Point):
    """A plan, predicted and measured; seconds are processor time unless they are called wall time."""

    tape: str
    wall_seconds: float
    raw_wall_seconds: float
    #: Predicted and counted bytes by name.
    sizes: dict[str, tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class _Calibrated:
    """A calibrated cell."""

    label: str
    found: Calibrated
    network: JaxNetwork
    sizes: CompiledSizes
    reference: Reference


def measure_all(setting: Setting) -> dict[str, Any]:
    """Calibrate all cells, and run the plans of each."""
    calibrations: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    without: list[dict[str, Any]] = []
    for cell, tape in setting.cells:
        calibrated = _calibrate(cell, tape, setting)
        calibrations.append(calibrated.found.workload.model_dump(mode="json"))
        for candidates in _decide(calibrated, setting):
            points += [asdict(point) for point in _points(calibrated, candidates, rounds=setting.rounds)]
            place = {"cell": calibrated.label, "steps": candidates.chosen.steps, "budget": candidates.budget}
            without += [{**place, "strategy": name, "why": why} for name, why in candidates.without.items()]
            told = f"{calibrated.label}, T = {candidates.chosen.steps:,}: {len(points)} plans so far"
            print(told, file=sys.stderr, flush=True)
    return {"rounds": setting.rounds, "calibrations": calibrations, "points": points, "without": without}


def _calibrate(cell: str, tape: str, setting: Setting) -> _Calibrated:
    spec = CellSpec.parse(cell)
    network = build_jax_network(spec, batch=BATCH, seed=0)
    reference = Reference(network)
    found = calibrate(
        spec,
        batch=BATCH,
        steps=setting.lengths[0],
        thread_count=1,
        tape=tape,
        repeats=setting.calibration_rounds,
        quick=setting.quick,
        progress=reference.add,
    )
    return _Calibrated(
        label=f"{cell.partition('(')[0]}, {tape}",
        found=found,
        network=network,
        sizes=choose_sizes(count_sizes(network), tape=tape),
        reference=reference,
    )


def _decide(calibrated: _Calibrated, setting: Setting) -> Iterator[Candidates]:
    for steps in setting.lengths:
        for share in BUDGETS:
            yield find_candidates(calibrated.found, steps=steps, share=share, strategies=setting.strategies)


def _points(calibrated: _Calibrated, candidates: Candidates, *, rounds: int) -> Iterator[JaxPoint]:
    """Compile the plans of a budget, run them in turn, and yield each."""
    plans = [plan for plan, *_ in candidates.groups]
    programs = [compile_gradient(calibrated.network, plan, steps=plan.steps) for plan in plans]
    with _without_old_objects():
        jobs = [partial(measure, program) for program in programs]
        taken = run_in_turn(jobs, reference=calibrated.reference.measure, rounds=rounds)
    for (plan, *same), program, times in zip(candidates.groups, programs, taken, strict=True):
        yield _point(calibrated, plan, same, program, times, candidates=candidates)


def _point(
    calibrated: _Calibrated,
    plan: Plan,
    same: list[Plan],
    program: CompiledLoop,
    times: list[tuple[Taken, Taken, Taken]],
    *,
    candidates: Candidates,
) -> JaxPoint:
    pace = calibrated.reference.pace
    paced = [taken.over(pace(before, after)) for before, taken, after in times]
    sample = Sample(values=tuple(one.processor for one in paced))
    sizes = _compare_bytes(plan, calibrated.sizes)
    return JaxPoint(
        cell=calibrated.label,
        tape=calibrated.sizes.tape,
        steps=plan.steps,
        budget_bytes=candidates.budget,
        strategy=plan.strategy,
        same=tuple(one.strategy for one in same),
        parameters=list_parameters(plan),
        chosen=plan is candidates.chosen,
        predicted_seconds=plan.predicted.seconds,
        measured_seconds=sample.median,
        spread=sample.spread,
        raw_seconds=statistics.median(taken.processor for _, taken, _ in times),
        wall_seconds=statistics.median(one.wall for one in paced),
        raw_wall_seconds=statistics.median(taken.wall for _, taken, _ in times),
        predicted_bytes=plan.predicted.local_peak_bytes,
        measured_bytes=program.memory_bytes,
        sizes=sizes,
        counted_equal=all(predicted == counted for predicted, counted in sizes.values()),
    )


def _compare_bytes(plan: Plan, sizes: CompiledSizes) -> dict[str, tuple[int, int]]:
    """Return predicted and counted bytes of a state, a tape, the buffers and what is remote."""
    rows = byte_rows(plan, sizes.kept(plan), peak_bytes=0, memory_tolerance=0.0)
    found = {row.quantity: (int(row.predicted or 0), int(row.measured)) for row in rows}
    del found["local peak"]
    return {"tape": (plan.workload.tape_bytes, sizes.tape_bytes), **found}


@contextmanager
def _without_old_objects() -> Iterator[None]:
    """Exclude existing objects from garbage collection, which callbacks may start in the middle of a run."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
