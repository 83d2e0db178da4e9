"""Reads a network in the Neuromorphic Intermediate Representation as a workload (docs/workloads.md).

snnTorch, sinabs, Norse, Rockpool and SpikingJelly export such files. The sizes of a step follow from the nodes
of the graph: ``_NEURONS`` has the values per neuron and sample. A node with weights also keeps its input, for
the gradient of the weights. If the input is spikes, it is the cache of the step if their activity is given, or
else part of the tape. Inputs of the network are resident. Other inputs are part of the tape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ckptplan.cost.roofline import time_workload
from ckptplan.errors import InputError, MissingExtra, refuse
from ckptplan.model.network import INDEX_BYTES, ITEM_BYTES, Operations
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.request import read_argument
from ckptplan.schedule.schedule import check_count
from ckptplan.units import format_bytes, format_things, parse_fraction

DType: TypeAlias = Literal["float64", "float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class _Neuron:
    """The values that a neuron keeps from step to step (state) and for its backward pass (tape).

    The surrogate gradient of a threshold needs the membrane. Linear dynamics need no values. ``kernels`` is the
    number of kernels that PyTorch starts for a layer of such neurons in a forward step.
    """

    state: int
    tape: int
    spikes: bool
    kernels: int


_NEURONS: Mapping[str, _Neuron] = {
    "I": _Neuron(state=1, tape=0, spikes=False, kernels=1),
    "LI": _Neuron(state=1, tape=0, spikes=False, kernels=2),
    "CubaLI": _Neuron(state=2, tape=0, spikes=False, kernels=4),
    "IF": _Neuron(state=1, tape=1, spikes=True, kernels=4),
    "LIF": _Neuron(state=1, tape=1, spikes=True, kernels=5),
    "CubaLIF": _Neuron(state=2, tape=1, spikes=True, kernels=7),
    "Threshold": _Neuron(state=0, tape=1, spikes=True, kernels=1),
}
_WEIGHTED = ("Affine", "Linear", "Conv1d", "Conv2d")
#: Nodes without state and tape.
_PASSING = ("Input", "Output", "Flatten", "Scale", "SumPool2d", "AvgPool2d")
#: The kind of the inputs and outputs of nested graphs.
_JOINT = "the end of a graph within the graph"
#: The kinds of nodes that only reshape their input.
_RESHAPING = ("Flatten", _JOINT)
#: The most bytes of all arrays of a graph.
_MOST_BYTES = 2**28
#: Backward over forward operations of a step. Values per weight: the weight, its gradient, Adam's two moments.
_BACKWARD, _VALUES_PER_WEIGHT = 2, 4


def workload_from_nir(
    path: str | Path,
    *,
    batch: int,
    steps: int,
    profile: HardwareProfile,
    activity: float = 0.0,
    name: str = "nir",
    dtype: DType = "float32",
    times: Mapping[str, float] | None = None,
) -> Workload:
    """Return the workload of a network in a NIR file, divided evenly among the units of a profile.

    Arguments:
        path: the file.
        batch: samples that are trained at once.
        steps: T of the workload.
        profile: the machine for which step times are estimated.
        activity: the largest share of neurons that spike in a step; 0 keeps spikes as dense values.
        name: the name of the workload.
        dtype: the type of numbers.
        times: step times in seconds by field, at least ``forward_seconds``; without them, all are estimated.

    Raises InputError, also for nodes that are not known, and MissingExtra without the package ``nir``.
    """
    check_count("batch", batch)
    activity = read_argument("activity", parse_fraction, activity, allows=lambda share: share <= 1)
    if dtype not in ITEM_BYTES:
        raise refuse(dtype, "is not accepted", field="dtype", accepted=", ".join(ITEM_BYTES))
    graph = _Graph(_read(path), source=str(path))
    sizes = _count_sizes(graph, batch=batch, activity=activity, item=ITEM_BYTES[dtype])
    units = profile.units
    spread: dict[str, Any] = {field: math.ceil(size / units) for field, size in sizes.items()}
    operations = _count_work(graph, sizes, batch=batch, activity=activity, dtype=dtype)
    neurons = sum(graph.count_values(node) for node in graph.find(*_NEURONS))
    untimed = Workload(
        name=name,
        description=f"{format_things(neurons, 'neuron')} of a NIR graph, batch {batch}, {dtype}",
        steps=steps,
        batch=batch,
        units=units,
        operations=operations,
        forward_seconds=1.0,
        backward_seconds=2.0,
        recompute_seconds=1.0,
        **spread,
    )
    return time_workload(untimed, profile, times)


def _read(path: str | Path) -> Any:
    """Return the graph in a file. Raises InputError, and MissingExtra."""
    try:
        import nir
    except ModuleNotFoundError as error:
        if error.name != "nir":
            raise
        raise MissingExtra("nir", package="nir") from None
    if not Path(path).is_file():
        raise InputError("cannot be read: there is no such file", source=str(path))
    try:
        size = _count_stored(path)
        if size <= _MOST_BYTES:
            return nir.read(path)
    except Exception as error:  # The package raises whatever its reader of HDF5 does.
        raise InputError(f"is no NIR graph: {error}", source=str(path)) from None
    raise InputError(
        f"holds {format_bytes(size)}", source=str(path), accepted=f"graphs up to {format_bytes(_MOST_BYTES)}"
    )


def _count_stored(path: str | Path) -> int:
    """Return the bytes of all arrays in an HDF5 file. Even a small file may describe huge arrays."""
    import h5py

    sizes = [0]
    with h5py.File(path) as file:
        file.visititems(
            lambda _, item: sizes.append(item.size * item.dtype.itemsize) if hasattr(item, "dtype") else None
        )
    return int(sum(sizes))


class _Graph:
    """The nodes of a graph and its nested graphs, and the edges between them."""

    def __init__(self, graph: Any, *, source: str) -> None:
        self.source = source
        self.nodes: dict[str, Any] = {}
        self.edges: list[tuple[str, str]] = []
        #: The inputs and outputs of nested graphs.
        self.joints: set[str] = set()
        self._add(graph, prefix="")
        known = (*_NEURONS, *_WEIGHTED, *_PASSING)
        for name, node in self.nodes.items():
            if self.kind(name) not in (*known, _JOINT):
                raise InputError(
                    f"node {name!r} is of the kind {type(node).__name__}, whose memory is not known",
                    source=source,
                    accepted=", ".join(known),
                )
        if not any(_NEURONS[self.kind(name)].state for name in self.find(*_NEURONS)):
            raise InputError(
                "has no neurons with a state", source=source, accepted="a recurrent or spiking network"
            )

    def _add(self, graph: Any, *, prefix: str) -> None:
        for name, node in graph.nodes.items():
            if type(node).__name__ == "NIRGraph":
                self._add(node, prefix=f"{prefix}{name}.")
            else:
                self.nodes[f"{prefix}{name}"] = node
                if prefix and type(node).__name__ in ("Input", "Output"):
                    self.joints.add(f"{prefix}{name}")
        for start, stop in graph.edges:
            source, target = self._find_end(graph, start, "Output"), self._find_end(graph, stop, "Input")
            self.edges.append((f"{prefix}{source}", f"{prefix}{target}"))

    def _find_end(self, graph: Any, name: str, kind: str) -> str:
        """Return the name of a node; for a nested graph, of its only input or output. Raises InputError."""
        inner = getattr(graph.nodes.get(name), "nodes", None)
        if name not in graph.nodes:
            raise InputError(f"has an edge of a node {name!r} that it lacks", source=self.source)
        if inner is None:
            return name
        ends = [end for end, node in inner.items() if type(node).__name__ == kind]
        if len(ends) != 1:
            raise InputError(
                f"node {name!r} is a graph with {len(ends)} nodes of the kind {kind}",
                source=self.source,
                accepted="one",
            )
        return f"{name}.{ends[0]}"

    def kind(self, name: str) -> str:
        """Return the kind of a node."""
        return _JOINT if name in self.joints else type(self.nodes[name]).__name__

    def find(self, *kinds: str) -> list[str]:
        """Return the names of the nodes of the given kinds."""
        return [name for name in self.nodes if self.kind(name) in kinds]

    def count_values(self, name: str) -> int:
        """Return the number of values in the output of a node per sample. Raises InputError."""
        shape = (self.nodes[name].output_type or {}).get("output")
        if shape is None:
            raise InputError(
                f"node {name!r} does not say the shape of its output",
                source=self.source,
                accepted="a graph with the shapes of all inputs",
            )
        return math.prod(int(size) for size in shape)

    def find_sources(self, name: str) -> Iterator[str]:
        """Yield the nodes whose output is the input of a node, looking through nodes that only reshape."""
        visited, waiting = {name}, [name]
        while waiting:
            target = waiting.pop()
            starts = {start for start, stop in self.edges if stop == target}
            yield from (start for start in starts if self.kind(start) not in _RESHAPING)
            waiting += [start for start in starts - visited if self.kind(start) in _RESHAPING]
            visited |= starts

    def find_recurrent(self) -> set[str]:
        """Return the spiking nodes whose output is the input of an earlier node in the next step."""
        order: dict[str, int] = {}
        waiting = self.find("Input")
        while waiting:
            name = waiting.pop(0)
            if name not in order:
                order[name] = len(order)
                waiting += [stop for start, stop in self.edges if start == name]
        last = len(self.nodes)
        looping = {start for start, stop in self.edges if order.get(stop, last) <= order.get(start, last)}
        # The edge that closes a cycle may start at a node with weights, whose sources are the neurons.
        neurons = looping | {source for name in looping for source in self.find_sources(name)}
        return {name for name in neurons if self.spikes(name)}

    def spikes(self, name: str) -> bool:
        """Return whether the output of a node is spikes."""
        neuron = _NEURONS.get(self.kind(name))
        return neuron is not None and neuron.spikes


def _count_sizes(graph: _Graph, *, batch: int, activity: float, item: int) -> dict[str, int]:
    """Return the bytes of all units together, by field of a workload."""
    state = tape = spiking = 0
    for name in graph.find(*_NEURONS):
        neuron, values = _NEURONS[graph.kind(name)], graph.count_values(name)
        state += neuron.state * values
        tape += neuron.tape * values
    state += sum(graph.count_values(name) for name in graph.find_recurrent())
    needed = {source for name in graph.find(*_WEIGHTED) for source in graph.find_sources(name)}
    for name in needed - set(graph.find("Input")):
        if graph.spikes(name) and activity:
            spiking += graph.count_values(name)
        else:
            tape += graph.count_values(name)
    inputs = sum(graph.count_values(name) for name in graph.find("Input"))
    weights = sum(_count_weights(graph.nodes[name]) for name in graph.find(*_WEIGHTED))
    return {
        "state_bytes": batch * state * item,
        # The model needs a tape of at least one byte.
        "tape_bytes": max(1, batch * tape * item),
        "cache_bytes": math.ceil(batch * spiking * activity * INDEX_BYTES),
        "resident_bytes_per_step": batch * inputs * item,
        "resident_bytes": _VALUES_PER_WEIGHT * weights * item,
    }


def _count_weights(node: Any) -> int:
    bias = getattr(node, "bias", None)
    return int(node.weight.size) + (0 if bias is None else int(bias.size))


def _count_work(
    graph: _Graph, sizes: Mapping[str, int], *, batch: int, activity: float, dtype: DType
) -> Operations:
    """Return the operations of a step: two for each product. Other work counts only as bytes.

    With its cache, a recomputed step uses only the weights of neurons that spike.
    """
    products = recomputed = 0.0
    for name in graph.find(*_WEIGHTED):
        weight = graph.nodes[name].weight
        # Each filter is applied at every position of the output.
        places = graph.count_values(name) // weight.shape[0] if graph.kind(name).startswith("Conv") else 1
        products += weight.size * places
        cached = activity and all(map(graph.spikes, graph.find_sources(name)))
        recomputed += weight.size * places * (activity if cached else 1)
    kernels = len(graph.find(*_WEIGHTED)) + sum(
        _NEURONS[graph.kind(name)].kernels for name in graph.find(*_NEURONS)
    )
    weights = sizes["resident_bytes"] // _VALUES_PER_WEIGHT
    other_bytes = sizes["resident_bytes_per_step"] + 2 * sizes["state_bytes"] + sizes["tape_bytes"]
    share = recomputed / products if products else 1.0
    cheaper: dict[str, Any] = {
        "recompute_flops": 2 * batch * recomputed,
        "recompute_bytes": weights * share + other_bytes,
    }
    return Operations(
        dtype=dtype,
        forward_flops=2 * batch * products,
        backward_flops=_BACKWARD * 2 * batch * products,
        forward_bytes=float(weights + other_bytes),
        backward_bytes=float(_BACKWARD * (weights + other_bytes)),
        forward_kernels=float(kernels),
        backward_kernels=float(_BACKWARD * kernels),
        **(cheaper if sizes["cache_bytes"] else {}),
    )
