"""Cells that draw random numbers, from every kind of generator."""

# ruff: noqa: S311

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.torch.impure.cases import Job, case, cell_case
from tests.torch.impure.modules import Cell

DRAWN = "random numbers"


def _drawn(draw: Callable[[], Any]) -> Job:
    class Noisy(Cell):
        def after(self, state: torch.Tensor) -> Any:
            return state * draw()

    return Job(cell=Noisy())


@case(DRAWN, "random")
def python_random() -> Job:
    return _drawn(random.random)


@case(DRAWN, "random.gauss, which keeps every second number")
def python_gauss() -> Job:
    return _drawn(lambda: random.gauss(1, 0.1))


@case(DRAWN, "numpy's global generator")
def numpy_random() -> Job:
    return _drawn(np.random.rand)


@case(DRAWN, "numpy's global normal distribution")
def numpy_normal() -> Job:
    return _drawn(np.random.randn)


@case(DRAWN, "PyTorch's default generator")
def torch_random() -> Job:
    return _drawn(lambda: torch.rand((), dtype=torch.float64))


@case(DRAWN, "random.Random in a closure")
def own_python_random() -> Job:
    generator = random.Random(1)
    return _drawn(generator.random)


@case(DRAWN, "torch.Generator in a closure")
def own_torch_random() -> Job:
    generator = torch.Generator().manual_seed(1)
    return _drawn(lambda: torch.rand((), generator=generator, dtype=torch.float64))


@case(DRAWN, "numpy.random.Generator in a closure")
def own_numpy_random() -> Job:
    generator = np.random.default_rng(1)
    return _drawn(generator.random)


@case(DRAWN, "numpy.random.RandomState in a list")
def old_numpy_random() -> Job:
    generators = [np.random.RandomState(1)]
    return _drawn(generators[0].rand)


@cell_case(DRAWN, "torch.Generator of the module, from the fifth call on")
class LateGenerator(Cell):
    def begin(self) -> None:
        self.kept = torch.Generator().manual_seed(1)

    def after(self, state: torch.Tensor) -> Any:
        if self.calls <= 4:
            return state
        return state * torch.rand((), generator=self.kept, dtype=torch.float64)


@cell_case(DRAWN, "torch.Generator of the module")
class OwnGenerator(Cell):
    def begin(self) -> None:
        self.kept = torch.Generator().manual_seed(1)

    def after(self, state: torch.Tensor) -> Any:
        return state * torch.rand((), generator=self.kept, dtype=torch.float64)


@cell_case(DRAWN, "a coin that decides about a detach")
class Coin(Cell):
    def after(self, state: torch.Tensor) -> Any:
        return state if random.random() < 0.5 else 0.5 * state.detach()


@cell_case(DRAWN, "a mask made once for all steps, as in variational dropout")
class MaskOnce(Cell):
    def after(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = (torch.rand(3, 7) > 0.3).double()
        return state * self.kept


@cell_case(DRAWN, "noise that keeps a part of the last one (Ornstein-Uhlenbeck)")
class ColouredNoise(Cell):
    def begin(self) -> None:
        self.kept = torch.zeros(3, 7).double()

    def after(self, state: torch.Tensor) -> Any:
        self.kept = 0.9 * self.kept + 0.1 * torch.randn(3, 7, dtype=torch.float64)
        return state + self.kept


@case(DRAWN, "numbers of the operating system, which no seed gives again")
def system_random() -> Job:
    generator = random.SystemRandom()
    return _drawn(generator.random)
