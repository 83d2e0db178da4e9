"""Running statistics, normalised weights, hooks and caches of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.utils import parametrizations, parametrize

from tests.torch.impure.cases import Cell, Given, Timed, add_case, call, case, does, family
from tests.torch.tables import Call

STATISTICS = "running statistics"
HOOKS = "hooks, and weights that they compute"


class _OwnNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(7))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.mean: torch.Tensor
        self.steps: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        if self.steps > 3:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


class _ActNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(7))
        self.ready = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            with torch.no_grad():
                self.scale.copy_(1 / (x.std(0) + 1e-3))
            self.ready = True
        return x * self.scale


@family(STATISTICS)
class Normed(Cell):
    """Cells that normalise their state."""

    @does("BatchNorm", lambda: torch.nn.BatchNorm1d(7).double())
    def batch_norm(self, state: torch.Tensor) -> Any:
        return self.kept(state)

    @does("BatchNorm with a cumulative average", lambda: torch.nn.BatchNorm1d(7, momentum=None).double())
    def batch_norm_cumulative(self, state: torch.Tensor) -> Any:
        return self.kept(state)

    @does("BatchNorm in eval()", lambda: torch.nn.BatchNorm1d(7).double().eval())
    def batch_norm_eval(self, state: torch.Tensor) -> Any:
        return self.kept(state)

    @does("statistics of one's own, used in training", lambda: _OwnNorm().double())
    def own_statistics(self, state: torch.Tensor) -> Any:
        return self.kept(state)

    @does("a scale set from the first batch (ActNorm)", lambda: _ActNorm().double())
    def data_dependent_scale(self, state: torch.Tensor) -> Any:
        return self.kept(state)

    @does(
        "InstanceNorm with running statistics",
        lambda: torch.nn.InstanceNorm1d(3, track_running_stats=True).double(),
    )
    def instance_norm(self, state: torch.Tensor) -> Any:
        return self.kept(state.unsqueeze(0)).squeeze(0)


@family(STATISTICS)
class NormedInTime(Timed):
    """Cells that normalise some states."""

    @does("BatchNorm from the third step on", lambda: torch.nn.BatchNorm1d(7).double())
    def batch_norm_late(self, state: torch.Tensor, step: int) -> Any:
        return self.kept(state) if step >= 2 else state

    @does(
        "a BatchNorm for each time step",
        lambda: torch.nn.ModuleList(torch.nn.BatchNorm1d(7).double() for _ in range(24)),
    )
    def batch_norm_through_time(self, state: torch.Tensor, step: int) -> Any:
        return self.kept[step](state)


@case(STATISTICS, "BatchNorm in a compiled function that is warm")
def batch_norm_compiled() -> Call:
    norm = torch.nn.BatchNorm1d(7).double()
    inner = torch.nn.GRUCell(5, 7).double()

    @torch.compile(backend="eager")
    def step(x: torch.Tensor, state: torch.Tensor) -> Any:
        return norm(inner(x, state))

    with torch.no_grad():
        step(torch.ones(3, 5).double(), torch.ones(3, 7).double())

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = step(x, state)
        return state, state

    return call(cell, parameters=(*norm.parameters(), *inner.parameters()))


@case(STATISTICS, "BatchNorm in the loss")
def batch_norm_in_loss() -> Call:
    norm = torch.nn.BatchNorm1d(7).double()
    return call(Cell(), loss=lambda _, one: norm(one).square().mean(), parameters=tuple(norm.parameters()))


def _norm_weight(norm: Callable[[torch.nn.Module, str], object]) -> Call:
    cell = Cell()
    norm(cell.inner, "weight_hh")
    return call(cell)


for _name, _what, _norm in (
    ("spectral_norm_hook", "spectral norm, by a hook", torch.nn.utils.spectral_norm),
    ("spectral_norm", "spectral norm, as a parametrization", parametrizations.spectral_norm),
    ("weight_norm", "weight norm", parametrizations.weight_norm),
):
    add_case(_name, HOOKS, _what, lambda norm=_norm: _norm_weight(norm))  # type: ignore[misc]


@case(HOOKS, "weight norm, under parametrize.cached()")
def cached_weight_norm() -> Call:
    cell, cached = Cell(), ExitStack()
    parametrizations.weight_norm(cell.inner, "weight_hh")
    cached.enter_context(parametrize.cached())
    return call(cell, finish=cached.close)


@case(HOOKS, "a forward hook that collects outputs")
def collecting_hook() -> Call:
    cell, seen = Cell(), []
    cell.inner.register_forward_hook(lambda *args: seen.append(args[2].detach()))
    return call(cell)


@case(HOOKS, "a forward hook that smooths outputs")
def smoothing_hook() -> Call:
    cell, last = Cell(), [torch.zeros(3, 7).double()]

    def smooth(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        last[0] = 0.5 * last[0] + 0.5 * output.detach()
        return 0.9 * output + 0.1 * last[0]

    cell.inner.register_forward_hook(smooth)
    return call(cell)


def clip(state: torch.Tensor) -> torch.Tensor:
    """Clip the gradient of a state."""
    if state.requires_grad:
        state.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
    return state


@family(HOOKS)
class ClippedNew(Cell):
    """A cell that hooks the state that it returns."""

    @does("a hook that clips the gradient of the new state")
    def clipped_new_state(self, state: torch.Tensor) -> Any:
        return clip(state)


@family(HOOKS)
class ClippedOld(Given):
    """A cell that hooks the state that it is given."""

    @does("a hook that clips the gradient of the incoming state")
    def clipped_old_state(self, state: torch.Tensor) -> Any:
        return clip(state)
