"""The cost of a played schedule, compared with its plan's prediction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ckptplan.model.plan import Plan
from ckptplan.model.prediction import BasisEntry
from ckptplan.report.blocks import Block, Cell, Field, Paragraph, Table
from ckptplan.report.fields import identify_plan, make_title, name_plan
from ckptplan.report.formats import View
from ckptplan.schedule.simulator import Trace
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds

#: Seconds may differ by this share, and by one rounding per action: a clock adds, a closed form multiplies.
TOLERANCE, ROUNDING = 1e-9, 2.0**-53

#: Field of Trace and Predicted -> name and format in the table.
_QUANTITIES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "seconds": ("time", format_seconds),
    "local_peak_bytes": ("local peak", format_bytes),
    "remote_peak_bytes": ("remote peak", format_bytes),
    "recomputed_steps": ("steps run again", format_count),
    "remote_writes": ("states written", format_count),
    "remote_reads": ("states read", format_count),
    "messages": ("messages", format_count),
}
_FIELDS = (
    Field("name", title=""),
    Field("predicted", right=True),
    Field("simulated", right=True),
    Field("difference"),
)


@dataclass(frozen=True)
class SimulationView(View):
    """Prediction and simulation; ``schedule`` is the file that was played instead of the plan's own."""

    kind = "simulation"
    plan: Plan
    trace: Trace
    schedule: str | None = None

    @cached_property
    def quantities(self) -> list[dict[str, Any]]:
        """What plan and trace both have: counts and bytes agree if they are equal, seconds up to rounding."""
        tolerance = TOLERANCE + self.trace.actions * ROUNDING
        pairs = [(name, self.plan.predicted[name], getattr(self.trace, name)) for name in _QUANTITIES]
        return [
            {
                "quantity": name,
                "predicted": predicted,
                "simulated": simulated,
                "agrees": math.isclose(predicted, simulated, rel_tol=tolerance if name == "seconds" else 0.0),
            }
            for name, predicted, simulated in pairs
        ]

    @property
    def agrees(self) -> bool:
        """Whether the schedule costs what the plan predicts."""
        return all(row["agrees"] for row in self.quantities)

    def blocks(self) -> Iterator[Block]:
        """Yield both side by side."""
        yield make_title(self.plan.workload, self.plan.profile)
        actions = f"{format_count(self.trace.actions)} actions, every law kept"
        yield Paragraph(f"schedule  {self.schedule or name_plan(self.plan)}: {actions}")
        yield Table.of(_FIELDS, map(_format, self.quantities))
        if self.trace.stall_seconds:
            yield Paragraph(f"compute waits {format_seconds(self.trace.stall_seconds)} for transfers")

    def document(self) -> dict[str, Any]:
        """Return both, with the basis of the prediction."""
        return {
            **identify_plan(self.plan),
            "schedule": self.schedule,
            "agrees": self.agrees,
            "simulated": dataclasses.asdict(self.trace),
            "predicted": {row["quantity"]: row["predicted"] for row in self.quantities},
            "estimate_basis": [dict(entry) for entry in self.plan.estimate_basis],
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each quantity."""
        return self.quantities

    def basis(self) -> Sequence[BasisEntry]:
        """Return that of the prediction."""
        return self.plan.estimate_basis


def _format(row: dict[str, Any]) -> dict[str, Any]:
    """Return a quantity as the table shows it."""
    name, shown = _QUANTITIES[row["quantity"]]
    predicted, simulated = row["predicted"], row["simulated"]
    more = f"{'+' if simulated > predicted else '-'}{shown(abs(simulated - predicted))}"
    share = f" ({format_percent(simulated / predicted - 1)})" if predicted else ""
    difference = Cell("equal", style="good") if row["agrees"] else Cell(f"{more}{share}", style="caution")
    return {
        "name": name, "predicted": shown(predicted), "simulated": shown(simulated), "difference": difference
    }  # fmt: skip
