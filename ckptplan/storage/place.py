"""Finds the remote memory of a call, a folder or host memory, and times it as a run will use it.

A folder has two rates, which differ several times: states that fit the system's file cache move at the speed of
memory, other states at the speed of the device. So a place may offer two links, and the planner takes the
quicker one. Measured rates are cached for a day, also for other processes.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ckptplan.errors import InputError, quote_value
from ckptplan.model.profile import HardwareProfile, Source
from ckptplan.storage.cache import keep, recall
from ckptplan.storage.memory import find_cached_room, find_folder_room
from ckptplan.storage.remote_folder import StateFiles, make_parent
from ckptplan.units import format_bytes, parse_limit
from ckptplan.wording import escape_controls

_log = logging.getLogger("ckptplan.storage")
#: The least and the most states that are timed. In between, the timed states have _BYTES together.
_LEAST, _MOST, _BYTES = 3, 16, 2**26
#: How long measured rates stay valid, in seconds.
_DAY = 86_400
#: The type of the argument ``offload=``.
OffloadTo: TypeAlias = "str | os.PathLike[str] | Offload | None"
#: The assumed rate of a folder that was not timed, in bytes per second.
ASSUMED_RATE = 1e9
_ACCEPTED = "'host', a folder, or Offload(folder, limit='50 GB')"


class Rates(NamedTuple):
    """The median seconds to write a state, to read it, and to hand a message to another thread."""

    write: float
    read: float
    handoff: float = 0.0


@dataclass(frozen=True)
class Offload:
    """A folder for remote checkpoints, or "host", and a limit on their size there: bytes, or "50 GB"."""

    folder: str | os.PathLike[str]
    limit: int | str | None = None


@dataclass(frozen=True, kw_only=True)
class OffloadPlace:
    """A checked place for remote checkpoints: a folder, or host memory if it is None. ``limit`` is in bytes."""

    folder: Path | None
    limit: int | None = None
    #: The argument that named the place, for errors.
    field: str = "offload"

    @property
    def name(self) -> str:
        """The name of the place in messages."""
        return "host memory" if self.folder is None else str(self.folder)


@dataclass(frozen=True, kw_only=True)
class Link:
    """A way to use a place: its capacity in bytes, and the seconds that a state takes to move."""

    place: str
    #: Whether states are written through to the device, since the system's cache has no room for them.
    through: bool = False
    capacity: int
    state_bytes: int
    rates: Rates
    source: Source
    #: Whether states can move while compute runs, and take long enough that overlap pays.
    overlaps: bool = True

    def make_profile(
        self, local_bytes: int, *, overlaps: bool, message_seconds: float = 0.0
    ) -> HardwareProfile:
        """Return the profile for a call: its memory limit is local memory, and the place is remote memory.

        ``message_seconds`` are the seconds of a message beyond moving its bytes.
        """
        timed = ("write_bytes_per_second", "read_bytes_per_second", "latency_seconds")
        return HardwareProfile(
            name="memory-limit",
            local_bytes=local_bytes,
            remote_bytes=self.capacity,
            write_bytes_per_second=self.state_bytes / self.rates.write,
            read_bytes_per_second=self.state_bytes / self.rates.read,
            # A transfer that overlaps compute begins only when its thread does.
            latency_seconds=message_seconds + (self.rates.handoff if overlaps else 0.0),
            overlaps_compute=overlaps,
            sources=dict.fromkeys(timed, self.source),
        )


def read_offload(offload: object, *, plan: object, memory: object) -> OffloadPlace | None:
    """Return the place that ``offload=`` names, None if it is None. Raises InputError."""
    if offload is None:
        return None
    if plan is not None:
        raise InputError(
            "is given together with plan, which already decides what is remote",
            field="offload",
            accepted="plan=... with remote_dir, or memory=... with offload",
        )
    if memory is None:
        raise InputError(
            "needs a limit of local memory",
            field="offload",
            accepted="memory='2 GiB' with it, or memory='auto'",
        )
    wanted: Any = offload if isinstance(offload, Offload) else Offload(offload)  # type: ignore[arg-type]
    if not isinstance(wanted.folder, str | os.PathLike) or not str(wanted.folder):
        raise InputError(f"is {quote_value(offload)}", field="offload", value=str(offload), accepted=_ACCEPTED)
    if "://" in str(wanted.folder):
        raise InputError(
            f"is {quote_value(str(wanted.folder))}",
            field="offload",
            value=str(wanted.folder),
            accepted="a folder on this machine, or one where a remote disk is mounted",
        )
    limit = None if wanted.limit is None else parse_limit(wanted.limit, field="offload.limit")
    if wanted.folder == "host":
        return OffloadPlace(folder=None, limit=limit)
    if isinstance(wanted.folder, str) and wanted.folder.lower() == "host":
        raise InputError(
            f"is {quote_value(wanted.folder)}",
            field="offload",
            value=wanted.folder,
            accepted=f"'host' for host memory, or './{wanted.folder}' for a folder of that name",
        )
    return OffloadPlace(folder=make_parent(wanted.folder, field="offload").resolve(), limit=limit)


def assume_link(state_bytes: int, steps: int) -> Link:
    """Return a link to a folder with an assumed rate and room for all states."""
    state_bytes = max(1, state_bytes)
    text = f"{ASSUMED_RATE / 1e9:g} GB/s each way, as of many disks: nothing was timed"
    return Link(
        place="a folder",
        capacity=steps * state_bytes,
        state_bytes=state_bytes,
        rates=Rates(state_bytes / ASSUMED_RATE, state_bytes / ASSUMED_RATE),
        source=Source(grade="X", assumption=text),
    )


def time_now(
    folder: Path | None,
    *,
    state_bytes: int,
    states: int | None = None,
    clock: Callable[..., Rates] | None = None,
    runtime: str = "files",
    field: str = "remote_dir",
) -> Link:
    """Time a folder, or host memory if ``folder`` is None, and return its link. Cached rates are not used.

    ``states`` is the number of states at once, by default as many as have room. Host memory is assumed to have
    room. ``clock`` and ``runtime`` are as in ``find_links``; ``field`` named the folder. Raises InputError.
    """
    if states is None:
        states = 0 if folder is None else find_folder_room(folder) // state_bytes
    # find_links needs room for two states.
    states = max(2, states)
    links = find_links(
        OffloadPlace(folder=folder, field=field),
        state_bytes=state_bytes,
        steps=states,
        room=states * state_bytes if folder is None else find_cached_room(0),
        clock=clock,
        runtime=runtime,
        anew=True,
    )
    if not links:
        raise InputError(
            f"has no room for two states of {format_bytes(state_bytes)}",
            field=field,
            value=str(folder),
            accepted="a folder with more free space",
        )
    # The last link has the most room.
    return links[-1]


def measure_folder(
    folder: str | os.PathLike[str], *, state_bytes: int, field: str
) -> tuple[dict[str, Any], dict[str, Source]]:
    """Time a folder and return the numbers of a profile with this remote memory, and their sources.

    A missing folder is created. ``field`` is the argument that named the folder. Raises InputError.
    """
    place = make_parent(folder, field=field).resolve()
    link = time_now(place, state_bytes=state_bytes, field=field)
    timed = link.make_profile(1, overlaps=False)
    rates = {
        way: float(f"{getattr(timed, way):.4g}") for way in ("write_bytes_per_second", "read_bytes_per_second")
    }
    # The rates contain the latency of a message.
    latencies = ("latency_seconds", "synchronisation_seconds")
    # A profile with transfer times would ignore the rates.
    unused = dict.fromkeys(("transfer_write_seconds", "transfer_read_seconds"))
    numbers = {"remote_bytes": link.capacity, **rates, **dict.fromkeys(latencies, 0.0), **unused}
    margin = Source(grade="M", source=f"free space of {place}, less a margin for others")
    return numbers, {"remote_bytes": margin, **dict.fromkeys((*rates, *latencies), link.source)}


def find_links(
    place: OffloadPlace | None,
    *,
    state_bytes: int,
    steps: int,
    room: int | None,
    clock: Callable[..., Rates] | None = None,
    runtime: str = "files",
    anew: bool = False,
) -> tuple[Link, ...]:
    """Return the links through which the states of T ``steps`` can move to a place.

    The place is timed, unless valid rates are cached. Its capacity is at most the bytes of all states, so that
    similar calls have the same plan while free space changes. Raises InputError if it cannot be used.

    Arguments:
        place: the place; None gives no links.
        state_bytes: bytes of a state.
        steps: T.
        room: bytes of host memory that states may fill (``find_cached_room``).
        clock: times states as a runtime moves them: ``clock(place, state_bytes, through=, most=)``, with at
            most ``most`` states. None times files, written and read by a single thread.
        runtime: names the runtime that ``clock`` times, as a part of the key of cached rates.
        anew: whether to time the place even if cached rates are valid.
    """
    if place is None:
        return ()
    state_bytes = max(1, state_bytes)
    most = steps * state_bytes if place.limit is None else min(steps * state_bytes, place.limit)
    if place.folder is None and room is None:
        raise InputError(
            "'host' needs to know the memory that is free, which cannot be found out on this system",
            field=place.field,
            accepted="a folder",
        )
    capacity = most
    if place.folder is not None:
        capacity = min(most, find_folder_room(place.folder))
    cached = capacity if room is None else min(capacity, room)
    rooms = {False: cached}
    if cached < capacity and place.folder is not None:
        rooms[True] = capacity
    # Room for less than two states saves no memory, and is too small to time.
    capacities = {through: room_bytes for through, room_bytes in rooms.items() if room_bytes >= 2 * state_bytes}
    if not capacities:
        _warn_unused(place.name, capacity, state_bytes)
    # Rates belong to a device, and another device may be mounted at the same path later.
    device = 0 if place.folder is None else place.folder.stat().st_dev
    links = []
    for through, room_bytes in capacities.items():
        key = f"{place.name} on {device}, {state_bytes} B by {runtime}{', through' * through}"
        rates = None if anew else _recall(key)
        if rates is None:
            rates = (clock or time_files)(place, state_bytes, through=through, most=room_bytes // state_bytes)
            _keep(key, rates)
        how = "written through to the device and read back cold" if through else "as they find room in memory"
        timed = f"timed in {place.name}: states of {format_bytes(state_bytes)}, {how}"
        links.append(
            Link(
                place=place.name,
                through=through,
                capacity=room_bytes,
                state_bytes=state_bytes,
                rates=rates,
                source=Source(grade="M", source=timed),
            )
        )
    return tuple(links)


@cache
def _warn_unused(name: str, capacity: int, state_bytes: int) -> None:
    _log.warning(
        "%s is not used for checkpoints: there is room for %s, and a state takes %s",
        escape_controls(name),
        format_bytes(capacity, like=capacity),
        format_bytes(state_bytes, like=capacity),
    )


def time_files(place: OffloadPlace, state_bytes: int, *, through: bool, most: int) -> Rates:
    """Return the rates of files in the folder of a place. Raises InputError if it cannot be written."""
    assert place.folder is not None  # noqa: S101 - host memory has no files
    folder, state = place.folder, memoryview(b"\1" * state_bytes)

    def time_once() -> Rates:
        with closing(StateFiles(folder, through=through, field=place.field)) as files:
            return time_moves(
                lambda number: files.write(number, [state]),
                # Into new memory, as a run reads.
                lambda number: files.read(number, [memoryview(bytearray(state_bytes))]),
                count=count_moves(state_bytes, most),
            )

    return time_again(time_once)


def time_again(clock: Callable[[], Rates]) -> Rates:
    """Call a clock twice and return the second result, since the first use of cache memory is slow."""
    clock()
    return clock()


def count_moves(state_bytes: int, most: int) -> int:
    """Return how many states to time: fewer if they are large, and never more than ``most``."""
    return min(_MOST, max(_LEAST, _BYTES // state_bytes), most)


def time_moves(write: Callable[[int], object], read: Callable[[int], object], *, count: int) -> Rates:
    """Return the median seconds of ``count`` calls of ``write`` and of ``read`` with the number of a state."""
    seconds: list[float] = []
    for move, numbers in ((write, range(count)), (read, reversed(range(count)))):
        times = []
        for number in numbers:
            began = time.perf_counter()
            move(number)
            times.append(max(time.perf_counter() - began, 1e-9))
        seconds.append(statistics.median(times))
    return Rates(*seconds)


def time_handoff(place: OffloadPlace, compute: Callable[[], object]) -> float:
    """Return the extra seconds of a 1-byte message if another thread writes it while this thread computes."""
    assert place.folder is not None  # noqa: S101 - host memory needs no thread
    with closing(StateFiles(place.folder, field=place.field)) as files, ThreadPoolExecutor(1) as thread:
        alone, beside = [], []
        for _ in range(_MOST):
            began = time.perf_counter()
            files.write(0, [memoryview(b"\1")])
            alone.append(time.perf_counter() - began)
            began = time.perf_counter()
            job = thread.submit(files.write, 0, [memoryview(b"\1")])
            while not job.done():
                compute()
            beside.append(time.perf_counter() - began)
    return max(0.0, statistics.median(beside) - statistics.median(alone))


#: By key: measured rates of this process or another one, and the time of the measurement.
_timed: dict[str, tuple[Rates, float]] = {}


def _recall(key: str) -> Rates | None:
    """Return rates measured within a day. A process keeps its own even if other processes measure new ones."""
    rates = _timed.get(key) or _read_rates(key)
    if rates is None or not 0 <= time.time() - rates[1] < _DAY:
        return None
    _timed[key] = rates
    return rates[0]


def _keep(key: str, rates: Rates) -> None:
    _timed[key] = rates, time.time()
    keep(key, " ".join(map(repr, rates)))


def _read_rates(key: str) -> tuple[Rates, float] | None:
    """Return the rates that another process cached, and when; None if the file holds no valid times."""
    cached = recall(key)
    if cached is None:
        return None
    try:
        rates = Rates._make(map(float, cached[0].split()))
    except (TypeError, ValueError):
        # Another version of this package wrote the file.
        return None
    usable = all(0 < rate < math.inf for rate in rates[:2]) and 0 <= rates.handoff < math.inf
    return (rates, cached[1]) if usable else None
