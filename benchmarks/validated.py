"""Predicted against measured: calibrates networks, plans, and validates plans with the regret.

Run: python -m benchmarks.validated
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch

import ckptplan
from benchmarks.harness import MIB, Setting, main, show, table
from ckptplan.calibration.calibrate import Calibrated, calibrate
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.validate import validate
from ckptplan.calibration.validation import Validation

NETWORKS = {
    "gru": "gru(inputs={i}, neurons={n})",
    "lif": "lif(inputs={i}, neurons={n})",
    "lstm": "lstm(inputs={i}, neurons={n})",
    "snntorch": "benchmarks.validated:make_snntorch(inputs={i}, neurons={n})",
}
#: Budgets as shares of the checkpoints and tapes of base, without the resident bytes.
BUDGETS = (0.1, 0.3)
#: The median and the worst error, as on a CPU (docs/accuracy.md); and the regret.
PEAK_BOUNDS, TIME_BOUNDS, REGRET_BOUND = (0.02, 0.05), (0.03, 0.10), 1.03


class TwoLayers(torch.nn.Module):
    """Two layers of snnTorch's Leaky neurons; the state is the membranes of both."""

    def __init__(self, inputs: int, neurons: int) -> None:
        super().__init__()
        import snntorch  # type: ignore[import-untyped]

        self.first, self.second = torch.nn.Linear(inputs, neurons), torch.nn.Linear(neurons, neurons)
        self.low, self.high = snntorch.Leaky(beta=0.9), snntorch.Leaky(beta=0.9)

    def forward(self, state: Any, x: torch.Tensor) -> Any:
        """Run a step."""
        low, high = state
        spikes, low = self.low(self.first(x), low)
        spikes, high = self.high(self.second(spikes), high)
        return (low, high), spikes


def make_snntorch(*, batch: int, inputs: int, neurons: int, device: str) -> tuple[Any, Any]:
    """Return a network of snnTorch and its initial state."""
    zeros = torch.zeros(batch, neurons, device=device)
    return TwoLayers(inputs, neurons).to(device), (zeros, zeros.clone())


def run(setting: Setting) -> dict[str, Any]:
    """Validate plans of each network."""
    found: dict[str, Any] = {"networks": []}
    for name in setting.pick(("gru",), tuple(NETWORKS), tuple(NETWORKS)):
        one = setting.attempt(name, partial(validate_network, name, setting))
        found["networks"].append({"network": name, **one})
        found["summary"] = summarize(found["networks"])
        setting.save(found)
    return found


def validate_network(name: str, setting: Setting) -> dict[str, Any]:
    """Calibrate a network, and validate its best plan for each budget."""
    sizes = setting.pick({"i": 8, "n": 32}, {"i": 64, "n": 256}, {"i": 64, "n": 1024})
    steps = setting.pick(48, 512, 512)
    calibrated = calibrate(
        CellSpec.parse(NETWORKS[name].format(**sizes)),
        batch=setting.pick(4, 32, 256),
        steps=steps,
        device=setting.device,
        quick=setting.small,
        thread_count=torch.get_num_threads(),
        max_seconds=setting.pick(None, None, 30),
    )
    return {
        "workload": calibrated.workload.model_dump(mode="json", exclude_none=True),
        "left_out": calibrated.left_out,
        "plans": [
            validate_plan(calibrated, share, setting) for share in setting.pick((0.3,), BUDGETS, BUDGETS)
        ],
    }


def validate_plan(calibrated: Calibrated, share: float, setting: Setting) -> dict[str, Any]:
    """Make the best plan for a budget, execute it and its rivals, and return all that was compared."""
    workload = calibrated.workload
    resident = workload.resident_bytes + workload.resident_bytes_per_step * workload.steps
    budget = resident + workload.workspace_bytes + int(share * workload.steps * workload.tape_bytes)
    plan = ckptplan.optimize(workload, calibrated.profile, local_bytes=budget)
    found = validate(plan, trust_cell=True, repeats=setting.pick(2, 3, 3), regret=True)
    return {
        "budget_share": share,
        "strategy": plan.strategy,
        "parameters": dict(plan.parameters),
        "rows": [
            {
                "quantity": row.quantity,
                "unit": row.unit,
                "predicted": row.predicted,
                "measured": row.measured,
                "verdict": str(row.verdict),
            }
            for row in found.rows
        ],
        "regret": None if found.regret is None else found.regret.ratio,
        "plans": _list_contenders(found),
        "notes": found.notes,
    }


def _list_contenders(found: Validation) -> list[dict[str, Any]]:
    contenders = () if found.regret is None else found.regret.contenders
    return [
        {"strategy": one.strategy, "predicted": one.predicted_seconds, "measured": one.seconds.median}
        for one in contenders
    ]


def summarize(networks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the bounds and the values reached, over all plans of networks that were measured."""
    plans = [plan for one in networks for plan in one.get("plans", ())]
    if not plans:
        return []
    peaks = [_find_error(plan, "local peak") for plan in plans]
    times = [_find_error(plan, "total") for plan in plans]
    others = [abs(one["predicted"] / one["measured"] - 1) for plan in plans for one in plan["plans"]]
    regrets = [plan["regret"] for plan in plans if plan["regret"] is not None]
    return [
        *_judge("peak of the chosen plans", peaks, PEAK_BOUNDS),
        *_judge("time of the chosen plans", times, TIME_BOUNDS),
        *_judge("time of all plans that ran", others, TIME_BOUNDS),
        {"what": "regret, worst", "number": len(regrets), "bound": REGRET_BOUND, "reached": max(regrets)},
    ]


def _find_error(plan: dict[str, Any], quantity: str) -> float:
    row = next(one for one in plan["rows"] if one["quantity"] == quantity)
    return float(abs(row["predicted"] / row["measured"] - 1))


def _judge(what: str, errors: list[float], bounds: tuple[float, float]) -> list[dict[str, Any]]:
    reached = (statistics.median(errors), max(errors))
    return [
        {"what": f"{what}, {name}", "number": len(errors), "bound": bound, "reached": one}
        for name, bound, one in zip(("median", "worst"), bounds, reached, strict=True)
    ]


def document(results: dict[str, Any]) -> str:
    """Return the tables of a page."""
    rows = [
        [one["what"], f"{one['number']}", _bound(one["bound"]), f"{_bound(one['reached'])}{_miss(one)}"]
        for one in results.get("summary", ())
    ]
    parts = [table(["what", "of", "bound", "reached"], rows)]
    rows = []
    for one in results["networks"]:
        if "plans" not in one:
            rows.append([one["network"], one["status"], *[""] * 8])
        for plan in one.get("plans", ()):
            by_name = {row["quantity"]: row for row in plan["rows"]}
            rows.append(
                [
                    one["network"],
                    f"{plan['budget_share']:.0%}",
                    plan["strategy"],
                    *_compared(by_name.get("total"), "{:.3f} s", 1),
                    *_compared(by_name.get("local peak"), "{:.1f} MiB", 1 / MIB),
                    show(plan["regret"], ".3f"),
                ]
            )
    head = ["network", "budget", "chosen", "time predicted", "measured", "error"]
    parts.append(table([*head, "peak predicted", "measured", "error", "regret"], rows))
    return "\n\n".join(parts) + "\n"


def _bound(value: float) -> str:
    return f"{value:.3f}" if value >= 1 else f"{value:.1%}"


def _miss(one: dict[str, Any]) -> str:
    return " (missed)" if one["reached"] > one["bound"] else ""


def _compared(row: dict[str, Any] | None, form: str, factor: float) -> list[str]:
    if row is None or row["predicted"] is None:
        return ["", "", ""]
    error = f"{row['predicted'] / row['measured'] - 1:+.1%}"
    return [form.format(row["predicted"] * factor), form.format(row["measured"] * factor), error]


if __name__ == "__main__":
    main("validated", run, document, about=__doc__)
