"""Describes the effect of each input on the best plan, and the plan's error bars, as a table and as data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckptplan.cost.case import Case
from ckptplan.planning.optimize import parameter_columns
from ckptplan.report import blocks
from ckptplan.report.fields import format_cells, identify_job, list_basis, list_memory, name_job
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
#: Columns before and after the parameters; ``kind`` is input (unchanged), point, break-even or uncertainty.
_HEAD = ("kind", "input", "factor", "value", "strategy")
_TAIL = ("seconds", "change", "kept_seconds", "kept_change", "kept_fits", "below", "above", "note")
#: A narrow table leaves out the value, and all factors but the largest.
_FIELDS = (
    blocks.Field("input"),
    blocks.Field("value", right=True, priority=3),
    *(
        blocks.Field(f"x {factor:g}", right=True, priority=2 if factor in FACTORS[1:-1] else 1)
        for factor in FACTORS[:-1]
    ),
    blocks.Field(f"x {FACTORS[-1]:g}", right=True),
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
            result=study,
            caption="Each panel varies one input by itself. Solid lines: the job is planned again. Dashed "
            f"lines: the plan of now is kept, {best.strategy} in {format_seconds(best.seconds)}.",
        ),
    )


def _describe_study(study: Sensitivity) -> Iterator[blocks.Block]:
    """Yield the plan, the effect of each input, where another strategy is better, and the error bars."""
    best, profile = study.best, study.profile
    plan = f"{best.strategy}  {format_cells(best.parameters)}".rstrip()
    yield blocks.Paragraph(f"best: {plan}: {format_seconds(best.seconds)}", style="best")
    case = Case(workload=study.workload, profile=profile)
    yield list_memory(case, budget=profile.local_budget_bytes, headroom=profile.headroom)
    yield blocks.Table.of(
        _FIELDS,
        (_make_effect(influence) for influence in sort_by_effect(study)),
        title="Change of the time with an input at a factor: planned again / if the plan is kept",
    )
    idle = [influence for influence in study.influences if influence.no_effect]
    if idle:
        values = (f"{influence.name} ({format_values(influence.axis, influence.values)})" for influence in idle)
        yield blocks.Paragraph(f"no effect: {', '.join(values)}", style="faint")
    if study.left_out:
        reasons = "; ".join(dict.fromkeys(study.left_out.values()))
        yield blocks.Paragraph(
            f"at scaled inputs, closed forms are compared with this plan, without {', '.join(study.left_out)}: "
            f"{reasons}; {Argument('strategies', 'all')} compares every strategy, slowly",
            style="faint",
        )
    yield _list_break_evens(study.influences)
    if study.error_bars is not None:
        yield _list_error_bars(study, study.error_bars)


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
        "inputs": [
            {
                "input": influence.name,
                "fields": influence.axis.sets,
                "values": influence.values,
                "no_effect": influence.no_effect,
                "points": [
                    {**vars(point), "best": point.best and vars(point.best)} for point in influence.points
                ],
                "break_evens": [vars(change) for change in influence.break_evens],
            }
            for influence in study.influences
        ],
        "uncertainty": None if bars is None else {**vars(bars), "better": dict(bars.better)},
    }


def _make_effect(influence: Influence) -> dict[str, str]:
    """Return the row of an input: the change of the time at each factor, 'n/a' where files do not accept it."""
    texts = {point.factor: _write_changes(point) for point in influence.points}
    cells = {f"x {factor:g}": texts.get(factor, "n/a") for factor in FACTORS}
    return {"input": influence.name, "value": format_values(influence.axis, influence.values), **cells}


def sort_by_effect(study: Sensitivity) -> list[Influence]:
    """Return the inputs that have an effect, the largest range of times first; infinite if nothing fits."""

    def span(influence: Influence) -> float:
        times = [point.best.seconds if point.best else math.inf for point in influence.points]
        return min(times, default=0.0) - max(times, default=0.0)

    return sorted((influence for influence in study.influences if influence.no_effect is None), key=span)


def _write_changes(point: Replanned) -> str:
    """Return the change of the time of a new plan, and that of the kept plan if it differs."""
    if point.change is None:
        return "no plan"
    kept = _write_change(point.kept_change) if point.kept_fits else "no fit"
    is_same = point.kept_fits and abs(point.kept_change - point.change) < _SAME
    return _write_change(point.change) + ("" if is_same else f" / {kept}")


def _write_change(share: float) -> str:
    return "same" if abs(share) < _SAME else format_percent(share)


def format_values(axis: Axis, values: Sequence[Value]) -> str:
    """Return the value of an input with its unit, or both values if writing and reading differ."""
    return " / ".join(dict.fromkeys(axis.kind.show(value) for value in values))


def _list_break_evens(influences: Sequence[Influence]) -> blocks.Block:
    """Return the factors at which the best strategy changes, ascending. Only the nearest ones are listed."""
    records: list[dict[str, str]] = []
    for influence in influences:
        nearest = sorted(influence.break_evens, key=lambda each: abs(math.log(each.factor)))[:_MOST_BREAK_EVENS]
        for change in sorted(nearest, key=lambda change: change.factor):
            records.append({"input": influence.name, "change": _format_break_even(influence.axis, change)})
        if further := len(influence.break_evens) - len(nearest):
            text = f"{further} more, farther away: {Argument('format', 'json')}"
            records.append({"input": influence.name, "change": text})
    if not records:
        return blocks.Paragraph("The same strategy is the best one from a quarter to four times each input.")
    fields = blocks.Field("input", title=""), blocks.Field("change", title="", wraps=True)
    return blocks.Table.of(fields, records, title="The best strategy changes")


def _format_break_even(axis: Axis, each: BreakEven) -> str:
    """Return 'below 12.3 GB/s (x 0.5): hierarchical, not double', as seen from the unchanged input."""
    side, new, old = ("below", each.below, each.above) if each.factor < 1 else ("above", each.above, each.below)
    place = f"{side} {format_values(axis, each.values)} (x {each.factor:.3g})"
    if new is None:
        return f"{place}: nothing fits"
    return f"{place}: {new} fits" if old is None else f"{place}: {new}, not {old}"


def _list_error_bars(study: Sensitivity, bars: ErrorBars) -> blocks.Block:
    """Return the interval of the time, the chance that another strategy is better, and the regret."""
    low, high = (seconds / study.best.seconds - 1 for seconds in (bars.low_seconds, bars.high_seconds))
    names = "".join(f"; {name} {100 * chance:.3g} %" for name, chance in bars.better.items())
    facts = {
        "time": f"{format_seconds(bars.low_seconds)} to {format_seconds(bars.high_seconds)} "
        f"({format_percent(low)} to {format_percent(high)}) in 90 % of {bars.samples:,} samples",
        "choice": f"another strategy is better in {100 * bars.better_chance:.3g} % of them{names}",
        "regret": f"at most {100 * bars.regret:.2g} % slower than the best plan in 95 % of them",
    }
    return blocks.make_facts(facts, title=f"Every time known to within {100 * bars.share:g} %")


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
