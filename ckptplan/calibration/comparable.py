"""What a validation compares with: the cell, sensible tolerances, and the machine of the calibration."""

from __future__ import annotations

import math

from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.errors import InputError, quote_value
from ckptplan.model.plan import Plan
from ckptplan.model.workload import Workload


def check_numbers(*, repeats: object, thread_count: object, max_seconds: object, **tolerances: object) -> None:
    """Raise InputError for numbers that would leave nothing to compare."""
    for field, count in (("repeats", repeats), ("thread_count", thread_count)):
        if count is not None and (not isinstance(count, int) or count < 1):
            raise InputError(
                f"{quote_value(count)} is no such number",
                field=field,
                value=count,
                accepted="a whole number from 1",
            )
    for field, share in tolerances.items():
        if not isinstance(share, int | float) or not 0 <= share < math.inf:
            raise InputError(
                f"{quote_value(share)} is not a share", field=field, value=share, accepted="a number, as 0.1"
            )
    if max_seconds is not None and (not isinstance(max_seconds, int | float) or not max_seconds > 0):
        raise InputError(
            f"{quote_value(max_seconds)} is out of range",
            field="max_seconds",
            value=max_seconds,
            accepted="a number above 0, in seconds",
        )


def choose_cell(workload: Workload, *, cell: str | None, trust: bool) -> CellSpec:
    """Return the caller's cell, or that of the workload. Raises InputError."""
    if cell is None:
        return CellSpec.of(workload, trust=trust)
    if workload.cell is not None and workload.cell.partition("(")[0] == cell:
        # The caller names the factory, so it is trusted; the sizes are the workload's.
        return CellSpec.of(workload, trust=True)
    return CellSpec.parse(cell, neurons=None if workload.network is None else workload.network.neurons)


def why_not_comparable(plan: Plan, *, machine: str, threads: int) -> str | None:
    """Return why the times of a plan cannot be compared with measurements here, None if they can."""
    workload, calibration = plan.workload, plan.workload.calibration
    if calibration is None:
        return "its times were not measured by `ckptplan calibrate`"
    if workload.timed_on != plan.profile.name:
        return f"its times belong to {workload.timed_on}, its transfers to {plan.profile.name}"
    if calibration.machine != machine:
        return f"it was calibrated on another machine ({calibration.machine}; this is {machine})"
    if calibration.threads != threads:
        return f"it was calibrated with {calibration.threads_text}, and runs with {threads}"
    return None
