"""Off-chip memory for a call: a folder or host memory, timed as a run will use it.

The rate of a folder is one of two numbers that differ several times: states that find room in the system's
cache move at the speed of memory, others at that of the device. So a place may offer two links, of which the
planner takes the quicker one. What was timed is kept for a day, with the place, for other processes, too.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.model.profile import HardwareProfile, Source
from ckptplan.storage.cache import find_cache
from ckptplan.storage.files import parse_json, read_text, write_text
from ckptplan.storage.remote_folder import make_parent
from ckptplan.torch.memory import available_bytes, round_down
from ckptplan.torch.pinned_store import PinnedStore
from ckptplan.torch.staged_store import Files, HostMemory, StagedStore
from ckptplan.torch.stores import Checkpoint, Store
from ckptplan.torch.trees import flatten
from ckptplan.units import format_bytes, parse_bytes

#: How many states are timed: at least so many, and more of small ones.
_LEAST, _MOST, _BYTES = 3, 16, 2**26
#: The share of free space that is left to others.
_MARGIN = 0.05
#: The share of free memory that states may fill.
_SHARE = 0.7
#: How long rates are kept, in seconds.
_DAY = 86_400
#: What ``offload=`` takes.
OffloadTo: TypeAlias = "str | os.PathLike[str] | Offload | None"
#: The rate of a folder that nobody has timed, in bytes per second.
ASSUMED_RATE = 1e9
_ACCEPTED = "'host', a folder, or Offload(folder, limit='50 GB')"
_log = logging.getLogger("ckptplan.torch")


@dataclass(frozen=True)
class Offload:
    """A folder for remote checkpoints, or "host", and the most that they may take there: bytes, or "50 GB"."""

    folder: str | os.PathLike[str]
    limit: int | str | None = None


@dataclass(frozen=True, kw_only=True)
class OffloadPlace:
    """A place that was checked: a folder, or host memory if it is None. ``limit`` is in bytes."""

    folder: Path | None
    limit: int | None = None

    @property
    def name(self) -> str:
        """The place in words."""
        return "host memory" if self.folder is None else str(self.folder)


@dataclass(frozen=True, kw_only=True)
class Link:
    """A way to use a place: how much goes there, and the seconds that a state takes, one way."""

    place: str
    #: Whether states are written through to the device, as there is no room for them in the system's cache.
    through: bool = False
    capacity: int
    state_bytes: int
    write_seconds: float
    read_seconds: float
    source: Source

    def make_profile(self, local_bytes: int, *, overlaps: bool) -> HardwareProfile:
        """Return the machine of a call: its limit, and the place as remote memory."""
        return HardwareProfile(
            name="memory-limit",
            local_bytes=local_bytes,
            remote_bytes=self.capacity,
            write_bytes_per_second=self.state_bytes / self.write_seconds,
            read_bytes_per_second=self.state_bytes / self.read_seconds,
            overlaps_compute=overlaps,
            sources=dict.fromkeys(("write_bytes_per_second", "read_bytes_per_second"), self.source),
        )


def read_offload(offload: object, *, plan: object, memory: object) -> OffloadPlace | None:
    """Return the place that ``offload=`` names, None if it is None. Raises InputError."""
    if offload is None:
        return None
    if plan is not None:
        raise InputError(
            "is given together with plan, which says itself what is remote",
            field="offload",
            accepted="plan=... with remote_dir, or memory=... with offload",
        )
    if memory is None:
        raise InputError(
            "needs a limit of local memory",
            field="offload",
            accepted="memory='2 GiB' with it, or memory='auto'",
        )
    asked: Any = offload if isinstance(offload, Offload) else Offload(offload)  # type: ignore[arg-type]
    if not isinstance(asked.folder, str | os.PathLike) or not str(asked.folder):
        raise InputError(f"is {quote_value(offload)}", field="offload", value=str(offload), accepted=_ACCEPTED)
    limit = None
    if asked.limit is not None:
        try:
            limit = parse_bytes(asked.limit)
        except InputError as error:
            raise InputError(
                error.message, field="offload.limit", value=asked.limit, accepted=error.accepted
            ) from None
        if limit <= 0:
            raise InputError(
                "is not positive", field="offload.limit", value=asked.limit, accepted="a size, as '50 GB'"
            )
    if asked.folder == "host":
        return OffloadPlace(folder=None, limit=limit)
    return OffloadPlace(folder=make_parent(asked.folder, field="offload").resolve(), limit=limit)


def at_place(place: OffloadPlace | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a call with the folder of a place."""
    return {**options, "remote_dir": place.folder} if place is not None else dict(options)


def assume_link(state_bytes: int, steps: int) -> Link:
    """Return a folder of an assumed rate, with room for all states."""
    state_bytes = max(1, state_bytes)
    text = f"{ASSUMED_RATE / 1e9:g} GB/s each way, as of many disks: nothing was timed"
    return Link(
        place="a folder",
        capacity=steps * state_bytes,
        state_bytes=state_bytes,
        write_seconds=state_bytes / ASSUMED_RATE,
        read_seconds=state_bytes / ASSUMED_RATE,
        source=Source(grade="X", assumption=text),
    )


def find_links(
    place: OffloadPlace | None, *, state_bytes: int, steps: int, device: torch.device, local_bytes: int
) -> tuple[Link, ...]:
    """Return how the states of T ``steps``, each of so many bytes, can use a place.

    The place is timed, unless it was within a day. Its room counts up to what all states take, so that calls of
    a kind have the same plan while free space changes. Raises InputError if it cannot be used.

    Arguments:
        place: the place; nothing moves if it is None.
        state_bytes: bytes of a state.
        steps: T.
        device: where the call runs.
        local_bytes: the limit of the call.
    """
    if place is None:
        return ()
    room, state_bytes = find_cached_room(device, local_bytes), max(1, state_bytes)
    most = steps * state_bytes if place.limit is None else min(steps * state_bytes, place.limit)
    if place.folder is None:
        if room is None:
            raise InputError(
                "'host' needs to know the memory that is free, which cannot be found out on this system",
                field="offload",
                accepted="a folder",
            )
        rooms = {False: min(room, most)}
    else:
        capacity = min(round_down(int((1 - _MARGIN) * shutil.disk_usage(place.folder).free)), most)
        cached = capacity if room is None else min(capacity, room)
        rooms = {False: cached, True: capacity} if cached < capacity else {False: cached}
    return tuple(
        _time_place(place, state_bytes, device, capacity=capacity, through=through)
        for through, capacity in rooms.items()
        # Less than two states bring nothing, and there is no room to time them.
        if capacity >= 2 * state_bytes
    )


def find_cached_room(device: torch.device, local_bytes: int) -> int | None:
    """Return the host memory that remote states may fill beside a call, None if the system does not tell.

    Files that take more are written through to their device (``Files``).
    """
    free = available_bytes(torch.device("cpu"))
    if free is None:
        return None
    # What calls of a kind have free should give the same plan again.
    return round_down(int(_SHARE * max(0, free - (local_bytes if device.type == "cpu" else 0))))


def make_store(
    folder: str | os.PathLike[str] | None, device: torch.device, *, ahead: bool, through: bool = False
) -> Store:
    """Return the store of remote checkpoints in a folder, or in host memory. Raises InputError."""
    if folder is not None:
        return StagedStore(Files(folder, through=through), device, ahead=ahead)
    if device.type == "cuda":
        return PinnedStore(device, ahead=ahead)
    return StagedStore(HostMemory(), device, ahead=ahead)


def _time_place(
    place: OffloadPlace, state_bytes: int, device: torch.device, *, capacity: int, through: bool
) -> Link:
    """Return a link with the seconds of a state, timed now or within a day."""
    key = f"{place.name} on {_find_device(place)}, {state_bytes} B from {device.type}{', through' * through}"
    rates = _recall(key)
    if rates is None:
        most = capacity // state_bytes
        rates = _time_states(place, state_bytes, device, through=through, most=most)
        _remember(key, rates)
    how = "written through to the device and read back cold" if through else "as they find room in memory"
    timed = f"timed in {place.name}: states of {format_bytes(state_bytes)}, {how}"
    return Link(
        place=place.name,
        through=through,
        capacity=capacity,
        state_bytes=state_bytes,
        write_seconds=rates[0],
        read_seconds=rates[1],
        source=Source(grade="M", source=timed),
    )


def _time_states(
    place: OffloadPlace, state_bytes: int, device: torch.device, *, through: bool, most: int
) -> tuple[float, float]:
    """Return the median seconds of writing a state, and of reading it, of no more states than have room."""
    count = min(_MOST, max(_LEAST, _BYTES // state_bytes), most)
    leaves, structure = flatten(torch.ones(state_bytes, dtype=torch.uint8, device=device))
    state = Checkpoint(leaves, structure, ())
    taken: tuple[list[float], list[float]] = [], []
    with closing(make_store(place.folder, device, ahead=False, through=through)) as store:
        for number in range(count):
            with _clock(taken[0], device):
                store.put(number, state)
        for number in reversed(range(count)):
            with _clock(taken[1], device):
                store.get(number)
    write, read = (statistics.median(one) for one in taken)
    return write, read


@contextmanager
def _clock(into: list[float], device: torch.device) -> Iterator[None]:
    began = time.perf_counter()
    yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    into.append(max(time.perf_counter() - began, 1e-9))


def _find_device(place: OffloadPlace) -> int:
    """Return the number of the device that has the folder: another one may be mounted there tomorrow."""
    return 0 if place.folder is None else place.folder.stat().st_dev


#: What was timed in this process, as in the file.
_known: dict[str, list[float]] = {}


def _recall(key: str) -> tuple[float, float] | None:
    found = _known.get(key) or _read_file().get(key)
    if found is None:
        return None
    write, read, when = found
    if not 0 <= time.time() - when < _DAY:
        return None
    # The same in all calls of this process, whatever others time.
    _known[key] = found
    return write, read


def _remember(key: str, rates: tuple[float, float]) -> None:
    _known[key] = [*rates, time.time()]
    file = _find_file()
    if file is None:
        return
    kept = {name: one for name, one in _read_file().items() if time.time() - one[2] < _DAY}
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_text(file, json.dumps({**kept, key: _known[key]}))
    except (InputError, OSError) as error:
        _log.debug("the rates of %s are not kept for other processes: %s", key, error)


def _find_file() -> Path | None:
    folder = find_cache("places")
    return None if folder is None else folder / "rates.json"


def _read_file() -> dict[str, list[float]]:
    """Return the rates of other processes; a file that holds anything else is none, and is replaced."""
    file = _find_file()
    if file is None or not file.is_file():
        return {}
    try:
        document = parse_json(read_text(file), source=str(file))
    except InputError as error:
        _log.debug("no rates are known: %s", error)
        return {}
    return {
        key: one
        for key, one in document.items()
        if isinstance(one, list)
        and len(one) == 3
        and all(isinstance(number, float) and 0 < number < 1e11 for number in one)
    }
