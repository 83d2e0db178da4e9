"""Spiking cells that keep something, in networks where nothing fires in the first steps.

Values tell nothing then: spikes are zero whatever is kept, and only surrogate gradients differ.
"""

# ruff: noqa: ARG002 - each cell overrides what it needs

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from tests.torch.impure.cases import add_case, call
from tests.torch.impure.gradients import Surrogate
from tests.torch.tables import STEPS, Call

QUIET = "silent at first"
#: Inputs are zero before.
_BEGINS = 6


def _fire(membrane: torch.Tensor) -> torch.Tensor:
    spikes: torch.Tensor = Surrogate.apply(membrane, 10.0)  # type: ignore[no-untyped-call]
    return spikes


class Spiking(torch.nn.Module):
    """A leaky integrate-and-fire layer; ``current`` and ``threshold`` may keep something."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.weight = torch.nn.Parameter(torch.rand(5, 7, dtype=torch.float64))
        self.kept: Any = torch.zeros(3, 7).double()
        self.calls = 0
        self.begin()

    def begin(self) -> None:
        """Set what it keeps at first."""

    def current(self, spikes: torch.Tensor) -> Any:
        """Return what it adds to the membrane."""
        return 0.0

    def after(self, spikes: torch.Tensor) -> None:
        """Keep something of the spikes."""

    def forward(self, membrane: torch.Tensor, x: torch.Tensor) -> Any:
        membrane = 0.8 * membrane + x.abs() @ self.weight
        spikes = _fire(membrane + self.current(membrane) - 1.0)
        self.after(spikes)
        self.calls += 1
        return membrane * (1 - spikes.detach()), spikes


def quiet_case(what: str, name: str, *, scale: float = 1.0) -> Any:
    """Register a class of cells that get no input at first."""

    def build(kind: Any) -> Call:
        cell = kind()
        inputs = torch.zeros(STEPS, 3, 5, dtype=torch.float64)
        inputs[_BEGINS:] = scale * torch.rand(STEPS - _BEGINS, 3, 5, dtype=torch.float64)
        state = torch.zeros(3, 7, dtype=torch.float64, requires_grad=True)
        return call(cell, inputs=inputs.requires_grad_(), state=state)

    def register(kind: Any) -> Any:
        add_case(name, QUIET, what, lambda: build(kind))
        return kind

    return register


@quiet_case("the same, and nothing ever fires", "delayed_spikes_never", scale=1e-3)
@quiet_case("an axonal delay, with surrogate gradients", "delayed_spikes")
class _DelayedSpikes(Spiking):
    def begin(self) -> None:
        self.kept = deque([torch.zeros(3, 7).double() for _ in range(4)])

    def current(self, spikes: torch.Tensor) -> Any:
        return 0.3 * self.kept.popleft()

    def after(self, spikes: torch.Tensor) -> None:
        self.kept.append(spikes)


@quiet_case("an adaptive threshold, with surrogate gradients", "adaptive_threshold")
class _Threshold(Spiking):
    def current(self, spikes: torch.Tensor) -> Any:
        return -self.kept

    def after(self, spikes: torch.Tensor) -> None:
        self.kept = 0.9 * self.kept + 0.5 * spikes


@quiet_case("a refractory time, written in place where something fires", "refractory")
class _Refractory(Spiking):
    def current(self, spikes: torch.Tensor) -> Any:
        return -10.0 * (self.kept > 0)

    def after(self, spikes: torch.Tensor) -> None:
        # Written in place, and only where something fires.
        if spikes.any():
            self.kept[spikes > 0] = 3.0
        if self.kept.any():
            self.kept.sub_(1.0).clamp_(min=0.0)


@quiet_case("short-term plasticity in a buffer, from the first spike on", "short_term_plasticity")
class _Plasticity(Spiking):
    def begin(self) -> None:
        self.register_buffer("resource", torch.ones(3, 7).double())
        self.resource: torch.Tensor

    def current(self, spikes: torch.Tensor) -> Any:
        return 0.2 * self.resource

    def after(self, spikes: torch.Tensor) -> None:
        if spikes.any():
            self.resource = self.resource * (1 - 0.3 * spikes.detach())


@quiet_case("homeostasis: a mean rate, a number", "homeostasis")
class _Homeostasis(Spiking):
    def begin(self) -> None:
        self.kept = 0.0

    def current(self, spikes: torch.Tensor) -> Any:
        return -2.0 * self.kept

    def after(self, spikes: torch.Tensor) -> None:
        rate = float(spikes.detach().mean())
        if rate > 0:
            self.kept = 0.9 * self.kept + 0.1 * rate


@quiet_case("a membrane hidden in the module", "hidden_membrane")
class _HiddenMembrane(Spiking):
    """As neurons that hide their state do."""

    def forward(self, membrane: torch.Tensor, x: torch.Tensor) -> Any:
        self.kept = 0.8 * self.kept + x.abs() @ self.weight
        spikes = _fire(self.kept - 1.0)
        self.kept = self.kept * (1 - spikes.detach())
        return membrane, spikes


@quiet_case("spikes counted for a report", "counted_spikes")
class _CountedSpikes(Spiking):
    def begin(self) -> None:
        self.kept = 0

    def after(self, spikes: torch.Tensor) -> None:
        self.kept += int(spikes.detach().sum())


@quiet_case("a synapse that filters the spikes of the layer below", "filtered_synapse")
class _Filtered(Spiking):
    class Synapse(torch.nn.Module):
        trace: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.trace = x if self.trace is None else 0.7 * self.trace + x
            return self.trace

    def begin(self) -> None:
        self.synapse = self.Synapse()

    def forward(self, membrane: torch.Tensor, x: torch.Tensor) -> Any:
        return super().forward(membrane, self.synapse(x.abs()))
