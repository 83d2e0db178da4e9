"""Runs steps aside: afterwards, all that they can reach and the random generators are as they were before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from ckptplan.torch.ambient import Generators
from ckptplan.torch.surroundings.holders import tap_iterators
from ckptplan.torch.surroundings.snapshot import Snapshot, Surroundings
from ckptplan.torch.surroundings.walk import Reached, walk


@contextmanager
def aside(
    reached: Reached, generators: Generators, *, spares_parameters: bool = False
) -> Iterator[tuple[Surroundings, Snapshot]]:
    """Yield what steps can reach, and what they find there; on exit all is as it was, iterators included.

    Arguments:
        reached: what a walk found.
        generators: the random generators.
        spares_parameters: whether no step changes parameters, as a trial has shown: they are not copied.
    """
    with generators.aside(), tap_iterators(reached.holders) as taps:
        surroundings = Surroundings([*reached.holders, *taps])
        copied = {
            id(one)
            for one in surroundings.holders
            if not (spares_parameters and isinstance(one.thing, torch.nn.Parameter))
        }
        world = surroundings.take(copies=copied)
        try:
            yield surroundings, world
        finally:
            surroundings.put_back(world)


@contextmanager
def leave_as_found(
    things: Mapping[str, object], *, device: torch.device | None, spares_parameters: bool = False
) -> Iterator[None]:
    """Leave what named objects can reach, and the random generators, as they were before the block."""
    reached = walk(things)
    generators = Generators(device or torch.device("cpu"), wanted=True, held=reached.generators)
    with aside(reached, generators, spares_parameters=spares_parameters):
        yield
