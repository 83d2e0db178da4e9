"""Predictions compared with measurements, and the regret of the decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ckptplan import units
from ckptplan.calibration.validation import FACTOR, REGRET, Contender, Regret, Row, Unit, Validation, Verdict
from ckptplan.planning.playback import identify_plan
from ckptplan.report import fields
from ckptplan.report.blocks import Block, Cell, Field, Paragraph, Record, Schedules, Section, Table, make_facts
from ckptplan.report.formats import View
from ckptplan.wording import Argument

#: How a verdict stands out, and how it is called in a table, shorter than in JSON so that it fits 80 columns.
_VERDICTS = {
    Verdict.OK: Cell("ok", style="good"),
    Verdict.OFF: Cell("off", style="bad"),
    Verdict.NOISY: Cell("too noisy", style="caution"),
    Verdict.SMALL: Cell("too small", style="faint"),
    Verdict.OTHER_MACHINE: Cell("not compared", style="caution"),
    Verdict.UNCHECKED: Cell("not plain", style="caution"),
    Verdict.NOT_MODELLED: Cell("not modelled", style="faint"),
}
_BIAS = Field("bias", right=True)
_ALLOWED = Field("allowed", "off above", "off\nabove", right=True, priority=2)
_VERDICT = Field("verdict")
_QUANTITIES = (
    Field("quantity", title="", wraps="late"),
    Field("predicted", right=True),
    Field("measured", right=True),
    _BIAS,
    _ALLOWED,
    Field("noise", right=True, priority=1),
    _VERDICT,
)
_CONTENDERS = (
    fields.STRATEGY.ranked(0, wraps="late"),
    fields.PARAMETERS,
    Field("predicted", form=fields.align_seconds),
    Field("measured", form=fields.align_seconds),
    _BIAS,
    _ALLOWED,
    _VERDICT,
)
_FORMS: dict[Unit, Callable[[float], str]] = {
    "bytes per second": units.format_rate,
    "bytes": units.format_bytes,
    "seconds": units.format_seconds,
    "count": lambda value: units.format_count(round(value)),
    "share": lambda value: f"{value:.3f}" if value > 0.01 or value == 0 else f"{value:.1e}",
}


#: What a document says of the run.
_ENVIRONMENT = ("machine", "device", "threads", "clock")


def view_validation(found: Validation) -> View:
    """Return predictions, measurements and verdicts."""
    plan = found.plan
    return View(
        kind="validation",
        blocks=lambda: _tell(found),
        document=lambda: _make_document(found),
        rows=lambda: _list_rows(found),
        basis=lambda: plan.estimate_basis,
        title=f"Predicted and measured: {fields.name_job(plan.workload, plan.profile)}",
        lede=f"{plan.strategy} with {found.cell}, on {found.environment.machine}.",
        sections=lambda: (
            Section("numbers", "Predicted and measured", _tell(found)),
            Schedules(own=plan, title="The schedule as it was predicted"),
        ),
    )


def _tell(found: Validation) -> Iterator[Block]:
    """Yield each quantity with its verdict, the regret, and what limits the comparison."""
    plan, here = found.plan, found.environment
    rounds = f"; {here.clock}, {found.repeats} rounds in turn" if found.repeats else ""
    yield fields.make_title(plan.workload, plan.profile)
    yield make_facts(
        {
            "plan": fields.name_plan(plan),
            "ran": f"{found.cell}, batch {plan.workload.batch}",
            "on": f"{here.machine}, {units.format_threads(here.threads)}{rounds}",
        }
    )
    yield Table.of(_QUANTITIES, map(_tell_quantity, found.rows))
    points = ". Overhead is the time added to base's; pt are points: a percent of base's time"
    yield Paragraph(
        "bias: predicted over measured, less one; below zero it took longer, or more, than predicted. "
        "Off above: the tolerance, and what the noise of both may hide. Too noisy: not off, but noise may "
        f"hide that it is{points if any(row.in_points for row in found.rows) else ''}."
    )
    if found.not_comparable is not None:
        yield Paragraph(f"Times are not comparable: {found.not_comparable}.")
    if found.regret is not None:
        yield from _tell_regret(found.regret)
    for note in found.notes:
        yield Paragraph(f"Note: {note}.")
    yield _conclude(found)


def _tell_quantity(row: Row) -> Record:
    form = units.format_percent if row.in_points else _FORMS[row.unit]
    unit = "pt" if row.in_points else "%"
    bias = None if row.bias is None else f"{row.bias * 100:+.1f} {unit}"
    allowed = None if row.allowed is None else f"{row.allowed * 100:.1f} {unit}"
    if row.allowed == FACTOR - 1 and not row.in_points:
        allowed = "x 2"
    noise = None if row.noise is None else units.format_share(row.noise)
    return {
        "quantity": row.quantity,
        "predicted": None if row.predicted is None else form(row.predicted),
        "measured": form(row.measured),
        "bias": "equal" if row.bias == 0 and not row.in_points else bias,
        "allowed": allowed,
        "noise": f"{row.noise * 100:.1f} pt" if row.in_points and row.noise is not None else noise,
        "verdict": _VERDICTS[row.verdict],
    }


def _tell_regret(regret: Regret) -> Iterator[Block]:
    row = regret.row
    told = (
        "nothing that was measured is quicker"
        if row.measured <= 1
        else f"the plan took {units.format_share(row.measured - 1)} longer than the quickest measured, by the "
        f"round; {units.format_share(REGRET)} and the noise, {units.format_share(row.noise or 0)}, are allowed"
    )
    yield Paragraph(
        f"  {row.measured:.3f}: {told}  {_VERDICTS[regret.row.verdict].value}", head="Decision regret"
    )
    ordered = sorted(regret.contenders, key=lambda one: one.row.measured)
    yield Table.of(_CONTENDERS, (_tell_contender(one, chosen=one is regret.own) for one in ordered))
    for one in ordered:
        if one.same:
            yield Paragraph(f"The schedule of {one.strategy} is also that of {', '.join(one.same)}.")


def _tell_contender(one: Contender, *, chosen: bool) -> Record:
    given = (f"{name} {value:,}" for name, value in one.parameters.items() if not name.endswith("units"))
    return {
        "strategy": f"{one.strategy} (chosen)" if chosen else one.strategy,
        "parameters": fields.make_parameters_cell(", ".join(given)),
        **{name: _tell_quantity(one.row)[name] for name in ("bias", "allowed", "verdict")},
        "predicted": one.row.predicted,
        "measured": one.row.measured,
    }


def _conclude(found: Validation) -> Paragraph:
    said = []
    if found.off:
        said.append(f"Outside what is allowed: {', '.join(_with_numbers(found, name) for name in found.off)}")
    if found.pace is not None:
        said.append(_tell_pace(found, found.pace))
    if found.noisy:
        more = Argument("repeats")
        said.append(f"Too noisy to judge: {', '.join(found.noisy)}; calibrate again, or more {more}, may help")
    if found.interrupted:
        said.append("Interrupted: the rest was not measured")
    wrong = bool(found.off or found.interrupted)
    if not wrong:
        part = ", as far as it can be judged" if found.noisy else ""
        said.insert(
            0,
            "Counts, bytes and gradients hold; times were not compared"
            if found.not_comparable is not None
            else f"The prediction holds{part}",
        )
    return Paragraph(f"{'. '.join(said)}.", style="bad" if wrong else "caution" if found.noisy else "good")


def _tell_pace(found: Validation, pace: float) -> str:
    """Return what it means that the plan and base took as many times as long as predicted."""
    (overhead,) = (row for row in found.rows if row.quantity == "overhead")
    also = ", and the overhead is as predicted" if overhead.verdict is Verdict.OK else ""
    how = "slower" if pace > 1 else "quicker"
    return (
        f"Everything took {pace:.2g} times as long as calibrated{also}: the machine is {how} than when it was "
        "calibrated. If it stays so, calibrate again"
    )


def _with_numbers(found: Validation, name: str) -> str:
    """Return a name; that of the overhead, by which plans are chosen, with its numbers."""
    for row in found.rows:
        if row.quantity == name and row.in_points and row.predicted is not None and row.bias is not None:
            predicted, measured = units.format_percent(row.predicted), units.format_percent(row.measured)
            points = f"{abs(row.bias) * 100:.1f} points"
            return f"{name} ({predicted} predicted, {measured} measured: {points} off)"
    return name


def _make_document(found: Validation) -> dict[str, Any]:
    """Return the validation as JSON data, in SI base units."""
    return {
        **identify_plan(found.plan),
        "cell": found.cell,
        **{name: getattr(found.environment, name) for name in _ENVIRONMENT},
        "repeats": found.repeats,
        **dict(found.tolerances),
        "holds": not found.off and not found.interrupted,
        "interrupted": found.interrupted,
        "off": found.off,
        "noisy": found.noisy,
        "not_comparable": found.not_comparable,
        "quantities": _list_rows(found),
        "regret": None if found.regret is None else _make_regret_document(found.regret),
        "notes": list(found.notes),
        "estimate_basis": [dict(entry) for entry in found.plan.estimate_basis],
    }


def _make_regret_document(regret: Regret) -> dict[str, Any]:
    return {
        "ratio": regret.row.measured,
        "noise": regret.row.noise,
        "allowed": regret.row.allowed,
        "verdict": regret.row.verdict.value,
        "chosen": regret.own.strategy,
        "best": regret.best.strategy,
        "contenders": [
            {
                "strategy": one.strategy,
                "parameters": one.parameters,
                "predicted_seconds": one.row.predicted,
                "measured_seconds": one.row.measured,
                "rounds_seconds": list(one.seconds),
                "bias": one.row.bias,
                "allowed": one.row.allowed,
                "verdict": one.row.verdict.value,
                "same_schedule": list(one.same),
            }
            for one in regret.contenders
        ],
    }


def _list_rows(found: Validation) -> list[dict[str, Any]]:
    """Return a row for each quantity."""
    names = ("quantity", "unit", "predicted", "measured", "bias", "allowed", "noise", "verdict")
    rows = [{name: getattr(row, name) for name in names} for row in found.rows]
    # JSON has no NaN, which a difference of gradients may be.
    return [row if math.isfinite(row["measured"]) else {**row, "measured": None} for row in rows]
