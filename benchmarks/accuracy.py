"""Predicted against measured, on plans that calibration did not see: python -m benchmarks.accuracy [jax].

For each network: a fresh calibration, then the best plan of every strategy that is searched by default and fits
within several budgets and for several lengths; none is left out (``--strategies all`` adds the others). All
plans of a budget run in turn, for several rounds; times are medians. All runs use one thread. Each runtime
takes about ten minutes on an idle machine.

The pace of a shared machine changes by tens of percent within minutes. So a reference, plain backpropagation
of 64 steps of the same network, runs throughout the calibration, and before and after each run of a plan, whose
time is divided by the pace of the reference relative to that of the calibration. The results have both times.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ckptplan
from benchmarks.accuracy_report import points_table, section, summarise
from benchmarks.harness import DOCS, Setting, put_section, read, write
from ckptplan import Plan
from ckptplan.calibration.backend import Backend, Program
from ckptplan.calibration.calibrate import calibrate, open_backend
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.estimate import Estimate
from ckptplan.calibration.validation import Verdict, byte_rows
from ckptplan.planning.playback import group_same_schedules, make_schedule

#: Networks and, in JAX, the kinds of their tapes; 64 inputs as in docs/measured.md.
CELLS: dict[str, tuple[tuple[str, str | None], ...]] = {
    "torch": (
        ("gru(inputs={i}, neurons={n})", None),
        ("lif(inputs={i}, neurons={n})", None),
        ("lstm(inputs={i}, neurons={h})", None),
    ),
    "jax": (
        ("jax:gru(inputs={i}, neurons={n})", "residuals"),
        ("jax:lif(inputs={i}, neurons={n})", "residuals"),
        ("jax:lstm(inputs={i}, neurons={h})", "residuals"),
        ("jax:lstm(inputs={i}, neurons={h})", "products"),
    ),
}
NAMES = {"torch": "accuracy", "jax": "accuracy_jax"}
#: Budgets as shares of the checkpoints and tapes of base, without the resident bytes.
BUDGETS = (0.1, 0.3)
#: Steps of the reference.
REFERENCE_STEPS = 64


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
    #: At the pace of the calibration.
    measured_seconds: float
    #: Half the range between the quartiles of the rounds, as a share.
    spread: float
    #: At the pace that the machine had.
    raw_seconds: float
    predicted_bytes: int
    measured_bytes: int
    #: Whether checkpoints and tapes that were counted equal the prediction to the byte.
    counted_equal: bool


class Reference:
    """Measures the pace of the machine by runs of a fixed schedule."""

    def __init__(self, backend: Backend, network: Any) -> None:
        plan = make_schedule("base", steps=REFERENCE_STEPS)
        inputs = network.inputs(REFERENCE_STEPS)
        self.measure = backend.program(network, plan, inputs=inputs, steps=REFERENCE_STEPS).seconds
        self._calibrated: list[float] = []
        self.measure()

    def add(self, *_: object) -> None:
        """Measure during the calibration."""
        self._calibrated.append(self.measure())

    def pace(self, *seconds: float) -> float:
        """Return how much longer than during the calibration the reference took."""
        return statistics.mean(seconds) / statistics.median(self._calibrated)


class Measured:
    """A calibrated network, with the plans that were measured for it."""

    def __init__(self, cell: str, tape: str | None, *, setting: Setting) -> None:
        self.setting = setting
        self.label = cell if tape is None else f"{cell.partition('(')[0]}, {tape}"
        spec = CellSpec.parse(cell)
        self.backend = open_backend(spec, device=setting.device, thread_count=1, tape=tape)
        batch = setting.pick(4, 32, 256)
        self.network = self.backend.build(spec, batch=batch, seed=0)
        self.reference = Reference(self.backend, self.network)
        self.found = calibrate(
            spec,
            batch=batch,
            steps=setting.pick(48, 512, 512),
            device=setting.device,
            repeats=setting.pick(3, 5, 7),
            quick=setting.small,
            thread_count=1,
            tape=tape,
            max_seconds=None,
            progress=self.reference.add,
        )
        self.points: list[Point] = []
        self.without: list[dict[str, Any]] = []

    def measure(self, steps: int, share: float, strategies: str | None) -> None:
        """Run the best plan of each strategy for a share of what base keeps, and base, in turn."""
        workload = self.found.workload.with_steps(steps)
        resident = workload.resident_bytes + workload.resident_bytes_per_step * steps
        resident += workload.workspace_bytes + workload.chunk_workspace_bytes
        budget = resident + int(share * steps * workload.tape_bytes)
        compared = ckptplan.compare(workload, self.found.profile, strategies=strategies, local_bytes=budget)
        plans = [one for one in compared.values() if isinstance(one, Plan)]
        place = {"cell": self.label, "steps": steps, "budget": budget}
        self.without += [
            {**place, "strategy": name, "why": str(why)}
            for name, why in compared.items()
            if not isinstance(why, Plan)
        ]
        # Base fits none of the budgets: one run is enough.
        bases = (
            [ckptplan.optimize(workload, self.found.profile, strategies=["base"])]
            if share == BUDGETS[0]
            else []
        )
        groups = group_same_schedules([*plans, *bases])
        inputs = self.network.inputs(steps)
        programs = [self.backend.program(self.network, plan, inputs=inputs, steps=steps) for plan, *_ in groups]
        taken = self._run_in_turn([one.seconds for one in programs])
        for (plan, *same), program, times in zip(groups, programs, taken, strict=True):
            paced = [seconds / self.reference.pace(before, after) for before, seconds, after in times]
            sample = Estimate.of_ratios(paced)
            self.points.append(
                Point(
                    cell=self.label,
                    steps=steps,
                    budget_bytes=budget,
                    strategy=plan.strategy,
                    same=tuple(one.strategy for one in same),
                    parameters={
                        name: value for name, value in plan.parameters.items() if not name.endswith("units")
                    },
                    chosen=plan is plans[0],
                    predicted_seconds=plan.predicted.seconds,
                    measured_seconds=sample.value,
                    spread=sample.spread,
                    raw_seconds=statistics.median(seconds for _, seconds, _ in times),
                    predicted_bytes=plan.predicted.local_peak_bytes,
                    measured_bytes=program.peak_bytes(),
                    counted_equal=counts_are_equal(plan, program),
                )
            )
        told = f"{self.label}, T = {steps:,}, budget {share:.0%}: {len(self.points)} plans so far"
        print(told, file=sys.stderr, flush=True)

    def _run_in_turn(self, jobs: Sequence[Callable[[], float]]) -> list[list[tuple[float, float, float]]]:
        """Return, for each job and each round, its seconds between those of the reference.

        A round more comes first, which warms up.
        """
        found: list[list[tuple[float, float, float]]] = [[] for _ in jobs]
        gc.collect()
        gc.freeze()
        try:
            for number in range(self.setting.pick(1, 4, 2) + 1):
                before = self.reference.measure()
                for job, times in zip(jobs, found, strict=True):
                    taken = job()
                    after = self.reference.measure()
                    if number:
                        times.append((before, taken, after))
                    before = after
        finally:
            gc.unfreeze()
        return found


def counts_are_equal(plan: Plan, program: Program) -> bool:
    """Return whether checkpoints and tapes, counted in real storages, equal the prediction."""
    rows = byte_rows(plan, program.counted(), peak_bytes=0, memory_tolerance=0.0)
    counted = ("checkpoints and tapes", "remote peak")
    return all(row.verdict is Verdict.OK for row in rows if row.quantity in counted)


def measure_once(runtime: str, setting: Setting, strategies: str | None = None) -> dict[str, Any]:
    """Calibrate all networks, and run the plans of each."""
    results: dict[str, Any] = {"calibrations": [], "points": [], "without": []}
    sizes = setting.pick(
        {"i": 8, "n": 32, "h": 32}, {"i": 64, "n": 256, "h": 128}, {"i": 64, "n": 1024, "h": 1024}
    )
    cells = CELLS[runtime]
    for cell, tape in cells[: setting.pick(1, len(cells), len(cells))]:
        measured = Measured(cell.format(**sizes), tape, setting=setting)
        with measured.backend.prepare():
            for steps in setting.pick((64,), (512, 1280), (512, 1280)):
                for share in BUDGETS:
                    measured.measure(steps, share, strategies)
        results["calibrations"].append(measured.found.workload.model_dump(mode="json"))
        results["points"] += [asdict(point) for point in measured.points]
        results["without"] += measured.without
        results["summary"] = summarise(results)
        setting.save(results)
    return results


def run(setting: Setting) -> dict[str, Any]:
    """Measure once in PyTorch, on the device of the setting."""
    return measure_once("torch", setting)


def document(results: dict[str, Any]) -> str:
    """Return the tables of one run."""
    return section([results])


def main() -> None:
    """Measure, and print and write a section of docs/accuracy.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtime", nargs="?", choices=NAMES, default="torch")
    parser.add_argument("--strategies", help="'all' for those that are not searched by default, too")
    parser.add_argument(
        "--small", action="store_true", help="few short runs of one cell, which are only printed"
    )
    parser.add_argument("--show", action="store_true", help="print every plan of the last run, measure nothing")
    wanted = parser.parse_args()
    name = NAMES[wanted.runtime]
    if wanted.show:
        print("\n\n".join(points_table(one["points"]) for one in read(name)))
        return
    if wanted.runtime == "torch":
        import torch

        torch.set_num_threads(1)
    setting = Setting(small=wanted.small)
    results = [measure_once(wanted.runtime, setting, wanted.strategies)]
    print(section(results))
    if not wanted.small:
        write(name, results)
        put_section(DOCS / "accuracy.md", name, section(results))


if __name__ == "__main__":
    main()
