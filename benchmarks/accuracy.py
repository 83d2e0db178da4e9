"""Predicted against measured, on plans that calibration did not see: python -m benchmarks.accuracy.

For each network: a fresh calibration, then the best plan of every strategy that fits within several budgets and
for several lengths; none is left out. All plans of a budget run in turn, for several rounds; times are medians.
Then come peers: torch.utils.checkpoint, chunked and nested, predicted by the same simulator. All runs use one
thread. The whole is done twice, with calibrations of their own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

import ckptplan
from benchmarks.accuracy_peers import peers
from benchmarks.accuracy_report import document, put_section, summary
from benchmarks.record import write
from ckptplan import Plan
from ckptplan.calibration import runs
from ckptplan.calibration.calibrate import Calibrated, calibrate
from ckptplan.calibration.cells import CellSpec, MeasuredNetwork, build_network
from ckptplan.calibration.machine import prepare_machine
from ckptplan.calibration.regret import drop_same_schedules
from ckptplan.calibration.samples import Sample

#: Networks and how they are calibrated; batch 32 and 64 inputs, as in docs/runtime.md.
CELLS = ("gru(inputs=64, neurons=256)", "lif(inputs=64, neurons=256)", "lstm(inputs=64, neurons=128)")
BATCH, LENGTHS = 32, (512, 1280)
#: Budgets as shares of the checkpoints and tapes of base, without the resident bytes.
BUDGETS = (0.1, 0.3)
CALIBRATION_ROUNDS, ROUNDS, RUNS = 7, 7, 2


@dataclass(frozen=True, kw_only=True)
class Point:
    """A plan, predicted and measured."""

    cell: str
    steps: int
    budget_bytes: int
    strategy: str
    #: Strategies whose best plan has the same schedule.
    same: tuple[str, ...]
    parameters: dict[str, int]
    chosen: bool
    predicted_seconds: float
    measured_seconds: float
    #: Half the range between the quartiles of the rounds, as a share.
    spread: float
    predicted_bytes: int
    measured_bytes: int
    counted_equal: bool


def points_of(cell: str) -> tuple[Calibrated, list[Point]]:
    """Calibrate a cell, then run plans for it."""
    spec = CellSpec.parse(cell)
    found = calibrate(spec, batch=BATCH, steps=LENGTHS[0], repeats=CALIBRATION_ROUNDS, thread_count=1)
    if found.noisy is not None:
        # Further measurements would mean nothing.
        raise found.noisy
    network = build_network(spec, batch=BATCH, device="cpu", seed=0)
    points: list[Point] = []
    with prepare_machine(threads=1):
        for steps in LENGTHS:
            for share in BUDGETS:
                points += decision(found, network, steps=steps, share=share)
                told = f"{cell}, T = {steps:,}, budget {share:.0%}: {len(points)} plans so far"
                print(told, file=sys.stderr, flush=True)
    return found, points


def decision(found: Calibrated, network: MeasuredNetwork, *, steps: int, share: float) -> Iterator[Point]:
    """Run the plans that could have been chosen for a budget, and base."""
    workload = found.workload.with_steps(steps)
    resident = workload.resident_bytes + workload.resident_bytes_per_step * steps + workload.workspace_bytes
    budget = resident + int(share * steps * workload.tape_bytes)
    chosen = ckptplan.optimize(workload, found.profile, local_bytes=budget)
    # Base fits none of the budgets: one run is enough.
    bases = [ckptplan.optimize(workload, found.profile, strategies=["base"])] if share == BUDGETS[0] else []
    candidates = ckptplan.compare(workload, found.profile, strategies="all", local_bytes=budget).values()
    plans = drop_same_schedules([chosen, *bases, *(one for one in candidates if isinstance(one, Plan))])
    inputs = network.inputs(steps)
    times: list[list[float]] = [[] for _ in plans]
    for number in range(ROUNDS + 1):
        for one, values in zip(plans, times, strict=True):
            seconds = runs.measure_seconds(network, inputs, plan=one.plan)
            if number:
                # The first round warms up.
                values.append(seconds)
    for one, values in zip(plans, times, strict=True):
        plan, sample = one.plan, Sample(values=tuple(values))
        yield Point(
            cell=str(found.workload.cell),
            steps=steps,
            budget_bytes=budget,
            strategy=plan.strategy,
            same=tuple(sorted(set(one.same) - {plan.strategy})),
            parameters={name: value for name, value in plan.parameters.items() if not name.endswith("units")},
            chosen=plan is chosen,
            predicted_seconds=plan.predicted.seconds,
            measured_seconds=sample.median,
            spread=sample.spread,
            predicted_bytes=plan.predicted.local_peak_bytes,
            measured_bytes=runs.measure_live_peak(network, inputs, plan=plan),
            counted_equal=counts_are_equal(plan, network, inputs),
        )


def counts_are_equal(plan: Plan, network: MeasuredNetwork, inputs: Any) -> bool:
    """Return whether checkpoints and tapes, counted in real storages, equal the prediction."""
    held = runs.measure_held(network, inputs, plan=plan)
    workload = plan.workload
    resident = workload.resident_bytes + workload.workspace_bytes
    resident += workload.resident_bytes_per_step * plan.steps
    predicted = plan.predicted
    return (held.local_bytes, held.remote_bytes) == (
        predicted.local_peak_bytes - resident,
        predicted.remote_peak_bytes,
    )


def measure_once() -> dict[str, Any]:
    """Calibrate all networks, and run the plans of each and the peers."""
    calibrations: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    for cell in CELLS:
        found, measured = points_of(cell)
        calibrations.append(found.workload.model_dump(mode="json"))
        points += [asdict(point) for point in measured]
    results = {"calibrations": calibrations, "points": points, "peers": peers()}
    return {**results, "summary": summary(results)}


def main() -> None:
    """Measure, print the tables and write them into docs/accuracy.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="how often all is measured")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    results = [measure_once() for _ in range(wanted.runs)]
    print(document(results))
    write("accuracy", results)
    put_section("accuracy", document(results))


if __name__ == "__main__":
    main()
