"""Saves and restores what a step depends on besides its arguments: random generators and autocast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch

from ckptplan.torch.random_sources import are_equal_states, list_default_sources, list_held_sources

#: States of the generators, in the order of their sources.
RandomState = tuple[Any, ...]


class Generators:
    """The generators that a cell may draw from, so that a run from a checkpoint draws the same numbers.

    These are the default ones of PyTorch (CPU and CUDA), Python and numpy, and those that are ``held``:
    objects of ``torch.Generator``, ``numpy.random.Generator``, ``RandomState`` or ``random.Random``.
    """

    def __init__(self, device: torch.device, *, wanted: bool, held: Iterable[object] = ()) -> None:
        self._sources = [*list_default_sources(device), *list_held_sources(held)] if wanted else []
        self._last: RandomState = ()

    def state(self) -> RandomState:
        """Return the present state; an empty one if randomness is not replayed."""
        states = tuple(source.state() for source in self._sources)
        if not all(one is other for one, other in zip_longest(states, self._last)):
            self._last = states
        # While no numbers are drawn, checkpoints share one copy of about 10 kB.
        return self._last

    def restore(self, state: RandomState) -> None:
        """Continue from a state."""
        for source, one in zip(self._sources, state, strict=True):
            source.restore(one)
        self._last = state

    def moved_since(self, state: RandomState) -> bool:
        """Return whether numbers were drawn since a state."""
        return not all(are_equal_states(one, other) for one, other in zip(self.state(), state, strict=True))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Restore the generators on exit."""
        before = self.state()
        try:
            yield
        finally:
            self.restore(before)


@dataclass(frozen=True, kw_only=True)
class Autocast:
    """How autocast was set for each type of device when the forward pass ran."""

    settings: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool

    @classmethod
    def present(cls, device: torch.device) -> Autocast:
        """Return the settings in force."""
        types = dict.fromkeys(("cpu", device.type))
        return cls(
            settings=tuple(
                (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in types
            ),
            cache=torch.is_autocast_cache_enabled(),
        )

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The types that are cast to."""
        return tuple(dtype for _, enabled, dtype in self.settings if enabled)

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Run under these settings, whatever the present ones are."""
        with ExitStack() as stack:
            for kind, enabled, dtype in self.settings:
                stack.enter_context(
                    torch.autocast(device_type=kind, enabled=enabled, dtype=dtype, cache_enabled=self.cache)
                )
            yield

    @contextmanager
    def cast_anew(self) -> Iterator[None]:
        """Run without cached casts of weights: a weight cast without a graph would get no gradient."""
        enabled = any(enabled for _, enabled, _ in self.settings)
        if enabled:
            torch.clear_autocast_cache()
        yield
        if enabled:
            torch.clear_autocast_cache()
