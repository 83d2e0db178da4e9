"""Runs sequences that end when something happens, or when their inputs do (docs/online.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch

from ckptplan.cost.case import Case
from ckptplan.errors import InputError, quote_value
from ckptplan.execution.online import OnlineSchedule, fit_online
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Backward, Record
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.ambient import Generators
from ckptplan.torch.budget import ask, choose_plan
from ckptplan.torch.call import Call, Cell, OpenSchedule, leave_room, read_options
from ckptplan.torch.cell_calls import check_result
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.inputs import GivenInputs, MadeInputs, Sequence, is_list_of_steps
from ckptplan.torch.losses import stack_outputs
from ckptplan.torch.probe import walk_made
from ckptplan.torch.rehearsal import MOST
from ckptplan.torch.run import Result, run_call
from ckptplan.torch.surroundings.snapshot import aside
from ckptplan.torch.survey import Measurement, Survey
from ckptplan.torch.trees import flatten
from ckptplan.units import MAX_STEPS

#: Says of a state whether the sequence ends there.
Until = Callable[[Any], object]
#: Arguments of ``bptt`` that need a known length.
_NEED_LENGTH = ("schedule", "strict", "compile", "offload")


class FollowedInputs(MadeInputs):
    """Inputs of an iterator, a step each. They are kept, since steps run again."""

    def __init__(self, inputs: Iterable[Any]) -> None:
        super().__init__(self._stack)
        self._source, self._kept = iter(inputs), list[Any]()

    def has(self, step: int) -> bool:
        """Return whether there is an input for a step, after those before it."""
        while len(self._kept) <= step:
            try:
                self._kept.append(next(self._source))
            except StopIteration:
                return False
        return True

    def _stack(self, start: int, stop: int) -> Any:
        if not self.has(stop - 1):
            raise InputError("ended before their steps did", field="inputs", accepted="the same in each run")
        return stack_outputs(self._kept[start:stop])


def bptt_online(
    cell: Cell,
    inputs: Any,
    state: Any,
    *,
    until: Until | None,
    plan: Plan | Schedule | OnlineSchedule | None,
    memory: int | str | None,
    **options: Any,
) -> Result:
    """Return the loss of a sequence of unknown length, as ``ckptplan.torch.bptt``. Raises InputError."""
    for name in _NEED_LENGTH:
        if options.pop(name, None) not in (None, False):
            raise InputError(
                "needs a number of steps that is known beforehand",
                field=name,
                accepted="a plan, without until",
            )
    options = read_options(plan, memory, **options)
    _check(until, plan, memory)
    if isinstance(cell, ChunkCell):
        # A sequence that may end after any of its steps runs them one by one.
        cell = partial(cell)
    sequence, has = _open_inputs(inputs, until)
    if not has(0):
        raise InputError("have no steps", field="inputs", accepted="at least one step")

    def ends(present: Any, steps: int) -> bool:
        return (until is not None and bool(until(present))) or not has(steps)

    one = Schedule(steps=1, actions=(Record(0, 1), Backward(0, 1)))
    call = Call(cell=cell, inputs=sequence, state=state, plan=one, **options)
    known = _count_known(call, until, ends)
    if isinstance(plan, OnlineSchedule):
        call = replace(call, plan=OpenSchedule.of(plan, known, ends))
    else:
        survey = _choose(call, known, memory, ends)
        room = leave_room(survey.plan.profile.local_bytes)
        call = replace(call, plan=survey.make(survey.plan), survey=survey, room=room)
    run, (value, *final) = run_call(call)
    steps, executed = run.steps, run.call.plan
    assert isinstance(executed, OpenSchedule)  # noqa: S101 - this one, or one for larger sizes
    actions: Any = partial(executed.online.actions, lambda done: done == steps)
    if run.is_short:
        actions = (Record(0, steps), Backward(0, steps))
    return Result(
        loss=value,
        state=run.end.fill([leaf.detach() for leaf in final]),
        plan=Schedule(steps=steps, actions=actions),
    )


def _check(until: object, plan: object, memory: object) -> None:
    """Raise InputError for what does not go together with an unknown length."""
    if until is not None and not callable(until):
        raise InputError(f"{quote_value(until)} cannot be called", field="until", accepted="until(state)")
    if plan is not None and not isinstance(plan, OnlineSchedule):
        raise InputError(
            "knows the number of its steps, which until does not",
            field="plan",
            accepted="plan=ckptplan.online(...), or memory='2 GiB'",
        )
    if plan is None and memory is None:
        accepted = "plan=ckptplan.online(...), or memory='2 GiB'"
        raise InputError("is missing, and so is memory", field="plan", accepted=accepted)


def _open_inputs(inputs: Any, until: object) -> tuple[Sequence, Callable[[int], bool]]:
    """Return the inputs as a sequence, and what says whether there is one for a step."""
    if callable(inputs):
        if until is None:
            raise InputError("is missing: these inputs do not end", field="until", accepted="until(state)")
        return MadeInputs(inputs), lambda step: step < MAX_STEPS
    if isinstance(inputs, Iterator) or (
        isinstance(inputs, Iterable)
        and not isinstance(inputs, torch.Tensor | dict | tuple)
        and (not isinstance(inputs, list) or is_list_of_steps(inputs))
    ):
        followed = FollowedInputs(inputs)
        return followed, followed.has
    leaves, _ = flatten(inputs)
    rows = len(leaves[0]) if leaves and leaves[0].dim() else 0
    return GivenInputs(inputs, steps=rows, asked_by="first tensor"), lambda step: step < rows


def _count_known(call: Call, until: Until | None, ends: Callable[[Any, int], bool]) -> int:
    """Return how many first steps are known to come: they run aside, and all is put back."""
    reached = walk_made({**call.things, "until": until}, call)
    generators = Generators(call.device, wanted=True, held=reached.generators)
    state = call.state
    with torch.no_grad(), aside(reached, generators):
        for step in range(MOST):
            state, _ = check_result(call.cell(state, call.sequence.take(step)))
            if ends(state, step + 1):
                return step + 1
    return MOST


@dataclass(kw_only=True)
class OnlineSurvey(Survey):
    """What the steps of a sequence of unknown length keep; its plan is that of the first steps.

    ``make`` returns the schedule for the sizes and the limit of such a plan.
    """

    make: Callable[[Plan], OpenSchedule]
    #: More than any sequence needs, as each time it may be twice as long.
    most_tries: ClassVar[int] = 60

    def list_samples(self, start: int, stop: int) -> Iterator[int]:
        """Yield the steps between two that are recorded to count their tapes, each a seventh later or more."""
        for step in range(start, stop):
            below = 1 << max(0, step.bit_length() - 3)
            if step >= self.plan.steps and step % below == 0:
                yield step

    def plan_again(self) -> OpenSchedule:
        """Return a schedule for what was seen so far. Raises InputError if none fits."""
        super().plan_again()
        return self.make(self.plan)

    def _find_peak(self, sizes: Measurement, *, more: int) -> int:
        online, limit = self.make(self.plan).online, self.plan.goal.local_bytes
        assert limit is not None  # noqa: S101 - it was made for a limit
        beside = limit - online.memory
        return beside + online.slots * sizes.state_bytes + sizes.tape_bytes + more

    def _extrapolate(self, growth: int, step: int) -> int:
        # As much again, so that a sequence begins again a number of times that is logarithmic in its growth.
        return growth


def _choose(call: Call, known: int, memory: Any, ends: Callable[[Any, int], bool]) -> OnlineSurvey:
    """Return what watches a sequence within a limit of memory, planned with the sizes of the first steps.

    Raises InputError.
    """
    leaves, structure = call.sequence.piece(0, known)
    options = {name: getattr(call, name) for name in ("losses", "parameters", "replay_randomness")}
    asked = ask(cell=call.cell, inputs=structure.fill(leaves), state=call.state, **options)
    first = choose_plan(asked, memory, advises=False).survey
    assert first is not None  # noqa: S101 - nothing is compiled
    # The gradients of all inputs are there, not only those of the first steps.
    later = sum(leaf[known:].nbytes for leaf in call.sequence.leaves if leaf.requires_grad)

    def make(plan: Plan) -> OpenSchedule:
        assert plan.goal.local_bytes is not None  # noqa: S101 - the limit
        costs = Case(workload=plan.workload, profile=plan.profile).costs
        costs = costs.replace(steps=1, resident_bytes=costs.resident_bytes + later)
        online = fit_online(plan.goal.local_bytes, costs, memory=memory, has_margin=True)
        return OpenSchedule.of(online, known, ends)

    return OnlineSurvey(
        measurement=first.measurement,
        plan=first.plan,
        replan=first.replan,
        keep=first.keep,
        # Any sequence may be longer than those before.
        is_open=True,
        make=make,
    )
