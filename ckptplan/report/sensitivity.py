"""The effect of each input on the best plan, and its error bars."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from ckptplan.report.basis import list_basis
from ckptplan.report.columns import Cell, FittedTable, Sheet, TableColumn
from ckptplan.report.fields import format_cells, identify_job, print_budget, print_title
from ckptplan.report.formats import View
from ckptplan.storage.tables import Columns, Row, Rows
from ckptplan.studies.axes import Axis, Value
from ckptplan.studies.sensitivity import FACTORS, Best, BreakEven, ErrorBars, Influence, Replanned, Sensitivity
from ckptplan.studies.sweep import parameter_columns
from ckptplan.units import format_percent, format_seconds
from ckptplan.wording import Argument, Phrase, Wording, put_into_words

#: Changes of strategy printed for one input, those nearest to its value.
_MOST_BREAK_EVENS = 6
#: Factors that a narrow table leaves out.
_BETWEEN = FACTORS[1:-1]
#: Smaller differences are shown as none.
_SAME = 5e-5
#: Inputs that only transfers depend on.
_TRANSFERS = ("bandwidth", "latency", "synchronisation", "transfer-seconds")


def view_sensitivity(study: Sensitivity, *, wording: Wording = str) -> View:
    """Return the effect of each input on the best plan, for every format."""
    return View(
        kind="sensitivity",
        table=lambda console: _print_sensitivity(Sheet(console, wording), study),
        document=lambda: _make_document(study),
        rows=lambda: _list_rows(study),
        basis=lambda: list_basis(study.workload, study.profile, study.goal),
    )


def _print_sensitivity(sheet: Sheet, study: Sensitivity) -> None:
    """Print the plan, the effect of each input, where another strategy is better, and the error bars."""
    print_title(sheet, study.workload, study.profile)
    best = study.best
    cost = f"  {format_cells(best.parameters)}: {format_seconds(best.seconds)}"
    sheet.console.print(Text.assemble("best: ", (best.strategy, "bold green"), cost))
    profile = study.profile
    print_budget(sheet, profile, budget=profile.local_budget_bytes, headroom=profile.headroom)
    sheet.gap()
    sheet.show(_make_table(study))
    sheet.gap()
    text = "Change of time, planned again with the input at that factor; below it what differs."
    sheet.say(text)
    if idle := _describe_transfers(study):
        sheet.say(idle)
    _print_break_evens(sheet, study.influences)
    if study.error_bars is not None:
        _print_error_bars(sheet, study, study.error_bars)


def _describe_transfers(study: Sensitivity) -> str:
    """Return why quicker transfers change nothing, '' if they do."""
    quicker = [
        point
        for one in study.influences
        if one.name in _TRANSFERS
        for point in one.points
        if (point.factor > 1) == (one.name == "bandwidth")
    ]
    if any(_anew(point, study.best) != "same" for point in quicker):
        return ""
    if study.moves:
        return "Quicker transfers change nothing: those of the best plan do not bind."
    return "Quicker transfers change nothing: the best plan uses no remote memory."


def _make_table(study: Sensitivity) -> FittedTable:
    table = FittedTable(
        (
            TableColumn(title="input"),
            TableColumn(title="now", right=True, priority=1),
            *(
                TableColumn(title=f"x {factor:g}", right=True, priority=2 if factor in _BETWEEN else 0)
                for factor in FACTORS
            ),
        )
    )
    for influence in sort_by_effect(study):
        points = influence.points
        now = format_values(influence.axis, influence.values)
        table.add_row(influence.name, now, *(_shorten(_anew(point, study.best)) for point in points))
        for label, cell in (("  best strategy", _other), ("  plan kept", _kept)):
            cells = [cell(point, study.best) for point in points]
            if any(cells):
                table.add_row(label, None, *map(_shorten, cells), style="dim")
    for influence in study.influences:
        if influence.no_effect:
            table.add_row(
                Cell(value=influence.name, style="dim"),
                format_values(influence.axis, influence.values),
                Cell(value="no effect", style="dim"),
            )
    return table


def _shorten(text: str) -> Cell:
    """Return a cell that is shorter in narrow tables."""
    return Cell(value=text, short={"nothing fits": "none", "does not fit": "no fit"}.get(text))


def sort_by_effect(study: Sensitivity) -> list[Influence]:
    """Return the inputs that have an effect, the largest effect first."""
    return sorted(
        (one for one in study.influences if one.no_effect is None), key=lambda one: -_span(one, study.best)
    )


def _span(influence: Influence, best: Best) -> float:
    """Return the relative range of the times; infinite if nothing fits at some point."""
    times = [point.best.seconds if point.best else float("inf") for point in influence.points]
    return (max(times) - min(times)) / best.seconds


def find_change(seconds: float, best: Best) -> float:
    """Return the share by which a time differs from the best plan's."""
    return seconds / best.seconds - 1


def _anew(point: Replanned, best: Best) -> str:
    """Return the change of time if the job is planned again."""
    return "nothing fits" if point.best is None else _percent(find_change(point.best.seconds, best))


def _other(point: Replanned, best: Best) -> str:
    """Return the strategy that is best there, '' if it is the same."""
    return "" if point.best is None or point.best.strategy == best.strategy else point.best.strategy


def _kept(point: Replanned, best: Best) -> str:
    """Return the change of time of the original plan, '' if it is the same."""
    kept = find_change(point.kept_seconds, best)
    if not point.kept_fits:
        return "does not fit"
    if point.best is not None and abs(kept - find_change(point.best.seconds, best)) < _SAME:
        return ""
    return _percent(kept)


def _percent(share: float) -> str:
    return "same" if abs(share) < _SAME else format_percent(share)


def format_values(axis: Axis, values: Sequence[Value]) -> str:
    """Return the value of an input with its unit; both, where writing and reading differ."""
    return " / ".join(dict.fromkeys(axis.kind.show(value) for value in values))


def _print_break_evens(sheet: Sheet, influences: Sequence[Influence]) -> None:
    sheet.gap()
    if not any(influence.break_evens for influence in influences):
        sheet.console.print("The same strategy is the best one from a quarter to four times each input.")
        return
    sheet.say("The best strategy changes", style="bold")
    table = FittedTable((TableColumn(), TableColumn(wraps="early")), indent=2)
    for influence in influences:
        nearest = sorted(influence.break_evens, key=lambda each: abs(math.log(each.factor)))[:_MOST_BREAK_EVENS]
        for each in sorted(nearest, key=lambda each: each.factor):
            table.add_row(influence.name, _format_break_even(influence.axis, each))
        if len(nearest) < len(influence.break_evens):
            more = len(influence.break_evens) - len(nearest)
            text = Phrase(f"{more} more, farther away: ", Argument("format", "json"))
            table.add_row(influence.name, Cell(value=put_into_words(text, sheet.wording), style="dim"))
    sheet.show(table)


def _format_break_even(axis: Axis, each: BreakEven) -> str:
    """Return 'below 12.3 GB/s (x 0.5): hierarchical, not double', seen from the present value."""
    side, new, old = ("below", each.below, each.above) if each.factor < 1 else ("above", each.above, each.below)
    names = [name or "nothing fits" for name in (new, old)]
    return f"{side} {format_values(axis, each.values)} (x {each.factor:.3g}): {names[0]}, not {names[1]}"


def _print_error_bars(sheet: Sheet, study: Sensitivity, bars: ErrorBars) -> None:
    ours = study.best.strategy
    sheet.gap()
    sheet.say(f"Every time known to within {100 * bars.share:g} %", style="bold")
    low, high = (find_change(seconds, study.best) for seconds in (bars.low_seconds, bars.high_seconds))
    sheet.console.print(
        f"  time     {format_seconds(bars.low_seconds)} to {format_seconds(bars.high_seconds)} "
        f"({format_percent(low)} to {format_percent(high)}) in 90 % of {bars.samples:,} samples"
    )
    if not bars.better_chance:
        sheet.console.print(f"  choice   {ours} is the best strategy in every sample")
    else:
        names = ", ".join(f"{name} {100 * chance:.3g} %" for name, chance in bars.better.items())
        sheet.console.print(
            f"  choice   another strategy is better in {100 * bars.better_chance:.3g} % of them ({names})"
        )
    regret = (
        f"at most {100 * bars.regret:.2g} % slower than the best plan"
        if bars.regret > _SAME
        else "as quick as the best plan"
    )
    sheet.console.print(f"  regret   {regret} in 95 % of them")


def _make_document(study: Sensitivity) -> dict[str, Any]:
    """Return the study as JSON data, in SI base units."""
    bars = study.error_bars
    return {
        **identify_job(study.workload, study.profile),
        "strategies": list(study.goal.strategies),
        "model": study.goal.model,
        "best": _best(study.best),
        "inputs": [_influence(one, study.best) for one in study.influences],
        "uncertainty": None if bars is None else {**vars(bars), "better": dict(bars.better)},
    }


def _best(best: Best | None) -> dict[str, Any] | None:
    if best is None:
        return None
    return {"strategy": best.strategy, "parameters": dict(best.parameters), "seconds": best.seconds}


def _influence(influence: Influence, best: Best) -> dict[str, Any]:
    return {
        "input": influence.name,
        "fields": list(influence.axis.sets),
        "values": list(influence.values),
        "no_effect": influence.no_effect,
        "points": [
            {
                "factor": point.factor,
                "values": list(point.values),
                "best": _best(point.best),
                "change": None if point.best is None else find_change(point.best.seconds, best),
                "kept_seconds": point.kept_seconds,
                "kept_change": find_change(point.kept_seconds, best),
                "kept_fits": point.kept_fits,
            }
            for point in influence.points
        ],
        "break_evens": [{**vars(each), "values": list(each.values)} for each in influence.break_evens],
    }


def _list_rows(study: Sensitivity) -> Rows:
    """Return flat rows: ``kind`` is input (unchanged), point, break-even or uncertainty."""
    columns: Columns = {
        "kind": "text",
        "input": "text",
        "factor": "number",
        "value": "text",
        "strategy": "text",
        **parameter_columns(),
        "seconds": "number",
        "change": "number",
        "kept_seconds": "number",
        "kept_change": "number",
        "kept_fits": "truth",
        "below": "text",
        "above": "text",
        "note": "text",
    }
    return Rows(columns=columns, rows=list(_generate_rows(study)))


def _generate_rows(study: Sensitivity) -> Iterator[Row]:
    for one in study.influences:
        yield {
            "kind": "input",
            "input": one.name,
            "factor": 1.0,
            "value": list(map(str, one.values)),
            **_flat(study.best, study.best),
            "note": one.no_effect,
        }
        for point in one.points:
            yield {
                "kind": "point",
                "input": one.name,
                "factor": point.factor,
                "value": list(map(str, point.values)),
                **_flat(point.best, study.best),
                "kept_seconds": point.kept_seconds,
                "kept_change": find_change(point.kept_seconds, study.best),
                "kept_fits": point.kept_fits,
            }
        for each in one.break_evens:
            yield {
                "kind": "break-even",
                "input": one.name,
                "factor": each.factor,
                "value": list(map(str, each.values)),
                "below": each.below,
                "above": each.above,
            }
    if study.error_bars is not None:
        yield from _error_bar_rows(study, study.error_bars)


def _flat(best: Best | None, nominal: Best) -> Row:
    if best is None:
        return {}
    return {
        "strategy": best.strategy,
        **best.parameters,
        "seconds": best.seconds,
        "change": find_change(best.seconds, nominal),
    }


def _error_bar_rows(study: Sensitivity, bars: ErrorBars) -> Iterator[Row]:
    row = {"kind": "uncertainty", "factor": 1 + bars.share}
    for note, seconds in (("5 % quantile", bars.low_seconds), ("95 % quantile", bars.high_seconds)):
        yield {**row, "note": note, "seconds": seconds, "change": find_change(seconds, study.best)}
    for name, chance in bars.better.items():
        yield {**row, "note": "chance to be better", "strategy": name, "value": chance}
    yield {**row, "note": "regret, 95 % quantile", "value": bars.regret}
