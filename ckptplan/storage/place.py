"""Off-chip memory for a call: a folder or host memory, and its rates as a run will see them.

The rate of a folder is one of two numbers that differ several times: states that find room in the system's
cache move at the speed of memory, others at that of the device. So a place may offer two links, of which the
planner takes the quicker one. What was timed is kept for a day, with the place, for other processes, too.
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
#: How many states are timed: at least so many, and more of small ones.
_LEAST, _MOST, _BYTES = 3, 16, 2**26
#: How long rates are kept, in seconds.
_DAY = 86_400
#: What ``offload=`` takes.
OffloadTo: TypeAlias = "str | os.PathLike[str] | Offload | None"
#: The rate of a folder that nobody has timed, in bytes per second.
ASSUMED_RATE = 1e9
_ACCEPTED = "'host', a folder, or Offload(folder, limit='50 GB')"


class Rates(NamedTuple):
    """The median seconds of writing a state and of reading it, and those of handing a message to a thread."""

    write: float
    read: float
    handoff: float = 0.0


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
    #: The argument that named it, for errors.
    field: str = "offload"

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
    rates: Rates
    source: Source
    #: Whether states can move while compute runs, and take long enough for that to pay.
    overlaps: bool = True

    def make_profile(
        self, local_bytes: int, *, overlaps: bool, message_seconds: float = 0.0
    ) -> HardwareProfile:
        """Return the machine of a call: its limit, and the place as remote memory.

        ``message_seconds`` are what a message takes besides moving its bytes.
        """
        timed = ("write_bytes_per_second", "read_bytes_per_second", "latency_seconds")
        return HardwareProfile(
            name="memory-limit",
            local_bytes=local_bytes,
            remote_bytes=self.capacity,
            write_bytes_per_second=self.state_bytes / self.rates.write,
            read_bytes_per_second=self.state_bytes / self.rates.read,
            # A transfer beside compute begins when its thread does.
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
    if "://" in str(asked.folder):
        raise InputError(
            f"is {quote_value(str(asked.folder))}",
            field="offload",
            value=str(asked.folder),
            accepted="a folder on this machine, or one where a remote disk is mounted",
        )
    limit = None if asked.limit is None else parse_limit(asked.limit, field="offload.limit")
    if asked.folder == "host":
        return OffloadPlace(folder=None, limit=limit)
    if isinstance(asked.folder, str) and asked.folder.lower() == "host":
        raise InputError(
            f"is {quote_value(asked.folder)}",
            field="offload",
            value=asked.folder,
            accepted=f"'host' for host memory, or './{asked.folder}' for a folder of that name",
        )
    return OffloadPlace(folder=make_parent(asked.folder, field="offload").resolve(), limit=limit)


def assume_link(state_bytes: int, steps: int) -> Link:
    """Return a folder of an assumed rate, with room for all states."""
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
    """Time a folder now, as it is used for so many states at once, or as many as there is room for.

    Without a folder, it is host memory, which is taken to have room. ``clock`` and ``runtime`` are as of
    ``find_links``, and ``field`` is the argument that named the folder. Raises InputError.
    """
    if states is None:
        states = 0 if folder is None else find_folder_room(folder) // state_bytes
    # Two are timed at least.
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
    # The last one has the most room.
    return links[-1]


def measure_folder(
    folder: str | os.PathLike[str], *, state_bytes: int, field: str
) -> tuple[dict[str, Any], dict[str, Source]]:
    """Return the numbers of a profile whose remote memory is a folder, timed now, and their sources.

    ``field`` is the argument that named the folder, which is made if it is missing. Raises InputError.
    """
    place = make_parent(folder, field=field).resolve()
    link = time_now(place, state_bytes=state_bytes, field=field)
    timed = link.make_profile(1, overlaps=False)
    rates = {
        way: float(f"{getattr(timed, way):.4g}") for way in ("write_bytes_per_second", "read_bytes_per_second")
    }
    # The rates contain the latency of a message.
    latencies = ("latency_seconds", "synchronisation_seconds")
    # A profile with the times of a state would not use the rates.
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
    """Return how the states of T ``steps``, each of so many bytes, can use a place.

    The place is timed, unless it was within a day. Its room counts up to what all states take, so that calls of
    a kind have the same plan while free space changes. Raises InputError if it cannot be used.

    Arguments:
        place: the place; nothing moves if it is None.
        state_bytes: bytes of a state.
        steps: T.
        room: the host memory that states may fill (``find_cached_room``).
        clock: times states as a runtime moves them: ``clock(place, state_bytes, through=, most=)``, with no
            more states than ``most``. None for files, written and read by a single thread.
        runtime: names what ``clock`` times, in the file of rates.
        anew: whether the place is timed now, whatever is known of it.
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
    # Less than two states bring nothing, and there is no room to time them.
    ways = {through: held for through, held in rooms.items() if held >= 2 * state_bytes}
    if not ways:
        _tell_unused(place.name, capacity, state_bytes)
    # Another device may be mounted there tomorrow.
    device = 0 if place.folder is None else place.folder.stat().st_dev
    links = []
    for through, held in ways.items():
        key = f"{place.name} on {device}, {state_bytes} B by {runtime}{', through' * through}"
        rates = None if anew else _recall(key)
        if rates is None:
            rates = (clock or time_files)(place, state_bytes, through=through, most=held // state_bytes)
            _keep(key, rates)
        how = "written through to the device and read back cold" if through else "as they find room in memory"
        timed = f"timed in {place.name}: states of {format_bytes(state_bytes)}, {how}"
        links.append(
            Link(
                place=place.name,
                through=through,
                capacity=held,
                state_bytes=state_bytes,
                rates=rates,
                source=Source(grade="M", source=timed),
            )
        )
    return tuple(links)


@cache
def _tell_unused(name: str, capacity: int, state_bytes: int) -> None:
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
    """Return what a clock tells the second time: memory that is new to the system's cache is slow."""
    clock()
    return clock()


def count_moves(state_bytes: int, most: int) -> int:
    """Return how many states are timed, of at most so many."""
    return min(_MOST, max(_LEAST, _BYTES // state_bytes), most)


def time_moves(write: Callable[[int], object], read: Callable[[int], object], *, count: int) -> Rates:
    """Time writing a state by its number, and reading it, of so many."""
    seconds: list[float] = []
    for move, numbers in ((write, range(count)), (read, reversed(range(count)))):
        taken = []
        for number in numbers:
            began = time.perf_counter()
            move(number)
            taken.append(max(time.perf_counter() - began, 1e-9))
        seconds.append(statistics.median(taken))
    return Rates(*seconds)


def time_handoff(place: OffloadPlace, compute: Callable[[], object]) -> float:
    """Return by how much longer a message of a byte takes in a thread, while this one computes."""
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


#: What was timed in this process or another one, and when.
_known: dict[str, tuple[Rates, float]] = {}


def _recall(key: str) -> Rates | None:
    """Return what was timed within a day; the same in all calls of a process, whatever others time."""
    rates = _known.get(key) or _read_rates(key)
    if rates is None or not 0 <= time.time() - rates[1] < _DAY:
        return None
    _known[key] = rates
    return rates[0]


def _keep(key: str, rates: Rates) -> None:
    _known[key] = rates, time.time()
    keep("places", key, " ".join(map(repr, rates)))


def _read_rates(key: str) -> tuple[Rates, float] | None:
    """Return the rates of another process, and when they were kept; None if they are no times."""
    known = recall("places", key)
    if known is None:
        return None
    try:
        rates = Rates._make(map(float, known[0].split()))
    except (TypeError, ValueError):
        # Another version wrote it.
        return None
    usable = all(0 < rate < math.inf for rate in rates[:2]) and 0 <= rates.handoff < math.inf
    return (rates, known[1]) if usable else None
