"""Cells that draw random numbers, from every kind of generator."""

# ruff: noqa: S311

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.torch.impure.cases import Cell, add_case, call, does, family, make_class
from tests.torch.tables import Call

DRAWN = "random numbers"


def _draw_with(generator: torch.Generator) -> torch.Tensor:
    return torch.rand((), generator=generator, dtype=torch.float64)


def _make_generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _held(generator: Any, draw: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return a function whose closure has a generator."""
    return lambda: draw(generator)


def _held_in_list(generator: np.random.RandomState) -> Callable[[], Any]:
    generators = [generator]
    return lambda: float(generators[0].rand())


#: Each function returns one that draws a number.
DRAWS: dict[str, tuple[str, Callable[[], Callable[[], Any]]]] = {
    "python_random": ("random", lambda: random.random),
    "python_gauss": ("random.gauss, which keeps every second number", lambda: lambda: random.gauss(1, 0.1)),
    "numpy_random": ("numpy's global generator", lambda: np.random.rand),
    "numpy_normal": ("numpy's global normal distribution", lambda: np.random.randn),
    "torch_random": ("PyTorch's default generator", lambda: lambda: torch.rand((), dtype=torch.float64)),
    "own_python_random": ("random.Random in a closure", lambda: random.Random(1).random),
    "own_torch_random": ("torch.Generator in a closure", lambda: _held(_make_generator(), _draw_with)),
    "own_numpy_random": ("numpy.random.Generator in a closure", lambda: np.random.default_rng(1).random),
    "old_numpy_random": (
        "numpy.random.RandomState in a list",
        lambda: _held_in_list(np.random.RandomState(1)),
    ),
    "system_random": (
        "numbers of the operating system, which no seed gives again",
        lambda: random.SystemRandom().random,
    ),
}


def _make_noisy(make: Callable[[], Callable[[], Any]]) -> Call:
    draw = make()
    return call(make_class("Noisy", lambda _, state: state * draw())())


for _name, (_what, _make) in DRAWS.items():
    add_case(_name, DRAWN, _what, lambda make=_make: _make_noisy(make))  # type: ignore[misc]


@family(DRAWN)
class Drawn(Cell):
    """Cells that keep what they draw, or what they draw from."""

    @does("torch.Generator of the module, from the fifth call on", _make_generator)
    def late_generator(self, state: torch.Tensor) -> Any:
        return state if self.calls <= 4 else state * _draw_with(self.kept)

    @does("torch.Generator of the module", _make_generator)
    def own_generator(self, state: torch.Tensor) -> Any:
        return state * _draw_with(self.kept)

    @does("a coin that decides about a detach")
    def coin(self, state: torch.Tensor) -> Any:
        return state if random.random() < 0.5 else 0.5 * state.detach()

    @does("a mask made once for all steps, as in variational dropout")
    def mask_once(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = (torch.rand(3, 7) > 0.3).double()
        return state * self.kept

    @does("noise that keeps a part of the last one (Ornstein-Uhlenbeck)", lambda: torch.zeros(3, 7).double())
    def coloured_noise(self, state: torch.Tensor) -> Any:
        self.kept = 0.9 * self.kept + 0.1 * torch.randn(3, 7, dtype=torch.float64)
        return state + self.kept
