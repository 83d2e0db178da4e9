"""Law: a state comes back from a place as it went, whatever moves meanwhile, and few are on their way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any, TypeAlias

import pytest
import torch

from ckptplan import InputError
from ckptplan.storage.remote_folder import StateFiles
from ckptplan.torch.meters import LiveBytes
from ckptplan.torch.remote_store import FileStore, HostStore
from ckptplan.torch.stores import Checkpoint, Store
from ckptplan.torch.trees import flatten

_CPU = torch.device("cpu")
_DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.float8_e4m3fn),
    *(torch.bool, torch.int64, torch.uint8),
)
#: Makes a store whose transfers overlap compute, or do not.
Make: TypeAlias = Callable[[bool], Store[Any]]


@pytest.fixture(params=["files", "files written through", "host memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return what makes each kind of store."""
    kind: str = request.param

    def make_one(ahead: bool) -> Store[Any]:
        if kind == "host memory":
            return HostStore(_CPU, ahead=ahead)
        return FileStore(StateFiles(tmp_path, through="through" in kind), _CPU, ahead=ahead)

    return make_one


def checkpoint(*values: torch.Tensor) -> Checkpoint:
    leaves, structure = flatten(values)
    return Checkpoint(leaves, structure, ())


def full(value: float, *, size: int = 5) -> Checkpoint:
    return checkpoint(torch.full((size,), float(value)))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_state_comes_back_bit_for_bit(make: Make, ahead: bool) -> None:
    """Of any type and layout: views, strides without gaps, conjugates, numbers, nothing."""
    leaves = [
        *(torch.arange(24).reshape(2, 3, 4).to(dtype) for dtype in _DTYPES),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(9, 9)[2:5, 1:7],
        torch.randn(4, 6).T,
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(4).expand(3, 4),
        torch.tensor(3.5),
        torch.empty(0, 4),
    ]
    store = make(ahead)
    store.put(7, checkpoint(*leaves))
    store.expect((7,))
    for read, leaf in zip(store.get(7).leaves, leaves, strict=True):
        assert (read.dtype, read.shape) == (leaf.dtype, leaf.shape)
        assert torch.equal(read.to(torch.complex64), leaf.to(torch.complex64))
    assert store.get(7).leaves[len(_DTYPES)].is_contiguous(memory_format=torch.channels_last)
    store.close()


@pytest.mark.parametrize("ahead", [False, True])
def test_slots_are_used_again(make: Make, ahead: bool, tmp_path: Path) -> None:
    """As many as were ever full at once; files of earlier, larger states are written over."""
    store = make(ahead)
    for turn in range(5):
        for state in range(3):
            store.put(state, full(10 * turn + state, size=9 - turn))
        assert [store.get(state).leaves[0][0].item() for state in range(3)] == [10 * turn + i for i in range(3)]
        for state in range(3):
            store.drop(state)
    store.put(9, full(1.0, size=6))
    assert store.get(9).leaves[0].tolist() == [1.0] * 6
    assert store.bytes == 24
    assert len(list(tmp_path.rglob("*.state"))) in (0, 3)
    store.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ahead", [False, True])
def test_a_state_may_change_when_it_has_been_put(make: Make, ahead: bool) -> None:
    store = make(ahead)
    kept = torch.full((2**20,), 1.0)
    store.put(0, checkpoint(kept))
    store.get(0)
    kept.fill_(2.0)
    assert store.get(0).leaves[0].eq(1.0).all()
    store.close()


def test_a_state_that_changes_while_it_is_written_is_found_out(tmp_path: Path) -> None:
    """It goes to the file as it is, without a copy."""
    gate = Gate(tmp_path)
    store = FileStore(gate, _CPU, ahead=True)
    kept = torch.full((5,), 1.0)
    store.put(3, checkpoint(kept))
    kept.fill_(2.0)
    gate.open.set()
    with pytest.raises(InputError, match="state 3 was changed in place after it was stored"):
        store.get(3)
    store.close()


def test_a_view_that_waits_to_be_written_does_not_keep_its_storage(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with LiveBytes() as live:
        store = FileStore(gate, _CPU, ahead=True)
        store.put(0, checkpoint(torch.ones(100, 50)[0]))
        assert live.now == 200
        gate.open.set()
        assert store.get(0).leaves[0].tolist() == [1.0] * 50
    store.close()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_state_that_was_read_is_the_caller_s(make: Make, ahead: bool) -> None:
    """It can be changed, or live on when the next one is read."""
    store = make(ahead)
    store.put(0, full(1))
    store.put(1, full(2))
    store.expect((0,))
    read = store.get(0).leaves[0]
    store.expect((1,))
    assert store.get(1).leaves[0][0].item() == 2
    assert read[0].item() == 1
    store.close()


def test_states_are_on_the_host_whatever_the_default_device(make: Make) -> None:
    """As after ``torch.set_default_device("cuda")``."""
    store = make(True)
    kept = full(3.0)
    with torch.device("meta"):
        store.put(0, kept)
        store.expect((0,))
        assert store.get(0).leaves[0].tolist() == [3.0] * 5
    store.close()


@pytest.mark.parametrize("together", [1, 3])
def test_each_direction_has_as_many_states_on_their_way_as_its_largest_message(
    tmp_path: Path, together: int
) -> None:
    """Nothing else is alive beside the state that compute works with."""
    size = 2**16
    with LiveBytes() as live:
        store = FileStore(StateFiles(tmp_path), _CPU, ahead=True)
        numbers = tuple(range(together))
        for _ in range(4):
            for state in numbers:
                store.put(state, full(state, size=size // 4), together=together)
            store.expect(numbers)
            assert [store.get(state).leaves[0][0].item() for state in numbers] == list(numbers)
            for state in numbers:
                store.drop(state)
        assert live.peak <= (2 * together + 1) * size + 64
        store.close()


def test_buffers_in_host_memory_are_used_again() -> None:
    store = HostStore(_CPU, ahead=True)
    for turn in range(3):
        for state in range(4):
            store.put(state, full(turn + state))
        for state in reversed(range(4)):
            assert store.get(state).leaves[0][0].item() == turn + state
            store.drop(state)
    assert store.buffers == 4
    store.close()
    assert store.buffers == 0


class Gate(StateFiles):
    """Files whose transfers wait until it is opened."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.open, self.began = Event(), Event()

    def write(self, number: int, parts: Sequence[memoryview]) -> None:
        self.began.set()
        self.open.wait(30)
        super().write(number, parts)

    def read(self, number: int, into: Sequence[memoryview]) -> None:
        self.began.set()
        self.open.wait(30)
        super().read(number, into)


def test_compute_goes_on_while_states_move(tmp_path: Path) -> None:
    """A write that has not ended holds nobody up, nor does a read that was announced."""
    gate = Gate(tmp_path)
    store = FileStore(gate, _CPU, ahead=True)
    store.put(0, full(4.0))
    assert gate.began.wait(30)
    gate.open.set()
    assert store.get(0).leaves[0][0].item() == 4
    gate.open.clear()
    gate.began.clear()
    store.expect((0,))
    assert gate.began.wait(30)
    gate.open.set()
    assert store.get(0).leaves[0][0].item() == 4
    store.close()


def test_an_error_of_the_thread_reaches_the_caller(tmp_path: Path) -> None:
    """With the next action that waits for it, and not again when the run ends."""
    store = FileStore(StateFiles(tmp_path), _CPU, ahead=True)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (folder / "0.state").mkdir()
    store.put(0, full(1.0))
    with pytest.raises(InputError, match=f"remote_dir: {tmp_path} cannot take a checkpoint of 20 B"):
        store.put(1, full(1.0))
    store.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ahead", [False, True])
def test_a_file_that_was_cut_is_lost(tmp_path: Path, ahead: bool) -> None:
    store = FileStore(StateFiles(tmp_path), _CPU, ahead=ahead)
    store.put(0, full(1.0))
    store.get(0)
    (file,) = tmp_path.rglob("*.state")
    file.write_bytes(b"short")
    with pytest.raises(InputError, match=r"has lost the checkpoint in 0\.state: the file is too short"):
        store.get(0)
    store.close()


def test_a_state_that_was_announced_and_is_dropped_leaves_its_place_whole(make: Make) -> None:
    """What is kept under its number, and in its place, later comes back as it went."""
    store = make(True)
    store.put(5, full(1))
    store.expect((5,))
    store.drop(5)
    store.put(6, full(2))
    store.put(5, full(3))
    store.expect((5,))
    assert torch.equal(store.get(5).leaves[0], full(3).leaves[0])
    assert torch.equal(store.get(6).leaves[0], full(2).leaves[0])
    store.close()


def test_a_run_that_ends_while_reads_wait_leaves_nothing(tmp_path: Path) -> None:
    """Reads that were announced, and had not begun, are no errors."""
    gate = Gate(tmp_path)
    store = FileStore(gate, _CPU, ahead=True)
    gate.open.set()
    for state in range(3):
        store.put(state, full(state), together=3)
        store.get(state)
    gate.open.clear()
    store.expect((0, 1, 2))
    gate.open.set()
    store.close()
    assert store.bytes == 0
    assert not list(tmp_path.iterdir())
