"""Predicted against measured, on plans that calibration did not see: python -m benchmarks.accuracy.

For each network: a fresh calibration, then the best plan of every strategy that is searched by default and fits
within several budgets and for several lengths; none is left out. All plans of a budget run in turn, for several
rounds; times are medians. All runs use one thread. It takes about ten minutes on an idle machine. ``--show``
prints every plan. ``benchmarks.accuracy_jax`` does the same in JAX.

The pace of a shared machine changes by tens of percent within minutes. So a reference, plain backpropagation
of 64 steps of the same network, runs throughout the calibration, and before and after each run of a plan, whose
time is divided by the pace of the reference relative to that of the calibration. The results have both times.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import ckptplan
from benchmarks.harness import DOCS, MIB, Setting, main, tabulate
from ckptplan import Plan, Workload
from ckptplan.calibration.calibrate import calibrate
from ckptplan.calibration.estimate import Estimate
from ckptplan.calibration.runtimes import build_network, open_backend
from ckptplan.calibration.validation import Verdict, byte_rows
from ckptplan.execution.backend import Program
from ckptplan.model.cell_spec import CellSpec
from ckptplan.planning.playback import group_same_schedules, make_schedule

#: Networks, without kinds of tapes; 64 inputs as in docs/measured.md.
CELLS = (
    ("gru(inputs={i}, neurons={n})", None),
    ("lif(inputs={i}, neurons={n})", None),
    ("lstm(inputs={i}, neurons={h})", None),
)
#: Budgets as shares of the checkpoints and tapes of base, without the resident bytes.
BUDGETS = (0.1, 0.3)
#: Steps of the reference.
REFERENCE_STEPS = 64
#: A plan is noisy if its rounds spread by this share or more, and calm otherwise.
NOISY = 0.05
#: The bounds of the project: the median and the worst error of a time and of a peak, the share of noisy plans.
TIME, PEAK, MOST_NOISY = (0.03, 0.10), (0.02, 0.05), 0.1
#: How much longer than the quickest plan measured the chosen one may take.
MOST_REGRET = 1.03
Line = dict[str, Any]


def find_pace(calibrated: Sequence[float], seconds: Sequence[float]) -> float:
    """Return how much longer than during the calibration the reference took.

    Its time there is estimated as the calibration estimates all times: its median would be longer, and so each
    plan seem slower than predicted, wherever other programs disturb some runs.
    """
    return statistics.mean(seconds) / Estimate.of(calibrated).value


def find_budget(workload: Workload, share: float) -> int:
    """Return the resident bytes of a workload, its workspace, and a share of the tapes of base."""
    resident = workload.resident_bytes + workload.resident_bytes_per_step * workload.steps
    resident += workload.workspace_bytes + workload.chunk_workspace_bytes
    return resident + int(share * workload.steps * workload.tape_bytes)


class Measured:
    """A calibrated network, with the plans that were measured for it."""

    def __init__(self, cell: str, tape: str | None, *, setting: Setting) -> None:
        self.setting = setting
        self.label = cell if tape is None else f"{cell.partition('(')[0]}, {tape}"
        spec = CellSpec.parse(cell)
        self.backend = open_backend(spec, device=setting.device, thread_count=1, tape=tape)
        batch = setting.pick(4, 32, 256)
        self.network = build_network(self.backend, spec, batch=batch, seed=0)
        #: Plain backpropagation, whose runs show the pace of the machine; its seconds during the calibration.
        self.reference = self.backend.program(
            self.network,
            make_schedule("base", steps=REFERENCE_STEPS),
            inputs=self.network.inputs(REFERENCE_STEPS),
            steps=REFERENCE_STEPS,
        )
        self.reference.time()
        self.calibrated: list[float] = []
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
            progress=lambda *_: self.calibrated.append(self.reference.time().seconds),
        )
        self.points: list[Line] = []
        self.without: list[dict[str, Any]] = []

    def measure(self, steps: int, share: float) -> None:
        """Run the best plan of each strategy for a share of what base keeps, and base, in turn."""
        workload = self.found.workload.with_steps(steps)
        budget = find_budget(workload, share)
        compared = ckptplan.compare(workload, self.found.profile, local_bytes=budget)
        plans = [one for one in compared.values() if isinstance(one, Plan)]
        place = {"cell": self.label, "steps": steps}
        self.without += [
            {**place, "budget": budget, "strategy": name, "why": str(why)}
            for name, why in compared.items()
            if not isinstance(why, Plan)
        ]
        chosen = plans[0]
        if share == BUDGETS[0]:
            # Base fits none of the budgets: one run is enough.
            plans.append(ckptplan.optimize(workload, self.found.profile, strategies=["base"]))
        groups = group_same_schedules(plans)
        inputs = self.network.inputs(steps)
        programs = [self.backend.program(self.network, plan, inputs=inputs, steps=steps) for plan, *_ in groups]
        taken = self._run_in_turn(programs)
        for (plan, *same), program, times in zip(groups, programs, taken, strict=True):
            paced = [seconds / find_pace(self.calibrated, (before, after)) for before, seconds, after in times]
            sample = Estimate.of_ratios(paced)
            self.points.append(
                {
                    **place,
                    "budget_bytes": budget,
                    "strategy": plan.strategy,
                    # Strategies whose best plan has the same schedule.
                    "same": [one.strategy for one in same],
                    "parameters": {
                        name: value for name, value in plan.parameters.items() if not name.endswith("units")
                    },
                    "chosen": plan is chosen,
                    "predicted_seconds": plan.predicted.seconds,
                    # At the pace of the calibration; half the range between the quartiles, as a share.
                    "measured_seconds": sample.value,
                    "spread": sample.spread,
                    # At the pace that the machine had.
                    "raw_seconds": statistics.median(seconds for _, seconds, _ in times),
                    "predicted_bytes": plan.predicted.local_peak_bytes,
                    "measured_bytes": program.peak_bytes(),
                    "counted_equal": counts_are_equal(plan, program),
                }
            )
        told = f"{self.label}, T = {steps:,}, budget {share:.0%}: {len(self.points)} plans so far"
        print(told, file=sys.stderr, flush=True)

    def _run_in_turn(self, programs: Sequence[Program]) -> list[list[tuple[float, float, float]]]:
        """Return, for each program and each round, its seconds between those of the reference.

        A round more comes first, which warms up.
        """
        found: list[list[tuple[float, float, float]]] = [[] for _ in programs]
        gc.collect()
        gc.freeze()
        try:
            for number in range(self.setting.pick(1, 4, 2) + 1):
                before = self.reference.time().seconds
                for program, times in zip(programs, found, strict=True):
                    taken = program.time().seconds
                    after = self.reference.time().seconds
                    if number:
                        times.append((before, taken, after))
                    before = after
        finally:
            gc.unfreeze()
        return found


def counts_are_equal(plan: Plan, program: Program) -> bool:
    """Return whether checkpoints and tapes, counted in real storages, equal the prediction."""
    rows = byte_rows(plan, program.count(), peak_bytes=0, memory_tolerance=0.0)
    counted = ("checkpoints and tapes", "remote peak")
    return all(row.verdict is Verdict.OK for row in rows if row.quantity in counted)


def run(setting: Setting, cells: Iterable[tuple[str, str | None]] = CELLS) -> dict[str, Any]:
    """Calibrate all networks, and run the plans of each."""
    results: dict[str, Any] = {"calibrations": [], "points": [], "without": []}
    sizes = setting.pick(
        {"i": 8, "n": 32, "h": 32}, {"i": 64, "n": 256, "h": 128}, {"i": 64, "n": 1024, "h": 1024}
    )
    for cell, tape in list(cells)[: setting.pick(1, None, None)]:
        measured = Measured(cell.format(**sizes), tape, setting=setting)
        with measured.backend.prepare():
            for steps in setting.pick((64,), (512, 1280), (512, 1280)):
                for share in BUDGETS:
                    measured.measure(steps, share)
        results["calibrations"].append(measured.found.workload.model_dump(mode="json"))
        results["points"] += measured.points
        results["without"] += measured.without
        results["summary"] = summarise(results["points"])
        setting.save(results)
    return results


def bias(line: Line, what: str) -> float:
    """Return predicted over measured, less one."""
    return float(line[f"predicted_{what}"] / line[f"measured_{what}"] - 1)


def errors_of(lines: list[Line], what: str) -> list[float]:
    """Return by how much predictions are off, as shares."""
    return [abs(bias(line, what)) for line in lines]


def summarise(points: list[Line]) -> list[Line]:
    """Return the targets, the values reached, and whether they are met."""
    calm = [one for one in points if one["spread"] < NOISY]
    regrets = [one["regret"] for one in decisions(points)]
    counted = "plans whose counted bytes of checkpoints and tapes are equal to the byte"
    reached: list[tuple[str, float, float]] = [
        *bound_errors("plans, peak", errors_of(points, "bytes"), PEAK),
        *(bound_errors("calm plans, time", errors_of(calm, "seconds"), TIME) if calm else ()),
        ("share of noisy plans", 1 - len(calm) / len(points), MOST_NOISY),
        (f"decision regret, the worst of {len(regrets)} decisions", max(regrets), MOST_REGRET),
    ]
    equal, count = sum(one["counted_equal"] for one in points), len(points)
    return [
        {"what": f"{counted}, of {count}", "bound": count, "reached": equal, "met": equal == count},
        *(
            {"what": what, "bound": bound, "reached": value, "met": value <= bound}
            for what, value, bound in reached
        ),
    ]


def bound_errors(
    name: str, errors: list[float], bounds: tuple[float, float]
) -> Iterable[tuple[str, float, float]]:
    """Yield the median and the worst error with their bounds."""
    yield f"{name}, median of {len(errors)}", statistics.median(errors), bounds[0]
    yield f"{name}, worst of {len(errors)}", max(errors), bounds[1]


def decisions(points: list[Line]) -> list[Line]:
    """Return the regret of the chosen plan for each budget; base fits none of the budgets."""
    groups: dict[tuple[str, int, int], list[Line]] = defaultdict(list)
    for one in points:
        groups[one["cell"], one["steps"], one["budget_bytes"]].append(one)
    found = []
    for (cell, _, budget), lines in groups.items():
        fitting = [one for one in lines if one["predicted_bytes"] <= budget]
        chosen = next(one for one in fitting if one["chosen"])
        best = min(float(one["measured_seconds"]) for one in fitting)
        found.append({"cell": cell, "regret": chosen["measured_seconds"] / best})
    return found


def document(results: dict[str, Any]) -> str:
    """Return a section of docs/accuracy.md: a row for each network, and all that is beyond its bound."""
    points = results["points"]
    beyond, regrets = beyond_list(points), defaultdict(list)
    for one in decisions(points):
        if one["regret"] > MOST_REGRET:
            regrets[_network(one)].append(f"{one['regret']:.3f}")
    worse = "; ".join(f"{network} {', '.join(found)}" for network, found in regrets.items())
    missed = [
        f"{one['what']}: {_reached_text(one)} ({_bound_text(one)})"
        for one in summarise(points)
        if not one["met"]
    ]
    parts = [
        _describe(results),
        families_table(points),
        f"Missed, bounds in brackets: {'; '.join(missed) or 'none'}.",
        f"Every row off by more than {TIME[1]:.0%} in time, or {PEAK[1]:.0%} where the peak is named:"
        + (f"\n\n{beyond}" if beyond else " none."),
        f"Every regret above {MOST_REGRET}: {worse or 'none'}.",
    ]
    return "\n\n".join(parts) + "\n"


def _bound_text(one: Line) -> str:
    bound = one["bound"]
    return f"{bound:.0%}" if isinstance(bound, float) and bound <= 1 else f"{bound}"


def _reached_text(one: Line) -> str:
    if isinstance(one["bound"], int):
        return f"{one['reached']}"
    return f"{one['reached']:.3f}" if one["bound"] > 1 else f"{one['reached']:.2%}"


def families_table(lines: list[Line]) -> str:
    """Return a row for all plans, and for those of each network."""
    groups = {"all plans": lines}
    for one in lines:
        groups.setdefault(_network(one), []).append(one)
    rows = [
        {
            "family": name,
            "noisy": f"{sum(one['spread'] >= NOISY for one in found)}/{len(found)}",
            "median": statistics.median(errors_of(found, "seconds")),
            **{what: max((bias(one, what) for one in found), key=abs) for what in ("seconds", "bytes")},
        }
        for name, found in groups.items()
    ]
    return tabulate(
        rows,
        ("family", "family"),
        ("noisy", "noisy"),
        ("time, median", "median", "{:.1%}"),
        ("worst", "seconds", "{:+.1%}"),
        ("peak, worst", "bytes", "{:+.1%}"),
    )


def beyond_list(lines: list[Line]) -> str:
    """Return every line whose time or peak is beyond its bound, noisy ones included, by family and place."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in lines:
        off = [
            f"{word}{bias(one, what):+.1%}"
            for word, what, bound in (("", "seconds", TIME[1]), ("peak ", "bytes", PEAK[1]))
            if abs(bias(one, what)) > bound
        ]
        if off:
            noisy = " (noisy)" if one["spread"] >= NOISY else ""
            # Base fits none of the budgets.
            budget = "" if one["strategy"] == "base" else f", {one['budget_bytes'] / MIB:.1f} MiB"
            place = f"{one['steps']:,} steps{budget}"
            found[f"{_network(one)}, `{one['strategy']}`"][place].append(f"{', '.join(off)}{noisy}")
    return "\n".join(
        f"- {family}: " + "; ".join(f"{place}: {', '.join(texts)}" for place, texts in places.items())
        for family, places in found.items()
    )


def _network(one: Line) -> str:
    return str(one["cell"].partition("(")[0])


def _describe(results: dict[str, Any]) -> str:
    first = results["calibrations"][0]
    found = first["calibration"]
    framework = f"JAX {found['jax']}" if found.get("jax") else f"PyTorch {found['torch']}"
    command = "python -m benchmarks.accuracy" + ("_jax" if found.get("jax") else "")
    without = sorted({one["strategy"] for one in results["without"]} - {"base"})
    missing = f" No plan fits some of the budgets: {', '.join(without)}." if without else ""
    return (
        f"`{command}` on {found['machine']}, one thread, {framework}, {found['date'][:10]}; batch "
        f"{first['batch']}, medians of {found['clock']}.{missing}"
    )


PAGES = {DOCS / "accuracy.md": document}

if __name__ == "__main__":
    main("accuracy", run, PAGES, about=__doc__)
