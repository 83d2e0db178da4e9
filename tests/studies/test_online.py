"""Sequences of unknown length beside the same ones with T known, for every T."""

import re
from pathlib import Path

import pytest

from ckptplan import InputError
from ckptplan.execution.online import online
from ckptplan.schedule.simulator import play
from ckptplan.studies.online import compare_online

PAGE = (Path(__file__).parent.parent.parent / "docs/online.md").read_text()
FACTORS = PAGE.partition("| slots s |")[2].partition("\n\n")[0]
#: Slots -> the worst advances over Revolve, the mean runs over the optimum, and their worst for T >= 10 s.
TABLE = {
    int(slots): tuple(map(float, factors))
    for slots, *factors in re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", FACTORS, re.M)
}


@pytest.mark.parametrize("slots", [3, 5, 10, 20, 30, 50])
def test_the_factors_are_those_of_the_page(slots: int) -> None:
    """For all T from 10 to 5,000."""
    found = compare_online(slots=slots, first=10, last=5000)
    worst, over = found.over_revolve.max(), found.over_optimum
    later = over[found.steps >= 10 * slots].max()
    assert TABLE[slots] == (round(worst, 3), round(over.mean(), 3), round(later, 3))


@pytest.mark.slow
@pytest.mark.parametrize("slots", range(3, 51))
def test_the_factors_keep_their_limits(slots: int) -> None:
    """At most 1.2 times the advances of Revolve for every T, and in the mean 1.1 times the optimum's runs."""
    found = compare_online(slots=slots, first=10, last=5000)
    assert found.over_revolve.max() <= 1.2
    assert found.over_optimum.mean() <= 1.1
    assert (found.online <= found.bound * found.steps).all()
    assert (found.online >= found.optimum).all()


@pytest.mark.parametrize(("slots", "steps"), [(1, 30), (3, 7), (3, 200), (10, 247), (20, 1000)])
def test_runs_are_those_of_the_schedule_that_is_executed(slots: int, steps: int) -> None:
    schedule = online(slots)
    trace = play(
        schedule.actions(lambda done: done == steps),
        costs=schedule.costs,
        budget=schedule.budget,
        open_end=True,
    )
    found = compare_online(slots=slots, first=steps, last=steps)
    assert found.online.tolist() == [steps + trace.recomputed_steps]


def test_tables_that_are_too_large_are_refused() -> None:
    with pytest.raises(
        InputError, match="T: a table of the optima for 1,000,000 steps and 10 slots is too large"
    ):
        compare_online(slots=10, last=1_000_000)
    with pytest.raises(InputError, match="T: 3 is not accepted"):
        compare_online(slots=10, first=4, last=3)
