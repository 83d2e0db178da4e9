"""A front of local memory and time: a dozen of its plans as a table, all points as columns or rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.model.plan import Plan
from ckptplan.model.prediction import BasisEntry
from ckptplan.planning.optimize import JOB_COLUMNS, parameter_columns
from ckptplan.report.blocks import Block, Cell, Field, Paragraph, Table
from ckptplan.report.fields import (
    LOCAL,
    OVER_BASE,
    PARAMETERS,
    STRATEGY,
    TIME,
    align_bytes,
    align_counts,
    align_percents,
    align_seconds,
    explain_choice,
    format_parameters,
    identify_job,
    list_budget,
    list_warnings,
    make_title,
    tell_plan,
)
from ckptplan.report.formats import Column, View
from ckptplan.report.infeasible import format_infeasible
from ckptplan.storage.tables import Blocks, Columns
from ckptplan.strategies.registry import all_parameters
from ckptplan.studies.pareto import MOST_EXACT, ParetoFront
from ckptplan.units import format_bytes, format_count, format_share
from ckptplan.wording import Argument

#: Rows of the table, evenly spaced in the logarithm of the memory besides the resident bytes.
_RUNGS = 10
#: What documents and rows say of a point besides its strategy and parameters.
_COSTS: Columns = {
    "local_peak_bytes": "whole",
    "remote_peak_bytes": "whole",
    "seconds": "number",
    "overhead": "number",
    "least_seconds": "number",
}
#: Points written at a time.
_BLOCK = 10_000


@dataclass(frozen=True)
class FrontView(View):
    """The front of all strategies and that of each; points are written as a stream."""

    kind = "front"
    front: ParetoFront

    def blocks(self) -> Iterator[Block]:
        """Yield plans from the least memory to the least time, then a line for each strategy."""
        front = self.front
        yield make_title(front.workload, front.profile)
        if not len(front):
            reason = front.lacks(front.budget_bytes)
            yield Paragraph("no plan" if reason is None else format_infeasible(reason))
            return
        explained = _explain_best(front)
        yield Paragraph(_summarize(front))
        yield from list_budget(front.profile, budget=front.budget_bytes, headroom=front.headroom)
        yield _make_table(front, label="quickest" if explained else "best")
        yield _make_strategies_table(front)
        if explained:
            yield Paragraph(explained)
        if (best := front.place_within(front.budget_bytes)) is not None:
            yield from list_warnings(front[best])
        for line in _list_notes(front):
            yield Paragraph(line, style="faint")

    def document(self) -> dict[str, Any]:
        """Return the case, the points of the front as columns, then those of each strategy."""
        front = self.front
        return {
            **identify_job(front.workload, front.profile),
            "local_budget_bytes": front.budget_bytes,
            "headroom": front.headroom,
            "resident_bytes": front.resident_bytes,
            "base_seconds": front.base_seconds,
            "exact": front.exact,
            "resolution": front.resolution,
            "best_within_budget": front.place_within(front.budget_bytes),
            "knee": front.knee_place,
            "front": lambda: _list_columns(front),
            "strategies": {name: partial(_list_columns, one) for name, one in front.by_strategy.items()},
        }

    def rows(self) -> Blocks:
        """Return a row for each point of each strategy's front; ``on_front`` if no strategy beats it."""
        columns: Columns = {
            **JOB_COLUMNS,
            "strategy": "text",
            **parameter_columns(),
            **_COSTS,
            "on_front": "truth",
        }
        return Blocks(columns=columns, blocks=_generate_blocks(self.front))

    def basis(self) -> Sequence[BasisEntry]:
        """Return that of the quickest plan."""
        return self.front[len(self.front) - 1].estimate_basis if len(self.front) else ()


def _list_notes(front: ParetoFront) -> Iterator[str]:
    """Yield what the table leaves out."""
    if all(strategy.is_closed_form for strategy in front.compared):
        more = Argument("strategies", "all")
        yield f"only closed forms are compared, which answer at once; {more} adds optimal and others, slowly"
    if front.resolution:
        share = format_share(front.resolution)
        every = f"; {Argument('resolution', 0)} lists all" if front.workload.steps <= MOST_EXACT else ""
        yield f"plans within {share} of a listed one, in memory and in time, are left out{every}"
    yield from _list_gaps(front)


def _list_gaps(front: ParetoFront) -> Iterator[str]:
    """Yield what is not proved between the budgets that were solved."""
    open_ended = {name for name, one in front.by_strategy.items() if not one.exact and not one.proves_bounds}
    if open_ended and not front.resolution:
        yield f"{', '.join(sorted(open_ended))}: solved for some budgets; between them more plans exist"
    if not len(front.bounds.seconds):
        return
    unproved = front.seconds > front.least_seconds * (1 + front.told_apart)
    if not unproved.any():
        yield "within each amount of memory, no legal schedule is faster by more than can be told apart"
        return
    first, last = (int(front.local_peak_bytes[place]) for place in np.flatnonzero(unproved)[[0, -1]])
    faster = format_share(float(np.max(1 - front.least_seconds / front.seconds)))
    where = (
        f"from {format_bytes(first)} to {format_bytes(last)}" if last > first else f"at {format_bytes(first)}"
    )
    yield f"{where}, a schedule may exist that is faster by up to {faster}"


def _summarize(front: ParetoFront) -> str:
    several = len(front) > 1
    what = f"plan{'s' if several else ''} that no other{' listed' if not front.exact else ''} beats"
    return (
        f"{format_count(len(front))} {what} in local memory and time, of {len(front.by_strategy)} "
        f"strateg{'ies' if len(front.by_strategy) > 1 else 'y'}; "
        f"{format_bytes(front.resident_bytes)} of the memory are resident with any schedule"
    )


def _make_table(front: ParetoFront, *, label: str) -> Table:
    labels = mark_points(front, label=label)
    fields = (LOCAL, TIME, OVER_BASE.ranked(1), STRATEGY, PARAMETERS, Field("mark", title="", wraps="late"))
    places = sorted({*_choose_rungs(front), *labels})
    marks = [Cell(labels.get(place), style="strong") for place in places]
    return Table.of(
        fields, ({**tell_plan(front[place]), "mark": mark} for place, mark in zip(places, marks, strict=True))
    )


def mark_points(front: ParetoFront, *, label: str = "quickest") -> dict[int, str]:
    """Return the labels of points: the quickest within the budget, with that label, and the knee."""
    best, knee = front.place_within(front.budget_bytes), front.knee_place
    budget = f"{label} within {format_bytes(front.budget_bytes)}"
    if best is None or knee is None:
        return {}
    return {best: f"{budget}, and the knee"} if best == knee else {best: budget, knee: "knee"}


def _explain_best(front: ParetoFront) -> str:
    """Return which plan is to be run within the budget where it is not the quickest of the front, else ''."""
    place = front.place_within(front.budget_bytes)
    if place is None or _is_at(front.best, front, place):
        return ""
    plan = front.best
    reasons = explain_choice(plan)
    what = f"{plan.strategy} {format_parameters(plan)}".rstrip()
    return f"to run within {format_bytes(front.budget_bytes)}: {what}{': ' if reasons else ''}{reasons}"


def _is_at(plan: Plan, front: ParetoFront, place: int) -> bool:
    return plan.strategy == front.strategies[place] and plan.parameters == front[place].parameters


def _choose_rungs(front: ParetoFront) -> set[int]:
    free = np.maximum(1, front.local_peak_bytes - front.resident_bytes)
    # Between equal ends geomspace may round to values above them, beyond the last point.
    wanted = np.clip(np.geomspace(free[0], free[-1], _RUNGS), free[0], free[-1])
    return {0, len(front) - 1, *np.searchsorted(free, wanted[1:-1]).tolist()}


def _make_strategies_table(front: ParetoFront) -> Table:
    budget = format_bytes(front.budget_bytes)
    fields = (
        STRATEGY,
        Field("plans", form=align_counts, priority=1),
        Field("least", "least local", "least\nlocal", form=align_bytes),
        Field("over base there", "over base", "over\nbase", form=align_percents, priority=3),
        Field("within", f"within {budget}", f"within\n{budget}", form=align_seconds),
        OVER_BASE,
        Field("best of all", short="best\nof all", form=align_counts, priority=2),
    )
    records = []
    for name, one in front.by_strategy.items():
        seconds, overhead = _find_best_within(one, front.budget_bytes)
        records.append(
            {
                "strategy": name,
                "plans": len(one),
                "least": int(one.local_peak_bytes[0]),
                "over base there": float(one.overhead[0]),
                "within": seconds,
                "overhead": overhead,
                "best of all": len(front.places_of(name)) or "none",
            }
        )
    return Table.of(fields, records)


def _find_best_within(front: ParetoFront, budget: int) -> tuple[str | float, float | None]:
    """Return the least time within a budget, and its overhead; or that nothing fits."""
    place = front.place_within(budget)
    if place is not None:
        return float(front.seconds[place]), float(front.overhead[place])
    if front.resolution and front.lacks(budget) is None:
        # Plans that fit may be left out for a listed one that needs a little more memory.
        plan = front.at(budget)
        return plan.predicted.seconds, plan.predicted.overhead
    return "does not fit", None


def _list_columns(front: ParetoFront) -> dict[str, Callable[[], Column]]:
    """Return the columns of a document, each made when it is written."""
    return {name: partial(_list_values, values) for name, values in _make_columns(front).items()}


def _list_values(values: npt.NDArray[Any]) -> Column:
    return Column(values.tolist())


def _make_columns(front: ParetoFront) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a front: the same names for all, 0 for parameters that a strategy lacks."""
    absent = np.zeros(len(front), dtype=np.int64)
    parameters = front.parameters
    return {
        "strategy": np.array(front.strategies),
        **{name: parameters.get(name, absent) for name in all_parameters()},
        **{name: getattr(front, name) for name in _COSTS},
    }


def _generate_blocks(front: ParetoFront) -> Iterator[Sequence[Sequence[Any]]]:
    job = (front.workload.name, front.profile.name, front.workload.steps)
    for name, one in front.by_strategy.items():
        on_front = np.full(len(one), fill_value=False)
        on_front[front.places_of(name)] = True
        points = {**_make_columns(one), "on_front": on_front}
        for start in range(0, len(one), _BLOCK):
            cells = {column: values[start : start + _BLOCK].tolist() for column, values in points.items()}
            for parameter in all_parameters():
                # Parameters that a strategy lacks are 0 in a column and absent in a row.
                cells[parameter] = [value or None for value in cells[parameter]]
            cells["least_seconds"] = [value or None for value in cells["least_seconds"]]
            yield [*([value] * len(cells["strategy"]) for value in job), *cells.values()]
