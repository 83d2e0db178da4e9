"""Describes a validation: predictions compared with measurements, and the regret of the decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ckptplan import units
from ckptplan.calibration.validation import FACTOR, Regret, Row, Unit, Validation, Verdict
from ckptplan.model.plan import find_given_memory
from ckptplan.planning.playback import identify_plan
from ckptplan.report import fields
from ckptplan.report.blocks import Block, Field, Paragraph, Style, Table, make_facts
from ckptplan.report.formats import ShownPlan, View
from ckptplan.wording import Argument

#: The name of each verdict in a table, and styles of names. Names are shorter than in JSON, to fit 80 columns.
_VERDICTS = {
    Verdict.OK: "ok",
    Verdict.OFF: "off",
    Verdict.NOISY: "too noisy",
    Verdict.SMALL: "too small",
    Verdict.OTHER_MACHINE: "not compared",
    Verdict.UNCHECKED: "not plain",
}
_STYLES: dict[str, Style] = {"ok": "", "off": "bad", "too small": "faint"}
_FIELDS = (
    Field("quantity", title="", wraps=True),
    fields.PARAMETERS,
    Field("predicted", right=True),
    Field("measured", right=True),
    Field("bias", right=True, priority=1),
    Field("allowed", "off above", right=True, priority=3),
    Field("noise", right=True, priority=2),
    Field("verdict"),
)
_FORMS: dict[Unit, Callable[[float], str]] = {
    "bytes per second": units.format_rate,
    "bytes": units.format_bytes,
    "seconds": units.format_seconds,
    "count": lambda value: units.format_count(round(value)),
    "share": lambda value: f"{value:.3f}" if value > 0.01 or value == 0 else f"{value:.1e}",
}
#: The members of a document that describe the run, a quantity, and its judgement.
_ENVIRONMENT = ("machine", "device", "threads", "clock")
_QUANTITY = ("quantity", "unit", "predicted", "measured", "bias", "allowed", "noise", "verdict")


def view_validation(validation: Validation) -> View:
    """Return the view of a validation: predictions, measurements and verdicts."""
    plan = validation.plan
    rows = [{name: getattr(row, name) for name in _QUANTITY} for row in validation.rows]
    # JSON has no NaN, which a difference of gradients may be.
    rows = [row if math.isfinite(row["measured"]) else {**row, "measured": None} for row in rows]
    return View(
        kind="validation",
        blocks=lambda: _describe(validation),
        document=lambda: _make_document(validation, rows),
        rows=lambda: rows,
        basis=lambda: plan.estimate_basis,
        heading="Predicted and measured",
        title=fields.name_job(plan.workload, plan.profile),
        memory=find_given_memory(plan),
        plans=lambda: [ShownPlan(label=f"{plan.strategy} as it was predicted", plan=plan, first=True)],
    )


def _describe(validation: Validation) -> Iterator[Block]:
    """Yield the verdict, each quantity with its own verdict, the regret, and notes about the comparison."""
    plan, here = validation.plan, validation.environment
    rounds = f"; {here.clock}, {validation.repeats} rounds in turn" if validation.repeats else ""
    facts = {
        "plan": fields.name_plan(plan),
        "ran": f"{validation.cell}, batch {validation.batch}",
        "on": f"{here.machine}, {units.format_threads(here.threads)}{rounds}",
    }
    yield make_facts(facts)
    yield Table.of((_FIELDS[0], *_FIELDS[2:]), map(_make_record, validation.rows), style=_choose_style)
    if validation.not_comparable is not None:
        yield Paragraph(f"Times are not comparable: {validation.not_comparable}.")
    if validation.regret is not None:
        yield from _compare_contenders(validation.regret)
    yield from (Paragraph(f"Note: {note}.") for note in validation.notes)
    yield _conclude(validation)


def _make_record(row: Row) -> dict[str, str | None]:
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


def _choose_style(row: Mapping[str, str | None]) -> Style:
    return _STYLES.get(row["verdict"] or "", "caution")


def _compare_contenders(regret: Regret) -> Iterator[Block]:
    """Yield the time of each contender, and by which factor the plan took longer than the quickest one."""
    ordered = sorted(regret.contenders, key=lambda contender: contender.row.measured)
    rows = (
        {
            **_make_record(contender.row),
            "quantity": f"{contender.strategy}{' (chosen)' if contender is regret.own else ''}",
            "parameters": fields.format_cells(contender.parameters),
        }
        for contender in ordered
    )
    row = regret.row
    title = f"Decision regret: {row.measured:.3f} times the quickest contender, {_VERDICTS[row.verdict]}"
    yield Table.of(_FIELDS, rows, title=title, style=_choose_style)
    yield from fields.note_same_schedules((contender.strategy, *contender.same) for contender in ordered)


def _conclude(validation: Validation) -> Paragraph:
    """Return the verdict on the whole prediction, with the quantities that are off or too noisy."""
    off, noisy, repeats = ", ".join(validation.off), ", ".join(validation.noisy), Argument("repeats")
    is_wrong = bool(validation.off or validation.interrupted)
    verdict = f"The prediction holds{', as far as it can be judged' if noisy else ''}"
    if validation.not_comparable is not None:
        verdict = "Counts, bytes and gradients hold; times were not compared"
    pace = validation.pace
    sentences = {
        verdict: not is_wrong,
        f"Outside what is allowed: {off}": bool(off),
        f"Everything took {pace or 1:.2g} times as long as calibrated; if it stays so, calibrate again": bool(
            pace
        ),
        f"Too noisy to judge: {noisy}; calibrate again, or more {repeats}, may help": bool(noisy),
        "Interrupted: the rest was not measured": validation.interrupted,
    }
    text = ". ".join(sentence for sentence, is_said in sentences.items() if is_said)
    return Paragraph(f"{text}.", style="bad" if is_wrong else "caution" if noisy else "good")


def _make_document(validation: Validation, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
        "quantities": rows,
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
