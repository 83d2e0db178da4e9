"""Law: a folder of remote checkpoints goes with its run, however that ends, and never while it lives."""

import errno
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ckptplan import InputError
from ckptplan.storage.remote_folder import RemoteFolder
from tests.support import started

_RUN = (
    "import sys; from ckptplan.storage.remote_folder import RemoteFolder\n"
    "folder = RemoteFolder(sys.argv[1]); (folder.path / '7.pt').write_text('state')\n"
    "print('there', flush=True)\n"
    "sys.stdin.read()"
)


def folders_in(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()]


@contextmanager
def running(parent: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that has a folder with a checkpoint, and waits."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with started("-c", _RUN, str(parent), **pipes, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        yield process


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_end_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    with running(tmp_path) as process:
        assert folders_in(tmp_path)
        process.send_signal(how)
        assert process.wait() == -how
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_leaves_goes_with_the_next_one(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        process.kill()
        process.wait()
    (left,) = folders_in(tmp_path)
    assert (left / "7.pt").exists()
    with_next = RemoteFolder(tmp_path)
    assert folders_in(tmp_path) == [with_next.path]
    with_next.close()
    assert not list(tmp_path.iterdir())


def test_folders_of_live_runs_and_other_things_stay(tmp_path: Path) -> None:
    (tmp_path / "ckptplan-mine").mkdir()
    with running(tmp_path):
        (other,) = set(folders_in(tmp_path)) - {tmp_path / "ckptplan-mine"}
        for path in (other, *tmp_path.glob(".ckptplan-*.tmp")):
            # A long run is no stale one.
            os.utime(path, (time.time() - 10**6,) * 2)
        own = RemoteFolder(tmp_path)
        assert (other / "7.pt").exists()
        own.close()
    assert (tmp_path / "ckptplan-mine").is_dir()


def test_a_folder_of_another_machine_is_never_taken_for_stale(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        process.kill()
        process.wait()
    (left,) = folders_in(tmp_path)
    chance = left.stem.split("-")[-1]
    foreign = tmp_path / f".ckptplan-{16 * '0'}-{chance}.states"
    left.rename(foreign)
    left.with_suffix(".tmp").rename(foreign.with_suffix(".tmp"))
    os.utime(foreign.with_suffix(".tmp"), (0, 0))
    RemoteFolder(tmp_path).close()
    assert (foreign / "7.pt").exists()


def test_a_fork_that_ends_leaves_the_folder_of_its_parent(tmp_path: Path) -> None:
    program = (
        "import os, sys; from ckptplan.storage.remote_folder import RemoteFolder\n"
        "folder = RemoteFolder(sys.argv[1])\n"
        "if os.fork() == 0: sys.exit()\n"
        "os.wait(); print(folder.path.is_dir())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
    assert not list(tmp_path.iterdir())


def test_a_handler_of_the_caller_is_left_alone(tmp_path: Path) -> None:
    def mine(*_: object) -> None:
        raise AssertionError

    # Folders of earlier tests, if their garbage has not been collected, would be open still.
    gc.collect()
    before = signal.signal(signal.SIGTERM, mine)
    try:
        folder = RemoteFolder(tmp_path)
        assert signal.getsignal(signal.SIGTERM) is mine
        folder.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        folder = RemoteFolder(tmp_path)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        del folder
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_called_so(tmp_path: Path, number: int) -> None:
    folder = RemoteFolder(tmp_path)
    error = folder.explain(OSError(number, os.strerror(number)), "cannot take a checkpoint of 4 MiB")
    assert isinstance(error, InputError)
    assert str(error).startswith(
        f"remote_dir: {tmp_path} cannot take a checkpoint of 4 MiB: the disk is full (accepted: a writable "
    )
    assert "are free" in str(error)
