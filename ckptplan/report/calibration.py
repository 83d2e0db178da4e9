"""Describes a calibration: measured sizes, times and transfers, and their spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckptplan.calibration.calibrate import Calibrated
from ckptplan.model.profile import NUMBERS, Source
from ckptplan.model.workload import ACTION_TIMES, WORKSPACES, Calibration, Measured
from ckptplan.report.blocks import Field, Paragraph, Table
from ckptplan.report.formats import View
from ckptplan.report.numbers import format_field
from ckptplan.units import format_share
from ckptplan.wording import Argument


def _show_interval(row: Mapping[str, Any]) -> str | None:
    field, low, high = row["field"], row["low"], row["high"]
    return None if low is None else f"{format_field(field, low)} to {format_field(field, high)}"


_FIELDS = (
    Field("field", ""),
    Field("measured", right=True, show=lambda row: format_field(row["field"], row["value"])),
    Field("interval", "", right=True, priority=1, show=_show_interval),
)
#: Fields of the workload, of the profile and of the operations of a step that are measured.
_WORKLOAD = (
    *("state_bytes", "tape_bytes", "cache_bytes", "resident_bytes", "resident_bytes_per_step", *WORKSPACES),
    *("forward_seconds", "recompute_seconds", "record_overhead_seconds", "backward_seconds"),
    *ACTION_TIMES,
)
_PROFILE = (
    "write_bytes_per_second",
    "read_bytes_per_second",
    "latency_seconds",
    *(field for field in NUMBERS if field.endswith("flops_per_second")),
    "local_bytes_per_second",
    "launch_seconds",
)
_OPERATIONS = ("forward_flops", "backward_flops", "efficiency")


def view_calibration(calibrated: Calibrated) -> View:
    """Return the view of a calibration: sizes, times and transfers with their intervals."""
    workload, calibration = calibrated.workload, calibrated.workload.calibration
    assert calibration is not None  # noqa: S101 - a calibrated workload has one
    rows = list(_list_rows(calibrated, calibration))
    # An error bar of more than 100 % would allow negative times.
    uncertainty = Argument("uncertainty", f"{min(calibration.uncertainty, 1) * 100:.2g}%")
    run = (calibration.machine, calibration.threads_text, calibration.framework, calibration.clock)
    trust = (
        f"times of steps are known to within {format_share(calibration.uncertainty)}, of messages to within "
        f"{format_share(calibration.transfer_uncertainty)}; error bars of a decision: "
        f"ckptplan sensitivity with both files and {uncertainty}"
    )
    return View(
        kind="calibration",
        heading="Calibration",
        title=f"{workload.cell}, batch {workload.batch}",
        blocks=lambda: (Paragraph(f"on {', '.join(run)}"), Table.of(_FIELDS, rows), Paragraph(trust)),
        document=lambda: {
            "workload": workload.document(),
            "profile": calibrated.profile.document(),
            "noisy": calibrated.noisy is not None,
            "workspace_residual": calibrated.workspace_residual,
        },
        rows=lambda: rows,
    )


def _list_rows(calibrated: Calibrated, calibration: Calibration) -> Iterator[dict[str, Any]]:
    """Yield a row for each number, with the ends of its interval: sizes, times, transfers, peaks."""
    parts: tuple[tuple[object, Sequence[str], Mapping[str, Measured | Source]], ...] = (
        (calibrated.workload, _WORKLOAD, calibration.measured),
        (calibrated.profile, _PROFILE, calibrated.profile.sources),
        (calibrated.workload.operations, _OPERATIONS, {}),
    )
    for model, names, intervals in parts:
        for field in names:
            # Calibration in JAX measures no peaks.
            if (value := getattr(model, field, None)) is not None:
                measured = intervals.get(field)
                ends = (None, None) if measured is None else (measured.low, measured.high)
                low, high = (None if end is None else end * value for end in ends)
                yield {"field": field, "value": value, "low": low, "high": high}
