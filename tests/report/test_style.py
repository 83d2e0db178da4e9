"""Strategies look the same in every picture, and no two look alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ckptplan.strategies
from ckptplan.errors import InputError
from ckptplan.report.style import Look, look_of
from ckptplan.strategies.registry import all_strategies


@contextmanager
def more_strategies(folder: Path, count: int) -> Iterator[None]:
    """Add real modules in another folder of the package: strategies that ``style.py`` does not know."""
    for number in range(count):
        (folder / f"style_{number}.py").write_text(
            "from ckptplan.strategies.segments import Standard\n"
            f"class New(Standard):\n    name = 'new-{number}'\n    rank = {100 + number}\n"
            "STRATEGIES = (New(),)\n"
        )
    path = ckptplan.strategies.__path__
    path.append(str(folder))
    all_strategies.cache_clear()
    try:
        yield
    finally:
        path.remove(str(folder))
        all_strategies.cache_clear()


def looks_of_all() -> dict[str, Look]:
    return {name: look_of(name) for name in all_strategies()}


def test_strategies_look_different_new_ones_too(tmp_path: Path) -> None:
    known = looks_of_all()
    with more_strategies(tmp_path, 20):
        looks = looks_of_all()
    assert len(looks) == len(known) + 20
    assert len({(look.colour, look.marker) for look in looks.values()}) == len(looks)


def test_a_strategy_keeps_its_look_when_others_come_after_it(tmp_path: Path) -> None:
    known = looks_of_all()
    few, many = tmp_path / "few", tmp_path / "many"
    few.mkdir()
    many.mkdir()
    with more_strategies(few, 3):
        looks = looks_of_all()
    assert known.items() < looks.items()
    with more_strategies(many, 20):
        assert looks.items() < looks_of_all().items()


def test_what_is_no_strategy_has_no_look() -> None:
    with pytest.raises(InputError, match="no strategy 'dobule'"):
        look_of("dobule")
