"""Lists the basis of a prediction: every input of a plan, with its source or assumption."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from ckptplan.model.budget import remaining_bytes
from ckptplan.model.goal import Goal
from ckptplan.model.prediction import BasisEntry
from ckptplan.model.profile import GRADES, NUMBERS, PEAKS, HardwareProfile
from ckptplan.model.workload import ACTION_TIMES, DERIVED, TIMES, WORKSPACES, Workload
from ckptplan.units import format_share

#: Fields that no prediction uses.
_NOT_ESTIMATED = ("power_watts", "idle_power_watts", "price_per_hour")
#: Grade of a number without a published source -> the kind of its entry.
_KINDS: dict[str, Literal["derived", "measured"]] = {"D": "derived", "M": "measured"}
#: The text for a number without a source.
_UNSOURCED = "given without a source"
#: The numbers of a workload that are estimates; its steps, batch and units are chosen.
_SIZES_AND_TIMES = (*DERIVED, *WORKSPACES, *TIMES, *ACTION_TIMES)


def collect_basis(
    workload: Workload, profile: HardwareProfile, goal: Goal, *, own_budget: bool = False
) -> tuple[BasisEntry, ...]:
    """Return the inputs of a prediction, assumptions first.

    ``own_budget`` says that the local budget is the plan's own peak, and not one set by the caller.
    """
    entries = [
        *_list_profile(profile, goal, own_budget=own_budget, peaks=workload.is_estimated),
        *_list_workload(workload),
        *_list_assumptions(workload, profile),
    ]
    first = {"assumed": 0, "estimated": 1}
    return tuple(sorted(entries, key=lambda entry: first.get(entry.kind, len(first))))


def find_unsourced(entries: Iterable[BasisEntry]) -> list[BasisEntry]:
    """Return the entries of numbers without a source; plans of version 1 name a whole model instead."""
    models = ("profile", "workload")
    return [
        entry
        for entry in entries
        if entry.kind == "stated" and (entry.text == _UNSOURCED or entry.field in models)
    ]


def _list_profile(
    profile: HardwareProfile, goal: Goal, *, own_budget: bool, peaks: bool
) -> Iterator[BasisEntry]:
    """Yield the numbers of a profile that predictions use; ``peaks`` if times were estimated from them."""
    overrides = _list_overrides(profile, goal)
    for field in NUMBERS:
        source = profile.sources.get(field)
        name = f"profile.{field}"
        if field == "local_bytes" and own_budget:
            yield BasisEntry(
                field=name, kind="derived", text="the budget is this plan's own peak: it is a point of a front"
            )
        elif field == "headroom" and (own_budget or ("local_bytes" in overrides and not goal.headroom)):
            # A budget that the caller set, or that is the plan's own peak, has no headroom.
            continue
        elif field in overrides:
            yield BasisEntry(field=name, kind="stated", text=overrides[field])
        elif field in _NOT_ESTIMATED or (field in PEAKS and not peaks):
            continue
        elif source is None:
            if _is_given(profile, field):
                yield BasisEntry(field=name, kind="stated", text=_UNSOURCED)
        elif source.grade == "X":
            yield BasisEntry(field=name, kind="assumed", text=f"{source.assumption} (grade X)")
        else:
            text = f"{source.source} (grade {source.grade}, {GRADES[source.grade]})"
            note = f"; {source.note}" if source.note else ""
            yield BasisEntry(field=name, kind=_KINDS.get(source.grade, "sourced"), text=f"{text}{note}")


def _list_overrides(profile: HardwareProfile, goal: Goal) -> dict[str, str]:
    """Return the fields of a profile that the caller replaced, each with the text of its entry."""
    overrides = {}
    if goal.remote_bytes != profile.remote_bytes:
        overrides["remote_bytes"] = "budget set by the caller"
    if goal.local_bytes != remaining_bytes(profile.local_bytes, goal.headroom):
        overrides["local_bytes"] = "budget set by the caller"
    if goal.headroom != profile.headroom or "local_bytes" in overrides:
        share = format_share(goal.headroom)
        overrides["headroom"] = f"{share} of local memory left free, set by the caller"
    return overrides


def _list_workload(workload: Workload) -> Iterator[BasisEntry]:
    for field, basis in workload.basis.items():
        if field == "operations" and not workload.is_estimated:
            # Measured times do not depend on operations.
            continue
        yield BasisEntry(field=f"workload.{field}", kind=basis.kind, text=basis.why)
    calibration = workload.calibration
    if calibration is not None:
        yield BasisEntry(
            field="workload.times",
            kind="measured",
            text=f"times of steps are known to within {format_share(calibration.uncertainty)}, "
            f"on {calibration.machine}",
        )
        if not calibration.times_actions:
            yield BasisEntry(
                field="workload.times",
                kind="assumed",
                text="calibrated before the costs of actions were measured: they count as 0, so plans of many "
                "short chunks take longer than predicted; calibrate again",
            )
    for field in _SIZES_AND_TIMES:
        name = f"workload.{field}"
        if field in workload.basis or not _is_given(workload, field):
            continue
        if field in DERIVED and workload.network is not None:
            yield BasisEntry(field=name, kind="derived", text="from the network")
        else:
            yield BasisEntry(field=name, kind="stated", text=_UNSOURCED)


def _is_given(model: HardwareProfile | Workload, field: str) -> bool:
    """Return whether a field differs from its default."""
    return bool(getattr(model, field) != type(model).model_fields[field].default)


def _list_assumptions(workload: Workload, profile: HardwareProfile) -> Iterator[BasisEntry]:
    """Yield the assumptions about a workload on a profile, and about transfers."""
    if workload.timed_on is not None and workload.timed_on != profile.name:
        given = (*TIMES, *(name for name in ACTION_TIMES if getattr(workload, name)))
        yield BasisEntry(
            field="workload.times",
            kind="assumed",
            text=f"{', '.join(given)} belong to {workload.timed_on} and are carried over to {profile.name}",
        )
    if workload.units is None and profile.units > 1:
        yield BasisEntry(
            field="workload.units",
            kind="assumed",
            text=f"not given: the bytes are taken to be those of one of the profile's {profile.units:,} units",
        )
    if workload.units is not None and workload.units != profile.units:
        yield BasisEntry(
            field="workload.bytes",
            kind="assumed",
            text=f"bytes per unit rescaled from {workload.units:,} to {profile.units:,} units, spread evenly",
        )
    if profile.overlaps_compute:
        yield BasisEntry(
            field="model.transfers",
            kind="assumed",
            text="overlap compute, with an engine and a buffer for each direction, reads one message ahead; "
            "a trainer that waits for each transfer is slower",
        )
