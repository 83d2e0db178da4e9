"""Off-chip memory for a call in PyTorch: makes stores for checkpoints, and times them as runs use them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ckptplan.model.plan import Plan
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage import place as places
from ckptplan.storage.memory import find_cached_room
from ckptplan.storage.place import Link, OffloadPlace, Rates, count_moves, time_again, time_handoff, time_moves
from ckptplan.storage.remote_folder import StateFiles, check_room, make_parent
from ckptplan.torch.store.files import FileStore
from ckptplan.torch.store.host import HostStore
from ckptplan.torch.store.store import TensorStore

#: Elements of the operation that runs while a thread transfers. Small operations delay the thread most.
_SMALL = 2**12
#: For each message that a thread moves, compute loses about the time of this many handoffs.
_HANDOFFS = 3


def find_links(
    place: OffloadPlace | None, *, state_bytes: int, steps: int, device: torch.device, local_bytes: int
) -> tuple[Link, ...]:
    """Return the ways to keep the states of a call in a place (see ``storage.place``).

    Arguments:
        place: the place; nothing moves if it is None.
        state_bytes: bytes of a state.
        steps: T.
        device: the device on which the call runs.
        local_bytes: the limit of the call.
    """
    if place is None:
        return ()
    links = places.find_links(
        place,
        state_bytes=state_bytes,
        steps=steps,
        room=find_host_room(device, local_bytes),
        clock=partial(_time_states, device),
        runtime=f"torch on {device.type}",
    )
    # The thread that computes does copies within host memory itself.
    threads = place.folder is not None or device.type == "cuda"
    return tuple(replace(link, overlaps=threads and _pays_in_threads(link.rates)) for link in links)


def _pays_in_threads(rates: Rates) -> bool:
    """Return whether moving a state and back takes longer than the delay of compute by threads."""
    return rates.write + rates.read > 2 * _HANDOFFS * rates.handoff


def time_place(folder: Path | None, *, state_bytes: int, states: int, device: torch.device) -> Link:
    """Time a folder, or host memory, now, as stores use it for ``states`` states at once. Raises InputError."""
    return places.time_now(
        folder,
        state_bytes=state_bytes,
        states=states,
        clock=partial(_time_states, device),
        runtime=f"torch on {device.type}",
    )


def find_host_room(device: torch.device, local_bytes: int) -> int | None:
    """Return the host memory that remote states may fill during a call; None if it is not known."""
    return find_cached_room(local_bytes if device.type == "cpu" else 0)


def make_store(
    place: OffloadPlace, device: torch.device, *, ahead: bool, through: bool = False
) -> TensorStore[Any]:
    """Return the store of remote checkpoints in a place. Raises InputError."""
    if place.folder is None:
        return HostStore(device, ahead=ahead)
    folder = make_parent(place.folder, field=place.field)
    return FileStore(StateFiles(folder, through=through, field=place.field), device, ahead=ahead)


def check_room_of(plan: Plan | Schedule, place: OffloadPlace | None) -> None:
    """Raise InputError if a folder has no room for the remote checkpoints of a plan."""
    if place is not None and place.folder is not None and isinstance(plan, Plan):
        check_room(place.folder, plan.predicted.remote_peak_bytes, field=place.field)


def make_remote_store(
    plan: Plan | Schedule, place: OffloadPlace | None, device: torch.device, *, is_observed: bool
) -> TensorStore[Any] | None:
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


def _time_states(
    device: torch.device, place: OffloadPlace, state_bytes: int, *, through: bool, most: int
) -> Rates:
    """Time at most ``most`` states on their way to a place and back, and a thread during small operations."""
    state = [torch.ones(state_bytes, dtype=torch.uint8, device=device)]

    def move(action: Any, *given: Any) -> None:
        action(*given)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def time_once() -> Rates:
        with closing(make_store(place, device, ahead=False, through=through)) as store:
            return time_moves(
                lambda number: move(store.keep, number, state),
                lambda number: move(store.fetch, number),
                count=count_moves(state_bytes, most),
            )

    rates = time_again(time_once)
    if place.folder is None:
        return rates
    small = torch.ones(_SMALL)
    return rates._replace(handoff=time_handoff(place, lambda: small.add_(1)))
