"""A front of local memory and time: a dozen of its plans as a table, all points as data, its curves drawn.

Pictures have local memory across and time over base's up, both in powers of ten. Strategies that are best
somewhere have their colours; the others are thin and grey. What stays with any schedule, which would fill the
axis of memory, is a band at its beginning, from which the axis counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.cost.exact import overhead
from ckptplan.model.plan import Plan
from ckptplan.planning.optimize import JOB_COLUMNS, parameter_columns
from ckptplan.report import charts, fields, style
from ckptplan.report.blocks import Block, Cell, Chart, Field, Paragraph, Schedules, Section, Table
from ckptplan.report.charts import LINEAR, Marks, Plot, Scale, Spec, layer_plot, scale_bytes, scale_shares
from ckptplan.report.formats import Column, View
from ckptplan.report.infeasible import format_infeasible, format_need
from ckptplan.report.picture import Picture
from ckptplan.report.style import PAGE, Size
from ckptplan.storage.tables import Blocks, Columns
from ckptplan.strategies.registry import all_parameters
from ckptplan.studies.pareto import MOST_EXACT, ParetoFront
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds, format_share
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


def view_front(front: ParetoFront, *, every: bool = False) -> View:
    """Return the front of all strategies and that of each; points are written as a stream.

    Its basis is that of the quickest plan. Rows are the points of each strategy's front, ``on_front`` if no
    strategy beats them. Its picture and its page have the colours of ``every`` strategy if wanted.
    """
    columns: Columns = {**JOB_COLUMNS, "strategy": "text", **parameter_columns(), **_COSTS, "on_front": "truth"}
    lack = front.lacks(front.budget_bytes)
    return View(
        kind="front",
        unmet="" if lack is None else f"no plan keeps the budget: {format_need(lack)}",
        blocks=lambda: _tell(front),
        document=lambda: {
            **fields.identify_job(front.workload, front.profile),
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
        },
        rows=lambda: Blocks(columns=columns, blocks=_generate_blocks(front)),
        basis=lambda: front[len(front) - 1].estimate_basis if len(front) else (),
        title=f"Memory and time: {fields.name_job(front.workload, front.profile)}",
        lede=f"Plans that no other plan beats in both; the budget is {format_bytes(front.budget_bytes)}.",
        sections=lambda: list_sections(front, every=every),
        draw=lambda size: draw_front(front, size, every=every),
    )


def list_sections(
    front: ParetoFront, *, own: Plan | None = None, every: bool = False
) -> Iterator[Section | Schedules]:
    """Yield the chart of a front, the plans of its points, and its numbers; ``own`` is a plan besides."""
    # Its ends, the best, the knee, and some between.
    marks, last = mark_points(front), len(front) - 1
    between = spread_places(beside_resident(front), _POINTS).tolist()
    places = sorted({0, last, *marks, *between}) if len(front) else []
    plans = []
    for place in places:
        label = f"{front.strategies[place]} in {format_bytes(int(front.local_peak_bytes[place]))}"
        label += f" ({marks[place]})" if place in marks else ""
        plans.append((label, front[place]))
    if places:
        numbered = {place: index for index, place in enumerate(places, 0 if own is None else 1)}
        yield Section("front", "Memory and time", [chart_front(front, plans=numbered, own=own, every=every)])
    best = front.place_within(front.budget_bytes)
    yield Schedules(own=own, plans=plans, first=0 if own or best is None else places.index(best))
    yield Section("front-numbers", "The front in numbers", _tell(front))


def _tell(front: ParetoFront) -> Iterator[Block]:
    """Yield plans from the least memory to the least time, then a line for each strategy."""
    yield fields.make_title(front.workload, front.profile)
    if not len(front):
        reason = front.lacks(front.budget_bytes)
        yield Paragraph("no plan" if reason is None else format_infeasible(reason))
        return
    explained = _explain_best(front)
    what = f"plan{'s' if len(front) > 1 else ''} that no other{' listed' if not front.exact else ''} beats"
    many = len(front.by_strategy)
    yield Paragraph(
        f"{format_count(len(front))} {what} in local memory and time, of {many} "
        f"strateg{'ies' if many > 1 else 'y'}; "
        f"{format_bytes(front.resident_bytes)} of the memory are resident with any schedule"
    )
    yield from fields.list_budget(front.profile, budget=front.budget_bytes, headroom=front.headroom)
    yield _make_table(front, label="quickest" if explained else "best")
    yield _make_strategies_table(front)
    if explained:
        yield Paragraph(explained)
    if front.place_within(front.budget_bytes) is not None:
        yield from fields.list_warnings(front.best)
    elif (lack := front.lacks(front.budget_bytes)) is not None:
        yield Paragraph(format_infeasible(lack))
    for line in _list_notes(front):
        yield Paragraph(line, style="faint")


def _list_notes(front: ParetoFront) -> Iterator[str]:
    """Yield what the table leaves out."""
    yield from fields.note_closed_forms(front.compared)
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


def _make_table(front: ParetoFront, *, label: str) -> Table:
    labels = mark_points(front, label=label)
    columns = (
        fields.LOCAL,
        fields.TIME,
        fields.OVER_BASE.ranked(1),
        fields.STRATEGY,
        fields.PARAMETERS,
        Field("mark", title="", wraps="late"),
    )
    places = sorted({*spread_places(beside_resident(front), _RUNGS).tolist(), *labels})
    marks = [Cell(labels.get(place), style="strong") for place in places]
    return Table.of(
        columns,
        ({**fields.tell_plan(front[place]), "mark": mark} for place, mark in zip(places, marks, strict=True)),
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
    if place is None:
        return ""
    plan = front.best
    if plan.strategy == front.strategies[place] and plan.parameters == front[place].parameters:
        return ""
    reasons = fields.explain_choice(plan)
    what = f"{plan.strategy} {fields.format_parameters(plan)}".rstrip()
    return f"to run within {format_bytes(front.budget_bytes)}: {what}{': ' if reasons else ''}{reasons}"


def _make_strategies_table(front: ParetoFront) -> Table:
    budget = format_bytes(front.budget_bytes)
    columns = (
        fields.STRATEGY,
        Field("plans", form=fields.align_counts, priority=1),
        Field("least", "least local", "least\nlocal", form=fields.align_bytes),
        Field("over base there", "over base", "over\nbase", form=fields.align_percents, priority=3),
        Field("within", f"within {budget}", f"within\n{budget}", form=fields.align_seconds),
        fields.OVER_BASE,
        Field("best of all", short="best\nof all", form=fields.align_counts, priority=2),
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
    return Table.of(columns, records)


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
    columns = _make_columns(front).items()
    return {name: partial(lambda values: Column(values.tolist()), values) for name, values in columns}


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


#: Overheads up to here are always in sight: three times base's time.
_WORTH = 2.0
#: The share of the axis of memory that the band takes.
_BAND = 0.07
#: Points of a front whose schedules are on a page, besides those that have a name.
_POINTS = 24
#: Points of a curve: more cannot be told apart, but all of their numbers are in CSV and JSON.
_FEW = 250


def beside_resident(front: ParetoFront, one: ParetoFront | None = None) -> npt.NDArray[np.int64]:
    """Return the memory of the points of a front, or of one of its strategies, beside what stays."""
    peaks = (front if one is None else one).local_peak_bytes
    return np.maximum(1, peaks - front.resident_bytes)


def spread_places(memory: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """Return places of points, about evenly spaced on the axis, both ends included."""
    if len(memory) <= most:
        return np.arange(len(memory))
    logs = np.log(memory)
    # Between equal ends linspace may round to values above them, beyond the last point.
    wanted = np.clip(np.linspace(logs[0], logs[-1], most), logs[0], logs[-1])
    return np.unique(np.searchsorted(logs, wanted))


def _scale_memory(front: ParetoFront, *, whole: bool = False) -> tuple[Scale, float]:
    """Return the axis of memory beside what stays, and where the band ends that stands for what stays.

    It ranges over what is worth a look, or over all points.
    """
    memory = beside_resident(front)
    seen = memory if whole else memory[front.overhead <= _find_top(front)]
    most = float(max(beside_resident(front, one)[-1] for one in front.by_strategy.values()))
    least, most = float(seen[0]), max(most, float(seen[-1]))
    room = max(1.3, (most / least) ** 0.03)
    low, high = least / room, most * room
    stays = bool(front.resident_bytes)
    title = "local memory, one unit" if front.profile.units > 1 else "local memory"
    scale = scale_bytes(title, low, high, log=True, sign="+" if stays else "")
    return replace(scale, low=low / (high / low) ** _BAND if stays else low), low


def _scale_overhead(front: ParetoFront, *, whole: bool = False) -> Scale:
    """Return the axis of time over base's: of what is worth a look, or of all points."""
    bottom = float(front.overhead.min())
    top = _find_top(front)
    if whole:
        top = max(top, 1.3 * max(float(one.overhead[0]) for one in front.by_strategy.values()))
    low = -0.1 * LINEAR if bottom < 0.05 * top else bottom / 1.5
    title = f"time over base's {format_seconds(front.base_seconds)}"
    return scale_shares(title, low, max(2 * LINEAR, top), wide=True)


def _find_top(front: ParetoFront) -> float:
    """Return the overhead up to which a front is worth a look: that of the budget, and some above."""
    place = front.place_within(front.budget_bytes)
    budgeted = 0.0 if place is None else float(front.overhead[place])
    top = max(_WORTH, 3 * budgeted, 2 * float(front.overhead.min()))
    return min(top, max(1.3 * max(float(one.overhead.max()) for one in front.by_strategy.values()), 0.02))


def _make_plot(front: ParetoFront, *, whole: bool = False, every: bool) -> Plot:
    """Return what pictures and pages show of a front: what is worth a look, or the ``whole`` of it."""
    over, (memory, band) = _scale_overhead(front, whole=whole), _scale_memory(front, whole=whole)
    free = front.budget_bytes - front.resident_bytes
    least = np.maximum(0.0, overhead(front.least_seconds, front.base_seconds))
    edges = zip(beside_resident(front).tolist(), front.overhead.tolist(), least.tolist(), strict=True)
    unproved = [{"x": x, "y": y, "y2": y2} for x, y, y2 in edges] if len(front.bounds.seconds) else []
    stays = [{"x": memory.low, "x2": band}] if front.resident_bytes else []
    words = f"{format_bytes(front.resident_bytes)} stay"
    seen = min(max(free, memory.low), memory.high)
    marks = [
        Marks(kind="band", rows=stays, colour=style.PALE, label=words),
        Marks(kind="area", rows=unproved, colour=style.PALE, steps=True, label="not proved optimal"),
        *sorted(_mark_curves(front, over, every=every), key=lambda one: one.size),
        Marks(
            kind="rule",
            rows=[{"x": seen}],
            dashes=(4, 2),
            label=_describe_budget(front, in_sight=seen == free),
        ),
    ]
    return Plot(x=memory, y=over, marks=marks)


def _describe_budget(front: ParetoFront, *, in_sight: bool) -> str:
    """Return what the line of the budget is called: what is left of it beside what stays, if anything does."""
    budget, left = format_bytes(front.budget_bytes), front.budget_bytes - front.resident_bytes
    if left <= 0:
        return f"budget: what stays leaves nothing of {budget}"
    of = f": {format_bytes(left)} of" if front.resident_bytes else ""
    return f"budget{of} {budget}{'' if in_sight else ', out of sight'}"


def _mark_curves(front: ParetoFront, over: Scale, *, every: bool) -> Iterator[Marks]:
    """Yield the curve of each strategy."""
    for name, one in front.by_strategy.items():
        rows = _list_points(front, one, spread_places(beside_resident(front, one), _FEW).tolist(), name=name)
        form: Any = {"colour": style.GREY, "size": 0.4, "label": "other strategies"}
        if every or len(front.places_of(name)):
            look, least = style.look_of(name), float(one.overhead.min())
            form = {"colour": look.colour, "dashes": look.dashes}
            form["label"] = f"{name} (from {format_percent(least)})" if least > over.high else name
        yield Marks(kind="line", rows=rows, steps=True, told=fields.TOLD, **form)


def draw_front(front: ParetoFront, size: Size = PAGE, *, every: bool = False) -> Picture:
    """Return the picture, with the colours of ``every`` strategy if wanted.

    Raises Infeasible for an empty front.
    """
    if (reason := front.lacks(front.budget_bytes)) is not None and not len(front):
        raise reason
    plot, plans = _make_plot(front, every=every), _choose_plans(front)
    # In a column there is no room for parameters, which the table has.
    told = [_describe(name, plan, whole=size.width >= PAGE.width) for name, plan in plans.items()]
    title = ("Least time within each amount of local memory", fields.name_job(front.workload, front.profile))
    height = 1.8 if size.width < PAGE.width else 2.9
    rings = [
        Marks(
            kind="point",
            rows=[{**_describe_place(front, plan), "name": name}],
            face="transparent",
            size=7,
            words="name",
            # No curve is below the front, but its end may be at the axis.
            under=plan.predicted.overhead > 2 * LINEAR,
        )
        for name, plan in plans.items()
    ]
    rows = [[replace(plot, marks=[*plot.marks, *rings])]]
    return Picture(title=[*title, *told], rows=rows, heights=[height], size=size)


def _choose_plans(front: ParetoFront) -> dict[str, Plan]:
    """Return the plan to run within the budget and the knee that is listed, none if nothing fits."""
    if front.lacks(front.budget_bytes) is not None:
        return {}
    best, place = front.best, front.knee_place
    if place is None:
        return {"best": best}
    knee = front[place]
    same = (best.strategy, best.parameters) == (knee.strategy, knee.parameters)
    return {"best and knee": best} if same else {"best": best, "knee": knee}


def _describe(name: str, plan: Plan, *, whole: bool) -> str:
    """Return what a plan is, with its parameters as a ``whole``."""
    seconds, added = format_seconds(plan.predicted.seconds), format_percent(plan.predicted.overhead)
    parameters = fields.format_parameters(plan) if whole else ""
    return f"{name}: {plan.strategy}, {seconds}, {added}{', ' if parameters else ''}{parameters}"


def chart_front(
    front: ParetoFront, *, plans: Mapping[int, int], own: Plan | None = None, every: bool = False
) -> Chart:
    """Return the chart of a front, with the colours of ``every`` strategy if wanted.

    ``plans`` maps places of the front to plans of the page; ``own`` is a plan beside the front, the first one
    of the page.
    """
    points = _list_points(front, front, sorted(plans))
    for point, place in zip(points, sorted(plans), strict=True):
        point |= {"plan": plans[place], "colour": charts.themed(style.look_of(point["strategy"]).colour)}
    if own is not None:
        ink = {"plan": 0, "own": True, "colour": charts.INK}
        points.append({**_describe_place(front, own), **ink, **fields.label_plan(own)})
    spec = layer_plot(_make_plot(front, whole=True, every=every))
    chosen = {"test": "datum.plan === chosen", "value": 190}
    dots = {
        "fill": charts.nominal("colour", scale=None),
        "shape": {"condition": {"test": "datum.own", "value": "diamond"}, "value": "circle"},
        "size": {"condition": chosen, "value": 60},
        "strokeWidth": {"condition": {**chosen, "value": 3}, "value": 0.8},
        "tooltip": charts.tell(**fields.TOLD),
    }
    layer = charts.layer("point", points, dots, stroke=charts.INK, cursor="pointer", opacity=1)
    return Chart(
        "front",
        "Local memory and time",
        f"Each curve is the least time of a strategy within each amount of local memory, over base's "
        f"{format_seconds(front.base_seconds)}. Dots are {format_count(len(plans))} of the "
        f"{format_count(len(front))} plans that no other plan beats: choose one to see its schedule."
        f"{'' if own is None else ' The diamond is the plan itself.'}",
        {
            **spec,
            "height": 420,
            "params": [{"name": "chosen", "value": -1}],
            "layer": [*spec["layer"], {**layer, "params": [charts.zoom("x", "y")]}],
        },
        zooms=True,
    )


def _list_points(
    front: ParetoFront, one: ParetoFront, places: Sequence[int], *, name: str | None = None
) -> list[Spec]:
    memory, parameters = beside_resident(front, one), one.parameters
    return [
        {
            "x": int(memory[place]),
            "y": max(0.0, float(one.overhead[place])),
            **fields.label_row({
                **{key: int(values[place]) or None for key, values in parameters.items()},
                "strategy": name or one.strategies[place],
                **{key: getattr(one, key)[place].item() for key in _COSTS},
            }),
        }
        for place in places
    ]  # fmt: skip


def _describe_place(front: ParetoFront, plan: Plan) -> Spec:
    predicted = plan.predicted
    return {
        "x": max(1, predicted.local_peak_bytes - front.resident_bytes),
        "y": max(0.0, predicted.overhead),
    }
