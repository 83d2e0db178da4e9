"""Runs sequences of unknown length, which end by a condition on the state or with their inputs.

An online schedule asks after each step whether the sequence has ended. While all states and tapes find room,
steps are recorded as they run. A sequence that ends while they do is reversed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ckptplan.errors import InputError, quote_value
from ckptplan.execution.online import OnlineSchedule, fit_online
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.fit.choose import OtherSequences, find_costs
from ckptplan.torch.fit.limited import LimitedCall
from ckptplan.torch.fit.watch import Watch
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.executor import Executor
from ckptplan.torch.run.inputs import Inputs, is_list_of_steps, refuse_gradients
from ckptplan.torch.run.outputs import SummedLoss, check_scalar
from ckptplan.torch.run.scope import Scope
from ckptplan.torch.run.steps import LateStateError, check_result
from ckptplan.torch.run_call import Results, execute_actions, run_plain_loop, try_call
from ckptplan.torch.state.nests import LEAF, Nest, list_leaves, map_leaves
from ckptplan.units import MAX_STEPS

#: Returns whether the sequence ends at a state.
Until = Callable[[Any], object]
#: Returns whether the sequence ends at a state, given the state and the number of steps before it.
Ends = Callable[[Any, int], bool]
#: How many first steps may be tried.
_MAX_KNOWN = 4
#: How often a sequence may begin. Each time, its steps may take twice as much memory.
_MAX_ATTEMPTS = 32
#: The bytes of the numbers by which replayed steps are compared, unless there are very many steps.
_NUMBER_BYTES = 2**13


class OnlineInputs(Inputs):
    """Inputs whose number is not known: tensors, a function (start, stop) -> chunk, or an iterator.

    Items of an iterator are kept, since steps run again. Without inputs, each step gets None.

    Arguments:
        given: the inputs.
        has_until: whether a condition ends the sequence.

    Raises InputError.
    """

    def __init__(self, given: Any, *, has_until: bool) -> None:
        self._items: list[Any] = []
        self._source: Iterator[Any] | None = None
        if _is_source(given):
            self.is_made, self.make, self.leaves, self.nest = False, None, [], LEAF
            self._source, self.steps = iter(()) if given is None else iter(given), MAX_STEPS
        else:
            super().__init__(given, MAX_STEPS if callable(given) else None)
        self._rows = self.steps if self.leaves else MAX_STEPS
        self._is_empty = given is None
        if (given is None or callable(given)) and not has_until:
            raise InputError("is missing: these inputs do not end", field="until", accepted="until(state)")

    def has(self, step: int) -> bool:
        """Return whether there is an input for a step."""
        if self._source is None or self._is_empty:
            return step < self._rows
        while len(self._items) <= step:
            try:
                item = next(self._source)
            except StopIteration:
                return False
            refuse_gradients(list_leaves(item), "yielded")
            self._items.append(item)
        return True

    def cut(self, start: int, stop: int) -> tuple[list[Tensor], Nest]:
        if self._source is None:
            return super().cut(start, stop)
        if not self._is_empty and not self.has(stop - 1):
            raise InputError("ended before their steps did", field="inputs", accepted="the same in each run")
        return [], LEAF

    def iterate(self, leaves: Sequence[Tensor], nest: Nest, start: int, stop: int) -> Iterator[Any]:
        if self._source is None:
            return super().iterate(leaves, nest, start, stop)
        return iter([None] * (stop - start) if self._is_empty else self._items[start:stop])

    def iterate_all(self) -> Iterator[Any]:
        return (self.get_step(step) for step in count() if self.has(step))

    def take_first(self, steps: int) -> Inputs:
        if self._source is None:
            return super().take_first(steps)
        self.has(steps - 1)
        first = OnlineInputs(iter(self._items[:steps]) if not self._is_empty else None, has_until=True)
        first.steps = steps
        return first


def _is_source(given: Any) -> bool:
    """Return whether inputs are given step by step."""
    if given is None or isinstance(given, Iterator):
        return True
    is_nest = not isinstance(given, Iterable) or isinstance(given, Tensor | dict | tuple)
    return not is_nest and not callable(given) and (not isinstance(given, list) or is_list_of_steps(given))


def run_online(
    cell: Any,
    inputs: Any,
    state: Any,
    *,
    until: Until | None,
    **options: Any,
) -> tuple[Results, Schedule]:
    """Run a sequence of unknown length, as ``bptt``; return its results and the actions. Raises InputError."""
    plan, memory = options["plan"], options["memory"]
    _check(until, plan, memory)
    online_inputs = OnlineInputs(inputs, has_until=until is not None)
    if not online_inputs.has(0):
        raise InputError("have no steps", field="inputs", accepted="at least one step")

    def ends(current: Any, steps: int) -> bool:
        return (until is not None and bool(until(current))) or not online_inputs.has(steps)

    call = Call(cell=cell, inputs=online_inputs, state=state, **options)
    if not torch.is_grad_enabled():
        return _run_plainly(call, ends)
    online_inputs.steps = _count_known(call, ends)
    limited = None if memory is None else _LimitedOnline.of(call, memory)
    tried = try_call(call) if limited is None else limited.tried
    if not tried.has_gradients:
        tried.remember()
        return _run_plainly(call, ends)
    runs: list[OnlineExecutor] = []

    def make_executor(call: Call, _: Iterator[Action], scope: Scope, **options: Any) -> Executor:
        online, watch = (plan, None) if limited is None else (limited.schedule, limited.make_watch())
        runs.append(OnlineExecutor(call, scope, online, ends, watch=watch, **options))
        return runs[-1]

    results = execute_actions(
        tried,
        lambda: iter(()),
        observer=call.observer,
        executor_type=make_executor,
        again=None if limited is None else limited.plan_again,
        attempts=_MAX_ATTEMPTS,
    )
    online = plan if limited is None else limited.schedule
    steps = online_inputs.steps
    if runs[-1].is_short:
        return results, _record_all(steps)
    return results, Schedule(steps=steps, actions=partial(online.actions, lambda done: done == steps))


def _record_all(steps: int) -> Schedule:
    return Schedule(steps=steps, actions=(Record(0, steps), Backward(0, steps)))


class _LimitedOnline:
    """The schedule of a call within a limit of memory, for the sizes of its first steps or larger sizes.

    Arguments:
        limited: the call of the first steps, whose sizes are measured.
        memory: the limit, as the user gave it.
    """

    def __init__(self, limited: LimitedCall, memory: int | str) -> None:
        self._limited, self._memory, self._sizes = limited, memory, limited.sizes
        self.tried, self.schedule = limited.tried, self._fit()
        self._watch: Watch | None = None

    @classmethod
    def of(cls, call: Call, memory: int | str) -> _LimitedOnline:
        """Measure the first steps of a call, and return its schedule. Raises InputError."""
        return cls(LimitedCall.measure(call, memory, others=OtherSequences(kept_bytes=_NUMBER_BYTES)), memory)

    def _fit(self) -> OnlineSchedule:
        space = self._limited.space
        return fit_online(space.limit, find_costs(self._sizes, space), memory=self._memory, has_margin=True)

    def make_watch(self) -> Watch:
        """Return a watch that compares the sizes of later steps with the sizes of the schedule."""
        self._watch = Watch(self._sizes, MAX_STEPS, limit=self._limited.space.limit)
        return self._watch

    def plan_again(self, _: LateStateError) -> None:
        """Make a schedule for steps that grow by twice as much as they did so far. Raises InputError."""
        assert self._watch is not None  # noqa: S101 - an attempt was watched
        first, observed = self._limited.first, self._watch.correct(self._sizes)
        self._sizes = observed.grow(
            state_bytes=2 * observed.state_bytes - first.state_bytes,
            shown_bytes=2 * observed.shown_bytes - first.shown_bytes,
            cache_bytes=observed.cache_bytes,
        )
        self.schedule = self._fit()


def _run_plainly(call: Call, ends: Ends) -> tuple[Results, Schedule]:
    """Run a sequence as a plain loop; return the results, and the actions of such a loop."""
    reached = [0]

    def has_ended(state: Any, steps: int) -> bool:
        reached[0] = steps
        return ends(state, steps)

    results = run_plain_loop(call, ends=has_ended)
    return results, _record_all(reached[0])


def _check(until: object, plan: object, memory: object) -> None:
    """Raise InputError for arguments that do not go together with an unknown length."""
    accepted = "plan=ckptplan.online(...), or memory='2 GiB'"
    if until is not None and not callable(until):
        raise InputError(f"{quote_value(until)} cannot be called", field="until", accepted="until(state)")
    if plan is None and memory is None:
        raise InputError("is missing, and so is memory", field="plan", accepted=accepted)
    if plan is not None and memory is not None:
        raise InputError("is given together with plan", field="memory", accepted="one of the two")
    if plan is not None and not isinstance(plan, OnlineSchedule):
        raise InputError("knows the number of its steps, which until does not", field="plan", accepted=accepted)


def _count_known(call: Call, ends: Ends) -> int:
    """Run a few first steps without a graph, undo them, and return how many of them the sequence has."""
    scope = Scope.of(call)
    scope.begin()
    state = map_leaves(lambda leaf: leaf.detach().clone(), call.state)
    try:
        with torch.no_grad():
            for step in range(_MAX_KNOWN):
                state, _ = check_result(call.cell(state, call.inputs.get_step(step)))
                if ends(state, step + 1):
                    return step + 1
        return _MAX_KNOWN
    finally:
        scope.reach.restore(scope.start)


class OnlineExecutor(Executor):
    """Executes an online schedule, whose actions depend on when the sequence ends.

    Arguments:
        call: the call, whose inputs are ``OnlineInputs``.
        scope: the scope of the call.
        online: the schedule.
        ends: returns whether the sequence has ended.
        watch: compares the sizes of steps with those of the schedule; None if the schedule was given.
        options: those of ``Executor``.
    """

    def __init__(
        self,
        call: Call,
        scope: Scope,
        online: OnlineSchedule,
        ends: Ends,
        *,
        watch: Watch | None = None,
        **options: Any,
    ) -> None:
        call.inputs.steps = MAX_STEPS
        super().__init__(call, self._follow(online), scope, **options)
        self._watch = watch
        self._ends, self._has_ended, self._short_steps = ends, False, online.short_steps
        #: Whether the sequence ended with all of its steps recorded.
        self.is_short = False

    def _follow(self, online: OnlineSchedule) -> Iterator[Action]:
        for action in online.actions(self._check_end):
            if self.is_short:
                break
            yield action
        else:
            return
        # The last step is recorded once more, with a loss of the final state.
        steps = self.call.inputs.steps
        yield Load(steps - 1, Tier.LOCAL)
        yield from (Free(state, Tier.LOCAL) for state in range(steps))
        self.tapes.pop()
        yield Record(steps - 1, steps)
        yield Backward(0, steps)

    def _check_end(self, steps: int) -> bool:
        with torch.no_grad():
            self._has_ended = self._ends(self.state.passed.value, steps)
            if self._has_ended:
                self.call.inputs.steps = steps
                self.is_short = len(self.tapes) == steps
                self._add_final_loss()
        return self._has_ended

    def _add_final_loss(self) -> None:
        final_loss = self.call.losses.get("final_loss")
        if final_loss is not None and isinstance(self.outputs, SummedLoss):
            self.outputs.add([check_scalar(final_loss(self.state.passed.value), "final_loss")])

    def _run_sweep(self) -> None:
        for action in self._actions:
            if self._has_ended:
                self._next = action
                return
            self._do(action)

    def _advance(self, start: int, stop: int, cached: int | None) -> None:
        if self._has_ended or stop > self._short_steps or len(self.tapes) < start:
            if not self._has_ended:
                self.tapes.clear()
            super()._advance(start, stop, cached)
        else:
            self._record(start, stop)
            if self._verifier is not None:
                self._verifier.reach(stop, self.state.read())

    def _do(self, action: Action) -> None:
        super()._do(action)
        if self._watch is None or self._reverses:
            return
        if isinstance(action, Save):
            self._watch.check_state(action.state, self.stores[action.tier].get(action.state).bytes)
        if self.tapes and isinstance(action, Advance | Record):
            # Steps of a short sequence are recorded one by one.
            tape = self.tapes[-1]
            self._watch.check_tape(tape.start, tape.stop, tape.step_bytes)
