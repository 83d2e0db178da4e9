"""Cells that read the world: iterators, caches, generators of packages, the environment, other modules."""

from __future__ import annotations

import fractions
import math
import os
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from tests.torch.impure.cases import STEPS, Job, case
from tests.torch.impure.modules import Cell, Timed, timed

WORLD = "what reads the world"


def _scaled(scale: Any, *, late: int = 0) -> Job:
    """A cell whose state is scaled, from some step on, by what a function returns."""

    class Scaled(Timed):
        def then(self, state: torch.Tensor, step: int) -> Any:
            return state * scale() if step >= late else state

    return timed(Scaled())


def _levels() -> Any:
    return iter([1.0] * 6 + [1 - 0.02 * number for number in range(40 * STEPS)])


@case(WORLD, "an iterator in a tuple")
def iterator_in_tuple() -> Job:
    held = (_levels(), "levels")
    return _scaled(lambda: next(held[0]))


@case(WORLD, "an iterator in a list")
def iterator_in_list() -> Job:
    held = [_levels()]
    return _scaled(lambda: next(held[0]))


@case(WORLD, "an iterator over pairs, in a tuple in a dict")
def iterator_of_pairs() -> Job:
    held = {"levels": (zip(_levels(), range(10**6), strict=False),)}
    return _scaled(lambda: next(held["levels"][0])[0])


@case(WORLD, "lru_cache over noise")
def cached_noise() -> Job:
    @lru_cache
    def noise(kind: int) -> Any:
        return 1 + 0.2 * torch.randn(7, dtype=torch.float64) * (kind + 1)

    class Noisy(Timed):
        def then(self, state: torch.Tensor, step: int) -> Any:
            return state * noise(step // 6)

    return timed(Noisy())


@case(WORLD, "lru_cache over noise, of which a gradient is made")
def cached_gradient_noise() -> Job:
    @lru_cache
    def noise(kind: int) -> Any:
        return 0.5 + 0.1 * kind + 0.2 * torch.rand((), dtype=torch.float64)

    class Noisy(Timed):
        def then(self, state: torch.Tensor, step: int) -> Any:
            return state - noise(step // 5) * (state - state.detach())

    return timed(Noisy())


@case(WORLD, "a Sobol sequence, first read late")
def late_sobol() -> Job:
    engine = torch.quasirandom.SobolEngine(1, scramble=True, seed=1)
    return _scaled(lambda: 1 + 0.3 * engine.draw(1).double(), late=7)


@case(WORLD, "a Sobol sequence that scales gradients, first read late")
def late_sobol_gradient() -> Job:
    engine = torch.quasirandom.SobolEngine(1, scramble=True, seed=1)

    class Drawn(Timed):
        def then(self, state: torch.Tensor, step: int) -> Any:
            if step < 7:
                return state
            return state - 0.8 * engine.draw(1).double() * (state - state.detach())

    return timed(Drawn())


@case(WORLD, "a bit generator of numpy, first read late")
def late_bits() -> Job:
    bits = np.random.PCG64(1)
    return _scaled(lambda: 1 + (bits.random_raw() % 1000) / 5000, late=7)


def _make_store(size: int) -> dict[int, float]:
    return dict.fromkeys(range(size), 1.0)


@case(WORLD, "a dict of 600 entries, of which steps change some")
def large_dict() -> Job:
    kept = _make_store(600)

    class Stored(Cell):
        def after(self, state: torch.Tensor) -> Any:
            kept[590] *= 0.97
            return state - (1 - kept[590]) * (state - state.detach())

    return Job(cell=Stored())


@case(WORLD, "a list of lists of 600 entries, of which steps change some")
def large_list() -> Job:
    kept = [[1.0] for _ in range(600)]

    class Stored(Cell):
        def after(self, state: torch.Tensor) -> Any:
            kept[590][0] *= 0.97
            return state - (1 - kept[590][0]) * (state - state.detach())

    return Job(cell=Stored())


@case(WORLD, "os.environ")
def environment() -> Job:
    os.environ["LEVEL"] = "1.0"

    class Environment(Cell):
        def after(self, state: torch.Tensor) -> Any:
            level = float(os.environ["LEVEL"])
            os.environ["LEVEL"] = str(0.97 * level)
            return state - (1 - level) * (state - state.detach())

    return Job(cell=Environment(), finish=lambda: os.environ.pop("LEVEL"))


@case(WORLD, "os.environ, written from the tenth step on")
def late_environment() -> Job:
    os.environ["LEVEL"] = "1.0"

    class Environment(Timed):
        def then(self, state: torch.Tensor, step: int) -> Any:
            level = float(os.environ["LEVEL"])
            if step >= 10:
                os.environ["LEVEL"] = str(0.9 * level)
            return state - (1 - level) * (state - state.detach())

    return timed(Environment(), finish=lambda: os.environ.pop("LEVEL"))


@case(WORLD, "an attribute of a module of the standard library")
def attribute_of_package() -> Job:
    math.level = 1.0  # type: ignore[attr-defined]

    class Attributed(Cell):
        def after(self, state: torch.Tensor) -> Any:
            level: float = math.level  # type: ignore[attr-defined]
            math.level = 0.97 * level  # type: ignore[attr-defined]
            return state - (1 - level) * (state - state.detach())

    return Job(cell=Attributed(), finish=lambda: delattr(math, "level"))


@case(WORLD, "an attribute of a class of the standard library, first written late")
def attribute_of_class() -> Job:
    fractions.Fraction.level = 1.0  # type: ignore[attr-defined]

    class Attributed(Timed):
        def then(self, state: torch.Tensor, step: int) -> Any:
            level: float = fractions.Fraction.level  # type: ignore[attr-defined]
            if step >= 12:
                fractions.Fraction.level = 0.9 * level  # type: ignore[attr-defined]
            return state - (1 - level) * (state - state.detach())

    return timed(Attributed(), finish=lambda: delattr(fractions.Fraction, "level"))
