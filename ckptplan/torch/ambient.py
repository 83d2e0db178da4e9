"""Saves and restores what a step depends on besides its arguments: random generators and autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

#: States of the generators: that of the CPU, and that of the device if it is another one.
RandomState = tuple[torch.Tensor, ...]


class Generators:
    """The generators that a cell may draw from, so that a run from a checkpoint draws the same numbers."""

    def __init__(self, device: torch.device, *, wanted: bool) -> None:
        self.wanted = wanted
        self._last: RandomState = ()
        self.device = device if device.type == "cuda" else None

    def state(self) -> RandomState:
        """Return the present state; an empty one if randomness is not replayed."""
        if not self.wanted:
            return ()
        states: RandomState = (torch.get_rng_state(),)
        if self.device is not None:
            states = (*states, torch.cuda.get_rng_state(self.device))
        if self._last and all(torch.equal(one, other) for one, other in zip(states, self._last, strict=True)):
            # No numbers were drawn: checkpoints share one copy of 5 kB.
            return self._last
        self._last = states
        return states

    def restore(self, state: RandomState) -> None:
        """Continue from a state."""
        if not state:
            return
        torch.set_rng_state(state[0])
        if self.device is not None:
            torch.cuda.set_rng_state(state[1], self.device)

    def moved_since(self, state: RandomState) -> bool:
        """Return whether numbers were drawn since a state."""
        return not all(torch.equal(one, other) for one, other in zip(self.state(), state, strict=True))

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
