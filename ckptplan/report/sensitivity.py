"""The effect of each input on the best plan, and its error bars."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptplan.model.prediction import BasisEntry
from ckptplan.planning.optimize import parameter_columns
from ckptplan.report.basis import list_basis
from ckptplan.report.blocks import Block, Cell, Field, Heading, Paragraph, Record, Table, make_facts, make_faint
from ckptplan.report.fields import format_cells, identify_job, list_budget, make_title
from ckptplan.report.formats import View
from ckptplan.storage.tables import Columns, Row, Rows
from ckptplan.studies.axes import Axis, Value
from ckptplan.studies.sensitivity import FACTORS, Best, BreakEven, ErrorBars, Influence, Replanned, Sensitivity
from ckptplan.units import format_percent, format_seconds
from ckptplan.wording import Argument

#: Changes of strategy printed for one input, those nearest to its value.
_MOST_BREAK_EVENS = 6
#: Smaller differences are shown as none.
_SAME = 5e-5
#: Inputs that only transfers depend on.
_TRANSFERS = ("bandwidth", "latency", "synchronisation", "transfer-seconds")
#: A narrow table leaves out the factors between the least and the largest.
_FIELDS = (
    Field("input"),
    Field("now", right=True, priority=1),
    *(Field(f"x {one:g}", right=True, priority=2 if one in FACTORS[1:-1] else 0) for one in FACTORS),
)


@dataclass(frozen=True)
class SensitivityView(View):
    """The effect of each input on the best plan."""

    kind = "sensitivity"
    study: Sensitivity

    def blocks(self) -> Iterator[Block]:
        """Yield the plan, the effect of each input, where another strategy is better, and the error bars."""
        study, best, profile = self.study, self.study.best, self.study.profile
        yield make_title(study.workload, profile)
        cost = f"  {format_cells(best.parameters)}: {format_seconds(best.seconds)}"
        yield Paragraph(cost, head=f"best: {best.strategy}", style="best")
        yield from list_budget(profile, budget=profile.local_budget_bytes, headroom=profile.headroom)
        yield Table.of(_FIELDS, _list_effects(study))
        yield Paragraph("Change of time, planned again with the input at that factor; below it what differs.")
        if idle := _describe_transfers(study):
            yield Paragraph(idle)
        yield from _list_break_evens(study.influences)
        if study.error_bars is not None:
            yield from _list_error_bars(study, study.error_bars)

    def document(self) -> dict[str, Any]:
        """Return the study, in SI base units."""
        study, bars = self.study, self.study.error_bars
        return {
            **identify_job(study.workload, study.profile),
            "strategies": list(study.goal.strategies),
            "model": study.goal.model,
            "best": _make_best_document(study.best),
            "inputs": [_make_input_document(one, study.best) for one in study.influences],
            "uncertainty": None if bars is None else {**vars(bars), "better": dict(bars.better)},
        }

    def rows(self) -> Rows:
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
        return Rows(columns=columns, rows=list(_generate_rows(self.document(), self.study)))

    def basis(self) -> Sequence[BasisEntry]:
        """Return the inputs before any is varied."""
        return list_basis(self.study.workload, self.study.profile, self.study.goal)


def _describe_transfers(study: Sensitivity) -> str:
    """Return why quicker transfers change nothing, '' if they do."""
    quicker = [
        point
        for one in study.influences
        if one.name in _TRANSFERS
        for point in one.points
        if (point.factor > 1) == (one.name == "bandwidth")
    ]
    if any(_tell_anew(point, study.best) != "same" for point in quicker):
        return ""
    if study.moves:
        return "Quicker transfers change nothing: those of the best plan do not bind."
    return "Quicker transfers change nothing: the best plan uses no remote memory."


def _list_effects(study: Sensitivity) -> Iterator[Record]:
    """Yield the change of time by each input, below it what differs, then the inputs without effect."""
    best = study.best
    for one in sort_by_effect(study):
        now = format_values(one.axis, one.values)
        yield {"input": one.name, "now": now, **_tell_points([_tell_anew(point, best) for point in one.points])}
        for label, tell in (("  best strategy", _tell_other), ("  plan kept", _tell_kept)):
            texts = [tell(point, best) for point in one.points]
            if any(texts):
                yield make_faint({"input": label, **_tell_points(texts)})
    for one in study.influences:
        if one.no_effect:
            now = format_values(one.axis, one.values)
            yield {**make_faint({"input": one.name, **_tell_points(["no effect"])}), "now": now}


def _tell_points(texts: Sequence[str]) -> Mapping[str, Cell]:
    """Return what is told of each factor, shorter in narrow tables."""
    short = {"nothing fits": "none", "does not fit": "no fit"}
    return {f"x {one:g}": Cell(text, short=short.get(text)) for one, text in zip(FACTORS, texts, strict=False)}


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


def _tell_anew(point: Replanned, best: Best) -> str:
    """Return the change of time if the job is planned again."""
    return "nothing fits" if point.best is None else _tell_change(find_change(point.best.seconds, best))


def _tell_other(point: Replanned, best: Best) -> str:
    """Return the strategy that is best there, '' if it is the same."""
    return "" if point.best is None or point.best.strategy == best.strategy else point.best.strategy


def _tell_kept(point: Replanned, best: Best) -> str:
    """Return the change of time of the original plan, '' if it is the same."""
    kept = find_change(point.kept_seconds, best)
    if not point.kept_fits:
        return "does not fit"
    if point.best is not None and abs(kept - find_change(point.best.seconds, best)) < _SAME:
        return ""
    return _tell_change(kept)


def _tell_change(share: float) -> str:
    return "same" if abs(share) < _SAME else format_percent(share)


def format_values(axis: Axis, values: Sequence[Value]) -> str:
    """Return the value of an input with its unit; both, where writing and reading differ."""
    return " / ".join(dict.fromkeys(axis.kind.show(value) for value in values))


def _list_break_evens(influences: Sequence[Influence]) -> Iterator[Block]:
    """Yield where the best strategy changes, that nearest to the present value first to stay."""
    records: list[Record] = []
    for one in influences:
        nearest = sorted(one.break_evens, key=lambda each: abs(math.log(each.factor)))[:_MOST_BREAK_EVENS]
        for each in sorted(nearest, key=lambda each: each.factor):
            records.append({"input": one.name, "change": _format_break_even(one.axis, each)})
        if more := len(one.break_evens) - len(nearest):
            text = f"{more} more, farther away: {Argument('format', 'json')}"
            records.append({"input": one.name, "change": Cell(text, style="faint")})
    if not records:
        yield Paragraph("The same strategy is the best one from a quarter to four times each input.")
        return
    yield Heading("The best strategy changes")
    yield Table.of((Field("input", title=""), Field("change", title="", wraps="early")), records)


def _format_break_even(axis: Axis, each: BreakEven) -> str:
    """Return 'below 12.3 GB/s (x 0.5): hierarchical, not double', seen from the present value."""
    side, new, old = ("below", each.below, each.above) if each.factor < 1 else ("above", each.above, each.below)
    names = [name or "nothing fits" for name in (new, old)]
    return f"{side} {format_values(axis, each.values)} (x {each.factor:.3g}): {names[0]}, not {names[1]}"


def _list_error_bars(study: Sensitivity, bars: ErrorBars) -> Iterator[Block]:
    """Yield the interval of the time, and how sure the choice is."""
    low, high = (find_change(seconds, study.best) for seconds in (bars.low_seconds, bars.high_seconds))
    names = ", ".join(f"{name} {100 * chance:.3g} %" for name, chance in bars.better.items())
    slower = f"at most {100 * bars.regret:.2g} % slower than the best plan"
    yield Heading(f"Every time known to within {100 * bars.share:g} %")
    yield make_facts(
        {
            "time": f"{format_seconds(bars.low_seconds)} to {format_seconds(bars.high_seconds)} "
            f"({format_percent(low)} to {format_percent(high)}) in 90 % of {bars.samples:,} samples",
            "choice": f"another strategy is better in {100 * bars.better_chance:.3g} % of them ({names})"
            if bars.better_chance
            else f"{study.best.strategy} is the best strategy in every sample",
            "regret": f"{slower if bars.regret > _SAME else 'as quick as the best plan'} in 95 % of them",
        }
    )


def _make_best_document(best: Best | None) -> dict[str, Any] | None:
    if best is None:
        return None
    return {"strategy": best.strategy, "parameters": dict(best.parameters), "seconds": best.seconds}


def _make_input_document(influence: Influence, best: Best) -> dict[str, Any]:
    return {
        "input": influence.name,
        "fields": list(influence.axis.sets),
        "values": list(influence.values),
        "no_effect": influence.no_effect,
        "points": [
            {
                "factor": point.factor,
                "values": list(point.values),
                "best": _make_best_document(point.best),
                "change": None if point.best is None else find_change(point.best.seconds, best),
                "kept_seconds": point.kept_seconds,
                "kept_change": find_change(point.kept_seconds, best),
                "kept_fits": point.kept_fits,
            }
            for point in influence.points
        ],
        "break_evens": [{**vars(each), "values": list(each.values)} for each in influence.break_evens],
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
        yield {**row, "note": note, "seconds": seconds, "change": find_change(seconds, study.best)}
    for name, chance in bars.better.items():
        yield {**row, "note": "chance to be better", "strategy": name, "value": chance}
    yield {**row, "note": "regret, 95 % quantile", "value": bars.regret}


def _make_row(kind: str, one: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    return {**point, "kind": kind, "input": one["input"], "value": list(map(str, point["values"]))}


def _flatten(best: Mapping[str, Any] | None) -> Row:
    return {} if best is None else {**best, **best["parameters"]}
