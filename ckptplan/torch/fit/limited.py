"""Runs calls within a limit of memory: measures their steps once for each kind of call, and plans each call.

A first call is watched. If later steps take more memory than the first steps, or keep values that the first
steps did not keep, the sweep begins again under another plan. Before that, and before a limit is refused, all
steps run once. So the limit that a refusal names is enough for every call.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ckptplan.errors import Infeasible, InputError
from ckptplan.execution.advice import describe_choice
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Action, Backward, Record
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.checking.trial import TIGHT_TRIAL_STEPS, TRIAL_STEPS, run_plain_steps
from ckptplan.torch.device.meters import make_meter
from ckptplan.torch.fit.choose import (
    ALONE,
    OtherSequences,
    Space,
    advise,
    choose_plan,
    read_limit,
    refuse,
)
from ckptplan.torch.fit.measure import Measurement, Probe, measure, time_steps
from ckptplan.torch.fit.watch import StaleSizesError, Watch, WatchedExecutor, survey
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.chunk_steps import (
    choose_piece_sizes,
    choose_working_steps,
    count_working_bytes,
    cut_chunks,
)
from ckptplan.torch.run.executor import Executor
from ckptplan.torch.run.steps import LateStateError
from ckptplan.torch.run_call import (
    Results,
    TriedCall,
    execute_actions,
    find_copied_bytes,
    is_plain_loop,
    is_postponed,
    limit_inputs,
    list_actions,
    run_plain_loop,
    try_call,
)
from ckptplan.torch.state.nests import count_bytes
from ckptplan.torch.store.place import find_links, make_remote_store

_logger = logging.getLogger("ckptplan.torch")
#: How many steps with caches are timed at most.
_TIMED_STEPS = 32
#: The kinds of calls whose sizes are remembered.
_MAX_KINDS = 256
#: Sizes of the first steps, by the kind of a call. Sizes of all steps and number of calls, by kind and T.
_measured: OrderedDict[Any, Measurement] = OrderedDict()
_watched: OrderedDict[Any, tuple[Measurement, int]] = OrderedDict()
#: The kinds of calls for which the advice to offload was logged.
_advised: OrderedDict[Any, bool] = OrderedDict()


def forget_sizes() -> None:
    """Forget the sizes of all calls, so that each kind of call is measured again."""
    _measured.clear()
    _watched.clear()
    _advised.clear()


def run_within(call: Call, memory: int | str, *, observer: Any = None) -> tuple[Results, Plan | Schedule]:
    """Run a call within a limit of memory; return its results, and the plan that ran.

    Arguments:
        call: the call.
        memory: bytes, text as "2 GiB", or "auto" for most of the free memory of the device.
        observer: called as ``observer(action, executor)`` after each action.

    Without gradients, a plain loop runs. Raises InputError if no plan fits.
    """
    steps = call.inputs.steps
    if not torch.is_grad_enabled():
        read_limit(memory, call.device)
        at_once = (Record(0, steps), Backward(0, steps))
        return run_plain_loop(call), Schedule(steps=steps, actions=at_once)
    limited = LimitedCall.measure(call, memory)
    limited.choose()
    results = limited.run(observer)
    limited.report()
    return results, limited.plan


def plan_within(call: Call, memory: int | str) -> Plan:
    """Return the plan of a call within a limit of memory. Raises InputError if no plan fits."""
    with torch.enable_grad():
        limited = LimitedCall.measure(call, memory)
        limited.find_caches()
        limited.choose()
    limited.report()
    return limited.plan


@dataclass(kw_only=True)
class LimitedCall:
    """A call that runs within a limit of memory.

    Arguments:
        tried: the call, whose first steps were observed.
        space: the memory of the call.
        first: the sizes and times of its first steps.
        sizes: the sizes of all steps, as far as they were observed.
        calls: how many calls of this kind and length ran before.
    """

    tried: TriedCall
    space: Space
    first: Measurement
    sizes: Measurement
    calls: int = 0
    plan: Plan = field(init=False)
    _watch: Watch | None = field(default=None, init=False)
    _surveyed: Watch | None = field(default=None, init=False)

    @classmethod
    def measure(cls, call: Call, memory: int | str, *, others: OtherSequences = ALONE) -> LimitedCall:
        """Return a call without a plan, and measure its first steps if no call of its kind ran before.

        Arguments:
            call: the call.
            memory: the limit, as for ``run_within``.
            others: the memory that other sequences of the same call take.

        Raises InputError.
        """
        limit = read_limit(memory, call.device)
        # A readout is measured with one output at a time.
        call = choose_piece_sizes(replace(call, run_steps=1), None)
        limit_inputs(call, limit)
        probe = Probe(call)
        tried = try_call(call, limit=limit, observer=probe)
        if tried.scope.traits.gives_sparse:
            raise InputError(
                "is given for steps with sparse gradients, whose sums grow with each step without a bound",
                field="memory",
                accepted="dense gradients, as of Embedding(sparse=False), or a plan in place of a limit",
            )
        copied = tried.scope.drop_copies() if tried.is_first else 0
        first = _measure(tried, probe, limit)
        sizes, calls = _watched.get((tried.kind, call.inputs.steps), (first, 0))
        space = _make_space(tried, first, limit, replace(others, kept_bytes=others.kept_bytes + copied))
        return cls(tried=tried, space=space, first=first, sizes=sizes, calls=calls)

    @property
    def _steps(self) -> int:
        return self.tried.call.inputs.steps

    def choose(self, *, surveys: bool = True) -> None:
        """Choose the plan. Raises InputError if no plan fits.

        With ``surveys``, all steps are measured before the limit is refused, which may exceed the limit.
        """
        try:
            self.plan = choose_plan(self.sizes, self._steps, self.space)
            return
        except Infeasible as error:
            if error.binding != "local_bytes":
                raise
            if self._take_single_steps():
                self.choose()
                return
            if self.calls or self._surveyed is not None or not surveys:
                raise self._refuse(error) from None
        surveyed = self._survey()
        # With a larger limit, the first steps may be recorded in the other of these two ways.
        tried, probe = self.tried, Probe(self.tried.call)
        measured = [
            measure(tried.call, tried.scope, probe, is_tight=True),
            measure(tried.call, tried.scope),
        ]
        self.sizes = self.sizes.join(measured[0]).join(surveyed.correct(measured[0].join(measured[1])))
        # A copy of the first state is made before bytes are counted.
        scheduled = probe.peak_bytes + count_bytes(tried.call.leaves)
        trial = 0 if tried.call.is_closed else max(_measure_trial(tried), scheduled)
        copied = 0 if tried.call.is_closed else tried.scope.reach.copied_bytes
        # Later calls may find a state in places, and hold it while they try their steps.
        found_state = self.sizes.state_bytes if tried.scope.lifted else 0
        self.space = replace(self.space, trial_bytes=trial + copied + found_state + self.space.kept_bytes)
        self.choose()

    def _take_single_steps(self) -> bool:
        """Let a ``ChunkCell`` work with one step at a time; return whether that leaves more memory."""
        if self.space.takes_single_steps or not self.tried.call.has_own_backward:
            return False
        self.space = replace(self.space, takes_single_steps=True, working=_count_working(self.first, 1))
        return True

    def find_caches(self) -> None:
        """Run all steps of a ``ChunkCell`` once to count their caches, since the run of the plan does not."""
        key = (self.tried.kind, self._steps)
        if self.tried.call.has_own_backward and key not in _watched:
            self._survey()
            _keep(_watched, key, (self.sizes, self.calls))

    def _survey(self) -> Watch:
        """Measure the sizes of all steps."""
        _copy_buffers(self.tried, self.space.limit)
        surveyed = self._surveyed = survey(self.tried, self.first)
        self.sizes = surveyed.correct(self.sizes)
        if self.tried.scope.lifted:
            # The values that a failed call restores may be as large as the largest state.
            grown_bytes = self.sizes.state_bytes - self.first.state_bytes
            self.space = replace(self.space, kept_bytes=self.space.kept_bytes + max(0, grown_bytes))
        return surveyed

    def _refuse(self, error: Infeasible) -> InputError:
        leaves = self.tried.call.inputs.leaves
        shape = tuple(leaves[0].shape) if leaves else ()
        return refuse(error, self.sizes, self._steps, self.space, shape=shape)

    def run(self, observer: Any = None) -> Results:
        """Run the call. Raises InputError if later steps take more than the limit allows."""
        tried = self.tried
        # The first, second, fourth, eighth, ... call is watched, since sizes may depend on data.
        is_watched = not self.calls & (self.calls + 1)
        # A plain loop adds gradients of parameters out of place.
        has_room = self.plan.predicted.local_peak_bytes + self.first.largest_bytes <= self.space.limit
        is_plain = is_plain_loop(self.plan) and tried.call.runs_plainly
        if is_plain and has_room and not is_watched and observer is None:
            self._finish()
            return run_plain_loop(tried.call)

        def make_executor(call: Call, *args: Any, **options: Any) -> Executor:
            limit, is_observed = self.space.limit, observer is not None
            working = (
                1 if self.space.takes_single_steps else choose_working_steps(self.first.state_bytes, limit)
            )
            call = cut_chunks(choose_piece_sizes(call, self.plan, working), self._list_actions)
            options |= {"plan": self.plan, "postpones_last": is_postponed(self.plan)}
            options["remote"] = make_remote_store(self.plan, call.place, call.device, is_observed=is_observed)
            if not is_watched:
                return Executor(call, *args, **options)
            self._watch = Watch(
                self.sizes,
                self._steps,
                limit=self.space.limit,
                copies_state=tried.scope.copies_state,
                is_first=not self.calls,
            )
            return WatchedExecutor(call, *args, watch=self._watch, **options)

        results = execute_actions(
            tried, self._list_actions, executor_type=make_executor, observer=observer, again=self._plan_again
        )
        self._finish()
        return results

    def _list_actions(self) -> Iterator[Action]:
        return list_actions(self.plan)

    def _plan_again(self, error: LateStateError) -> None:
        """Make another plan after an attempt in which steps did more than earlier steps.

        Raises InputError if no plan fits.
        """
        if isinstance(error, StaleSizesError):
            assert self._watch is not None  # noqa: S101 - it raised the error
            if self._surveyed is None:
                self._survey()
            self.sizes = self._watch.correct(self.sizes)
        else:
            _measured.pop(self.tried.kind, None)
            self.first = self.sizes = _measure(self.tried, None, self.space.limit)
            self._surveyed = None
        self.choose()

    def _finish(self) -> None:
        sizes = self.sizes if self._watch is None else self._watch.correct(self.sizes)
        _keep(_watched, (self.tried.kind, self._steps), (sizes, self.calls + 1))

    def report(self, prefix: str = "") -> None:
        """Log the plan. Once for a kind of calls, log how much time offloading would save, if it is much.

        Arguments:
            prefix: text before the plan.
        """
        _logger.info("%s%s", prefix, describe_choice(self.plan, self.space.limit))
        if self.tried.kind not in _advised and (advice := advise(self.plan, self.sizes, self.space)):
            _keep(_advised, self.tried.kind, True)
            _logger.warning("%s", advice)


def _keep(table: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    table.pop(key, None)
    table[key] = value
    while len(table) > _MAX_KINDS:
        table.popitem(last=False)


def _measure(tried: TriedCall, probe: Probe | None, limit: int) -> Measurement:
    """Return the sizes and times of the first steps of a call; measure them for the first call of a kind."""
    earlier = _measured.get(tried.kind)
    if earlier is not None:
        return earlier
    call, scope = tried.call, tried.scope
    _copy_buffers(tried, limit)
    if probe is not None and probe.has_observed:
        measurement = measure(call, scope, probe)
    else:
        # Record one step at a time first. Record several at once only if their tapes fit.
        measurement = measure(call, scope, is_tight=True)
        if (
            not (tried.is_first or call.is_closed)
            and measurement.workspace_bytes + TRIAL_STEPS * measurement.tape_bytes <= limit
        ):
            measurement = measure(call, scope)
        if call.has_own_backward:
            measurement = _time_caches(tried, measurement, limit)
    _keep(_measured, tried.kind, measurement)
    return measurement


def _time_caches(tried: TriedCall, measurement: Measurement, limit: int) -> Measurement:
    """Return a measurement with the times of a longer run of steps, if the limit has room for it."""
    room = (limit - measurement.workspace_bytes) // (2 * (measurement.tape_bytes + measurement.cache_bytes))
    steps = min(tried.call.inputs.steps, _TIMED_STEPS, room)
    if steps <= measurement.steps:
        return measurement
    call = choose_piece_sizes(tried.call, None, choose_working_steps(measurement.state_bytes, limit))
    first = replace(call, inputs=call.inputs.take_first(steps))
    return replace(measurement, **time_steps(first, tried.scope))


def _copy_buffers(tried: TriedCall, limit: int) -> None:
    """Copy tensors that steps may write in place, to restore them, unless a trial of this call did so."""
    if not tried.is_first:
        tried.scope.begin(find_copied_bytes(limit))


def _count_working(first: Measurement, working: int) -> int:
    return count_working_bytes(working, state_bytes=first.state_bytes, cache_bytes=first.cache_bytes)


def _make_space(tried: TriedCall, first: Measurement, limit: int, others: OtherSequences) -> Space:
    call, steps = tried.call, tried.call.inputs.steps
    # Numbers by which replayed steps are compared, and a copy of them while their tensor grows.
    numbers = 0 if call.has_own_backward else 8 * steps if steps <= 1024 else 24 * steps
    kept = others.kept_bytes + numbers
    if tried.scope.lifted:
        # A failed call restores the values that places held when it began.
        kept += first.state_bytes
    if call.inputs.is_made:
        kept += min(call.inputs.cut_steps, steps) * count_bytes(call.inputs.cut(0, 1)[0])
    outputs = steps * first.output_bytes if others.output_bytes is None else others.output_bytes
    return Space(
        limit=limit,
        kept_bytes=kept,
        grad_bytes=others.grad_bytes + sum(leaf.nbytes for leaf in call.inputs.leaves if leaf.requires_grad),
        working=_count_working(first, choose_working_steps(first.state_bytes, limit))
        if call.has_own_backward
        else 0,
        keeps_caches=call.has_own_backward and not getattr(call.cell, "runs_from_state", False),
        output_bytes=0 if call.losses else outputs,
        sequences=others.sequences,
        links=find_links(
            call.place, state_bytes=first.state_bytes, steps=steps, device=call.device, local_bytes=limit
        ),
    )


def _measure_trial(tried: TriedCall) -> int:
    """Return the peak bytes of a plain loop over the steps of a trial within a tight limit."""
    call = tried.call
    steps = min(TIGHT_TRIAL_STEPS, call.inputs.steps)
    with torch.enable_grad(), make_meter(call.device) as meter:
        run_plain_steps(replace(call, inputs=call.inputs.take_first(steps)), tried.scope)
    return meter.peak
