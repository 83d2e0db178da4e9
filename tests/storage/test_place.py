"""Law: a place is timed by real writes and reads, once a day, and says about the same room again."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ckptplan import InputError
from ckptplan.storage import memory
from ckptplan.storage import place as places
from ckptplan.storage.cache import find_cache
from ckptplan.storage.place import (
    Link,
    Offload,
    OffloadPlace,
    Rates,
    find_links,
    read_offload,
    time_files,
    time_handoff,
)
from ckptplan.storage.remote_folder import StateFiles, check_room


@pytest.fixture(autouse=True)
def _forget(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test times places anew."""
    monkeypatch.setenv("CKPTPLAN_CACHE", str(tmp_path_factory.mktemp("cache")))
    places._timed.clear()
    memory._steady.clear()


class Clock:
    """Says how long states take, and counts how often it is asked."""

    def __init__(self) -> None:
        self.seconds, self.asked = 1e-7, 0

    def __call__(self, _: OffloadPlace, __: int, *, through: bool, most: int) -> Rates:
        assert isinstance(through, bool)
        assert most >= 2
        self.asked += 1
        return Rates(self.seconds, self.seconds)


def find(place: OffloadPlace, clock: Clock, *, room: int | None = None) -> tuple[Link, ...]:
    return find_links(place, state_bytes=1000, steps=10, room=room, clock=clock)


def test_a_place_is_timed_once_in_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, in others, and again when the day is over."""
    place, clock = OffloadPlace(folder=tmp_path), Clock()
    first = find(place, clock)
    clock.seconds = 5.0
    places._timed.clear()
    assert find(place, clock) == find(place, clock) == first
    assert clock.asked == 1
    tomorrow = time.time() + 100_000
    monkeypatch.setattr("time.time", lambda: tomorrow)
    assert find(place, clock)[0].rates.write == 5.0
    assert clock.asked == 2


@pytest.mark.parametrize(
    "content",
    ["", "\0", "1.0", "1 2", "1 2 3 4", "a b c", "nan 1 0", "-1 1 0", "1 inf 0", "0 1 0", "1 1 -1", "1 1 nan"],
)
def test_a_file_that_holds_no_rates_is_replaced(tmp_path: Path, content: str) -> None:
    """It is damaged, or of another layout."""
    place, clock = OffloadPlace(folder=tmp_path), Clock()
    first = find(place, clock)
    cache = find_cache()
    assert cache is not None
    (file,) = cache.iterdir()
    whole = file.read_text()
    file.write_text(content)
    places._timed.clear()
    assert find(place, clock) == first
    assert clock.asked == 2
    assert file.read_text() == whole


@pytest.mark.parametrize("through", [False, True])
def test_files_are_timed_as_they_are_used(tmp_path: Path, through: bool) -> None:
    """By real writes and reads of which nothing is left."""
    write, read, _ = time_files(OffloadPlace(folder=tmp_path), 2**20, through=through, most=4)
    assert write > 0
    assert read > 0
    assert not list(tmp_path.iterdir())


def test_a_message_beside_compute_takes_what_its_thread_waits(tmp_path: Path) -> None:
    """Between compute there is no thread, and no such time."""
    place = OffloadPlace(folder=tmp_path)
    # What holds the interpreter for a millisecond at a time keeps a thread waiting as long.
    handoff = time_handoff(place, lambda: sum(range(50_000)))
    assert handoff > 1e-4
    assert not list(tmp_path.iterdir())

    def clock(*_: object, **__: object) -> Rates:
        return Rates(1.0, 2.0, handoff)

    (link,) = find_links(place, state_bytes=1000, steps=10, room=None, clock=clock)
    beside, between = (link.make_profile(10_000, overlaps=overlaps) for overlaps in (True, False))
    assert (beside.latency_seconds, between.latency_seconds) == (handoff, 0)
    assert beside.write_bytes_per_second == between.write_bytes_per_second == 1000


def test_what_finds_no_room_in_memory_may_go_to_the_device(tmp_path: Path) -> None:
    links = find(OffloadPlace(folder=tmp_path), Clock(), room=4000)
    assert [(one.through, one.capacity) for one in links] == [(False, 4000), (True, 10_000)]
    (host,) = find(OffloadPlace(folder=None), Clock(), room=4000)
    assert (host.through, host.capacity) == (False, 4000)


def test_a_place_without_room_for_two_states_is_not_used(tmp_path: Path) -> None:
    """Nothing is written there to time it, either."""
    clock = Clock()
    assert find(OffloadPlace(folder=tmp_path, limit=1999), clock) == ()
    assert clock.asked == 0


def test_host_memory_may_have_a_limit() -> None:
    place = read_offload(Offload("host", limit="8 MB"), plan=None, memory="1 MB")
    assert place is not None
    (link,) = find_links(place, state_bytes=2**20, steps=100, room=2**40, clock=Clock())
    assert (place.folder, link.capacity) == (None, 8_000_000)


@pytest.mark.parametrize("name", ["Host", "HOST"])
def test_a_folder_is_not_named_like_host_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless that is meant."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"offload: is '{name}'.*'host' for host memory, or './{name}'"):
        read_offload(name, plan=None, memory="1 MB")
    assert not list(tmp_path.iterdir())
    place = read_offload(f"./{name}", plan=None, memory="1 MB")
    assert place is not None
    assert place.folder == tmp_path / name


def test_host_memory_needs_to_know_what_is_free() -> None:
    with pytest.raises(InputError, match="offload: 'host' needs to know the memory that is free"):
        find(OffloadPlace(folder=None), Clock())


def test_the_room_of_a_folder_is_steady(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, found = OffloadPlace(folder=tmp_path), []
    for free in (9_100, 8_900, 9_000, 8_500):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        found.append(find(place, Clock())[0].capacity)
    assert found == 4 * [8_100]


def test_errors_name_the_argument_that_named_the_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"offload: {tmp_path} has no room"):
        check_room(tmp_path, 2**62, field="offload")
    files = StateFiles(tmp_path, field="offload")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (folder / "0.state").mkdir()
    with pytest.raises(InputError, match=f"offload: {tmp_path} cannot take a checkpoint of 4 B"):
        files.write(0, [memoryview(b"1234")])
    files.close()
