"""Describes the cost of not knowing T: online schedules compared with the optimum that knows T."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ckptplan.report.blocks import Block, Field, Paragraph, Table
from ckptplan.report.formats import View
from ckptplan.report.picture import Chart
from ckptplan.studies.online import OnlineFactors

#: The number of lengths in the table, evenly spaced in the logarithm.
_SHOWN = 12
_FIELDS = (
    Field("steps", "T", right=True),
    Field("online", "runs, online", right=True),
    Field("optimum", "optimum that knows T", right=True),
    Field("over_optimum", "factor"),
    Field("over_revolve", "advances over revolve", priority=1),
    Field("bound", "most runs of a step", right=True, priority=2),
)


def view_online(factors: OnlineFactors) -> View:
    """Return the view of the factors of all lengths. The table shows a few lengths."""

    def list_rows() -> Iterator[dict[str, Any]]:
        names = [field.name for field in _FIELDS]
        columns = (getattr(factors, name).tolist() for name in names)
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))

    return View(
        kind="online",
        heading="Unknown T",
        title=f"{factors.slots} slots and a tape of a state's size, T = {factors.steps[0]:,} to "
        f"{factors.steps[-1]:,}",
        blocks=lambda: _describe_factors(factors, list(list_rows())),
        document=lambda: {
            "slots": factors.slots,
            "tape_bytes_over_state_bytes": 1,
            "worst_over_optimum": float(factors.over_optimum.max()),
            "mean_over_optimum": float(factors.over_optimum.mean()),
            "worst_over_revolve": float(factors.over_revolve.max()),
            "points": list(list_rows()),
        },
        rows=list_rows,
        chart=lambda: Chart(drawing="online", result=factors, title="What it costs not to know T", caption=""),
    )


def _describe_factors(factors: OnlineFactors, rows: list[dict[str, Any]]) -> Iterator[Block]:
    first, last = rows[0]["steps"], rows[-1]["steps"]
    places = np.unique(np.geomspace(first, last, _SHOWN).round().astype(int)) - first
    yield Table.of(_FIELDS, (rows[place] for place in places.tolist()))
    over = factors.over_optimum
    worst = int(over.argmax())
    yield Paragraph(
        f"Runs over the optimum that knows T: {over.mean():.3f} in the mean, {over[worst]:.3f} at worst "
        f"(T = {rows[worst]['steps']:,}). Runs count recordings, advances do not."
    )
