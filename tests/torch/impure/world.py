"""Cells that read the world: iterators, caches, generators of packages, the environment, other modules."""

from __future__ import annotations

import fractions
import math
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from tests.torch.impure.cases import Timed, call, case, make_class, weaken
from tests.torch.tables import STEPS, Call

WORLD = "what reads the world"


def _change(change: Callable[[Any, int], Any], *, late: int = 0, **options: Any) -> Call:
    """A cell whose state is changed, from some step on, by a function of the state and the step."""
    kind = make_class(
        "Changed", lambda _, state, step: change(state, step) if step >= late else state, base=Timed
    )
    return call(kind(), **options)


def _scale(scale: Callable[[], Any], *, late: int = 0) -> Call:
    """A cell whose state is scaled, from some step on, by what a function returns."""
    return _change(lambda state, _: state * scale(), late=late)


def _levels() -> Any:
    return iter([1.0] * 6 + [1 - 0.02 * number for number in range(40 * STEPS)])


@case(WORLD, "an iterator in a tuple")
def iterator_in_tuple() -> Call:
    held = (_levels(), "levels")
    return _scale(lambda: next(held[0]))


@case(WORLD, "an iterator in a list")
def iterator_in_list() -> Call:
    held = [_levels()]
    return _scale(lambda: next(held[0]))


@case(WORLD, "an iterator over pairs, in a tuple in a dict")
def iterator_of_pairs() -> Call:
    held = {"levels": (zip(_levels(), range(10**6), strict=False),)}
    return _scale(lambda: next(held["levels"][0])[0])


@case(WORLD, "lru_cache over noise")
def cached_noise() -> Call:
    @lru_cache
    def noise(kind: int) -> Any:
        return 1 + 0.2 * torch.randn(7, dtype=torch.float64) * (kind + 1)

    return _change(lambda state, step: state * noise(step // 6))


@case(WORLD, "lru_cache over noise, of which a gradient is made")
def cached_gradient_noise() -> Call:
    @lru_cache
    def noise(kind: int) -> Any:
        return 0.5 + 0.1 * kind + 0.2 * torch.rand((), dtype=torch.float64)

    return _change(lambda state, step: weaken(state, 1 - noise(step // 5)))


@case(WORLD, "a Sobol sequence that scales gradients, first read late")
def late_sobol_gradient() -> Call:
    engine = torch.quasirandom.SobolEngine(1, scramble=True, seed=1)
    return _change(lambda state, _: weaken(state, 1 - 0.8 * engine.draw(1).double()), late=7)


@case(WORLD, "a bit generator of numpy, first read late")
def late_bits() -> Call:
    bits = np.random.PCG64(1)
    return _scale(lambda: 1 + (bits.random_raw() % 1000) / 5000, late=7)


def _decay(
    read: Callable[[], float], write: Callable[[float], object], *, late: int = 0, finish: Any = int
) -> Call:
    """A cell that reads a level, which only gradients see, and then lowers the level from some step on."""
    write(1.0)

    def change(state: torch.Tensor, step: int) -> Any:
        level = read()
        if step >= late:
            write((0.9 if late else 0.97) * level)
        return weaken(state, level)

    return _change(change, finish=finish)


@case(WORLD, "a dict of 600 entries, of which steps change some")
def large_dict() -> Call:
    kept = dict.fromkeys(range(600), 1.0)
    return _decay(lambda: kept[590], lambda level: kept.update({590: level}))


@case(WORLD, "a list of lists of 600 entries, of which steps change some")
def large_list() -> Call:
    kept = [[1.0] for _ in range(600)]
    return _decay(lambda: kept[590][0], lambda level: kept[590].__setitem__(0, level))


def _write_environment(level: float) -> None:
    os.environ["LEVEL"] = str(level)


def _read_environment() -> float:
    return float(os.environ["LEVEL"])


@case(WORLD, "os.environ")
def environment() -> Call:
    return _decay(_read_environment, _write_environment, finish=lambda: os.environ.pop("LEVEL"))


@case(WORLD, "os.environ, written from the tenth step on")
def late_environment() -> Call:
    return _decay(_read_environment, _write_environment, late=10, finish=lambda: os.environ.pop("LEVEL"))


def _write_package(level: float) -> None:
    math.level = level  # type: ignore[attr-defined]


@case(WORLD, "an attribute of a module of the standard library")
def attribute_of_package() -> Call:
    return _decay(
        lambda: math.level,  # type: ignore[attr-defined]
        _write_package,
        finish=lambda: delattr(math, "level"),
    )


def _write_class(level: float) -> None:
    fractions.Fraction.level = level  # type: ignore[attr-defined]


@case(WORLD, "an attribute of a class of the standard library, first written late")
def attribute_of_class() -> Call:
    return _decay(
        lambda: fractions.Fraction.level,  # type: ignore[attr-defined]
        _write_class,
        late=12,
        finish=lambda: delattr(fractions.Fraction, "level"),
    )
