"""Schedules without a plan, and those that no strategy of ours makes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import ckptplan
from ckptplan import IllegalAction, InputError, Schedule
from ckptplan.planning.playback import make_schedule, schedule_of
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch import bptt, unroll
from ckptplan.torch.lif import LIF
from ckptplan.torch.run.timeline import Timeline
from tests.torch.support import assert_close, gradients, gru, job, plain, plan_of

STEPS = 40


def over_the_frontier() -> Iterator[Action]:
    """Steps 0 to 15 run; then 5 to 40 are recorded at once, from a checkpoint at 5: known and new ones."""
    yield Save(0, Tier.LOCAL)
    yield Advance(0, 5)
    yield Save(5, Tier.LOCAL)
    yield Advance(5, 15)
    yield Load(5, Tier.LOCAL)
    yield Advance(5, 25)
    yield Load(5, Tier.LOCAL)
    yield Free(5, Tier.LOCAL)
    yield Record(5, STEPS)
    yield Backward(5, STEPS)
    yield Load(0, Tier.LOCAL)
    yield Free(0, Tier.LOCAL)
    yield Record(0, 5)
    yield Backward(0, 5)


def spiking() -> tuple[LIF, list[torch.Tensor]]:
    torch.manual_seed(0)
    cell = LIF(5, 7, dtype=torch.float64, threshold=0.3)
    return cell, list(cell.parameters())


@pytest.mark.parametrize("make", [gru, spiking])
@pytest.mark.parametrize("chunked", [False, True])
def test_actions_may_reach_over_what_is_known(make: Any, chunked: bool) -> None:
    """Each step's loss counts once, and each output is stacked once."""
    plan = plan_of(STEPS, states=200)
    ckptplan.simulate(plan, schedule=over_the_frontier())
    (inputs, state), (cell, parameters) = job(STEPS), make()
    wanted = [state, inputs, *parameters]
    outputs, _ = plain(cell, inputs, state, STEPS)
    expected = sum((step + 1) * one.square().sum() for step, one in enumerate(outputs))

    def chunk_loss(start: int, some: torch.Tensor) -> Any:
        weights = torch.arange(start + 1, start + 1 + len(some), dtype=some.dtype)
        return (weights * some.square().sum(dim=(1, 2))).sum()

    loss: dict[str, Any] = (
        {"chunk_loss": chunk_loss} if chunked else {"loss": lambda step, one: (step + 1) * one.square().sum()}
    )
    result = bptt(cell, inputs, state, plan=plan, schedule=over_the_frontier(), **loss)
    assert isinstance(expected, torch.Tensor)
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert_close(gradients(result.loss, wanted), gradients(expected, wanted), relative=1e-12)
    stacked, _ = unroll(cell, inputs, state, plan=plan, schedule=over_the_frontier())
    assert torch.equal(stacked, torch.stack(outputs))


def executed(
    cell: Any, parameters: list[torch.Tensor], plan: ckptplan.Plan | Schedule
) -> tuple[list[torch.Tensor], list[tuple[Action, int, int, int]]]:
    """Gradients, and what each action did and left in both memories."""
    inputs, state = job(STEPS)
    timeline = Timeline(torch.device("cpu"))
    result = bptt(cell, inputs, state, lambda _, one: one.square().sum(), plan=plan, observer=timeline)
    found = gradients(result.loss, [state, inputs, *parameters])
    return found, [
        (one.action, one.local_bytes, one.remote_bytes, one.recomputed_steps) for one in timeline.events
    ]


@pytest.mark.parametrize("strategy", all_strategies())
@pytest.mark.parametrize("make", [gru, spiking])
def test_a_schedule_is_executed_as_its_plan_is(make: Any, strategy: str) -> None:
    """To the last bit of the gradients and the last byte of both memories."""
    cell, parameters = make()
    plan = plan_of(STEPS, strategy, states=200 if strategy == "base" else 20)
    theirs, by_plan = executed(cell, parameters, plan)
    ours, by_schedule = executed(cell, parameters, schedule_of(plan))
    assert by_schedule == by_plan
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def compare(schedule: ckptplan.Plan | Schedule) -> list[tuple[Action, int, int, int]]:
    """Compare the gradients of a schedule with those of base; return what each action did."""
    cell, parameters = gru()
    expected, _ = executed(cell, parameters, plan_of(STEPS, "base", states=200))
    found, events = executed(cell, parameters, schedule)
    assert_close(found, expected, relative=1e-12)
    return events


def test_a_schedule_may_be_a_list_or_a_function_and_runs_as_often_as_wanted() -> None:
    for actions in (list(over_the_frontier()), over_the_frontier):
        schedule = Schedule(steps=STEPS, actions=actions)
        for _ in range(2):
            assert [action for action, *_ in compare(schedule)] == list(over_the_frontier())


def test_ordinary_cells_keep_no_caches() -> None:
    """Their tapes hold everything."""
    actions = [replace(one, cached=0) if isinstance(one, Advance) else one for one in over_the_frontier()]
    compare(Schedule(steps=STEPS, actions=actions))


@pytest.mark.filterwarnings("ignore::ckptplan.errors.PlanMismatch")
@pytest.mark.parametrize("strategy", ["standard", "remote", "nested", "double", "growing", "optimal"])
def test_plans_that_drop_caches_run_in_ordinary_cells(strategy: str) -> None:
    # With the least memory, the fewest caches are kept.
    plan = ckptplan.optimize("paper-snn", "ipu-mk2", steps=STEPS, strategies=[strategy], objective="memory")
    assert plan.predicted.recomputed_without_cache > 0
    compare(plan)


def test_unroll_takes_a_schedule_too() -> None:
    cell, _ = gru()
    inputs, state = job(STEPS)
    outputs, final = plain(cell, inputs, state, STEPS)
    stacked, last = unroll(cell, inputs, state, plan=make_schedule("standard", steps=STEPS, chunk_size=7))
    assert torch.equal(stacked, torch.stack(outputs))
    assert torch.equal(last, final)


def test_other_actions_go_before_those_of_a_schedule_as_before_those_of_a_plan() -> None:
    cell, _ = gru()
    inputs, state = job(STEPS)
    seen: list[Action] = []
    options: dict[str, Any] = {
        "schedule": over_the_frontier(),
        "observer": lambda action, _: seen.append(action),
    }
    plan = make_schedule("base", steps=STEPS)
    bptt(cell, inputs, state, lambda _, one: one.sum(), plan=plan, **options).loss.backward()
    assert seen == list(over_the_frontier())


def test_a_parameterised_schedule_is_that_of_the_plan() -> None:
    plan = plan_of(STEPS, "double", states=12)
    made = make_schedule("double", steps=STEPS, **plan.parameters)
    assert list(made) == list(ckptplan.actions(plan))
    with pytest.raises(InputError, match="not a setting for 40 steps"):
        make_schedule("standard", steps=STEPS, chunk_size=STEPS + 1)


@pytest.mark.parametrize("steps", [STEPS - 1, STEPS + 1])
def test_a_schedule_for_another_length_is_refused(steps: int) -> None:
    inputs, state = job(STEPS)
    with pytest.raises(InputError, match=rf"inputs: has {STEPS} steps, the schedule has {steps}"):
        bptt(gru()[0], inputs, state, lambda _, one: one.sum(), plan=make_schedule("base", steps=steps))


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([], "the end: every step is reversed"),
        ([Record(0, STEPS)], "the end: every step is reversed"),
        ([Advance(0, 4), Record(4, STEPS), Backward(4, STEPS)], "steps 0 to 3 are not"),
        ([Record(0, STEPS + 1)], "never passes the adjoint"),
        (["record"], "this is not an action"),
    ],
)
def test_actions_that_would_give_wrong_gradients_are_refused(actions: list[Any], message: str) -> None:
    inputs, state = job(STEPS)
    with pytest.raises(IllegalAction, match=message):
        bptt(gru()[0], inputs, state, lambda _, one: one.sum(), plan=Schedule(steps=STEPS, actions=actions))


class CountedSteps:
    """An observer whose clock is the number of steps that a cell has taken, in the trial, too."""

    def __init__(self) -> None:
        # The trial restores containers, but not an ``array``.
        self.taken, self.spent = array("q", [0]), list[tuple[Action, int]]()

    def clock(self) -> int:
        return self.taken[0]

    def __call__(self, action: Action, executor: Any) -> None:
        self.spent.append((action, executor.clock() - executor.began))


def test_the_time_of_an_action_has_nothing_of_the_checks_before_it() -> None:
    (net, _), observer = gru(), CountedSteps()
    inputs, state = job(STEPS)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        observer.taken[0] += 1
        return net(state, x)

    plan = plan_of(STEPS, "revolve", states=6)
    bptt(cell, inputs, state, lambda _, one: one.square().sum(), plan=plan, observer=observer).loss.backward()
    runs = [(one, count) for one, count in observer.spent if isinstance(one, Advance | Record)]
    assert [count for _, count in runs] == [one.stop - one.start for one, _ in runs]
