"""Keeps checkpoints off the device: in host memory, or in files."""

from __future__ import annotations

import torch

from ckptplan.model.plan import Plan
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.place import OffloadPlace
from ckptplan.storage.remote_folder import check_room
from ckptplan.torch.store.place import find_host_room, make_store
from ckptplan.torch.store.store import Store


def check_room_of(plan: Plan | Schedule, place: OffloadPlace | None) -> None:
    """Raise InputError if a folder has no room for the remote checkpoints of a plan."""
    if place is not None and place.folder is not None and isinstance(plan, Plan):
        check_room(place.folder, plan.predicted.remote_peak_bytes, field=place.field)


def make_remote_store(
    plan: Plan | Schedule, place: OffloadPlace | None, device: torch.device, *, is_observed: bool
) -> Store | None:
    """Return the store for the remote checkpoints of a plan; None if the plan has none.

    Arguments:
        plan: the plan.
        place: a folder, or host memory if it is None.
        device: the device on which steps run.
        is_observed: whether an observer measures each action, so that no transfer may overlap compute.

    Raises InputError if a folder cannot be used.
    """
    schedule = schedule_of(plan) if isinstance(plan, Plan) else plan
    place, overlaps = place or OffloadPlace(folder=None), schedule.overlaps and not is_observed
    if not isinstance(plan, Plan):
        return make_store(place, device, ahead=overlaps)
    predicted = plan.predicted
    if not predicted.remote_peak_bytes:
        return None
    room = find_host_room(device, predicted.local_peak_bytes)
    through = room is not None and predicted.remote_peak_bytes > room
    return make_store(place, device, ahead=overlaps, through=through)
