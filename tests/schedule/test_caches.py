"""Caches of steps in the interpreter: which runs are cheap, which bytes they take, and which laws hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptplan
from ckptplan import IllegalAction, InputError
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.simulator import Trace, play
from ckptplan.schedule.step_set import StepSet
from tests.schedule.fuzz import random_schedule
from tests.support import plain_costs

LOCAL, REMOTE = Tier.LOCAL, Tier.REMOTE
#: The caches of steps 0 and 1 move with the state before them, and come back.
OFFLOADED = (
    *(
        Save(0, LOCAL),
        Advance(0, 2),
        Transfer((0,), LOCAL, REMOTE, caches=(0, 2)),
        Record(2, 4),
        Backward(2, 4),
    ),
    *(
        Transfer((0,), REMOTE, LOCAL, caches=(0, 2)),
        Load(0, LOCAL),
        Free(0, LOCAL),
        Record(0, 2),
        Backward(0, 2),
    ),
)


def play_with_caches(actions: Sequence[Action], *, steps: int) -> Trace:
    """Play a schedule in which a step takes 1 s, or 0.25 s if its cache of 3 bytes is in local memory."""
    return play(actions, costs=plain_costs(steps, cache_bytes=3, recompute_seconds=0.25))


def test_a_step_without_its_cache_runs_again_in_full() -> None:
    """Steps 0 and 1 run again, step 0 without its cache: 4 x 3 s and 1 + 0.25 s."""
    trace = play_with_caches(
        [
            *(Save(0, LOCAL), Advance(0, 2, cached=1), Record(2, 4), Backward(2, 4)),
            *(Load(0, LOCAL), Free(0, LOCAL), Record(0, 2), Backward(0, 2)),
        ],
        steps=4,
    )
    assert (trace.recomputed_steps, trace.recomputed_without_cache) == (2, 1)
    assert trace.seconds == 4 * 3 + 1.25
    # A state, two tapes, and the caches of steps 1 to 3; the caches of steps 2 and 3 go with their reversal.
    assert trace.local_peak_bytes == 10 + 20 + 3 * 3


def test_a_run_that_keeps_no_caches_drops_those_of_its_steps() -> None:
    trace = play_with_caches(
        [
            *(Save(0, LOCAL), Advance(0, 2), Load(0, LOCAL), Advance(0, 2, cached=0), Load(0, LOCAL)),
            *(Free(0, LOCAL), Record(0, 2), Backward(0, 2)),
        ],
        steps=2,
    )
    assert (trace.recomputed_steps, trace.recomputed_without_cache) == (4, 2)


def test_caches_that_move_count_where_they_are() -> None:
    costs = plain_costs(
        4,
        cache_bytes=3,
        recompute_seconds=0.25,
        remote_cache_bytes=40,
        cache_write_seconds=0.5,
        cache_read_seconds=1.0,
    )
    trace = play(OFFLOADED, costs=costs)
    assert (trace.recomputed_steps, trace.recomputed_without_cache, trace.offloaded_caches) == (2, 0, 2)
    # Two replays; a message each way of a state and two caches.
    assert trace.seconds == 4 * 3 + 2 * 0.25 + (0.5 + 3 + 2 * 0.5) + (0.5 + 4 + 2 * 1.0)
    assert trace.remote_peak_bytes == 1000 + 2 * 40
    # Two tapes and two caches; before them the state and the caches that move.
    assert trace.local_peak_bytes == max(2 * 10 + 2 * 3, 10 + 2 * 3)
    overlapped = play(OFFLOADED, costs=costs.model_copy(update={"overlaps_compute": True}))
    assert overlapped.local_peak_bytes == 10 + 2 * 10 + 2 * 3 + 2 * 3 + 2 * (10 + 2 * 3) - 10 - 2 * 3


@pytest.mark.parametrize(
    ("actions", "law"),
    [
        (
            [Save(0, LOCAL), Advance(0, 2, cached=1), Transfer((0,), LOCAL, REMOTE, caches=(0, 2))],
            "a transfer finds its caches: that of step 0 is not stored there",
        ),
        (
            [Advance(0, 2), Transfer((), LOCAL, REMOTE)],
            "a transfer moves at least one state, each once, or caches",
        ),
        ([Advance(0, 2), Transfer((), LOCAL, REMOTE, caches=(1, 1))], "a range holds at least one step"),
        (
            [Advance(0, 2), *(Transfer((), LOCAL, REMOTE, (0, 1)), Transfer((), REMOTE, LOCAL, (0, 2)))],
            "a transfer finds its caches: that of step 1 is not stored there",
        ),
        (
            [
                *(Save(0, LOCAL), Advance(0, 1), Transfer((), LOCAL, REMOTE, (0, 1)), Load(0, LOCAL)),
                *(Advance(0, 1), Transfer((), REMOTE, LOCAL, (0, 1))),
            ],
            "nothing is stored twice in one tier",
        ),
        (
            [Record(0, 2), Transfer((), LOCAL, REMOTE, (0, 1)), Backward(0, 2)],
            "a backward finds every cache: that of step 0 is missing",
        ),
        ([Advance(0, 2, cached=3)], "a run keeps caches of its own steps only"),
        ([Advance(0, 2, cached=-1)], "a run keeps caches of its own steps only"),
        (
            [Save(0, LOCAL), Record(0, 2), Load(0, LOCAL), Advance(0, 2, cached=1), Backward(0, 2)],
            "a backward finds every cache: that of step 0 is missing",
        ),
    ],
)
def test_laws_of_caches_are_enforced_and_named(actions: Sequence[Action], law: str) -> None:
    with pytest.raises(IllegalAction) as caught:
        play_with_caches(actions, steps=2)
    assert caught.value.law == law
    assert "caches" in caught.value.state


def list_standard(steps: int, chunk: int, cached: int) -> Iterator[Action]:
    """Yield Standard's actions, with the caches of the last ``cached`` steps from the first sweep on."""
    ends = [*range(steps - chunk, 0, -chunk)][::-1]
    starts = [0, *ends[:-1]] if ends else []
    for start, end in zip(starts, ends, strict=True):
        yield Save(start, LOCAL)
        yield Advance(start, end, cached=min(end - start, max(0, end - (steps - cached))))
    last = ends[-1] if ends else 0
    yield from (Record(last, steps), Backward(last, steps))
    for start, end in zip(reversed(starts), reversed(ends), strict=True):
        yield from (Load(start, LOCAL), Free(start, LOCAL), Record(start, end), Backward(start, end))


@given(data=st.data())
def test_standard_with_caches_of_its_last_steps_costs_what_its_equations_say(data: st.DataObject) -> None:
    """T - K steps run again in full, K - c from their caches; the peak is (n - 1) M_s + c M_a + K M_r."""
    steps = data.draw(st.integers(1, 200), label="T")
    chunk = data.draw(st.integers(1, steps), label="c")
    cached = data.draw(st.integers(chunk, steps), label="K")
    trace = play_with_caches(list(list_standard(steps, chunk, cached)), steps=steps)
    assert trace.recomputed_without_cache == steps - cached
    assert trace.recomputed_steps - trace.recomputed_without_cache == cached - chunk
    checkpoints = -(-steps // chunk) - 1
    assert trace.local_peak_bytes == checkpoints * 10 + chunk * 10 + cached * 3


@dataclass
class StepByStep:
    """The laws of caches written out for single steps, to compare the interpreter with."""

    cached: set[int] = field(default_factory=set)
    ran: set[int] = field(default_factory=set)
    taped: set[int] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)
    in_full: int = 0
    peak: int = 0

    def take(self, action: Action) -> None:
        if isinstance(action, Advance | Record):
            steps = range(action.start, action.stop)
            self.in_full += sum(step in self.ran and step not in self.cached for step in steps)
            self.ran.update(steps)
            kept = len(steps) if isinstance(action, Record) or action.cached is None else action.cached
            self.cached.difference_update(steps)
            self.cached.update(range(action.stop - kept, action.stop))
            if isinstance(action, Record):
                self.taped.update(steps)
        elif isinstance(action, Backward):
            self.taped.difference_update(range(action.start, action.stop))
            self.cached.difference_update(range(action.start, action.stop))
        elif isinstance(action, Save) and action.tier is LOCAL:
            self.stored.add(action.state)
        elif isinstance(action, Free) and action.tier is LOCAL:
            self.stored.discard(action.state)
        elif not isinstance(action, Save | Load | Free):
            change = self.stored.difference_update if action.source is LOCAL else self.stored.update
            change(action.states)
        self.peak = max(self.peak, 10 * len(self.stored) + 10 * len(self.taped) + 3 * len(self.cached))


def drop_some_caches(actions: Sequence[Action], random: Random) -> Iterator[Action]:
    """Yield a legal schedule whose runs keep some of their caches: those of steps with tapes are kept."""
    taped = StepSet()
    for action in actions:
        if isinstance(action, Record):
            taped.add(action.start, action.stop)
        elif isinstance(action, Backward):
            taped.remove(action.start, action.stop)
        if isinstance(action, Advance):
            steps = range(action.start, action.stop)
            least = max((action.stop - step for step in steps if taped.count(step, step + 1)), default=0)
            yield Advance(action.start, action.stop, random.choice([None, random.randint(least, len(steps))]))
        else:
            yield action


@given(seed=st.integers(0, 10**6), steps=st.integers(1, 12))
def test_counts_and_bytes_are_those_of_single_steps(seed: int, steps: int) -> None:
    random = Random(seed)  # noqa: S311 - no secret
    actions = list(drop_some_caches(random_schedule(seed, steps), random))
    expected = StepByStep()
    for action in actions:
        expected.take(action)
    trace = play_with_caches(actions, steps=steps)
    assert (trace.recomputed_without_cache, trace.local_peak_bytes) == (expected.in_full, expected.peak)


@given(
    st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.integers(0, 20), st.integers(1, 6)), max_size=30)
)
def test_a_set_of_steps_is_a_set(changes: list[tuple[str, int, int]]) -> None:
    steps, expected = StepSet(), set[int]()
    for change, start, length in changes:
        stop = start + length
        missing = [step for step in range(start, stop) if step not in expected]
        assert steps.count(start, stop) == length - len(missing)
        assert steps.find_last_missing(start, stop) == max(missing, default=None)
        getattr(steps, change)(start, stop)
        expected = expected | set(range(start, stop)) if change == "add" else expected - set(range(start, stop))
        assert len(steps) == len(expected)
        assert [step for begin, end in steps for step in range(begin, end)] == sorted(expected)


HALF = ckptplan.Schedule(
    steps=4,
    actions=[
        *(Save(0, LOCAL), Advance(0, 2, cached=1), Record(2, 4), Backward(2, 4)),
        *(Load(0, LOCAL), Free(0, LOCAL), Record(0, 2), Backward(0, 2)),
    ],
)


def test_a_caller_is_told_which_caches_to_keep() -> None:
    runs: list[tuple[int, int, int | None]] = []

    def advance(start: int, stop: int, cached: int | None = None) -> None:
        runs.append((start, stop, cached))

    def advance_all(_start: int, _stop: int) -> None:
        raise AssertionError("no run is begun")

    calls: dict[str, Any] = dict.fromkeys(("record", "backward", "save", "load", "free"), print)
    ckptplan.execute(HALF, advance=advance, **calls)
    assert runs == [(0, 2, 1)]
    with pytest.raises(InputError, match="advance: does not take cached="):
        ckptplan.execute(HALF, advance=advance_all, **calls)


def test_a_caller_is_told_which_caches_move() -> None:
    moved: list[tuple[Any, ...]] = []

    def transfer(*states: Any, caches: tuple[int, int] | None = None) -> None:
        moved.append((*states, caches))

    schedule = ckptplan.Schedule(steps=4, actions=OFFLOADED)
    calls: dict[str, Any] = dict.fromkeys(("advance", "record", "backward", "save", "load", "free"), print)
    ckptplan.execute(schedule, transfer=transfer, **calls)
    assert moved == [((0,), LOCAL, REMOTE, (0, 2)), ((0,), REMOTE, LOCAL, (0, 2))]
    with pytest.raises(InputError, match="transfer: does not take caches="):
        ckptplan.execute(schedule, transfer=lambda _states, _source, _target: None, **calls)
    runs = {name: calls[name] for name in ("advance", "record", "backward")}
    with pytest.raises(InputError, match="state: keeps no caches, and the schedule moves the caches"):
        ckptplan.execute(schedule, state=(lambda: 0, lambda _: None), **runs)


def test_a_plan_says_which_caches_to_keep_and_is_executed_at_its_cost() -> None:
    plan = ckptplan.optimize("paper-snn", "ipu-mk2", steps=60, local_bytes="233 kB", strategies="standard")
    cached = plan.parameters["cached_steps"]
    assert plan.cache == "last"
    assert plan.predicted.recomputed_without_cache == 60 - cached
    kept: set[int] = set()

    def advance(start: int, stop: int, cached: int | None = None) -> None:
        kept.difference_update(range(start, stop))
        kept.update(range(start if cached is None else stop - cached, stop))

    calls: dict[str, Any] = dict.fromkeys(("record", "backward", "save", "load", "free"), lambda *_: None)
    trace = ckptplan.execute(plan, advance=advance, **calls)
    assert trace.recomputed_without_cache == plan.predicted.recomputed_without_cache
    assert trace.local_peak_bytes == plan.predicted.local_peak_bytes
    # The last chunk is recorded in the first sweep.
    assert sorted(kept) == list(range(60 - cached, 60 - plan.parameters["chunk_size"]))
    with pytest.raises(InputError, match="advance: does not take cached="):
        ckptplan.execute(plan, advance=lambda _start, _stop: None, **calls)
