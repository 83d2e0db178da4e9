"""Describes a validation: predictions compared with measurements, and the regret of the decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ckptplan import units
from ckptplan.calibration.validation import FACTOR, REGRET, Regret, Row, Unit, Validation, Verdict
from ckptplan.model.plan import find_given_memory
from ckptplan.planning.playback import identify_plan
from ckptplan.report import fields
from ckptplan.report.blocks import Block, Cell, Field, Paragraph, Table, make_facts
from ckptplan.report.formats import ShownPlan, View
from ckptplan.wording import Argument

#: The style and the name of each verdict in a table. Names are shorter than in JSON, to fit 80 columns.
_VERDICTS = {
    Verdict.OK: Cell("ok", style="good"),
    Verdict.OFF: Cell("off", style="bad"),
    Verdict.NOISY: Cell("too noisy", style="caution"),
    Verdict.SMALL: Cell("too small", style="faint"),
    Verdict.OTHER_MACHINE: Cell("not compared", style="caution"),
    Verdict.UNCHECKED: Cell("not plain", style="caution"),
}
_PREDICTED, _MEASURED = Field("predicted", right=True), Field("measured", right=True)
_JUDGEMENT = (
    Field("bias", right=True, priority=1),
    Field("allowed", "off above", right=True, priority=3),
    Field("noise", right=True, priority=2),
    Field("verdict"),
)
_QUANTITIES = (Field("quantity", title="", wraps=True), _PREDICTED, _MEASURED, *_JUDGEMENT)
_CONTENDERS = (fields.STRATEGY, fields.PARAMETERS, _PREDICTED, _MEASURED, *_JUDGEMENT)
_FORMS: dict[Unit, Callable[[float], str]] = {
    "bytes per second": units.format_rate,
    "bytes": units.format_bytes,
    "seconds": units.format_seconds,
    "count": lambda value: units.format_count(round(value)),
    "share": lambda value: f"{value:.3f}" if value > 0.01 or value == 0 else f"{value:.1e}",
}


#: The members of a document that describe the run.
_ENVIRONMENT = ("machine", "device", "threads", "clock")


def view_validation(validation: Validation) -> View:
    """Return the view of a validation: predictions, measurements and verdicts."""
    plan = validation.plan
    return View(
        kind="validation",
        blocks=lambda: _describe(validation),
        document=lambda: _make_document(validation),
        rows=lambda: _list_rows(validation),
        basis=lambda: plan.estimate_basis,
        heading="Predicted and measured",
        title=fields.name_job(plan.workload, plan.profile),
        memory=find_given_memory(plan),
        plans=lambda: [ShownPlan(label=f"{plan.strategy} as it was predicted", plan=plan, first=True)],
    )


def _describe(validation: Validation) -> Iterator[Block]:
    """Yield each quantity with its verdict, the regret, and notes about the comparison."""
    plan, here = validation.plan, validation.environment
    rounds = f"; {here.clock}, {validation.repeats} rounds in turn" if validation.repeats else ""
    yield make_facts(
        {
            "plan": fields.name_plan(plan),
            "ran": f"{validation.cell}, batch {validation.batch}",
            "on": f"{here.machine}, {units.format_threads(here.threads)}{rounds}",
        }
    )
    yield Table.of(_QUANTITIES, map(_make_record, validation.rows))
    points = ". Overhead is the time added to base's; pt are points: a percent of base's time"
    yield Paragraph(
        "bias: predicted over measured, less one; below zero it took longer, or more, than predicted. "
        "Off above: the tolerance, and what the noise of both may hide. Too noisy: not off, but noise may "
        f"hide that it is{points if any(row.in_points for row in validation.rows) else ''}."
    )
    if validation.not_comparable is not None:
        yield Paragraph(f"Times are not comparable: {validation.not_comparable}.")
    if validation.regret is not None:
        yield from _compare_contenders(validation.regret)
    for note in validation.notes:
        yield Paragraph(f"Note: {note}.")
    yield _conclude(validation)


def _make_record(row: Row) -> dict[str, str | Cell | None]:
    """Return the cells of a quantity, or of the time of a contender, in a table."""
    form = units.format_percent if row.in_points else _FORMS[row.unit]
    unit = "pt" if row.in_points else "%"
    bias, allowed, noise = (
        None if share is None else f"{share * 100:.1f} {unit}" for share in (row.bias, row.allowed, row.noise)
    )
    if bias is not None and not bias.startswith("-"):
        bias = "equal" if row.bias == 0 and not row.in_points else f"+{bias}"
    return {
        "quantity": row.quantity,
        "predicted": None if row.predicted is None else form(row.predicted),
        "measured": form(row.measured),
        "bias": bias,
        "allowed": "x 2" if row.allowed == FACTOR - 1 and not row.in_points else allowed,
        "noise": noise,
        "verdict": _VERDICTS[row.verdict],
    }


def _compare_contenders(regret: Regret) -> Iterator[Block]:
    """Yield whether a contender was quicker than the plan, and the time of each contender."""
    row = regret.row
    verdict = _VERDICTS[row.verdict].value
    slower = (
        "nothing that was measured is quicker"
        if row.measured <= 1
        else f"the plan took {units.format_share(row.measured - 1)} longer than the quickest measured, by the "
        f"round; {units.format_share(REGRET)} and the noise, {units.format_share(row.noise or 0)}, are allowed"
    )
    yield Paragraph(f"  {row.measured:.3f}: {slower}  {verdict}", head="Decision regret")
    ordered = sorted(regret.contenders, key=lambda contender: contender.row.measured)
    yield Table.of(
        _CONTENDERS,
        (
            {
                **_make_record(contender.row),
                "strategy": f"{contender.strategy} (chosen)" if contender is regret.own else contender.strategy,
                "parameters": fields.format_cells(contender.parameters),
            }
            for contender in ordered
        ),
    )
    yield from fields.note_same_schedules((contender.strategy, *contender.same) for contender in ordered)


def _conclude(validation: Validation) -> Paragraph:
    """Return the verdict on the whole prediction, with the quantities that are off or too noisy."""
    off = ", ".join(_with_numbers(validation, name) for name in validation.off)
    noisy, repeats = ", ".join(validation.noisy), Argument("repeats")
    is_wrong = bool(validation.off or validation.interrupted)
    if is_wrong:
        verdict = ""
    elif validation.not_comparable is not None:
        verdict = "Counts, bytes and gradients hold; times were not compared"
    else:
        verdict = f"The prediction holds{', as far as it can be judged' if noisy else ''}"
    sentences = (
        verdict,
        f"Outside what is allowed: {off}" if off else "",
        "" if validation.pace is None else _describe_pace(validation, validation.pace),
        f"Too noisy to judge: {noisy}; calibrate again, or more {repeats}, may help" if noisy else "",
        "Interrupted: the rest was not measured" if validation.interrupted else "",
    )
    text = ". ".join(filter(None, sentences))
    return Paragraph(f"{text}.", style="bad" if is_wrong else "caution" if noisy else "good")


def _describe_pace(validation: Validation, pace: float) -> str:
    """Explain that the plan and base both took ``pace`` times as long as predicted."""
    (overhead,) = (row for row in validation.rows if row.quantity == "overhead")
    also = ", and the overhead is as predicted" if overhead.verdict is Verdict.OK else ""
    how = "slower" if pace > 1 else "quicker"
    return (
        f"Everything took {pace:.2g} times as long as calibrated{also}: the machine is {how} than when it was "
        "calibrated. If it stays so, calibrate again"
    )


def _with_numbers(validation: Validation, name: str) -> str:
    """Return the name of a quantity. The overhead, by which plans are chosen, also has its numbers."""
    for row in validation.rows:
        if row.quantity == name and row.in_points and row.predicted is not None and row.bias is not None:
            predicted, measured = units.format_percent(row.predicted), units.format_percent(row.measured)
            points = f"{abs(row.bias) * 100:.1f} points"
            return f"{name} ({predicted} predicted, {measured} measured: {points} off)"
    return name


def _make_document(validation: Validation) -> dict[str, Any]:
    """Return the validation as JSON data, in SI base units."""
    return {
        **identify_plan(validation.plan),
        "cell": validation.cell,
        **{name: getattr(validation.environment, name) for name in _ENVIRONMENT},
        "repeats": validation.repeats,
        **dict(validation.tolerances),
        "holds": not validation.off and not validation.interrupted,
        "interrupted": validation.interrupted,
        "off": validation.off,
        "noisy": validation.noisy,
        "not_comparable": validation.not_comparable,
        "quantities": _list_rows(validation),
        "regret": None if validation.regret is None else _make_regret_document(validation.regret),
        "notes": list(validation.notes),
        "estimate_basis": [dict(entry) for entry in validation.plan.estimate_basis],
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
                "strategy": contender.strategy,
                "parameters": contender.parameters,
                "predicted_seconds": contender.row.predicted,
                "measured_seconds": contender.row.measured,
                "rounds_seconds": list(contender.seconds),
                "bias": contender.row.bias,
                "allowed": contender.row.allowed,
                "verdict": contender.row.verdict.value,
                "same_schedule": list(contender.same),
            }
            for contender in regret.contenders
        ],
    }


def _list_rows(validation: Validation) -> list[dict[str, Any]]:
    """Return a row for each quantity."""
    names = ("quantity", "unit", "predicted", "measured", "bias", "allowed", "noise", "verdict")
    rows = [{name: getattr(row, name) for name in names} for row in validation.rows]
    # JSON has no NaN, which a difference of gradients may be.
    return [row if math.isfinite(row["measured"]) else {**row, "measured": None} for row in rows]
