"""What a calibration measured: sizes, times, transfers, and their spread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ckptplan.calibration.calibrated import Calibrated
from ckptplan.model.calibration import Calibration
from ckptplan.report.columns import FittedTable, Sheet, TableColumn
from ckptplan.report.formats import View
from ckptplan.units import (
    format_bytes,
    format_flop_rate,
    format_flops,
    format_rate,
    format_seconds,
    format_share,
)
from ckptplan.wording import Argument, Phrase, Wording

_SIZES = {
    "state_bytes": "state",
    "tape_bytes": "tape of a step",
    "resident_bytes": "parameters",
    "resident_bytes_per_step": "kept for each step",
    "workspace_bytes": "workspace",
}
_TIMES = {
    "forward_seconds": "forward",
    "recompute_seconds": "recompute",
    "record_overhead_seconds": "recording adds",
    "backward_seconds": "backward",
    "advance_seconds": "a run of steps adds",
    "chunk_seconds": "a chunk adds",
    "save_seconds": "saving a state",
    "load_seconds": "loading a state",
}


def view_calibration(found: Calibrated, *, wording: Wording = str) -> View:
    """Return what a calibration measured, for every format."""
    return View(
        kind="calibration",
        table=lambda console: _print_calibration(Sheet(console, wording), found),
        document=lambda: _make_document(found),
        rows=lambda: _list_rows(found),
    )


def _print_calibration(sheet: Sheet, found: Calibrated) -> None:
    """Print sizes, times with their spread and fit, transfers, and how far to trust them."""
    calibration = _of(found)
    head = f"{found.workload.cell}, batch {found.workload.batch}"
    sheet.console.print(head, style="bold", soft_wrap=True)
    where = f"on {calibration.machine}, {calibration.threads_text}, {calibration.framework}"
    sheet.say(f"{where}, {calibration.clock}")
    sheet.gap()
    table = FittedTable(
        (
            TableColumn(),
            TableColumn(title="measured", right=True),
            TableColumn(title="spread", right=True),
            TableColumn(title="fit R²" if sheet.console.encoding.startswith("utf") else "fit R2"),
        )
    )
    for row in _list_numbers(found):
        table.add_row(
            row["name"],
            row["text"],
            "" if row["spread"] is None else format_share(row["spread"]),
            "" if row["fit"] is None else f"{row['fit']:.4f}",
        )
    sheet.show(table)
    sheet.gap()
    text = Phrase(
        f"Times of plans are known to about {format_share(calibration.uncertainty)}, messages to about "
        f"{format_share(calibration.transfer_uncertainty)}. Error bars of a decision: ckptplan sensitivity ",
        Argument("uncertainty", f"{calibration.uncertainty * 100:.2g}%"),
    )
    sheet.say(text)


def _list_numbers(found: Calibrated) -> list[dict[str, Any]]:
    """Return a row for each number: field, SI value, and the value as text."""
    return [*_size_rows(found), *_time_rows(found), *_transfer_rows(found), *_work_rows(found)]


def _size_rows(found: Calibrated) -> Iterator[dict[str, Any]]:
    for field, name in _SIZES.items():
        value = getattr(found.workload, field)
        yield _row(field, name, value, format_bytes(value))


def _time_rows(found: Calibrated) -> Iterator[dict[str, Any]]:
    measured = _of(found).measured
    for field, name in _TIMES.items():
        value = getattr(found.workload, field)
        one = measured.get(field)
        spread, fit = (None, None) if one is None else (one.spread, one.fit)
        yield _row(field, name, value, format_seconds(value), spread=spread, fit=fit)
    recorded = found.steps.record_overhead_seconds + found.steps.recompute_seconds
    one = measured["recorded_seconds"]
    name = "a recorded step"
    yield _row("recorded_seconds", name, recorded, format_seconds(recorded), spread=one.spread, fit=one.fit)


def _transfer_rows(found: Calibrated) -> Iterator[dict[str, Any]]:
    profile = found.profile
    for way in ("write", "read"):
        value = getattr(profile, f"{way}_bytes_per_second")
        name = f"{way}, effective"
        spread = found.transfers.spread[way]
        yield _row(f"{way}_bytes_per_second", name, value, format_rate(value), spread=spread)
    latency = profile.latency_seconds
    yield _row("latency_seconds", "latency of a message", latency, format_seconds(latency))


def _work_rows(found: Calibrated) -> Iterator[dict[str, Any]]:
    """Yield the peaks of the machine, what a step computes, and the share of the roofline that it reaches."""
    profile, operations = found.profile, found.workload.operations
    for field, value in profile:
        if field.endswith("_flops_per_second") and value is not None:
            yield _row(field, f"peak in {field.partition('_')[0]}", value, format_flop_rate(value))
    for field, name, form in (
        ("local_bytes_per_second", "local memory", format_rate),
        ("launch_seconds", "starting a kernel", format_seconds),
    ):
        value = getattr(profile, field)
        # Calibration in JAX measures no peaks.
        if value is not None:
            yield _row(field, name, value, form(value))
    if operations is None:
        return
    for way in ("forward", "backward"):
        value = getattr(operations, f"{way}_flops")
        yield _row(f"{way}_flops", f"a {way} step computes", value, format_flops(value))
    if operations.efficiency is not None:
        share = operations.efficiency
        yield _row("efficiency", "of the roofline reached", share, format_share(share))


def _row(
    field: str, name: str, value: float, text: str, *, spread: float | None = None, fit: float | None = None
) -> dict[str, Any]:
    return {"field": field, "name": name, "value": value, "text": text, "spread": spread, "fit": fit}


def _list_rows(found: Calibrated) -> list[dict[str, Any]]:
    """Return the rows without the texts of the table."""
    return [{key: row[key] for key in ("field", "value", "spread", "fit")} for row in _list_numbers(found)]


def _make_document(found: Calibrated) -> dict[str, Any]:
    """Return the calibration as JSON data."""
    return {
        "workload": {"hash": found.workload.hash, **found.workload.model_dump(mode="json")},
        "profile": {"hash": found.profile.hash, **found.profile.model_dump(mode="json")},
        "noisy": found.noisy is not None,
        "workspace_residual": found.workspace_residual,
        "transfer_misfit": found.transfers.misfit,
    }


def _of(found: Calibrated) -> Calibration:
    calibration = found.workload.calibration
    assert calibration is not None  # noqa: S101 - a calibrated workload has one
    return calibration
