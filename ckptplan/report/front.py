"""A front of local memory and time: a dozen of its plans as a table, and all points as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.cost.case import Case
from ckptplan.model.budget import find_memory
from ckptplan.model.plan import Plan
from ckptplan.planning.optimize import JOB_COLUMNS, parameter_columns
from ckptplan.report import fields
from ckptplan.report.blocks import Block, Field, Paragraph, Table
from ckptplan.report.formats import Column, ShownPlan, View
from ckptplan.report.infeasible import format_infeasible, format_need
from ckptplan.report.picture import Chart
from ckptplan.search.trace_solved import spread_places
from ckptplan.storage.tables import Blocks, Columns
from ckptplan.strategies.registry import all_parameters
from ckptplan.studies.pareto import MOST_EXACT, ParetoFront
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds, format_share
from ckptplan.wording import Argument

#: The rows of the table, evenly spaced in the logarithm of the memory without resident bytes.
_RUNGS = 10
#: The columns of a point in documents and rows, apart from its strategy and parameters.
_COSTS: Columns = {
    "local_peak_bytes": "whole",
    "remote_peak_bytes": "whole",
    "seconds": "number",
    "overhead": "number",
    "least_seconds": "number",
}
_CAPTION = (
    "Each line is the least time of a strategy within each amount of local memory, over {} of plain "
    "backpropagation. Dots are plans: choose one to see its schedule below."
)
#: Points written at a time.
_BLOCK = 10_000
#: The points of a front whose schedules a page draws, in addition to the best plan and the knee.
_POINTS = 3
#: The largest time over base that a picture shows if the best plan takes less.
_SHOWN = 1.0


def view_front(front: ParetoFront, *, every: bool = False, own: Plan | None = None) -> View:
    """Return the view of a front, with the fronts of all strategies. Points are written as a stream.

    The basis is that of the quickest plan. Rows are the points of each strategy's front, ``on_front`` if no
    strategy beats them. With ``every``, the picture has colours for all strategies. If the view is a part of
    the page of a plan, ``own`` is this plan, and the best plan of the front is shown beside it if it differs.
    """
    columns: Columns = {**JOB_COLUMNS, "strategy": "text", **parameter_columns(), **_COSTS, "on_front": "truth"}
    reason = front.lacks(front.budget_bytes)
    return View(
        kind="front",
        heading="Memory and time",
        title=fields.name_job(front.workload, front.profile),
        memory=find_memory(front.budget_bytes, front.headroom, machine=front.profile.local_bytes),
        unmet="" if reason is None else f"no plan keeps the budget: {format_need(reason)}",
        blocks=lambda: _describe_front(front),
        document=lambda: {
            **fields.identify_job(front.workload, front.profile),
            "local_budget_bytes": front.budget_bytes,
            "headroom": front.headroom,
            "resident_bytes": front.resident_bytes,
            "base_seconds": front.base_seconds,
            "exact": front.exact,
            "resolution": front.resolution,
            "may_gain": float(front.may_gain.max(initial=0.0)),
            "best_within_budget": front.place_within(front.budget_bytes),
            "knee": front.knee_place,
            "front": lambda: _list_columns(front),
            "strategies": {name: partial(_list_columns, curve) for name, curve in front.by_strategy.items()},
        },
        rows=lambda: Blocks(columns=columns, blocks=_generate_blocks(front)),
        basis=lambda: front[len(front) - 1].estimate_basis if len(front) else (),
        chart=lambda: (
            Chart(
                result=front,
                caption=_CAPTION.format(format_seconds(front.base_seconds)),
                options={"every": every},
                has_dots=True,
            )
            if len(front)
            else None
        ),
        plans=lambda: _choose_plans(front, own),
    )


def _choose_plans(front: ParetoFront, own: Plan | None) -> list[ShownPlan]:
    """Return the plans whose schedules a page shows: points of the front, or ``own`` and the best one."""
    marks, best = mark_points(front), front.place_within(front.budget_bytes)
    places, plans = _choose_places(front), list[ShownPlan]()
    if own is not None:
        plans.append(ShownPlan(label=f"{own.strategy}, the plan of this page", plan=own, first=True))
        places = [] if best is None or _is_same(front[best], own) else [best]
    for place in places:
        label = f"{front.strategies[place]} in {format_bytes(int(front.local_peak_bytes[place]))}"
        label += f" ({marks[place]})" if place in marks else ""
        is_first = own is None and place == (places[0] if best is None else best)
        plans.append(ShownPlan(label=label, plan=front[place], first=is_first))
    return plans


def _choose_places(front: ParetoFront) -> list[int]:
    """Return the points whose schedules a page shows: ends, best plan, knee, and points between them."""
    best = front.place_within(front.budget_bytes)
    slowest = _SHOWN if best is None else max(_SHOWN, float(front.overhead[best]))
    first = max(0, min(int((front.overhead > slowest).sum()), len(front) - 1))
    between = first + spread_places(front.schedule_bytes[first:], _POINTS)
    return sorted({*(place for place in mark_points(front) if place >= first), *between.tolist()})


def _is_same(plan: Plan, other: Plan) -> bool:
    """Return whether two plans of a job have the same strategy with the same parameters."""
    return (plan.strategy, plan.parameters) == (other.strategy, other.parameters)


def _describe_front(front: ParetoFront) -> Iterator[Block]:
    """Yield plans from the least memory to the least time, the plan to run, and what the front leaves open."""
    lack = front.lacks(front.budget_bytes)
    if len(front):
        yield _make_table(front)
        counts = {name: len(front.places_of(name)) for name in front.by_strategy}
        listed = ", ".join(f"{name} {format_count(count)}" for name, count in counts.items() if count)
        yield Paragraph(f"strategies compared: {len(counts)}; plans that no other listed beats: {listed}")
    if lack is None:
        best = front.best
        cost = f"{format_seconds(best.predicted.seconds)}, {format_percent(best.predicted.overhead)} over base"
        within = f"to run within {format_bytes(front.budget_bytes)}"
        yield Paragraph(f"{within}: {fields.name_plan(best)}: {cost}", style="best")
        yield from (Paragraph(text) for text in filter(None, [fields.explain_choice(best)]))
        yield from fields.list_warnings(best)
    else:
        yield Paragraph(format_infeasible(lack))
    case = Case(workload=front.workload, profile=front.profile)
    yield fields.list_memory(case, budget=front.budget_bytes, headroom=front.headroom)
    yield from fields.note_closed_forms(front.compared)
    yield from (Paragraph(text, style="faint") for text in _list_notes(front))


def _list_notes(front: ParetoFront) -> Iterator[str]:
    """Yield notes about points that the front omits, and about quicker schedules that are not ruled out."""
    lists_all = front.workload.steps <= MOST_EXACT and not front.varies_caches
    if front.resolution:
        hint = f"; {Argument('resolution', 0)} lists all" if front.workload.steps <= MOST_EXACT else ""
        yield f"plans within {format_share(front.resolution)} of a listed one are left out{hint}"
    if front.at_budgets:
        gain = format_share(float(front.may_gain.max(initial=0.0)))
        hint = f"{Argument('exact', True)} lists all" if lists_all else f"{Argument('points')} lists more"
        yield f"between two budgets, a plan may be quicker by up to {gain}; {hint}"
    elif not front.resolution:
        curves = front.by_strategy.items()
        if solved := sorted(name for name, curve in curves if not curve.exact and not curve.proves_bounds):
            yield f"{', '.join(solved)}: solved for some budgets; between them more plans exist"
    if len(front.bounds.seconds):
        faster = max(front.told_apart, float(np.max(1 - front.least_seconds / front.seconds)))
        yield f"within each amount of memory, no legal schedule is quicker by more than {format_share(faster)}"


def _make_table(front: ParetoFront) -> Table:
    """Return a table of plans from the least memory to the least time, with marks at the best and the knee."""
    marks = mark_points(front)
    columns = (
        fields.LOCAL,
        fields.TIME,
        fields.OVER_BASE.ranked(2),
        fields.STRATEGY,
        fields.PARAMETERS,
        Field("mark", title="", wraps=True),
    )
    places = sorted({*spread_places(front.schedule_bytes, _RUNGS).tolist(), *marks})
    rows = ({**fields.make_plan_row(front[place]), "mark": marks.get(place)} for place in places)
    return Table.of(columns, rows, style=lambda row: "strong" if row["mark"] else "")


def mark_points(front: ParetoFront) -> dict[int, str]:
    """Return labels by point: the quickest plan within the budget, and 'knee'."""
    best, knee = front.place_within(front.budget_bytes), front.knee_place
    budget = f"best within {format_bytes(front.budget_bytes)}"
    if best is None or knee is None:
        return {}
    return {best: f"{budget}, and the knee"} if best == knee else {best: budget, knee: "knee"}


def _list_columns(front: ParetoFront) -> dict[str, Callable[[], Column]]:
    """Return the columns of a document, each made when it is written."""
    columns = _make_columns(front).items()
    return {name: partial(lambda values: Column(values.tolist()), values) for name, values in columns}


def _make_columns(front: ParetoFront) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a front. All fronts have the same names; a parameter that a strategy lacks is 0."""
    absent = np.zeros(len(front), dtype=np.int64)
    parameters = front.parameters
    return {
        "strategy": np.array(front.strategies),
        **{name: parameters.get(name, absent) for name in all_parameters()},
        **{name: getattr(front, name) for name in _COSTS},
    }


def _generate_blocks(front: ParetoFront) -> Iterator[Sequence[Sequence[Any]]]:
    job = (front.workload.name, front.profile.name, front.workload.steps)
    for name, curve in front.by_strategy.items():
        on_front = np.full(len(curve), fill_value=False)
        on_front[front.places_of(name)] = True
        points = {**_make_columns(curve), "on_front": on_front}
        for start in range(0, len(curve), _BLOCK):
            cells = {column: values[start : start + _BLOCK].tolist() for column, values in points.items()}
            for parameter in all_parameters():
                # Parameters that a strategy lacks are 0 in a column and absent in a row.
                cells[parameter] = [value or None for value in cells[parameter]]
            cells["least_seconds"] = [value or None for value in cells["least_seconds"]]
            yield [*([value] * len(cells["strategy"]) for value in job), *cells.values()]
