"""Describes the cost of not knowing T: online schedules compared with the optimum that knows T."""

from __future__ import annotations

import numpy as np

from ckptplan.report.blocks import Field, Paragraph, Table
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
    names = [field.name for field in _FIELDS]
    columns = (getattr(factors, name).tolist() for name in names)
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    first, last, over = factors.steps[0], factors.steps[-1], factors.over_optimum
    places = np.unique(np.geomspace(first, last, _SHOWN).round().astype(int)) - first
    summary = (
        f"Runs over the optimum that knows T: {over.mean():.3f} in the mean, {over.max():.3f} at worst "
        f"(T = {factors.steps[over.argmax()]:,}). Runs count recordings, advances do not."
    )
    return View(
        kind="online",
        heading="Unknown T",
        title=f"{factors.slots} slots and a tape of a state's size, T = {first:,} to {last:,}",
        blocks=lambda: (Table.of(_FIELDS, (rows[place] for place in places)), Paragraph(summary)),
        document=lambda: {
            "slots": factors.slots,
            "tape_bytes_over_state_bytes": 1,
            "worst_over_optimum": float(over.max()),
            "mean_over_optimum": float(over.mean()),
            "worst_over_revolve": float(factors.over_revolve.max()),
            "points": rows,
        },
        rows=lambda: rows,
        chart=lambda: Chart(result=factors, caption="What it costs not to know T."),
    )
