"""Describes the effect of each input on the best plan, and the plan's error bars, as a table and as data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ckptplan.cost.case import Case
from ckptplan.planning.optimize import parameter_columns
from ckptplan.report import blocks
from ckptplan.report.basis import list_basis
from ckptplan.report.fields import format_cells, identify_job, list_memory, name_job
from ckptplan.report.formats import View
from ckptplan.report.picture import Chart
from ckptplan.storage.tables import Row, Rows
from ckptplan.studies.axes import Axis, Value
from ckptplan.studies.sensitivity import FACTORS, BreakEven, ErrorBars, Influence, Replanned, Sensitivity
from ckptplan.units import format_percent, format_seconds
from ckptplan.wording import Argument

#: The most changes of strategy printed for one input. The nearest ones to its value are printed.
_MOST_BREAK_EVENS = 6
#: Smaller relative differences are shown as 'same'.
_SAME = 5e-5
#: Inputs that only transfers depend on.
_TRANSFERS = ("bandwidth", "latency", "synchronisation", "transfer-seconds")
#: Columns before and after the parameters; ``kind`` is input (unchanged), point, break-even or uncertainty.
_HEAD = ("kind", "input", "factor", "value", "strategy")
_TAIL = ("seconds", "change", "kept_seconds", "kept_change", "kept_fits", "below", "above", "note")
#: A narrow table leaves out the factors between the least and the largest.
_FIELDS = (
    blocks.Field("input"),
    blocks.Field("value", right=True, priority=1),
    *(
        blocks.Field(f"x {factor:g}", right=True, priority=2 if factor in FACTORS[1:-1] else 0)
        for factor in FACTORS
    ),
)


def view_sensitivity(study: Sensitivity) -> View:
    """Return the view of the effect of each input on the best plan."""
    best, profile = study.best, study.profile
    return View(
        kind="sensitivity",
        heading="Sensitivity",
        title=name_job(study.workload, profile),
        memory=profile.local_bytes,
        blocks=lambda: _describe_study(study),
        document=lambda: _make_document(study),
        rows=lambda: Rows(
            columns=(*_HEAD, *parameter_columns(), *_TAIL), rows=_generate_rows(_make_document(study), study)
        ),
        # The basis of the unchanged inputs.
        basis=lambda: list_basis(study.workload, profile, study.goal),
        chart=lambda: Chart(
            drawing="sensitivity",
            result=study,
            title="Time over each input",
            caption="Each panel varies one input by itself. Solid lines: the job is planned again. Dashed "
            f"lines: the plan of now is kept, {best.strategy} in {format_seconds(best.seconds)}.",
        ),
    )


def _describe_study(study: Sensitivity) -> Iterator[blocks.Block]:
    """Yield the plan, the effect of each input, where another strategy is better, and the error bars."""
    best, profile = study.best, study.profile
    cost = f"  {format_cells(best.parameters)}: {format_seconds(best.seconds)}"
    yield blocks.Paragraph(cost, head=f"best: {best.strategy}", style="best")
    case = Case(workload=study.workload, profile=profile)
    yield from list_memory(case, budget=profile.local_budget_bytes, headroom=profile.headroom)
    if study.left_out:
        yield blocks.Paragraph(_describe_left_out(study), style="faint")
    yield blocks.Heading("Change of the time if the job is planned again with an input at a factor")
    yield blocks.Table.of(_FIELDS, _list_effects(study, _write_replanned, outside="n/a"))
    idle_inputs = [influence for influence in study.influences if influence.no_effect]
    if idle_inputs:
        names = ", ".join(
            f"{influence.name} ({format_values(influence.axis, influence.values)})" for influence in idle_inputs
        )
        yield blocks.Paragraph(f"no effect: {names}", style="faint")
    if idle_transfers := _describe_transfers(study):
        yield blocks.Paragraph(idle_transfers)
    if kept_effects := list(_list_effects(study, _write_kept, outside="")):
        yield blocks.Heading("Change of the time if the plan is kept, where that differs")
        yield blocks.Table.of(_FIELDS, kept_effects)
    yield from _list_break_evens(study.influences)
    yield from _list_ends(study.influences)
    if study.error_bars is not None:
        yield from _list_error_bars(study, study.error_bars)


def _describe_left_out(study: Sensitivity) -> str:
    """Return which strategies are not compared at scaled inputs, why, and how much this may cost."""
    best, compared = study.best, study.best_compared
    names, reasons = ", ".join(study.left_out), "; ".join(dict.fromkeys(study.left_out.values()))
    if compared is None:
        worth = "none of the others fits"
    elif (dearer := compared.seconds / best.seconds - 1) > _SAME:
        longer = f"{format_percent(dearer)[1:]} longer than this plan"
        worth = f"the best of the others, {compared.strategy}, takes {longer}"
    else:
        worth = "no other strategy is worth more than this plan"
    return (
        f"at scaled inputs, closed forms are compared with this plan, without {names}: {reasons}. "
        f"With the inputs of now, {worth}; {Argument('strategies', 'all')} compares every strategy, slowly"
    )


def _make_document(study: Sensitivity) -> dict[str, Any]:
    """Return the study, in SI base units."""
    bars = study.error_bars
    return {
        **identify_job(study.workload, study.profile),
        "strategies": list(study.goal.strategies),
        "model": study.goal.model,
        "left_out": dict(study.left_out),
        "best": vars(study.best),
        "best_compared": study.best_compared and vars(study.best_compared),
        "inputs": [_make_input_document(influence) for influence in study.influences],
        "uncertainty": None if bars is None else {**vars(bars), "better": dict(bars.better)},
    }


def _describe_transfers(study: Sensitivity) -> str:
    """Return why quicker transfers change nothing, '' if they change the time."""
    quicker = [
        point
        for influence in study.influences
        if influence.name in _TRANSFERS
        for point in influence.points
        if (point.factor > 1) == (influence.name == "bandwidth")
    ]
    if any(point.change is None or abs(point.change) >= _SAME for point in quicker):
        return ""
    if study.moves:
        return "Quicker transfers change nothing: those of the best plan do not bind."
    return "Quicker transfers change nothing: the best plan uses no remote memory."


def _list_effects(
    study: Sensitivity, write: Callable[[Replanned], str], *, outside: str
) -> Iterator[dict[str, str]]:
    """Yield a row for each input with the text of ``write`` at each factor. Rows without any text are left out.

    Factors at which files do not accept the input have the text ``outside``.
    """
    for influence in sort_by_effect(study):
        texts = {point.factor: write(point) for point in influence.points}
        if any(texts.values()):
            cells = {f"x {factor:g}": texts.get(factor, outside) for factor in FACTORS}
            yield {"input": influence.name, "value": format_values(influence.axis, influence.values), **cells}


def sort_by_effect(study: Sensitivity) -> list[Influence]:
    """Return the inputs that have an effect, the largest range of times first; infinite if nothing fits."""

    def span(influence: Influence) -> float:
        times = [point.best.seconds if point.best else math.inf for point in influence.points]
        return min(times, default=0.0) - max(times, default=0.0)

    return sorted((influence for influence in study.influences if influence.no_effect is None), key=span)


def _write_replanned(point: Replanned) -> str:
    return "no plan" if point.change is None else _write_change(point.change)


def _write_kept(point: Replanned) -> str:
    """Return the change of time of the kept plan, '' if the new plan has the same change."""
    if not point.kept_fits:
        return "no fit"
    is_same = point.change is not None and abs(point.kept_change - point.change) < _SAME
    return "" if is_same else _write_change(point.kept_change)


def _write_change(share: float) -> str:
    return "same" if abs(share) < _SAME else format_percent(share)


def format_values(axis: Axis, values: Sequence[Value]) -> str:
    """Return the value of an input with its unit, or both values if writing and reading differ."""
    return " / ".join(dict.fromkeys(axis.kind.show(value) for value in values))


def _list_break_evens(influences: Sequence[Influence]) -> Iterator[blocks.Block]:
    """Yield the factors at which the best strategy changes, ascending. Only the nearest ones are listed."""
    records: list[dict[str, str]] = []
    for influence in influences:
        nearest = sorted(influence.break_evens, key=lambda each: abs(math.log(each.factor)))[:_MOST_BREAK_EVENS]
        for change in sorted(nearest, key=lambda change: change.factor):
            records.append({"input": influence.name, "change": _format_break_even(influence.axis, change)})
        if further := len(influence.break_evens) - len(nearest):
            text = f"{further} more, farther away: {Argument('format', 'json')}"
            records.append({"input": influence.name, "change": text})
    if not records:
        yield blocks.Paragraph("The same strategy is the best one from a quarter to four times each input.")
        return
    yield blocks.Heading("The best strategy changes")
    yield blocks.Table.of(
        (blocks.Field("input", title=""), blocks.Field("change", title="", wraps=True)), records
    )


def _list_ends(influences: Sequence[Influence]) -> Iterator[blocks.Block]:
    """Yield a note for each input that was varied less than the others, since files limit its values."""
    for influence in influences:
        low, high = influence.scanned
        if (low, high) != Influence.scanned:
            text = f"{influence.name}: changes were searched for from x {low:.3g} to x {high:.3g} only"
            yield blocks.Paragraph(f"{text}, near the end of what files may have", style="faint")


def _format_break_even(axis: Axis, each: BreakEven) -> str:
    """Return 'below 12.3 GB/s (x 0.5): hierarchical, not double', as seen from the unchanged input."""
    side, new, old = ("below", each.below, each.above) if each.factor < 1 else ("above", each.above, each.below)
    place = f"{side} {format_values(axis, each.values)} (x {each.factor:.3g})"
    if new is None:
        return f"{place}: nothing fits"
    return f"{place}: {new} fits" if old is None else f"{place}: {new}, not {old}"


def _list_error_bars(study: Sensitivity, bars: ErrorBars) -> Iterator[blocks.Block]:
    """Yield the interval of the time, the chance that another strategy is better, and the regret."""
    low, high = (seconds / study.best.seconds - 1 for seconds in (bars.low_seconds, bars.high_seconds))
    names = ", ".join(f"{name} {100 * chance:.3g} %" for name, chance in bars.better.items())
    slower = f"at most {100 * bars.regret:.2g} % slower than the best plan"
    yield blocks.Heading(f"Every time known to within {100 * bars.share:g} %")
    yield blocks.make_facts(
        {
            "time": f"{format_seconds(bars.low_seconds)} to {format_seconds(bars.high_seconds)} "
            f"({format_percent(low)} to {format_percent(high)}) in 90 % of {bars.samples:,} samples",
            "choice": f"another strategy is better in {100 * bars.better_chance:.3g} % of them ({names})"
            if bars.better_chance
            else f"{study.best.strategy} is the best strategy in every sample",
            "regret": f"{slower if bars.regret > _SAME else 'as quick as the best plan'} in 95 % of them",
        }
    )


def _make_input_document(influence: Influence) -> dict[str, Any]:
    return {
        "input": influence.name,
        "fields": influence.axis.sets,
        "values": influence.values,
        "no_effect": influence.no_effect,
        "points": [{**vars(point), "best": point.best and vars(point.best)} for point in influence.points],
        "break_evens": [vars(change) for change in influence.break_evens],
    }


def _generate_rows(document: Mapping[str, Any], study: Sensitivity) -> Iterator[Row]:
    """Yield the rows of a document."""
    for varied in document["inputs"]:
        now = {"factor": 1.0, "change": 0.0, "note": varied["no_effect"]}
        yield {**_make_row("input", varied, varied), **_flatten(document["best"]), **now}
        for point in varied["points"]:
            yield {**_make_row("point", varied, point), **_flatten(point["best"])}
        for change in varied["break_evens"]:
            yield _make_row("break-even", varied, change)
    bars = study.error_bars
    if bars is None:
        return
    row = {"kind": "uncertainty", "factor": 1 + bars.share}
    for note, seconds in (("5 % quantile", bars.low_seconds), ("95 % quantile", bars.high_seconds)):
        yield {**row, "note": note, "seconds": seconds, "change": seconds / study.best.seconds - 1}
    for name, chance in bars.better.items():
        yield {**row, "note": "chance to be better", "strategy": name, "value": chance}
    yield {**row, "note": "regret, 95 % quantile", "value": bars.regret}


def _make_row(kind: str, varied: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    return {**point, "kind": kind, "input": varied["input"], "value": list(map(str, point["values"]))}


def _flatten(best: Mapping[str, Any] | None) -> Row:
    return {} if best is None else {**best, **best["parameters"]}


#: An input that changes the time by less than this share gets no panel of the picture, but is named.
TRIFLE = 0.0005


def select_influences(study: Sensitivity) -> tuple[list[Influence], list[Influence]]:
    """Return the inputs that change the time or leave no plan, the largest effect first, and the other ones."""
    ranked = sort_by_effect(study)
    large = [
        influence
        for influence in ranked
        if max(map(abs, list_changes(influence)), default=0.0) >= TRIFLE
        or any(point.best is None for point in influence.points)
    ]
    return large, [influence for influence in ranked if influence not in large]


def list_changes(influence: Influence) -> list[float]:
    """Return the changes of time that are drawn, of new plans and of the kept plan."""
    replanned = [point.change for point in influence.points if point.change is not None]
    return replanned + [point.kept_change for point in influence.points if point.kept_fits]
