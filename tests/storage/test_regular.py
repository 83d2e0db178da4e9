"""The best regular plan in a plan file: its loops are its schedule, in any language."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ckptplan
from ckptplan import InputError
from ckptplan.model.record import Parameters
from ckptplan.schedule.loops import expand
from ckptplan.storage.schedules import action_fields
from tests.support import CLOSED, settings_of

REGULAR = [name for name, strategy in CLOSED.items() if strategy.always_regular]


def execute(items: list[dict[str, Any]], offset: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the actions of loops as JSON data, by what docs/plan-format.md says alone."""
    for item in items:
        if item["action"] == "loop":
            for place in range(item["start"], item["stop"], item["stride"]):
                yield from execute(item["body"], offset + place)
        else:
            moved: dict[str, Any] = {
                name: item[name] + offset for name in ("start", "stop", "state") if name in item
            }
            states = {"states": [state + offset for state in item["states"]]} if "states" in item else {}
            yield {**item, **moved, **states}


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A plan of the paper's network that is irregular."""
    plan = ckptplan.optimize("paper-snn", "ipu-mk2", steps=300, local_bytes="235 kB")
    assert not plan.is_regular
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    return tmp_path / "plan.json"


@pytest.mark.parametrize("steps", [1, 7, 64, 301])
@pytest.mark.parametrize("strategy", REGULAR)
def test_loops_are_the_schedule_of_the_plan(strategy: str, steps: int, tmp_path: Path) -> None:
    """Loops of each closed form, with the caches that fit; executed without knowledge of strategies."""
    ask: dict[str, Any] = {"steps": steps, "strategies": strategy}
    least = ckptplan.optimize("paper-snn", "ipu-mk2", **ask, objective="memory").predicted.local_peak_bytes
    for local_bytes in (least, least + 4_000, least + 30_000):
        plan = ckptplan.optimize("paper-snn", "ipu-mk2", **ask, local_bytes=local_bytes)
        assert plan.is_regular
        ckptplan.save_plan(plan, tmp_path / "plan.json")
        loops = read(tmp_path / "plan.json")["regular"]["loops"]
        expected = json.loads(json.dumps([action_fields(action) for action in ckptplan.actions(plan)]))
        assert list(execute(loops)) == expected


@pytest.mark.parametrize("name", sorted(CLOSED))
def test_every_regular_setting_has_loops_that_expand_to_its_actions(name: str) -> None:
    strategy = CLOSED[name]
    for steps in (1, 2, 9):
        for setting in settings_of(strategy, steps):
            parameters = Parameters(setting)
            if strategy.is_regular(parameters, steps=steps):
                expanded = expand(strategy.loops(parameters, steps=steps))
                assert list(expanded) == list(strategy.actions(parameters, steps=steps))


def test_an_irregular_plan_has_the_best_regular_one_beside_it(saved: Path) -> None:
    plan = ckptplan.load_plan(saved)
    assert plan.regular is not None
    best = ckptplan.optimize("paper-snn", "ipu-mk2", steps=300, local_bytes="235 kB", strategies="regular")
    assert (plan.regular.strategy, plan.regular.parameters) == (best.strategy, best.parameters)
    assert plan.regular.predicted == best.predicted
    assert plan.regular == best.regular


def change_stride(regular: dict[str, Any]) -> None:
    next(item for item in regular["loops"] if item["action"] == "loop")["stride"] += 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_stride, "regular.loops: are not those of the strategy"),
        (lambda regular: regular.update(loops=3), "regular.loops: are not those"),
        (lambda regular: regular.update(strategy="optimal"), "regular"),
        (lambda regular: regular.update(cache="none"), "regular.cache: is 'none'"),
        (lambda regular: regular["parameters"].update(chunk_size=10**6), "regular.*chunk_size"),
    ],
)
def test_a_regular_plan_that_was_edited_is_refused(
    change: Callable[[dict[str, Any]], None], message: str, saved: Path
) -> None:
    document = read(saved)
    change(document["regular"])
    saved.write_text(json.dumps(document))
    with pytest.raises(InputError, match=message):
        ckptplan.load_plan(saved)


def test_a_plan_without_loops_is_read(saved: Path) -> None:
    document = read(saved)
    del document["regular"]["loops"]
    saved.write_text(json.dumps(document))
    assert ckptplan.load_plan(saved).regular is not None
