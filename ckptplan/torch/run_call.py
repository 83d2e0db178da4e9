"""Runs calls. The first call of each kind observes its first steps; later calls use these observations."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ckptplan.errors import InputError
from ckptplan.execution.advice import MARGIN
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.actions import Action, Record
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.checking.match import make_match
from ckptplan.torch.checking.trial import MAX_ATTEMPTS, TRIAL_STEPS, try_steps
from ckptplan.torch.device.memory import explain_exhaustion
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.chunk_steps import MAX_PIECE, choose_piece_sizes, choose_working_steps, cut_chunks
from ckptplan.torch.run.executor import Executor, Observer
from ckptplan.torch.run.outputs import check_scalar
from ckptplan.torch.run.scope import Scope
from ckptplan.torch.run.sequence import execute
from ckptplan.torch.run.sharded import refuse_sharded
from ckptplan.torch.run.steps import LateStateError, StepTraits, take_step
from ckptplan.torch.state.lifted import detach_computed
from ckptplan.torch.state.nests import Nest, count_bytes, fill, flatten
from ckptplan.torch.state.reach import MAX_SNAPSHOT_BYTES
from ckptplan.torch.store.place import check_room_of, make_remote_store
from ckptplan.units import MAX_STEPS

_logger = logging.getLogger("ckptplan.torch")
#: The field of ``estimate_basis`` with which a plan says that its last recording is postponed.
POSTPONED = "postponed"
#: The field with which a plan says that cells of chunks work with the outputs of one step at a time.
SINGLE_STEPS = "single steps"
#: The ratio of a limit to the bytes of the inputs that a function makes for several steps at once.
_INPUTS_SHARE = 16
#: The most kinds of calls that are remembered, and the most sets of constants of each kind.
_MAX_KINDS, _MAX_CONSTANT_SETS = 256, 16
#: By the kind of a call: the traits of its latest call, and the traits for each set of constants.
_traits_by_kind: OrderedDict[Any, tuple[StepTraits, dict[int, StepTraits]]] = OrderedDict()


def forget_calls() -> None:
    """Forget the traits of all earlier calls, so that the next call of each kind tries its steps again."""
    _traits_by_kind.clear()


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of a call.

    Arguments:
        tensors: the loss, or the stacked outputs.
        nest: the nest of the outputs, None for a loss.
        state: the final state, as a plain loop returns it.
        piece: the time steps of the compiled pieces that ran, None if steps ran as they are written.
    """

    tensors: list[Tensor]
    nest: Any
    state: Any
    piece: int | None = None


@dataclass(kw_only=True)
class TriedCall:
    """A call whose first steps were observed, in this call or in an earlier call of its kind.

    Arguments:
        call: the call.
        scope: the objects that it can reach, and the places that are parts of its state.
        kind: the key of its kind.
        is_first: whether no call of this kind has run before.
    """

    call: Call
    scope: Scope
    kind: Any
    is_first: bool

    @property
    def has_gradients(self) -> bool:
        """Whether anything requires a gradient."""
        return self.scope.traits.has_gradients

    def remember(self) -> None:
        """Store the traits of the call for later calls of its kind."""
        kind, traits = self.kind[0], self.scope.export_traits()
        _, sets = _traits_by_kind.pop(kind, (None, {}))
        sets = dict(list(sets.items())[1 - _MAX_CONSTANT_SETS :])
        sets[self.scope.describe_constants(traits.lifted)] = traits
        _traits_by_kind[kind] = traits, sets
        while len(_traits_by_kind) > _MAX_KINDS:
            _traits_by_kind.popitem(last=False)


def try_call(
    call: Call,
    *,
    limit: int | None = None,
    observer: Any = None,
) -> TriedCall:
    """Observe the first steps of a call, unless an earlier call of its kind did so.

    Arguments:
        call: the call.
        limit: bytes that the trial may take, None for no limit.
        observer: observes the small schedule of the trial; its method ``enter``, if it has one, returns a
            context around the schedule.

    Raises InputError.
    """
    refuse_sharded(call.roots.values())
    kind, scope = call.describe_kind(), Scope.of(call)
    latest, sets = _traits_by_kind.get(kind, (None, {}))
    if latest is not None and call.verify != "always":
        constants = scope.describe_constants(latest.lifted)
        traits = sets.get(constants)
        if traits is not None and all(reference() is not None for reference in traits.hidden_leaves):
            scope.recall(traits)
            return TriedCall(call=call, scope=scope, kind=(kind, constants), is_first=False)
    if call.is_closed:
        scope.lift(scope.list_generators(), carries=False)
        constants = scope.describe_constants(scope.export_traits().lifted)
        return TriedCall(call=call, scope=scope, kind=(kind, constants), is_first=False)
    scope.begin(find_copied_bytes(limit))
    plain = try_steps(call, scope, limit=limit, observer=observer)
    if call.needs_state and not scope.keeps_state:
        raise InputError(
            "keeps nothing from one time step to the next: it is not recurrent, takes its state as an "
            "argument and "
            "returns it, or loops over time itself",
            field="net",
            accepted="a module that takes one time step a call and keeps its state, torch.nn.LSTM, GRU or "
            "RNN, or a "
            "network of Norse; for cell(state, x), ckptplan.torch.scan or unroll",
        )
    scope.set_traits(has_gradients=plain.has_gradients)
    constants = scope.describe_constants(scope.export_traits().lifted)
    return TriedCall(call=call, scope=scope, kind=(kind, constants), is_first=True)


def find_copied_bytes(limit: int | None) -> int:
    """Return the bytes of small parameters that may be copied: a part of the margin that plans leave free."""
    return MAX_SNAPSHOT_BYTES if limit is None else max(1, min(limit // (4 * MARGIN), MAX_SNAPSHOT_BYTES))


def limit_inputs(call: Call, limit: int) -> None:
    """Limit how many inputs a function makes at a time, since they count in the limit of memory."""
    if call.inputs.is_made:
        call.inputs.cut_steps = TRIAL_STEPS
        if call.has_own_backward:
            room = limit // _INPUTS_SHARE // max(1, count_bytes(call.inputs.cut(0, 1)[0]))
            call.inputs.cut_steps = max(TRIAL_STEPS, min(room, MAX_PIECE))


def list_actions(plan: Plan | Schedule) -> Iterator[Action]:
    """Return the actions of a plan."""
    return iter(schedule_of(plan) if isinstance(plan, Plan) else plan)


def is_plain_loop(plan: Plan | Schedule) -> bool:
    """Return whether a plan records all steps at once, so that a plain loop executes it."""
    first = next(list_actions(plan), None)
    return isinstance(first, Record) and first.stop == plan.steps


def takes_single_steps(plan: Plan) -> bool:
    """Return whether a plan has room for the outputs and adjoints of only one step at a time."""
    return any(entry.field == SINGLE_STEPS for entry in plan.estimate_basis)


def is_postponed(plan: Plan | Schedule) -> bool:
    """Return whether the last steps of a plan run without a tape, and are recorded when gradients arrive."""
    return isinstance(plan, Plan) and any(entry.field == POSTPONED for entry in plan.estimate_basis)


def run_plan(
    call: Call,
    plan: Plan | Schedule,
    *,
    schedule: Iterable[Action] | None = None,
    observer: Observer | None = None,
) -> Results:
    """Run a call under a plan. A plan that records all steps at once runs as a plain loop.

    Arguments:
        call: the call.
        plan: the plan.
        schedule: actions in place of those of the plan.
        observer: called as ``observer(action, executor)`` after each action.

    Raises InputError.
    """
    actions = partial(list_actions, plan) if schedule is None else partial(iter, tuple(schedule))
    call = cut_chunks(call, actions)
    is_scheduled, is_observed = schedule is not None, observer is not None
    match = None
    if torch.is_grad_enabled():
        match = make_match(call, plan, schedule=is_scheduled, observer=observer)
    is_plain = not is_observed and not is_scheduled and is_plain_loop(plan) and call.runs_plainly
    if not torch.is_grad_enabled() or (is_plain and (match is None or match.is_known)):
        with explain_exhaustion(plan, call.device):
            return run_plain_loop(call)
    check_room_of(plan, call.place)

    def make_executor(call: Call, *args: Any, **options: Any) -> Executor:
        options["remote"] = make_remote_store(plan, call.place, call.device, is_observed=is_observed)
        options |= {"plan": plan, "postpones_last": not is_scheduled and is_postponed(plan)}
        return Executor(call, *args, **options)

    limit = None
    if isinstance(plan, Plan) and plan.workload.limited:
        # A plan that was made for a limit of memory keeps it in the first call, too.
        limit = plan.profile.local_bytes
        limit_inputs(call, limit)
        working = 1 if takes_single_steps(plan) else choose_working_steps(plan.workload.state_bytes, limit)
        call = choose_piece_sizes(call, plan, working)
    tried = try_call(call, limit=limit)
    results = execute_actions(tried, actions, executor_type=make_executor, observer=match or observer)
    if match is not None:
        match.warn()
    return results


def execute_actions(
    tried: TriedCall,
    actions: Callable[[], Iterator[Action]],
    *,
    executor_type: Callable[..., Executor] = Executor,
    again: Callable[[LateStateError], object] | None = None,
    attempts: int = MAX_ATTEMPTS,
    **options: Any,
) -> Results:
    """Run a call under the actions of a schedule. Begin again if a later step does what no first step did.

    Arguments:
        tried: the call.
        actions: returns the actions, from the first one.
        executor_type: makes the executor of the actions.
        again: called with the error before the sequence begins again.
        attempts: how often the sequence may begin.
        options: those of ``Executor``.

    Raises InputError.
    """
    call, scope = tried.call, tried.scope
    if not tried.has_gradients:
        tried.remember()
        return run_plain_loop(call)
    for attempt in range(attempts):
        run = executor_type(call, actions(), scope, **options)
        run.when_late = tried.remember
        try:
            tensors, state = execute(run)
        except LateStateError as error:
            scope.lift_tensors([part for part in error.carrying if part.is_content])
            if any(part.is_passed for part in error.written):
                scope.set_traits(writes_passed=True)
            if attempt == attempts - 1:
                raise
            _logger.info("%s; the sequence begins again", error.message)
            if again is not None:
                again(error)
            continue
        # From here on, the sequence cannot begin again.
        scope.start.copies.clear()
        scope.set_traits(temporary_leaves=None)
        tried.remember()
        return Results(tensors=tensors, nest=getattr(run.outputs, "nest", None), state=state)
    raise AssertionError("the last attempt returns or raises")


def run_plain_loop(call: Call, *, ends: Callable[[Any, int], bool] | None = None) -> Results:
    """Run a call as a plain loop: each step runs once, in order, and is recorded if gradients are enabled.

    ``ends(state, steps)`` says after each step whether the sequence ends, if its length is not known.
    """
    losses, inputs, state = call.losses, call.inputs, call.copy_state()
    # A chunk_loss gets all outputs at once.
    outputs: Any = replace(call, run_steps=MAX_STEPS).make_outputs()
    records, leaves_graph = torch.is_grad_enabled(), False
    terms: list[Tensor] = []
    flat: list[tuple[list[Tensor], Nest]] = []
    for step, x in enumerate(inputs.iterate_all()):
        state, output = take_step(call.cell, state, x)
        if losses:
            terms += outputs.take(step, output, is_new=True)
        elif records:
            flat.append(flatten(output))
        else:
            # Outputs without a graph are stacked at once, so that steps can free them.
            outputs.take(step, output, is_new=True)
        if not records and (leaves_graph or not step):
            # Steps may enable gradients by themselves; the graphs of all of them would stay alive.
            leaves, nest = flatten(state)
            leaves_graph = any(leaf.grad_fn is not None for leaf in leaves)
            state = fill(nest, detach_computed(leaves)) if leaves_graph else state
        if ends is not None and ends(state, step + 1):
            break
    if losses:
        terms += outputs.flush(step + 1)
        if "final_loss" in losses:
            terms.append(check_scalar(losses["final_loss"](state), "final_loss"))
        total = torch.stack(terms).sum() if len(terms) > 1 else terms[0]
        return Results(tensors=[total], nest=None, state=state)
    if not records:
        return Results(tensors=outputs.release(), nest=outputs.nest, state=state)
    combine: Any = inputs.join if inputs.joins_outputs else torch.stack
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return Results(tensors=[combine(column) for column in columns], nest=flat[0][1], state=state)
