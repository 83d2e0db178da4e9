"""A killed writer leaves a temporary file; the next writer of the same target removes it, and no other file."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

import ckptplan
from ckptplan.storage import files
from ckptplan.storage.files import lock_file, replace_file, write_text
from tests.support import long_plan, run, small_plan, started, wait_until

#: Writes without end; a test ends it.
_WRITER = (
    "import sys; from ckptplan.storage.files import replace_file\n"
    "with replace_file(sys.argv[1]) as file:\n"
    "    print('writing', file=sys.stderr, flush=True)\n"
    "    while True: file.write('x' * 1000); file.flush()\n"
)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".ckptplan-*"))


def kill_a_writer_of(target: Path) -> str:
    """Kill a process while it writes; return the name of the file that it leaves."""
    with started("-c", _WRITER, str(target), stderr=subprocess.PIPE) as writer:
        assert writer.stderr is not None
        writer.stderr.readline()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    (name,) = left_in(target.parent)
    return name


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    kill_a_writer_of(target)
    write_text(target, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_it_is_removed_before_the_disk_is_needed(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    stale = kill_a_writer_of(target)
    with replace_file(target):
        assert stale not in left_in(tmp_path)


def test_a_link_finds_what_was_left_beside_its_target(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link.json", tmp_path / "there/plan.json"
    link.symlink_to(target)
    target.write_text("old")
    kill_a_writer_of(target)
    write_text(link, "new")
    assert left_in(target.parent) == []
    assert target.read_text() == "new"


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    """Two processes with the same target: each writes its own file, and the last to end wins."""
    target = tmp_path / "plan.json"
    with started("-c", _WRITER, str(target), stderr=subprocess.PIPE) as writer:
        assert writer.stderr is not None
        writer.stderr.readline()
        before = left_in(tmp_path)
        write_text(target, "new")
        assert left_in(tmp_path) == before
        assert len(before) == 1
    with replace_file(target) as first:
        first.write("first")
        with replace_file(target) as second:
            second.write("second")
        assert target.read_text() == "second"
    assert target.read_text() == "first"


@pytest.mark.parametrize(
    "stranger",
    [".ckptplan-notes.tmp", ".ckptplan-{target}-0123456789abcdef.tmp.txt", "plan.json.tmp"],
)
def test_a_strangers_file_is_left_alone(tmp_path: Path, stranger: str) -> None:
    target = tmp_path / "plan.json"
    known = kill_a_writer_of(target).split("-")[1]
    (tmp_path / stranger.format(target=known)).write_text("mine")
    write_text(target, "new")
    assert len(list(tmp_path.iterdir())) == 2


def test_what_belongs_to_another_target_is_left_alone(tmp_path: Path) -> None:
    stale = kill_a_writer_of(tmp_path / "plan.json")
    write_text(tmp_path / "other.json", "new")
    assert left_in(tmp_path) == [stale]


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_only_plain_files_are_removed(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "plan.json"
    stale = tmp_path / kill_a_writer_of(target)
    stale.unlink()
    if kind == "link":
        (tmp_path / "mine").write_text("mine")
        stale.symlink_to(tmp_path / "mine")
    else:
        stale.mkdir()
    write_text(target, "new")
    assert os.path.lexists(stale)


def test_another_machines_file_is_left_alone(tmp_path: Path) -> None:
    """A network folder may not pass locks on."""
    target = tmp_path / "plan.json"
    here = tmp_path / kill_a_writer_of(target)
    other = here.rename(tmp_path / re.sub(r"-[0-9a-f]{16}-", f"-{16 * '0'}-", here.name))
    os.utime(other, (0, 0))
    write_text(target, "new")
    assert other.exists()


def test_a_file_taken_for_stale_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may look between the creation of the file and its lock."""
    target = tmp_path / "plan.json"
    calls = list[int]()

    def late(descriptor: int, *, wait: bool) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            monkeypatch.setattr(files, "lock_file", lock_file)
            files.remove_stale(target)
            assert left_in(tmp_path) == []
        lock_file(descriptor, wait=wait)

    monkeypatch.setattr(files, "lock_file", late)
    write_text(target, "new")
    assert len(calls) == 1
    assert target.read_text() == "new"
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("command", ["schedule", "simulate"])
def test_a_killed_stream_leaves_nothing_after_the_next_run(command: str, tmp_path: Path) -> None:
    ckptplan.save_plan(long_plan(50_000_000), tmp_path / "plan.json")
    option = {"schedule": "-o", "simulate": "--trace"}[command]
    arguments: tuple[str, ...] = (command, str(tmp_path / "plan.json"), option, str(tmp_path / "out.json"))
    arguments += ("--format", "jsonl") if command == "schedule" else ()
    with started("-m", "ckptplan", *arguments, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: left_in(tmp_path), what="a stream that is written")
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(left_in(tmp_path)) == 1
    ckptplan.save_plan(small_plan(), tmp_path / "plan.json")
    assert run(*arguments).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "plan.json"]
