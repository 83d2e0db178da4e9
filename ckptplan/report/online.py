"""What it costs not to know T: online schedules beside the optimum that knows it, as table and picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ckptplan.report import style
from ckptplan.report.blocks import Block, Field, Paragraph, Table
from ckptplan.report.charts import Marks, Plot, scale_counts
from ckptplan.report.fields import align_counts, align_ratios
from ckptplan.report.formats import View
from ckptplan.report.picture import Picture
from ckptplan.report.style import Size
from ckptplan.studies.online import OnlineFactors

#: Lengths that the table shows, evenly in powers.
_SHOWN = 12
_FIELDS = (
    Field("steps", "T", form=align_counts),
    Field("online", "runs, online", "online", form=align_counts),
    Field("optimum", "optimum that knows T", "optimum", form=align_counts),
    Field("over_optimum", "factor", form=align_ratios),
    Field("over_revolve", "advances over revolve", "over\nrevolve", form=align_ratios, priority=1),
    Field("bound", "most runs of a step", "bound", form=align_counts, priority=2),
)


def view_online(factors: OnlineFactors) -> View:
    """Return the factors of all lengths; the table shows a few of them."""

    def list_rows() -> Iterator[dict[str, Any]]:
        names = [field.name for field in _FIELDS]
        columns = (getattr(factors, name).tolist() for name in names)
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))

    return View(
        kind="online",
        blocks=lambda: _tell(factors, list(list_rows())),
        document=lambda: {
            "slots": factors.slots,
            "tape_bytes_over_state_bytes": 1,
            "worst_over_optimum": float(factors.over_optimum.max()),
            "mean_over_optimum": float(factors.over_optimum.mean()),
            "worst_over_revolve": float(factors.over_revolve.max()),
            "points": list(list_rows()),
        },
        rows=list_rows,
        draw=lambda size: draw_online(factors, size),
    )


def _tell(factors: OnlineFactors, rows: list[dict[str, Any]]) -> Iterator[Block]:
    first, last = rows[0]["steps"], rows[-1]["steps"]
    yield Paragraph(f"online, {factors.slots} slots and a tape of a state's size, T = {first:,} to {last:,}")
    places = np.unique(np.geomspace(first, last, _SHOWN).round().astype(int)) - first
    yield Table.of(_FIELDS, (rows[place] for place in places.tolist()))
    over = factors.over_optimum
    worst = int(over.argmax())
    yield Paragraph(
        f"Runs over the optimum that knows T: {over.mean():.3f} in the mean, {over[worst]:.3f} at worst "
        f"(T = {rows[worst]['steps']:,}). Runs count recordings, advances do not."
    )


def draw_online(factors: OnlineFactors, size: Size) -> Picture:
    """Draw the factor over the optimum, and that of advances over Revolve, for each T."""
    marks = [Marks(kind="rule", rows=[{"y": 1.0}], size=0.5)]
    for label, values, colour in (
        ("runs over the optimum", factors.over_optimum, style.BLUE),
        ("advances over revolve", factors.over_revolve, style.ORANGE),
    ):
        places = zip(factors.steps.tolist(), values.tolist(), strict=True)
        rows = [{"x": x, "y": y} for x, y in places]
        marks.append(Marks(kind="line", rows=rows, colour=colour, size=0.8, label=label))
    first, last = float(factors.steps[0]), float(factors.steps[-1])
    factor = np.concatenate((factors.over_optimum, factors.over_revolve))
    plot = Plot(
        x=scale_counts("T, time steps", first, 1.1 * last, log=True),
        y=scale_counts("factor", float(factor.min()) - 0.02, float(factor.max()) + 0.02),
        marks=marks,
    )
    about = f"{factors.slots} slots and a tape of a state's size"
    return Picture(title=("What it costs not to know T", about), rows=[[plot]], heights=[2.2], size=size)
