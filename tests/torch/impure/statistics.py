"""Running statistics, normalised weights, hooks and caches of PyTorch."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.utils import parametrizations, parametrize

from tests.torch.impure.cases import Job, case
from tests.torch.impure.modules import Cell

STATISTICS = "running statistics"
HOOKS = "hooks, and weights that they compute"


def _normed(norm: torch.nn.Module, **more: Any) -> Job:
    class Normed(Cell):
        def begin(self) -> None:
            self.norm = norm.double()

        def after(self, state: torch.Tensor) -> Any:
            return self.norm(state)

    return Job(cell=Normed(), **more)


@case(STATISTICS, "BatchNorm")
def batch_norm() -> Job:
    return _normed(torch.nn.BatchNorm1d(7))


@case(STATISTICS, "BatchNorm with a cumulative average")
def batch_norm_cumulative() -> Job:
    return _normed(torch.nn.BatchNorm1d(7, momentum=None))


@case(STATISTICS, "BatchNorm in eval()")
def batch_norm_eval() -> Job:
    return _normed(torch.nn.BatchNorm1d(7).eval())


@case(STATISTICS, "BatchNorm from the third step on")
def batch_norm_late() -> Job:
    class LateNorm(Cell):
        def begin(self) -> None:
            self.norm = torch.nn.BatchNorm1d(7).double()

        def forward(self, state: Any, x: torch.Tensor) -> Any:
            hidden, step = state
            hidden = self.inner(x, hidden)
            hidden = self.norm(hidden) if step >= 2 else hidden
            return (hidden, step + 1), hidden

    return Job(cell=LateNorm(), state=(torch.zeros(3, 7).double(), 0))


@case(STATISTICS, "a BatchNorm for each time step")
def batch_norm_through_time() -> Job:
    class ThroughTime(Cell):
        def begin(self) -> None:
            self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(7).double() for _ in range(24))

        def forward(self, state: Any, x: torch.Tensor) -> Any:
            hidden, step = state
            hidden = self.norms[step](self.inner(x, hidden))
            return (hidden, step + 1), hidden

    return Job(cell=ThroughTime(), state=(torch.zeros(3, 7).double(), 0))


@case(STATISTICS, "BatchNorm in a compiled function that is warm")
def batch_norm_compiled() -> Job:
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

    return Job(cell=cell, parameters=(*norm.parameters(), *inner.parameters()))


@case(STATISTICS, "BatchNorm in the loss")
def batch_norm_in_loss() -> Job:
    norm = torch.nn.BatchNorm1d(7).double()
    return Job(cell=Cell(), loss=lambda _, one: norm(one).square().mean(), parameters=tuple(norm.parameters()))


@case(STATISTICS, "InstanceNorm with running statistics")
def instance_norm() -> Job:
    class Instances(Cell):
        def begin(self) -> None:
            self.norm = torch.nn.InstanceNorm1d(3, track_running_stats=True).double()

        def after(self, state: torch.Tensor) -> Any:
            return self.norm(state.unsqueeze(0)).squeeze(0)

    return Job(cell=Instances())


@case(STATISTICS, "statistics of one's own, used in training")
def own_statistics() -> Job:
    class OwnNorm(torch.nn.Module):
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

    return _normed(OwnNorm())


@case(STATISTICS, "a scale set from the first batch (ActNorm)")
def data_dependent_scale() -> Job:
    class ActNorm(torch.nn.Module):
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

    return _normed(ActNorm())


@case(HOOKS, "spectral norm, by a hook")
def spectral_norm_hook() -> Job:
    cell = Cell()
    torch.nn.utils.spectral_norm(cell.inner, "weight_hh")
    return Job(cell=cell)


@case(HOOKS, "spectral norm, as a parametrization")
def spectral_norm() -> Job:
    cell = Cell()
    parametrizations.spectral_norm(cell.inner, "weight_hh")
    return Job(cell=cell)


@case(HOOKS, "weight norm")
def weight_norm() -> Job:
    cell = Cell()
    parametrizations.weight_norm(cell.inner, "weight_hh")
    return Job(cell=cell)


@case(HOOKS, "weight norm, under parametrize.cached()")
def cached_weight_norm() -> Job:
    cell, cached = Cell(), ExitStack()
    parametrizations.weight_norm(cell.inner, "weight_hh")
    cached.enter_context(parametrize.cached())
    return Job(cell=cell, finish=cached.close)


@case(HOOKS, "a forward hook that collects outputs")
def collecting_hook() -> Job:
    cell, seen = Cell(), []
    cell.inner.register_forward_hook(lambda *args: seen.append(args[2].detach()))
    return Job(cell=cell)


@case(HOOKS, "a forward hook that smooths outputs")
def smoothing_hook() -> Job:
    cell, last = Cell(), [torch.zeros(3, 7).double()]

    def smooth(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        last[0] = 0.5 * last[0] + 0.5 * output.detach()
        return 0.9 * output + 0.1 * last[0]

    cell.inner.register_forward_hook(smooth)
    return Job(cell=cell)


@case(HOOKS, "a hook that clips the gradient of the new state")
def clipped_new_state() -> Job:
    class ClippedNew(Cell):
        def after(self, state: torch.Tensor) -> Any:
            if state.requires_grad:
                state.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
            return state

    return Job(cell=ClippedNew())


@case(HOOKS, "a hook that clips the gradient of the incoming state")
def clipped_old_state() -> Job:
    class ClippedOld(Cell):
        def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
            if state.requires_grad:
                state.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
            return super().forward(state, x)

    return Job(cell=ClippedOld())
