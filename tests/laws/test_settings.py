"""Laws of one setting of a closed form: a setting of a random problem is drawn, and each law looks at it.

A schedule that is played step by step costs what the closed form says, and so does an execution from the
description in words. Hidden transfers cost no time. The bounds of a box hold at the settings in it.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, note
from hypothesis import strategies as st

from ckptplan.cost.exact import Counts
from ckptplan.model.prediction import COUNTS
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.simulator import play
from ckptplan.strategies.closed_form import ClosedForm
from tests.strategies.reference import execute
from tests.support import CLOSED, changed, columns_of, fixed, plain_costs, setting_of, settings_of, step_costs

#: Costs of which transfers beside compute are the whole, so that their bounds are close.
transfers = plain_costs(
    13, overlaps_compute=True, forward_seconds=0.0, backward_seconds=0.0, recompute_seconds=0.0,
    write_seconds=0.01, read_seconds=0.02, message_seconds=0.1,
)  # fmt: skip
#: Lengths that hold 1, divisible and indivisible cases.
lengths = st.one_of(st.integers(1, 64), st.integers(65, 400))
#: Parameters: small ones, with which states move in many messages, and any.
numbers = st.integers(1, 6) | st.integers(1, 500)
#: How far a box reaches below and above each of up to three parameters.
reaches = st.tuples(*[st.integers(0, 64)] * 6)
#: The execution in words of these tries all splits, of these many chunks at most.
SPLIT, FEW_CHUNKS = ("revolve", "disk-revolve", "periodic"), 24


def check_played(strategy: ClosedForm, parameters: Parameters, costs: StepCosts) -> None:
    """Law 1: the played schedule has the counts and bytes exactly, and the seconds, without waiting."""
    serial = changed(costs, overlaps_compute=False)
    trace = play(strategy.actions(parameters, steps=costs.steps), costs=serial)
    totals = strategy.totals(parameters, costs=serial)
    for name in ("seconds", "local_peak_bytes", "remote_peak_bytes", *COUNTS):
        assert getattr(trace, name) == getattr(totals, name), name
    assert trace.stall_seconds == 0


def check_overlapped(strategy: ClosedForm, parameters: Parameters, costs: StepCosts) -> None:
    """Law 1 for transfers that overlap compute: seconds to 1e-9, peaks with both buffers."""
    overlapped = changed(costs, overlaps_compute=True)
    trace = play(strategy.actions(parameters, steps=costs.steps), costs=overlapped)
    totals = strategy.totals(parameters, costs=overlapped)
    assert trace.seconds == pytest.approx(totals.seconds, rel=1e-9)
    assert trace.local_peak_bytes == totals.local_peak_bytes
    assert trace.remote_peak_bytes == totals.remote_peak_bytes


def check_hidden(strategy: ClosedForm, parameters: Parameters, costs: StepCosts) -> None:
    """Overlapped is never slower than serial, nor faster than compute alone."""
    transfer_times = ("write_seconds", "read_seconds", "cache_write_seconds", "cache_read_seconds")
    free = changed(costs, message_seconds=0, **dict.fromkeys(transfer_times, 0))
    compute, overlapped, serial = (
        strategy.totals(parameters, costs=priced).seconds
        for priced in (free, changed(costs, overlaps_compute=True), changed(costs, overlaps_compute=False))
    )
    assert compute * (1 - 1e-12) <= overlapped <= serial * (1 + 1e-12)


def check_executed(strategy: ClosedForm, parameters: Parameters, costs: StepCosts) -> None:
    """An execution from the description of the strategy in words has the same counts and peaks."""
    totals = strategy.totals(parameters, costs=changed(costs, overlaps_compute=False))
    if strategy.name in SPLIT and totals.chunks > FEW_CHUNKS:
        return
    sizes = {"state_bytes": costs.state_bytes, "tape_bytes": costs.tape_bytes}
    done = execute(strategy.name, steps=costs.steps, **sizes, **parameters)
    assert (totals.recomputed_steps, totals.remote_writes) == (done.runs - costs.steps, done.moved)
    assert (totals.remote_reads, totals.messages) == (done.moved, done.messages_out + done.messages_in)
    assert (totals.advances, totals.chunks) == (done.advances, done.chunks)
    assert (totals.local_saves, totals.local_loads) == (done.saves, done.loads)
    assert totals.local_peak_bytes == costs.resident_bytes + done.local_peak
    assert totals.remote_peak_bytes == costs.remote_state_bytes * done.remote_peak


def check_box(
    strategy: ClosedForm, parameters: Parameters, costs: StepCosts, *, reaches: tuple[int, ...]
) -> None:
    """The bounds of both models hold at each setting in a box, and in it a longer chunk saves steps.

    A box that is not admitted holds no setting of its own.
    """
    sizes = {"state_bytes": costs.state_bytes, "tape_bytes": costs.tape_bytes}
    reach = dict.fromkeys(fixed(strategy, **sizes), (0, 0))
    free = [name for name in strategy.parameter_names if name not in reach]
    reach |= dict(zip(free, zip(reaches[::2], reaches[1::2], strict=True), strict=False))
    low = {name: np.array([max(1, value - reach.get(name, (0, 0))[0])]) for name, value in parameters.items()}
    high = {
        name: np.array([max(value, min(costs.steps, value + reach.get(name, (0, 0))[1]))])
        for name, value in parameters.items()
    }
    legal = settings_of(strategy, costs.steps, **sizes) if costs.steps <= 64 else [dict(parameters)]
    settings = [
        setting for setting in legal if all(low[name] <= setting[name] <= high[name] for name in setting)
    ]
    if not settings:
        return
    inside = columns_of(settings)
    steps = costs.steps
    drawn = {name: np.array([value]) for name, value in parameters.items()}
    own = strategy.admits(low=drawn, high=drawn, steps=steps)
    if own is not None and not own[0]:
        return
    admitted = strategy.admits(low=low, high=high, steps=steps)
    if admitted is not None and not admitted[0]:
        points = strategy.admits(low=inside, high=inside, steps=steps)
        assert points is not None
        assert not points.any()
        return
    for model in ("exact", "paper") if strategy.printed else ("exact",):
        bound = strategy.evaluate(low=low, high=high, costs=costs, model=model)
        cost = strategy.evaluate(low=inside, high=inside, costs=costs, model=model)
        assert (cost.seconds >= bound.seconds).all()
        assert (cost.local_peak_bytes >= bound.local_peak_bytes).all()
        assert (cost.remote_peak_bytes >= bound.remote_peak_bytes).all()
    bounds: Counts = strategy.counts(low=low, high=high, steps=steps)
    counts = strategy.counts(low=inside, high=inside, steps=steps)
    chunk = inside.get("chunk_size", 0)
    longest, shortest = high.get("chunk_size", 0), low.get("chunk_size", 0)
    assert np.all(counts.recomputed_steps >= bounds.recomputed_steps + longest - chunk)
    assert np.all(counts.tapes >= bounds.tapes + chunk - shortest)


@pytest.mark.parametrize("name", sorted(CLOSED))
@given(costs=step_costs(steps=lengths), numbers=st.tuples(numbers, numbers, numbers), reaches=reaches)
@example(costs=plain_costs(1), numbers=(1, 1), reaches=(0, 0, 0, 0))
@example(costs=plain_costs(1), numbers=(9, 9), reaches=(0, 0, 0, 0))
@example(costs=plain_costs(7), numbers=(1, 1), reaches=(0, 9, 0, 9))
@example(costs=plain_costs(10), numbers=(3, 500), reaches=(9, 9, 9, 9))
@example(costs=plain_costs(12, tape_bytes=120), numbers=(500, 2), reaches=(0, 0, 0, 0))
@example(costs=plain_costs(12), numbers=(1, 3), reaches=(0, 9, 0, 9))  # batches of 2, 3 and 3 states
# The bound is close at the end of this box, where the first segment has c steps.
@example(costs=plain_costs(380), numbers=(20, 120), reaches=(0, 0, 40, 0))
@example(costs=transfers, numbers=(1, 2), reaches=(0, 1, 0, 1))
@example(costs=plain_costs(13, write_seconds=0.0), numbers=(2, 2), reaches=(1, 1, 1, 1))
@example(costs=plain_costs(13, read_seconds=500.0), numbers=(2, 3), reaches=(1, 2, 1, 2))
def test_a_setting_keeps_all_laws(
    name: str, costs: StepCosts, numbers: tuple[int, ...], reaches: tuple[int, ...]
) -> None:
    strategy = CLOSED[name]
    parameters = setting_of(strategy, numbers, costs)
    laws: tuple[Callable[..., None], ...] = (
        check_played, check_overlapped, check_hidden, check_executed, partial(check_box, reaches=reaches),
    )  # fmt: skip
    for law in laws:
        note(f"law: {law}")
        law(strategy, parameters, costs)


@pytest.mark.parametrize("name", ["double", "nested"])
@pytest.mark.parametrize("chunk", [10**12, 10**12 - 11, 3 * 10**11, 10**7, 7])
def test_bounds_do_not_overflow(name: str, chunk: int) -> None:
    """The widest boxes of the longest sequence: (s-1) c alone would pass 2**63.

    The fewest steps run again with the longest chunk and a single segment.
    """
    steps, names = 10**12, CLOSED[name].parameter_names
    low, high = ({names[0]: np.array([c]), names[1]: np.array([rc])} for c, rc in ((1, 1), (chunk, steps)))
    counts = CLOSED[name].counts(low=low, high=high, steps=steps)
    assert counts.recomputed_steps[0] == steps - chunk
