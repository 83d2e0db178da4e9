"""Predicted against measured, on plans that calibration did not see: python -m benchmarks.accuracy.

For each network: a fresh calibration, then the best plan of every strategy that is searched by default and fits
within several budgets and for several lengths; none is left out (``--strategies all`` adds the others). All
plans of a budget run in turn, for several rounds; times are medians. Then come peers: torch.utils.checkpoint,
chunked and nested, predicted by the same simulator. All runs use one thread. The whole is done twice, with
calibrations of their own.

The pace of a shared machine changes by tens of percent within minutes. So a reference, plain backpropagation
of 64 steps of the same network, runs throughout the calibration, and before and after each run of a plan, whose
time is divided by the pace of the reference relative to that of the calibration. The results have both times.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.accuracy_peers import peers
from benchmarks.accuracy_plans import (
    BATCH,
    BUDGETS,
    CALIBRATION_ROUNDS,
    LENGTHS,
    REFERENCE_STEPS,
    ROUNDS,
    Point,
    find_candidates,
    list_parameters,
    run_in_turn,
)
from benchmarks.accuracy_report import points_table, section, summarise
from benchmarks.harness import DOCS, put_section, read, write
from ckptplan import Plan
from ckptplan.calibration.calibrate import Calibrated, calibrate
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.fit import Sample
from ckptplan.calibration.torch_backend import TorchBackend
from ckptplan.calibration.torch_backend.cells import MeasuredNetwork, build_network
from ckptplan.calibration.torch_backend.runs import TorchProgram
from ckptplan.planning.playback import make_schedule

#: Networks, with 64 inputs as in docs/measured.md.
CELLS = ("gru(inputs=64, neurons=256)", "lif(inputs=64, neurons=256)", "lstm(inputs=64, neurons=128)")
RUNS = 2


class Reference:
    """Measures the pace of the machine by runs of a fixed schedule."""

    def __init__(self, network: MeasuredNetwork) -> None:
        self._program = TorchProgram(network, make_schedule("base", steps=REFERENCE_STEPS))
        self._calibrated: list[float] = []

    def measure(self) -> float:
        """Return the seconds of a run."""
        return self._program.seconds()

    def add(self, *_: object) -> None:
        """Measure during the calibration."""
        self._calibrated.append(self.measure())

    def pace(self, *seconds: float) -> float:
        """Return how much longer than during the calibration the reference took."""
        return statistics.mean(seconds) / statistics.median(self._calibrated)


def points_of(cell: str, strategies: str | None, counted: Counted) -> tuple[Calibrated, list[Point]]:
    """Calibrate a cell, then run plans for it."""
    spec = CellSpec.parse(cell)
    network = build_network(spec, batch=BATCH, device="cpu", seed=0)
    reference = Reference(network)
    reference.measure()
    found = calibrate(
        spec,
        batch=BATCH,
        steps=LENGTHS[0],
        repeats=CALIBRATION_ROUNDS,
        thread_count=1,
        max_seconds=None,
        progress=reference.add,
    )
    points: list[Point] = []
    with TorchBackend(thread_count=1).prepare():
        for steps in LENGTHS:
            for share in BUDGETS:
                asked = Decision(found, network, reference, steps=steps, share=share, strategies=strategies)
                points += asked.points(counted)
                told = f"{cell}, T = {steps:,}, budget {share:.0%}: {len(points)} plans so far"
                print(told, file=sys.stderr, flush=True)
    return found, points


class Decision:
    """The plans that could have been chosen for a budget, and base."""

    def __init__(
        self,
        found: Calibrated,
        network: MeasuredNetwork,
        reference: Reference,
        *,
        steps: int,
        share: float,
        strategies: str | None,
    ) -> None:
        self.network, self.reference, self.steps = network, reference, steps
        self.candidates = find_candidates(found, steps=steps, share=share, strategies=strategies)
        self.inputs = network.inputs(steps)

    def points(self, counted: Counted) -> Iterator[Point]:
        """Run all plans in turn, and yield each; ``counted`` keeps what was counted of earlier plans."""
        groups = self.candidates.groups
        jobs = [TorchProgram(self.network, plan, inputs=self.inputs).seconds for plan, *_ in groups]
        taken = run_in_turn(jobs, reference=self.reference.measure, rounds=ROUNDS)
        for (plan, *same), times in zip(groups, taken, strict=True):
            paced = (seconds / self.reference.pace(before, after) for before, seconds, after in times)
            sample = Sample(values=tuple(paced))
            size, equal = counted.count(plan, self.network, self.inputs)
            yield Point(
                cell=str(plan.workload.cell),
                steps=self.steps,
                budget_bytes=self.candidates.budget,
                strategy=plan.strategy,
                same=tuple(one.strategy for one in same),
                parameters=list_parameters(plan),
                chosen=plan is self.candidates.chosen,
                predicted_seconds=plan.predicted.seconds,
                measured_seconds=sample.median,
                spread=sample.spread,
                raw_seconds=statistics.median(seconds for _, seconds, _ in times),
                predicted_bytes=plan.predicted.local_peak_bytes,
                measured_bytes=size,
                counted_equal=equal,
            )


class Counted:
    """Live peaks of plans, and whether their counted bytes are those predicted; each plan is counted once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[int, bool]] = {}

    def count(self, plan: Plan, network: MeasuredNetwork, inputs: Any) -> tuple[int, bool]:
        """Return the live peak in bytes, and whether checkpoints and tapes are equal to the byte."""
        setting = (plan.strategy, tuple(plan.parameters.items()), plan.splits)
        key = (plan.workload.cell, plan.steps, *setting, plan.predicted.local_peak_bytes)
        if key not in self._known:
            peak = TorchProgram(network, plan, inputs=inputs).peak_bytes()
            self._known[key] = peak, counts_are_equal(plan, network, inputs)
        return self._known[key]


def counts_are_equal(plan: Plan, network: MeasuredNetwork, inputs: Any) -> bool:
    """Return whether checkpoints and tapes, counted in real storages, equal the prediction."""
    held = TorchProgram(network, plan, inputs=inputs).counted()
    workload = plan.workload
    resident = workload.resident_bytes + workload.workspace_bytes
    resident += workload.resident_bytes_per_step * plan.steps
    predicted = plan.predicted
    return (held.local_bytes, held.remote_bytes) == (
        predicted.local_peak_bytes - resident,
        predicted.remote_peak_bytes,
    )


def measure_once(strategies: str | None, counted: Counted) -> dict[str, Any]:
    """Calibrate all networks, and run the plans of each and the peers."""
    calibrations: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    for cell in CELLS:
        found, measured = points_of(cell, strategies, counted)
        calibrations.append(found.workload.model_dump(mode="json"))
        points += [asdict(point) for point in measured]
    results = {"calibrations": calibrations, "points": points, "peers": peers()}
    return {**results, "summary": summarise(results)}


def main() -> None:
    """Measure, and print and write the section of docs/accuracy.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="how often all is measured")
    parser.add_argument("--strategies", help="'all' for those that are not searched by default, too")
    parser.add_argument(
        "--show", action="store_true", help="print every plan of the last runs, measure nothing"
    )
    wanted = parser.parse_args()
    if wanted.show:
        print("\n\n".join(points_table(one["points"]) for one in read("accuracy")))
        return
    torch.set_num_threads(1)
    counted = Counted()
    results = [measure_once(wanted.strategies, counted) for _ in range(wanted.runs)]
    print(section(results))
    write("accuracy", results)
    put_section(DOCS / "accuracy.md", "accuracy", section(results))


if __name__ == "__main__":
    main()
