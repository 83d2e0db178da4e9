"""Cells by name, and factories of one's own: what is taken, and what is told where it cannot be."""

from pathlib import Path
from typing import Any

import pytest
import torch

import ckptplan
from ckptplan import InputError
from ckptplan.calibration.runtimes import open_backend
from ckptplan.model.cell_spec import CellSpec
from ckptplan.torch.cells import build_torch_network
from ckptplan.torch.state.nests import count_bytes, flatten
from tests.torch.support import plan_of

FACTORIES = """
import torch
from ckptplan.torch.adapters import TorchCell

def plain(batch, neurons):
    return TorchCell(torch.nn.RNNCell(64, neurons)), torch.zeros(batch, neurons)

def all_of_it(**settings):
    assert set(settings) == {"batch", "inputs", "neurons", "device"}
    return TorchCell(torch.nn.RNNCell(3, 5)), torch.zeros(2, 5), lambda steps: torch.ones(steps, 2, 3)

def broken(batch):
    raise KeyError("no such layer")

def stateless():
    return TorchCell(torch.nn.RNNCell(64, 3)), None

def other():
    return torch.nn.Linear(2, 2)

class Frozen(torch.nn.Module):
    def __init__(self, neurons):
        super().__init__()
        self.frozen = torch.nn.Linear(64, 10).requires_grad_(False)
        self.cell = torch.nn.RNNCell(10, neurons)

    def forward(self, state, x):
        state = self.cell(self.frozen(x), state)
        return state, state

def frozen(batch, neurons):
    return Frozen(neurons), torch.zeros(batch, neurons)

def function(batch, neurons):
    cell = TorchCell(torch.nn.RNNCell(64, neurons))
    return (lambda state, x: cell(state, x)), torch.zeros(batch, neurons)

def narrow(batch, neurons):
    return TorchCell(torch.nn.RNNCell(3, neurons)), torch.zeros(batch, neurons)

def doubles(batch, neurons):
    return TorchCell(torch.nn.RNNCell(64, neurons).double()), torch.zeros(batch, neurons).double()

def ready_inputs(batch, neurons):
    return *plain(batch, neurons), torch.ones(7, batch, 64)

def lost_inputs(batch, neurons):
    def make(steps):
        raise FileNotFoundError("data.npy")

    return *plain(batch, neurons), make

number = 7
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "factories.py").write_text(FACTORIES)
    (tmp_path / "unfinished.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.chdir(tmp_path)
    # Each test has a folder, and modules, of its own.
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "factories", raising=False)


def build(name: str, *, inputs: int = 64, neurons: int = 5, batch: int = 2, seed: int = 0) -> Any:
    spec = CellSpec(name=name, inputs=inputs, neurons=neurons)
    return build_torch_network(spec, batch=batch, device="cpu", seed=seed)


@pytest.mark.parametrize("name", ["gru", "lif", "lstm", "rnn"])
def test_cells_that_are_there_are_made_from_their_names(name: str) -> None:
    network = build(name, inputs=3)
    state, _ = network.cell(network.state, network.inputs(4)[0])
    assert flatten(state)[0][0].shape == (2, 5)
    assert count_bytes(flatten(network.state)[0]) == 2 * 5 * 4 * (2 if name == "lstm" else 1)


def test_weights_and_data_follow_from_the_seed() -> None:
    """And data from how many steps there are: the first ones are not the same for another length."""
    first, same, other = (build("gru", inputs=3, seed=seed) for seed in (1, 1, 2))
    assert all(map(torch.equal, first.parameters, same.parameters))
    assert torch.equal(first.inputs(7), same.inputs(7))
    assert not torch.equal(first.parameters[0], other.parameters[0])
    assert not torch.equal(first.inputs(7), other.inputs(7))


@pytest.mark.parametrize("text", ["gru(inputs=3, neurons=5)", "package.module:make(inputs=1, neurons=1)"])
def test_a_cell_is_written_as_it_is_read(text: str) -> None:
    assert str(CellSpec.parse(text)) == text


def test_what_is_not_said_of_a_cell() -> None:
    """Inputs are 64; neurons are those of the workload's network, if it has one."""
    assert CellSpec.parse("lif(neurons=5)") == CellSpec(name="lif", inputs=64, neurons=5)
    assert CellSpec.of(ckptplan.load_workload("paper-snn")).neurons == 2944


@pytest.mark.parametrize("text", ["", "gru(", "gru(neurons=0)", "gru(layers=2)", "gru(neurons=x)", "g u"])
def test_what_is_no_cell_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="cell"):
        CellSpec.parse(text)


def test_a_factory_is_called_with_what_it_takes() -> None:
    network = build("factories:plain")
    assert network.state.shape == (2, 5)
    assert network.inputs(3).shape == (3, 2, 64)
    own = build("factories:all_of_it", inputs=1, neurons=1, batch=9)
    assert torch.equal(own.inputs(4), torch.ones(4, 2, 3))


def test_weights_that_are_not_trained_take_memory_all_the_same() -> None:
    network = build("factories:frozen")
    trained = 5 * (10 + 5 + 2)
    assert sum(one.numel() for one in network.parameters) == trained
    assert network.fixed_bytes + network.state_bytes == 4 * (trained + 10 * (64 + 1) + 2 * 5)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gruu", "Did you mean 'gru'"),
        ("nowhere:make", "No module named 'nowhere'"),
        ("factories.py:number", "Did you mean 'factories:number'?"),
        ("./far/off.py:make", "Did you mean 'far.off:make'?"),
        ("unfinished:make", "No module named 'nowhere_to_be_found'"),
        ("factories:nothing", "has no attribute 'nothing'"),
        ("factories:number", "cannot be called"),
        ("factories:broken", "KeyError: 'no such layer'"),
        ("factories:other", "returned 'Linear'"),
        ("builtins:dict", "returned 'dict'"),  # has no signature
        ("factories:stateless", "a state without tensors, None"),
        ("factories:function", "'function' as its cell: no parameters can be found"),
        ("factories:narrow", "first step, or the mean square of its first output, raised RuntimeError"),
        ("factories:doubles", "(inputs of a step: float32 (2, 64))"),
        ("factories:ready_inputs", "returned 'Tensor' as its inputs"),
        ("factories:lost_inputs", "its inputs for 1 steps raised FileNotFoundError: data.npy"),
    ],
)
def test_what_makes_no_cell_is_told_by_name(name: str, told: str) -> None:
    with pytest.raises(InputError, match="cell") as caught:
        build(name, neurons=2)
    assert told in str(caught.value)


def test_a_workload_without_a_cell_says_where_one_comes_from() -> None:
    with pytest.raises(InputError, match="`calibrate` measured"):
        CellSpec.of(plan_of(2).workload)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="no CUDA device"):
        open_backend(CellSpec.parse("gru(neurons=2)"), device="cuda")
