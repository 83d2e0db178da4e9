"""Networks in NIR files become workloads: sizes worked out by hand, and what is not known is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import nir
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import ckptplan
from ckptplan import InputError
from ckptplan.cli.app import make_app
from ckptplan.interop import workload_from_nir
from tests.torch.zoo import import_quietly

neuron, nir_exchange = (
    import_quietly(f"spikingjelly.activation_based.{name}") for name in ("neuron", "nir_exchange")
)

pytestmark = pytest.mark.slow

BATCH = 4
A100 = ckptplan.load_profile("nvidia-a100-80gb")


def lif(count: int) -> nir.LIF:
    return nir.LIF(*(np.ones(count) for _ in range(4)))


def cuba(count: int) -> nir.CubaLIF:
    return nir.CubaLIF(*(np.ones(count) for _ in range(5)))


def affine(inputs: int, outputs: int) -> nir.Affine:
    return nir.Affine(np.ones((outputs, inputs)), np.ones(outputs))


def chain(inputs: Any, outputs: int, *, extra: tuple[tuple[str, str], ...] = (), **nodes: Any) -> nir.NIRGraph:
    """The nodes one after the other, from the inputs to the outputs, with further edges."""
    names = ["input", *nodes, "output"]
    edges = [*pairwise(names), *extra]
    ends = {"input": nir.Input(np.atleast_1d(inputs)), "output": nir.Output(np.array([outputs]))}
    return nir.NIRGraph(nodes={**ends, **nodes}, edges=edges)


def read(graph: nir.NIRGraph, folder: Path, **more: Any) -> ckptplan.Workload:
    nir.write(folder / "net.nir", graph)
    return workload_from_nir(folder / "net.nir", batch=BATCH, steps=100, profile=A100, **more)


def convolutional() -> nir.NIRGraph:
    """2 x 10 x 10 inputs, 8 filters of 3 x 3 at 64 places, pooled to 4 x 4, and 10 leaky integrators."""
    places = np.ones((8, 8, 8))
    return chain(
        [2, 10, 10],
        10,
        conv=nir.Conv2d((10, 10), np.ones((8, 2, 3, 3)), 1, 0, 1, 1, np.ones(8)),
        spike=nir.IF(places, places),
        pool=nir.SumPool2d(np.array([2, 2]), np.array([2, 2]), np.array([0, 0])),
        flat=nir.Flatten({"input": np.array([8, 4, 4])}, 0, -1),
        fc=nir.Linear(np.ones((10, 128))),
        read=nir.LI(np.ones(10), np.ones(10), np.ones(10)),
    )


@pytest.mark.parametrize(
    ("graph", "activity", "state", "tape", "cache", "inputs", "weights"),
    [
        # A membrane is the state and the tape; the inputs of the weights are those of the network.
        (chain(3, 5, fc=affine(3, 5), lif=lif(5)), 0.0, 5, 5, 0, 3, 20),
        # Spikes that feed weights: dense values in the tape, or indices as the cache.
        (chain(3, 2, a=affine(3, 5), b=lif(5), c=affine(5, 2), d=lif(2)), 0.0, 7, 12, 0, 3, 32),
        (chain(3, 2, a=affine(3, 5), b=lif(5), c=affine(5, 2), d=lif(2)), 0.2, 7, 7, 1, 3, 32),
        # Current, membrane, and the spike that is fed back in the next step.
        (
            nir.NIRGraph(
                nodes={
                    "input": nir.Input(np.array([3])), "fc": affine(3, 5), "lif": cuba(5),
                    "back": nir.Linear(np.ones((5, 5))), "output": nir.Output(np.array([5])),
                },
                edges=[("input", "fc"), ("fc", "lif"), ("lif", "back"), ("back", "lif"), ("lif", "output")],
            ),
            0.2, 15, 5, 1, 3, 45,
        ),
        # What is pooled is no spike any more; leaky integrators keep no tape.
        (convolutional(), 0.2, 512 + 10, 512 + 128, 0, 200, 152 + 1280),
    ],
    ids=["one layer", "dense spikes", "cached spikes", "recurrent", "convolutional"],
)  # fmt: skip
def test_sizes_follow_from_the_nodes(
    graph: nir.NIRGraph, activity: float, state: int, tape: int, cache: int, inputs: int, weights: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    """In values a sample, of 4 bytes; weights with their gradients and two moments."""
    workload = read(graph, tmp_path, activity=activity)
    assert workload.state_bytes == BATCH * state * 4
    assert workload.tape_bytes == BATCH * tape * 4
    assert workload.cache_bytes == BATCH * cache * 4
    assert workload.resident_bytes_per_step == BATCH * inputs * 4
    assert workload.resident_bytes == 4 * weights * 4
    assert ckptplan.optimize(workload, A100, local_bytes="1 GB").strategy == "base"


def test_a_graph_within_a_graph_is_as_if_its_nodes_stood_there(tmp_path: Path) -> None:
    inner = nir.NIRGraph(
        nodes={
            "in": nir.Input(np.array([5])),
            "c": affine(5, 2),
            "d": lif(2),
            "out": nir.Output(np.array([2])),
        },
        edges=[("in", "c"), ("c", "d"), ("d", "out")],
    )
    nested = chain(3, 2, a=affine(3, 5), b=lif(5), inner=inner)
    flat = chain(3, 2, a=affine(3, 5), b=lif(5), c=affine(5, 2), d=lif(2))
    first, second = (read(graph, tmp_path, activity=0.2) for graph in (nested, flat))
    assert first == second


def test_products_and_their_sparse_repetition_are_counted(tmp_path: Path) -> None:
    """With the cache, a tenth of the weights behind spikes is added again."""
    work = read(
        chain(3, 2, a=affine(3, 5), b=lif(5), c=affine(5, 2), d=lif(2)), tmp_path, activity=0.1
    ).operations
    assert work is not None
    assert work.forward_flops == 2 * BATCH * (15 + 10)
    assert work.recompute_flops == pytest.approx(2 * BATCH * (15 + 1))
    convolved = read(convolutional(), tmp_path).operations
    assert convolved is not None
    assert convolved.forward_flops == 2 * BATCH * (8 * 2 * 9 * 64 + 1280)
    assert convolved.recompute_flops is None


def test_what_spikingjelly_exports_is_read(tmp_path: Path) -> None:
    layers = torch.nn.Linear(700, 128), neuron.LIFNode(), torch.nn.Linear(128, 20), neuron.IFNode()
    graph = nir_exchange.export_to_nir(torch.nn.Sequential(*layers), torch.randn(1, 700))
    workload = read(graph, tmp_path, activity=0.05)
    assert workload.state_bytes == workload.tape_bytes == BATCH * (128 + 20) * 4
    assert workload.cache_bytes == pytest.approx(BATCH * 128 * 0.05 * 4, abs=1)
    assert workload.resident_bytes_per_step == BATCH * 700 * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activity": 2}, "activity: 2 is out of range"),
        ({"activity": -1}, "activity"),
        ({"activity": float("nan")}, "activity"),
        ({"dtype": "int8"}, "dtype: 'int8' is not accepted"),
        ({"batch": 0}, "batch: 0 is not accepted"),
        ({"batch": "a"}, "batch: 'a' is not accepted"),
    ],
)
def test_wrong_arguments_are_refused_by_name(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    nir.write(tmp_path / "net.nir", chain(3, 5, fc=affine(3, 5), lif=lif(5)))
    with pytest.raises(InputError, match=message):
        workload_from_nir(tmp_path / "net.nir", **{"batch": 1, "steps": 9, "profile": A100, **change})


def test_a_small_file_of_huge_arrays_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "bomb.nir", "w") as file:
        file.create_dataset("node/nodes/fc/weight", shape=(20, 4 * 10**7), dtype="f4")
    with pytest.raises(InputError, match=r"holds 2\.98 GiB"):
        workload_from_nir(tmp_path / "bomb.nir", batch=1, steps=1, profile=A100)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    delayed = chain(3, 5, fc=affine(3, 5), delay=nir.Delay(np.ones(5)), lif=lif(5))
    with pytest.raises(InputError, match="'delay' is of the kind Delay, whose memory is not known"):
        read(delayed, tmp_path)
    with pytest.raises(InputError, match="has no neurons with a state"):
        read(chain(3, 5, fc=affine(3, 5)), tmp_path)
    (tmp_path / "text.nir").write_text("no graph")
    for name, message in (("text.nir", "is no NIR graph"), ("gone.nir", "there is no such file")):
        with pytest.raises(InputError, match=message):
            workload_from_nir(tmp_path / name, batch=1, steps=1, profile=A100)


def test_the_command_writes_a_workload_that_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nir.write("net.nir", chain(3, 2, a=affine(3, 5), b=lif(5), c=affine(5, 2), d=lif(2)))
    line = ["workloads", "new", "--nir", "net.nir", "--batch", "4", "--activity", "20%", "-o", "net.toml"]
    done = CliRunner().invoke(make_app(), line)
    assert done.exit_code == 0, done.output
    workload = ckptplan.load_workload("./net.toml")
    assert (workload.name, workload.steps, workload.cache_bytes) == ("net", 4096, 16)
    assert workload.basis["forward_seconds"].kind == "estimated"
    refused = CliRunner().invoke(make_app(), [*line, "--kind", "gru"])
    assert isinstance(refused.exception, InputError)
