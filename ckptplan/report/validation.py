"""Predictions compared with measurements, and the regret of the decision."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.text import Text

from ckptplan.calibration.validation import FACTOR, REGRET, Contender, Regret, Row, Unit, Validation, Verdict
from ckptplan.model.plan import Plan
from ckptplan.report.columns import FittedTable, Sheet, TableColumn, align_seconds
from ckptplan.report.fields import (
    FACTS,
    PARAMETERS,
    STRATEGY,
    identify_plan,
    make_parameters_cell,
    name_plan,
    print_title,
)
from ckptplan.report.formats import View
from ckptplan.units import (
    format_bytes,
    format_count,
    format_percent,
    format_rate,
    format_seconds,
    format_share,
    format_threads,
)
from ckptplan.wording import Argument, Wording

_STYLES = {
    Verdict.OK: "green",
    Verdict.OFF: "bold red",
    Verdict.NOISY: "bold red",
    Verdict.SMALL: "dim",
    Verdict.OTHER_MACHINE: "yellow",
    Verdict.UNCHECKED: "yellow",
    Verdict.NOT_MODELLED: "dim",
}
#: Verdicts that are shorter in a table than in JSON, so that it fits 80 columns.
_SHORT = {
    Verdict.NOISY: "too noisy",
    Verdict.SMALL: "too small",
    Verdict.OTHER_MACHINE: "not compared",
    Verdict.UNCHECKED: "not plain",
    Verdict.NOT_MODELLED: "not modelled",
}


def _number(value: float) -> str:
    return format_count(round(value))


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value > 0.01 or value == 0 else f"{value:.1e}"


_FORMS: dict[Unit, Callable[[float], str]] = {
    "bytes per second": format_rate,
    "bytes": format_bytes,
    "seconds": format_seconds,
    "count": _number,
    "share": _ratio,
}


def view_validation(plan: Plan, found: Validation, *, wording: Wording = str) -> View:
    """Return predictions, measurements and verdicts for every format."""
    return View(
        kind="validation",
        table=lambda console: _print_validation(Sheet(console, wording), plan, found),
        document=lambda: _make_document(plan, found),
        rows=lambda: _list_rows(found),
        basis=lambda: plan.estimate_basis,
    )


def _print_validation(sheet: Sheet, plan: Plan, found: Validation) -> None:
    """Print each quantity with its verdict, the regret, and what limits the comparison."""
    print_title(sheet, plan.workload, plan.profile)
    threads = format_threads(found.threads)
    rounds = f"; {found.clock}, medians of {found.repeats} rounds in turn" if found.repeats else ""
    facts = FittedTable(FACTS)
    facts.add_row("plan", name_plan(plan))
    facts.add_row("ran", f"{found.cell}, batch {plan.workload.batch}")
    facts.add_row("on", f"{found.machine}, {threads}{rounds}")
    sheet.show(facts)
    sheet.gap()
    sheet.show(_make_table(found))
    _say(sheet, _explain(found))
    if found.not_comparable is not None:
        _say(sheet, f"Times are not comparable: {found.not_comparable}.")
    if found.regret is not None:
        sheet.gap()
        _print_regret(sheet, found.regret)
    for note in found.notes:
        _say(sheet, f"Note: {note}.")
    _say(sheet, _conclude(found, wording=sheet.wording))


def _say(sheet: Sheet, text: str | Text) -> None:
    """Print a paragraph."""
    sheet.gap()
    sheet.say(text)


def _explain(found: Validation) -> str:
    """Return what the columns of the table mean, as far as it has them."""
    text = "bias: predicted over measured, less one; below zero it took longer, or more, than predicted"
    if any(row.in_points for row in found.rows):
        text += ". Overhead is the time added to base's; pt are points: a percent of base's time"
    return f"{text}."


def _make_table(found: Validation) -> FittedTable:
    table = FittedTable(
        (
            TableColumn(wraps="late"),
            TableColumn(title="predicted", right=True),
            TableColumn(title="measured", right=True),
            TableColumn(title="bias", right=True),
            TableColumn(title="allowed", right=True, priority=2),
            TableColumn(title="noise", right=True, priority=1),
            TableColumn(title="verdict"),
        )
    )
    for row in found.rows:
        form = format_percent if row.in_points else _FORMS[row.unit]
        table.add_row(
            row.quantity,
            "" if row.predicted is None else form(row.predicted),
            form(row.measured),
            _bias(row),
            _allowed(row),
            "" if row.noise is None else _points(row.noise) if row.in_points else format_share(row.noise),
            _verdict(row.verdict),
        )
    return table


def _verdict(verdict: Verdict) -> Text:
    return Text(_SHORT.get(verdict, verdict.value), style=_STYLES[verdict])


def _points(share: float, *, sign: str = "") -> str:
    return f"{share * 100:{sign}.1f} pt"


def _bias(row: Row) -> str:
    if row.bias is None:
        return ""
    if row.in_points:
        return _points(row.bias, sign="+")
    return "equal" if row.bias == 0 else f"{row.bias * 100:+.1f} %"


def _allowed(row: Row) -> str:
    if row.allowed is None:
        return ""
    if row.in_points:
        return _points(row.allowed)
    return "exact" if row.allowed == 0 else "x 2" if row.allowed == FACTOR - 1 else f"{row.allowed * 100:.1f} %"


def _print_regret(sheet: Sheet, regret: Regret) -> None:
    told = (
        "nothing that was measured is quicker"
        if regret.ratio == 1
        else f"the plan took {format_share(regret.ratio - 1)} longer than the quickest measured; "
        f"{format_share(REGRET)} and the noise, {format_share(regret.noise)}, are allowed"
    )
    said = Text.assemble(
        ("Decision regret  ", "bold"), f"{regret.ratio:.3f}: {told}  ", _verdict(regret.verdict)
    )
    sheet.say(said)
    table = FittedTable(
        (
            replace(STRATEGY, wraps="late"),
            PARAMETERS,
            TableColumn(title="predicted", form=align_seconds),
            TableColumn(title="measured", form=align_seconds),
            TableColumn(title="bias", right=True),
            TableColumn(title="allowed", right=True, priority=1),
            TableColumn(title="verdict"),
        )
    )
    ordered = sorted(regret.contenders, key=lambda one: one.seconds.median)
    for one in ordered:
        mark = " (chosen)" if one.strategy == regret.chosen else ""
        table.add_row(
            f"{one.strategy}{mark}",
            make_parameters_cell(_format_parameters(one)),
            one.predicted_seconds,
            one.seconds.median,
            f"{one.bias * 100:+.1f} %",
            f"{one.allowed * 100:.1f} %",
            _verdict(one.verdict),
        )
    sheet.show(table)
    for one in ordered:
        if one.same:
            also = f"The schedule of {one.strategy} is also that of {', '.join(one.same)}."
            sheet.say(also)


def _format_parameters(one: Contender) -> str:
    return ", ".join(
        f"{name} {value:,}" for name, value in one.parameters.items() if not name.endswith("units")
    )


def _conclude(found: Validation, *, wording: Wording) -> Text:
    wrong = []
    if found.off:
        wrong.append(f"Outside what is allowed: {', '.join(_with_numbers(found, name) for name in found.off)}")
    if found.noisy:
        more = wording(Argument("repeats"))
        wrong.append(f"Too noisy to judge: {', '.join(found.noisy)}; more {more} may help")
    if found.interrupted:
        wrong.append("Interrupted: the rest was not measured")
    if wrong:
        return Text(f"{'. '.join(wrong)}.", style="bold red")
    if found.not_comparable is not None:
        return Text("Counts, bytes and gradients hold; times were not compared.", style="green")
    return Text("The prediction holds.", style="green")


def _with_numbers(found: Validation, name: str) -> str:
    """Return a name; that of the overhead, by which plans are chosen, with its numbers."""
    for row in found.rows:
        if row.quantity == name and row.in_points and row.predicted is not None and row.bias is not None:
            predicted, measured = format_percent(row.predicted), format_percent(row.measured)
            points = f"{abs(row.bias) * 100:.1f} points"
            return f"{name} ({predicted} predicted, {measured} measured: {points} off)"
    return name


def _make_document(plan: Plan, found: Validation) -> dict[str, Any]:
    """Return the validation as JSON data, in SI base units."""
    return {
        **identify_plan(plan),
        "cell": found.cell,
        "machine": found.machine,
        "device": found.device,
        "threads": found.threads,
        "clock": found.clock,
        "repeats": found.repeats,
        "tolerance": found.tolerances.time,
        "overhead_tolerance": found.tolerances.overhead,
        "memory_tolerance": found.tolerances.memory,
        "holds": not found.off and not found.noisy and not found.interrupted,
        "interrupted": found.interrupted,
        "off": found.off,
        "noisy": found.noisy,
        "not_comparable": found.not_comparable,
        "quantities": _list_rows(found),
        "regret": None if found.regret is None else _make_regret_document(found.regret),
        "notes": list(found.notes),
        "estimate_basis": [dict(entry) for entry in plan.estimate_basis],
    }


def _make_regret_document(regret: Regret) -> dict[str, Any]:
    return {
        "ratio": regret.ratio,
        "noise": regret.noise,
        "allowed": regret.allowed,
        "verdict": regret.verdict.value,
        "chosen": regret.chosen,
        "best": regret.best.strategy,
        "contenders": [
            {
                "strategy": one.strategy,
                "parameters": one.parameters,
                "predicted_seconds": one.predicted_seconds,
                "measured_seconds": one.seconds.median,
                "rounds_seconds": list(one.seconds.values),
                "bias": one.bias,
                "allowed": one.allowed,
                "verdict": one.verdict.value,
                "same_schedule": list(one.same),
            }
            for one in regret.contenders
        ],
    }


def _list_rows(found: Validation) -> list[dict[str, Any]]:
    """Return a row for each quantity."""
    return [
        {
            "quantity": row.quantity,
            "unit": row.unit,
            "predicted": row.predicted,
            # JSON has no NaN, which a difference of gradients may be.
            "measured": row.measured if math.isfinite(row.measured) else None,
            "bias": row.bias,
            "allowed": row.allowed,
            "noise": row.noise,
            "verdict": row.verdict.value,
        }
        for row in found.rows
    ]
