"""Times of a step for the planner: assumed from its operations, or taken from a calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ckptplan.errors import InputError
from ckptplan.jax.footprint import StepFootprint
from ckptplan.model.workload import ACTION_TIMES, TIMES, Basis, Workload
from ckptplan.units import format_bytes

#: What a row of the table takes in addition to its steps.
_ROW_SECONDS = 2e-6
#: A step that computes nothing.
_LEAST_SECONDS = 1e-9


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Times as fields of a workload, with their basis."""

    seconds: tuple[tuple[str, float], ...]
    basis: Basis

    def fields(self) -> dict[str, Any]:
        """Return the times by the fields of a workload."""
        return dict(self.seconds)


def assume_times(footprint: StepFootprint) -> StepTimes:
    """Return the times of the operations of a step at assumed rates."""
    forward = max(footprint.forward_seconds, _LEAST_SECONDS)
    return StepTimes(
        seconds=(
            ("forward_seconds", forward),
            ("recompute_seconds", forward),
            ("record_overhead_seconds", max(0.0, footprint.record_seconds - forward)),
            ("backward_seconds", max(footprint.backward_seconds, _LEAST_SECONDS)),
            ("advance_seconds", _ROW_SECONDS),
            ("chunk_seconds", _ROW_SECONDS),
        ),
        basis=Basis(kind="assumed", why="operations of the traced step, at assumed rates"),
    )


def take_times(footprint: StepFootprint, timed: Workload, *, among: Sequence[StepFootprint]) -> StepTimes:
    """Return the times of a calibrated workload.

    It was measured with one kind of tape of ``among``. With another one, what recording and reversing take is
    the estimate, at the pace of the kind that was measured. Raises InputError if the workload is of another
    step.
    """
    units = timed.units or 1
    state, tape = timed.state_bytes * units, timed.tape_bytes * units
    equal = [one for one in among if (one.state_bytes, one.tape_bytes) == (state, tape)]
    kind = None if timed.calibration is None else timed.calibration.tape
    measured = next((one for one in equal if one.tape == kind), equal[0] if equal else None)
    if measured is None:
        tapes = ", ".join(format_bytes(one.tape_bytes) for one in among)
        raise InputError(
            f"{timed.name!r} has a state of {format_bytes(state)} and tapes of {format_bytes(tape)}; this step "
            f"has {format_bytes(among[0].state_bytes)}, and tapes of {tapes}",
            field="workload",
            accepted="one that was calibrated with this cell and batch in JAX",
        )
    seconds = {name: getattr(timed, name) for name in (*TIMES, *ACTION_TIMES)}
    why = f"calibrated: workload {timed.name}"
    if footprint is measured:
        return StepTimes(seconds=tuple(seconds.items()), basis=Basis(kind="measured", why=why))
    known = timed.forward_seconds + timed.record_overhead_seconds + timed.backward_seconds
    pace = known / max(measured.record_seconds + measured.backward_seconds, _LEAST_SECONDS)
    seconds["record_overhead_seconds"] = pace * max(0.0, footprint.record_seconds - footprint.forward_seconds)
    seconds["backward_seconds"] = max(pace * footprint.backward_seconds, _LEAST_SECONDS)
    why = f"{why}, whose tapes are of another kind: recording and reversing at its pace"
    return StepTimes(seconds=tuple(seconds.items()), basis=Basis(kind="derived", why=why))
