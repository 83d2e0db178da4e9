"""Replaces the layers of a model that take whole sequences by wrapped ones, which share a limit of memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import torch

from ckptplan.errors import InputError, did_you_mean, quote_value
from ckptplan.storage.place import OffloadTo
from ckptplan.torch.adapters import find_class
from ckptplan.torch.api import Verify
from ckptplan.torch.fit.choose import read_limit
from ckptplan.torch.wrapping.layer import is_layer
from ckptplan.torch.wrapping.wrap import wrap
from ckptplan.torch.wrapping.wrapped import Wrapped, spell_path
from ckptplan.units import format_bytes, share_limit

_Model = TypeVar("_Model", bound=torch.nn.Module)
#: How many numbers a time step of a layer keeps for each hidden unit, and for each unit of its outputs.
_KEPT = {"LSTM": 6, "GRU": 5, "RNN_TANH": 2, "RNN_RELU": 2}
_OF_OUTPUTS = 4
#: The parent of a layer, its name there, the layer, and its path from the model.
_Place: TypeAlias = tuple[torch.nn.Module, str, torch.nn.Module, str]


def wrap_layers(
    model: _Model,
    *,
    memory: int | str = "auto",
    modules: Iterable[str] | None = None,
    offload: OffloadTo = None,
    verify: Verify = True,
) -> _Model:
    """Replace the layers of a model that take whole sequences by wrapped ones; print and return the model.

    These are ``torch.nn.LSTM``, ``GRU`` and ``RNN``, neurons of SpikingJelly in multi-step mode, and ``Lift``
    of Norse, wherever they are in the model. Names in ``state_dict``, parameters and calls stay.

    Arguments:
        model: the module whose layers are replaced, in place.
        memory: the limit that all layers share, in proportion to the bytes that a time step keeps: bytes, text
            as "2 GiB", or "auto" for 70 % of the memory that the device has free now.
        modules: names of layers, or of modules with layers inside, as in ``named_modules()``; None for all.
        offload, verify: as for ``wrap``.

    Raises InputError, also if the model has no such layer.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"{quote_value(type(model).__name__)} is not a module", field="model", accepted="a torch.nn.Module"
        )
    places = list(_list_places(model, ""))
    if not places:
        raise InputError(
            f"{type(model).__name__} has no layer inside that takes whole sequences",
            field="model",
            accepted="a model with torch.nn.LSTM, GRU or RNN, neurons of SpikingJelly in multi-step mode, or "
            "Lift of Norse; for the layer itself, or a module that takes a time step a call, wrap",
        )
    if modules is not None:
        places = list(_select_places(places, modules))
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    limit = read_limit(memory, device)
    layers: dict[int, tuple[torch.nn.Module, str]] = {}
    for _, _, layer, path in places:
        layers.setdefault(id(layer), (layer, path))
    sizes = {key: _estimate_size(layer) for key, (layer, _) in layers.items()}
    known_sizes = [size for size in sizes.values() if size is not None]
    mean = sum(known_sizes) / len(known_sizes) if known_sizes else 1.0
    total = sum(mean if size is None else size for size in sizes.values())
    wrapped: dict[int, Wrapped] = {}
    for key, (layer, path) in layers.items():
        share = (mean if sizes[key] is None else sizes[key] or mean) / total
        part = share_limit(limit, share)
        wrapped[key] = wrap(layer, memory=part, offload=offload, verify=verify)
        vars(wrapped[key])["_share"] = (spell_path(path), share, limit)
        size = format_bytes(part, like=limit)
        sys.stdout.write(f"{spell_path(path)}: {type(layer).__name__}, within {size} ({share:.0%})\n")
    for parent, name, layer, _ in places:
        setattr(parent, name, wrapped[id(layer)])
    return model


def _list_places(parent: torch.nn.Module, prefix: str) -> Iterator[_Place]:
    """Yield each place of a layer: its parent, its name there, the layer and its path."""
    for name, child in parent._modules.items():
        if child is None:
            continue
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(child, Wrapped):
            continue
        if _takes_sequences(child):
            yield parent, name, child, path
        else:
            yield from _list_places(child, path)


def _select_places(places: Sequence[_Place], modules: Iterable[str]) -> Iterator[_Place]:
    """Yield the places of layers that are named, or inside a module that is. Raises InputError."""
    names = list(modules)
    for name in names:
        if not any(_is_inside(path, name) for *_, path in places):
            paths = [path for *_, path in places]
            near = did_you_mean(str(name), paths)
            raise InputError(
                f"has {quote_value(name)}, in which no layer takes whole sequences.{near}",
                field="modules",
                accepted=", ".join(paths),
            )
    yield from (place for place in places if any(_is_inside(place[-1], name) for name in names))


def _is_inside(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")


def _takes_sequences(module: torch.nn.Module) -> bool:
    """Return whether a module keeps a state and takes a whole sequence in a call."""
    if is_layer(module) or find_class(module, "norse", "Lift"):
        return True
    if find_class(module, "spikingjelly", "Dropout", "Dropout2d"):
        # The mask of dropout is a memory, too, but no state.
        return False
    # Neurons of SpikingJelly keep their state in memories.
    return getattr(module, "step_mode", None) == "m" and bool(getattr(module, "_memories", None))


def _estimate_size(layer: torch.nn.Module) -> float | None:
    """Return how many numbers a time step of a layer keeps for each sequence; None if this is not known."""
    if not isinstance(layer, torch.nn.RNNBase):
        return None
    kept = _KEPT[layer.mode] * layer.num_layers + _OF_OUTPUTS
    return float(kept * layer.hidden_size * (2 if layer.bidirectional else 1))
