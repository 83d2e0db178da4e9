"""The effect of each input on the best plan, and its error bars: as a table, as data, and as a tornado."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ckptplan.planning.optimize import parameter_columns
from ckptplan.report import blocks, style
from ckptplan.report.basis import list_basis
from ckptplan.report.charts import Marks, Plot, Scale, Spec, layer_plot, scale_shares
from ckptplan.report.fields import format_cells, identify_job, list_budget, make_title, name_job
from ckptplan.report.formats import View
from ckptplan.report.picture import Picture
from ckptplan.report.style import PAGE, Size
from ckptplan.storage.tables import Row, Rows
from ckptplan.studies.axes import Axis, Value
from ckptplan.studies.sensitivity import FACTORS, Best, BreakEven, ErrorBars, Influence, Replanned, Sensitivity
from ckptplan.units import format_percent, format_seconds
from ckptplan.wording import Argument

#: Changes of strategy printed for one input, those nearest to its value.
_MOST_BREAK_EVENS = 6
#: What is told of a factor beyond the values that files may have.
_OUTSIDE = "not allowed"
#: Smaller differences are shown as none.
_SAME = 5e-5
#: Inputs that only transfers depend on.
_TRANSFERS = ("bandwidth", "latency", "synchronisation", "transfer-seconds")
#: Columns before and after the parameters; ``kind`` is input (unchanged), point, break-even or uncertainty.
_HEAD = ("kind", "input", "factor", "value", "strategy")
_TAIL = ("seconds", "change", "kept_seconds", "kept_change", "kept_fits", "below", "above", "note")
#: A narrow table leaves out the factors between the least and the largest.
_FIELDS = (
    blocks.Field("input"),
    blocks.Field("now", right=True, priority=1),
    *(blocks.Field(f"x {one:g}", right=True, priority=2 if one in FACTORS[1:-1] else 0) for one in FACTORS),
)


def view_sensitivity(study: Sensitivity) -> View:
    """Return the effect of each input on the best plan."""
    return View(
        kind="sensitivity",
        blocks=lambda: _tell(study),
        document=lambda: _make_document(study),
        rows=lambda: Rows(
            columns=(*_HEAD, *parameter_columns(), *_TAIL), rows=_generate_rows(_make_document(study), study)
        ),
        # Before any is varied.
        basis=lambda: list_basis(study.workload, study.profile, study.goal),
        title=f"Sensitivity: {name_job(study.workload, study.profile)}",
        lede="What each input does to the time of the best plan.",
        sections=lambda: [
            blocks.Section("inputs", "What the inputs do", [chart_tornado(study), *_tell(study)])
        ],
        draw=lambda size: draw_tornado(study, size),
    )


def _tell(study: Sensitivity) -> Iterator[blocks.Block]:
    """Yield the plan, the effect of each input, where another strategy is better, and the error bars."""
    best, profile = study.best, study.profile
    yield make_title(study.workload, profile)
    cost = f"  {format_cells(best.parameters)}: {format_seconds(best.seconds)}"
    yield blocks.Paragraph(cost, head=f"best: {best.strategy}", style="best")
    yield from list_budget(profile, budget=profile.local_budget_bytes, headroom=profile.headroom)
    yield blocks.Table.of(_FIELDS, _list_effects(study))
    yield blocks.Paragraph(
        "Change of time, planned again with the input at that factor; below it what differs."
    )
    if idle := _describe_transfers(study):
        yield blocks.Paragraph(idle)
    yield from _list_break_evens(study.influences)
    yield from _list_ends(study.influences)
    if study.error_bars is not None:
        yield from _list_error_bars(study, study.error_bars)


def _make_document(study: Sensitivity) -> dict[str, Any]:
    """Return the study, in SI base units."""
    bars = study.error_bars
    return {
        **identify_job(study.workload, study.profile),
        "strategies": list(study.goal.strategies),
        "model": study.goal.model,
        "best": vars(study.best),
        "inputs": [_make_input_document(one) for one in study.influences],
        "uncertainty": None if bars is None else {**vars(bars), "better": dict(bars.better)},
    }


def _describe_transfers(study: Sensitivity) -> str:
    """Return why quicker transfers change nothing, '' if they do."""
    quicker = [
        point
        for one in study.influences
        if one.name in _TRANSFERS
        for point in one.points
        if (point.factor > 1) == (one.name == "bandwidth")
    ]
    if any(_tell_anew(point) != "same" for point in quicker):
        return ""
    if study.moves:
        return "Quicker transfers change nothing: those of the best plan do not bind."
    return "Quicker transfers change nothing: the best plan uses no remote memory."


def _list_effects(study: Sensitivity) -> Iterator[blocks.Record]:
    """Yield the change of time by each input, below it what differs, then the inputs without effect."""
    best = study.best
    for one in _sort_by_effect(study):
        now = _format_values(one.axis, one.values)
        anew = {point.factor: _tell_anew(point) for point in one.points}
        yield {"input": one.name, "now": now, **_tell_points(dict.fromkeys(FACTORS, _OUTSIDE) | anew)}
        others = {point.factor: _tell_other(point, best) for point in one.points}
        kept = {point.factor: _tell_kept(point) for point in one.points}
        for label, texts in (("  best strategy", others), ("  plan kept", kept)):
            if any(texts.values()):
                yield blocks.make_faint({"input": label, **_tell_points(texts)})
    for one in study.influences:
        if one.no_effect:
            told: blocks.Record = {"input": one.name, **_tell_points({FACTORS[0]: "no effect"})}
            yield {**blocks.make_faint(told), "now": _format_values(one.axis, one.values)}


def _tell_points(texts: Mapping[float, str]) -> Mapping[str, blocks.Cell]:
    """Return what is told of each factor, shorter in narrow tables."""
    short = {"nothing fits": "none", "does not fit": "no fit", _OUTSIDE: "n/a"}
    return {f"x {one:g}": blocks.Cell(text, short=short.get(text)) for one, text in texts.items()}


def _sort_by_effect(study: Sensitivity) -> list[Influence]:
    """Return the inputs that have an effect, the largest range of times first; infinite where nothing fits."""

    def span(influence: Influence) -> float:
        times = [point.best.seconds if point.best else math.inf for point in influence.points]
        return min(times, default=0.0) - max(times, default=0.0)

    return sorted((one for one in study.influences if one.no_effect is None), key=span)


def _tell_anew(point: Replanned) -> str:
    """Return the change of time if the job is planned again."""
    return "nothing fits" if point.change is None else _tell_change(point.change)


def _tell_other(point: Replanned, best: Best) -> str:
    """Return the strategy that is best there, '' if it is the same."""
    return "" if point.best is None or point.best.strategy == best.strategy else point.best.strategy


def _tell_kept(point: Replanned) -> str:
    """Return the change of time of the original plan, '' if it is the same."""
    if not point.kept_fits:
        return "does not fit"
    same = point.change is not None and abs(point.kept_change - point.change) < _SAME
    return "" if same else _tell_change(point.kept_change)


def _tell_change(share: float) -> str:
    return "same" if abs(share) < _SAME else format_percent(share)


def _format_values(axis: Axis, values: Sequence[Value]) -> str:
    """Return the value of an input with its unit; both, where writing and reading differ."""
    return " / ".join(dict.fromkeys(axis.kind.show(value) for value in values))


def _list_break_evens(influences: Sequence[Influence]) -> Iterator[blocks.Block]:
    """Yield where the best strategy changes, that nearest to the present value first to stay."""
    records: list[blocks.Record] = []
    for one in influences:
        nearest = sorted(one.break_evens, key=lambda each: abs(math.log(each.factor)))[:_MOST_BREAK_EVENS]
        for each in sorted(nearest, key=lambda each: each.factor):
            records.append({"input": one.name, "change": _format_break_even(one.axis, each)})
        if more := len(one.break_evens) - len(nearest):
            text = f"{more} more, farther away: {Argument('format', 'json')}"
            records.append({"input": one.name, "change": blocks.Cell(text, style="faint")})
    if not records:
        yield blocks.Paragraph("The same strategy is the best one from a quarter to four times each input.")
        return
    yield blocks.Heading("The best strategy changes")
    yield blocks.Table.of(
        (blocks.Field("input", title=""), blocks.Field("change", title="", wraps="early")), records
    )


def _list_ends(influences: Sequence[Influence]) -> Iterator[blocks.Block]:
    """Yield the inputs that were not varied as far as others, since files may not have values far beyond."""
    for one in influences:
        low, high = one.scanned
        if (low, high) != Influence.scanned:
            text = f"{one.name}: changes were searched for from x {low:.3g} to x {high:.3g} only"
            yield blocks.Paragraph(f"{text}, near the end of what files may have", style="faint")


def _format_break_even(axis: Axis, each: BreakEven) -> str:
    """Return 'below 12.3 GB/s (x 0.5): hierarchical, not double', seen from the present value."""
    side, new, old = ("below", each.below, each.above) if each.factor < 1 else ("above", each.above, each.below)
    names = [name or "nothing fits" for name in (new, old)]
    return f"{side} {_format_values(axis, each.values)} (x {each.factor:.3g}): {names[0]}, not {names[1]}"


def _list_error_bars(study: Sensitivity, bars: ErrorBars) -> Iterator[blocks.Block]:
    """Yield the interval of the time, and how sure the choice is."""
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
        "points": [{**vars(one), "best": one.best and vars(one.best)} for one in influence.points],
        "break_evens": [vars(each) for each in influence.break_evens],
    }


def _generate_rows(document: Mapping[str, Any], study: Sensitivity) -> Iterator[Row]:
    """Yield the rows of a document."""
    for one in document["inputs"]:
        now = {"factor": 1.0, "change": 0.0, "note": one["no_effect"]}
        yield {**_make_row("input", one, one), **_flatten(document["best"]), **now}
        for point in one["points"]:
            yield {**_make_row("point", one, point), **_flatten(point["best"])}
        for each in one["break_evens"]:
            yield _make_row("break-even", one, each)
    bars = study.error_bars
    if bars is None:
        return
    row = {"kind": "uncertainty", "factor": 1 + bars.share}
    for note, seconds in (("5 % quantile", bars.low_seconds), ("95 % quantile", bars.high_seconds)):
        yield {**row, "note": note, "seconds": seconds, "change": seconds / study.best.seconds - 1}
    for name, chance in bars.better.items():
        yield {**row, "note": "chance to be better", "strategy": name, "value": chance}
    yield {**row, "note": "regret, 95 % quantile", "value": bars.regret}


def _make_row(kind: str, one: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    return {**point, "kind": kind, "input": one["input"], "value": list(map(str, point["values"]))}


def _flatten(best: Mapping[str, Any] | None) -> Row:
    return {} if best is None else {**best, **best["parameters"]}


#: The bar of half an input, and that of twice it; other factors are marks within them.
LABELS = {0.5: "half the input", 2.0: "twice the input"}
#: Two hues, of which one is much darker than the other.
COLOURS = {0.5: style.ORANGE, 2.0: style.BLUE}
_INNER_LABEL, _KEPT_LABEL = "0.8 and 1.25 times", "twice or half, plan kept"
#: What is told of a bar or mark, and its titles.
_TOLD = {
    "y": "input",
    "times": "times",
    "shown": "change of time",
    "time": "time",
    "strategy": "best strategy",
    "kept": "the plan of now",
}
#: Inputs that change the time by less than this are only named.
_TRIFLE = 0.0005
#: A bar this many times as long as those of all other inputs is cut.
_LONG = 5


def _name_input(influence: Influence) -> str:
    """Return an input and its value."""
    return f"{influence.name}: {_format_values(influence.axis, influence.values)}"


def _list_changes(influence: Influence) -> list[float]:
    """Return the changes of time that are drawn for an input: planned again, and with the plan of now."""
    again = [one.change for one in influence.points if one.change is not None]
    fitting = (one for one in influence.points if one.best and one.kept_fits and one.factor in LABELS)
    return again + [one.kept_change for one in fitting]


def _find_reach(influence: Influence) -> float:
    """Return the largest of the changes."""
    return max(map(abs, _list_changes(influence)), default=0.0)


def _scale_change(study: Sensitivity) -> Scale:
    """Return the axis: all bars, unless one is many times as long as all others."""
    reaches = sorted(map(_find_reach, study.influences), reverse=True)
    longest, second, *_ = *reaches, 0.0, 0.0
    if second and longest > _LONG * second:
        longest = 2 * second
    ends = [0.0, *(change for one in study.influences for change in _list_changes(one))]
    room = 0.06 * max(longest, _TRIFLE)
    low, high = max(min(ends), -longest) - room, min(max(ends), longest) + room
    return scale_shares("time of the best plan against now", low, high)


def _make_plot(influences: Sequence[Influence], study: Sensitivity) -> Plot:
    """Return the bars of half and twice each input, and marks for other factors and for the present plan."""
    rows: list[Spec] = [
        {
            "y": _name_input(one),
            "factor": point.factor,
            "times": f"x {point.factor:g}",
            "x": point.change,
            "shown": format_percent(point.change),
            "time": format_seconds(point.best.seconds),
            "strategy": point.best.strategy,
            "kept": format_percent(point.kept_change) if point.kept_fits else "does not fit",
            "kept_x": point.kept_change if point.kept_fits else point.change,
        }
        for one in influences
        for point in one.points
        if point.best is not None and point.change is not None
    ]
    bars = [row for row in rows if row["factor"] in LABELS]
    others = [{**row, "x": row["kept_x"]} for row in bars if abs(row["kept_x"] - row["x"]) > _TRIFLE]
    marks = [
        *(
            Marks(
                kind="bar", rows=[row for row in bars if row["factor"] == factor], colour=COLOURS[factor],
                label=label, told=_TOLD,
            )
            for factor, label in LABELS.items()
        ),
        Marks(kind="tick", rows=[row for row in rows if row not in bars], label=_INNER_LABEL, told=_TOLD),
        Marks(kind="rule", rows=[{"x": 0}]),
        Marks(
            kind="point", rows=others, face="white", marker="diamond", size=4, label=_KEPT_LABEL, told=_TOLD
        ),
    ]  # fmt: skip
    return Plot(x=_scale_change(study), y=[_name_input(one) for one in influences], marks=marks)


def draw_tornado(study: Sensitivity, size: Size = PAGE) -> Picture:
    """Return the picture, of the same data as the JSON document."""
    influences, best = _sort_by_effect(study), study.best
    trifles = [one for one in influences if _find_reach(one) < _TRIFLE and not _name_blocked(one)]
    shown = [one for one in influences if one not in trifles]
    few = f"changes under {100 * _TRIFLE:g} %: {', '.join(one.name for one in trifles)}"
    title = (
        f"What each input does to the time of the best plan, {best.strategy} in {format_seconds(best.seconds)}",
        name_job(study.workload, study.profile),
        *([few] if trifles else []),
    )
    plot, wide = _make_plot(shown, study), 16 if size.width < PAGE.width else 32
    notes: list[Spec] = [
        {"y": _name_input(one), "x": plot.x.high, "text": lines}
        for one in shown
        if (lines := _write_notes(one, study, plot.x, wide))
    ]
    marks = [*plot.marks, Marks(kind="text", rows=notes)]
    height = 0.36 * max(1, len(shown))
    return Picture(title=title, rows=[[replace(plot, marks=marks)]], heights=[height], size=size)


def _name_blocked(influence: Influence) -> str:
    """Return the factors at which nothing fits."""
    blocked = [f"{point.factor:g}" for point in influence.points if point.best is None]
    return f"{' and '.join(blocked)} x: nothing fits" if blocked else ""


def _write_notes(influence: Influence, study: Sensitivity, scale: Scale, wide: int) -> list[str]:
    """Return where another strategy is best, the ends of bars that are cut, and where nothing fits."""
    notes = []
    for point in influence.points:
        if point.change is None or point.factor not in LABELS:
            continue
        cut = not scale.low <= point.change <= scale.high
        words = [_tell_other(point, study.best), format_percent(point.change) if cut else ""]
        if any(words):
            notes.append(f"{point.factor:g} x: {', '.join(filter(None, words))}")
    notes += [_name_blocked(influence)] if _name_blocked(influence) else []
    form: Any = {"max_lines": 2, "placeholder": "…", "break_on_hyphens": False}
    return [line for note in notes for line in textwrap.wrap(note, wide, **form)]


def chart_tornado(study: Sensitivity) -> blocks.Chart:
    """Return the chart of a sensitivity study."""
    influences = _sort_by_effect(study)
    return blocks.Chart(
        "tornado",
        "What each input does to the time of the best plan",
        f"Each input is halved and doubled by itself, and the job is planned again; now it takes "
        f"{format_seconds(study.best.seconds)} with {study.best.strategy}. Lines within the bars are "
        f"{_INNER_LABEL} the input, diamonds what the plan of now takes.",
        {"height": 30 * max(1, len(influences)), **layer_plot(_make_plot(influences, study))},
    )
