"""Spiking cells that keep something, in networks where nothing fires in the first steps.

Values tell nothing then: spikes are zero whatever is kept, and only surrogate gradients differ.
"""

# ruff: noqa: ARG002 - each cell overrides what it needs

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from tests.torch.impure.cases import STEPS, Job, case

QUIET = "silent at first"
#: Inputs are zero before.
_BEGINS = 6


class _Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, membrane: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(membrane)
        return (membrane > 0).to(membrane.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (membrane,) = ctx.saved_tensors
        return gradient / (1 + 10 * membrane.abs()).square()


class Spiking(torch.nn.Module):
    """A leaky integrate-and-fire layer; ``current`` and ``threshold`` may keep something."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.weight = torch.nn.Parameter(torch.rand(5, 7, dtype=torch.float64))
        self.kept: Any = None
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
        spikes = _Surrogate.apply(membrane + self.current(membrane) - 1.0)  # type: ignore[no-untyped-call]
        self.after(spikes)
        self.calls += 1
        return membrane * (1 - spikes.detach()), spikes


def _quiet(cell: Any) -> Job:
    inputs = torch.zeros(STEPS, 3, 5, dtype=torch.float64)
    inputs[_BEGINS:] = torch.rand(STEPS - _BEGINS, 3, 5, dtype=torch.float64)
    state = torch.zeros(3, 7, dtype=torch.float64, requires_grad=True)
    return Job(cell=cell, inputs=inputs.requires_grad_(), state=state)


class _DelayedSpikes(Spiking):
    def begin(self) -> None:
        self.kept = deque([torch.zeros(3, 7).double() for _ in range(4)])

    def current(self, spikes: torch.Tensor) -> Any:
        return 0.3 * self.kept.popleft()

    def after(self, spikes: torch.Tensor) -> None:
        self.kept.append(spikes)


@case(QUIET, "an axonal delay, with surrogate gradients")
def delayed_spikes() -> Job:
    return _quiet(_DelayedSpikes())


@case(QUIET, "the same, and nothing ever fires")
def delayed_spikes_never() -> Job:
    job = _quiet(_DelayedSpikes())
    with torch.no_grad():
        job.inputs.mul_(1e-3)
    return job


class _Threshold(Spiking):
    def begin(self) -> None:
        self.kept = torch.zeros(3, 7).double()

    def current(self, spikes: torch.Tensor) -> Any:
        return -self.kept

    def after(self, spikes: torch.Tensor) -> None:
        self.kept = 0.9 * self.kept + 0.5 * spikes


@case(QUIET, "an adaptive threshold, with surrogate gradients")
def adaptive_threshold() -> Job:
    return _quiet(_Threshold())


class _Refractory(Spiking):
    def begin(self) -> None:
        self.kept = torch.zeros(3, 7).double()

    def current(self, spikes: torch.Tensor) -> Any:
        return -10.0 * (self.kept > 0)

    def after(self, spikes: torch.Tensor) -> None:
        # Written in place, and only where something fires.
        if spikes.any():
            self.kept[spikes > 0] = 3.0
        if self.kept.any():
            self.kept.sub_(1.0).clamp_(min=0.0)


@case(QUIET, "a refractory time, written in place where something fires")
def refractory() -> Job:
    return _quiet(_Refractory())


class _Plasticity(Spiking):
    def begin(self) -> None:
        self.register_buffer("resource", torch.ones(3, 7).double())
        self.resource: torch.Tensor

    def current(self, spikes: torch.Tensor) -> Any:
        return 0.2 * self.resource

    def after(self, spikes: torch.Tensor) -> None:
        if spikes.any():
            self.resource = self.resource * (1 - 0.3 * spikes.detach())


@case(QUIET, "short-term plasticity in a buffer, from the first spike on")
def short_term_plasticity() -> Job:
    return _quiet(_Plasticity())


class _Homeostasis(Spiking):
    def begin(self) -> None:
        self.kept = 0.0

    def current(self, spikes: torch.Tensor) -> Any:
        return -2.0 * self.kept

    def after(self, spikes: torch.Tensor) -> None:
        rate = float(spikes.detach().mean())
        if rate > 0:
            self.kept = 0.9 * self.kept + 0.1 * rate


@case(QUIET, "homeostasis: a mean rate, a number")
def homeostasis() -> Job:
    return _quiet(_Homeostasis())


class _HiddenMembrane(torch.nn.Module):
    """As neurons that hide their state do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(5, 7, dtype=torch.float64))
        self.v: Any = 0.0

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        self.v = 0.8 * self.v + x.abs() @ self.weight
        spikes = _Surrogate.apply(self.v - 1.0)  # type: ignore[no-untyped-call]
        self.v = self.v * (1 - spikes.detach())
        return state, spikes


@case(QUIET, "a membrane hidden in the module")
def hidden_membrane() -> Job:
    return _quiet(_HiddenMembrane())


@case(QUIET, "spikes counted for a report")
def counted_spikes() -> Job:
    class CountedSpikes(Spiking):
        def begin(self) -> None:
            self.kept = 0

        def after(self, spikes: torch.Tensor) -> None:
            self.kept += int(spikes.detach().sum())

    return _quiet(CountedSpikes())


@case(QUIET, "a synapse that filters the spikes of the layer below")
def filtered_synapse() -> Job:
    class Synapse(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trace: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.trace = x if self.trace is None else 0.7 * self.trace + x
            return self.trace

    class Filtered(Spiking):
        def begin(self) -> None:
            self.synapse = Synapse()

        def forward(self, membrane: torch.Tensor, x: torch.Tensor) -> Any:
            return super().forward(membrane, self.synapse(x.abs()))

    return _quiet(Filtered())
