"""Tries the first steps of a call: finds the state that they keep, and checks gradients by a plain loop.

A few steps run as a plain loop, with a snapshot before and after each. Places that changed are lifted into the
state. Then the same steps run under a small schedule, in chunks of one and of several steps, from a checkpoint.
Both loops begin with the same content, which is restored afterwards. Under a limit of memory, at least two
steps are tried, and further steps as long as their tapes fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from ckptplan.errors import InputError
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.torch.checking.derivatives import Derivatives, differentiate, differentiate_actions, weigh
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.constants import Constants
from ckptplan.torch.run.context import ForwardContext, disable_autocast
from ckptplan.torch.run.gradients import find_leaves
from ckptplan.torch.run.outputs import check_scalar
from ckptplan.torch.run.scope import Scope
from ckptplan.torch.run.steps import LateStateError, Tape, take_step
from ckptplan.torch.run.verify import CAUSE, REMEDY
from ckptplan.torch.state.digests import find_rounding
from ckptplan.torch.state.lifted import PassedState, Placeholder, StatePart, make_placeholders
from ckptplan.torch.state.nests import (
    count_bytes,
    fill,
    is_differentiable,
    list_leaves,
    read_version,
    read_versions,
    stack,
)
from ckptplan.torch.state.places import Place, join_names
from ckptplan.torch.state.reach import is_generator

#: How many steps are tried, and how many are tried within a tight limit of memory.
TRIAL_STEPS, TIGHT_TRIAL_STEPS = 4, 2
#: How many steps are tried of a cell with its own backward pass, which may be wrong where neurons fire.
_OWN_BACKWARD_TRIAL_STEPS = 16
_HALF_ROUNDING = 1e-3
#: The most attempts of a trial, or of a sequence. Each LateStateError causes a new attempt.
MAX_ATTEMPTS = 4
#: A gradient is a sum over steps in another order. It may differ by this many times the rounding of one tensor.
_SUM_ROUNDING = 10


def try_steps(call: Call, scope: Scope, *, limit: int | None = None, observer: Any = None) -> Derivatives:
    """Try the first steps of a call, again after a LateStateError; return the results of a plain loop.

    Arguments:
        call: the call.
        scope: the scope of the call.
        limit: bytes that the trial may take: at least two steps are tried, and more if they fit; None for no
            limit.
        observer: observes the small schedule if it has TRIAL_STEPS steps.

    Raises InputError if the small schedule gives other gradients than the plain loop. If every attempt ends
    with a LateStateError, the steps are not compared.
    """
    tensors = (*call.leaves, *call.inputs.leaves, *scope.list_parameters(call))
    # In half precision, a longer trial would fail by rounding alone.
    is_precise = find_rounding(tensor.dtype for tensor in tensors) < _HALF_ROUNDING
    steps = _OWN_BACKWARD_TRIAL_STEPS if call.has_own_backward and is_precise else TRIAL_STEPS
    first = replace(call, inputs=call.inputs.take_first(min(steps, call.inputs.steps)))
    with torch.enable_grad():
        for _ in range(MAX_ATTEMPTS):
            plain = run_plain_steps(first, scope, limit)
            if not (call.compares or not call.runs_plainly) or not plain.has_gradients:
                return plain
            if plain.steps < first.inputs.steps:
                first = replace(first, inputs=first.inputs.take_first(plain.steps))
            watching = observer if plain.steps == TRIAL_STEPS else None
            with suppress(LateStateError):
                difference = _compare(first, scope, plain, watching)
                if difference is not None and not scope.traits.needs_graph:
                    # Steps may compute the same values only if gradients are enabled.
                    scope.set_traits(needs_graph=True)
                    if _compare(first, scope, plain, watching) is None:
                        return plain
                if difference is not None:
                    raise difference
                return plain
    return plain


def run_plain_steps(call: Call, scope: Scope, limit: int | None = None) -> Derivatives:
    """Run steps as a plain loop. Lift the places that they change into the state, and restore their values.

    Raises InputError for a tensor that steps write in place and that is too large to be copied.
    """
    try:
        with ForwardContext(call.device.type).cast_again():
            try:
                return _TrialLoop(call, scope, limit).differentiate()
            except RuntimeError as error:
                if "a view of a leaf Variable" not in str(error):
                    raise
                # Steps write in place into tensors that an earlier call left with a graph.
                return _TrialLoop(call, scope, limit).differentiate(copies=True)
    finally:
        missing = scope.reach.restore(scope.start)
        if missing:
            instead = "a cell that makes a new tensor, or that returns this tensor as a part of its state"
            raise InputError(
                f"writes into {missing[0]}, which is too large to be copied and put back"
                + ("" if limit is None else " within this limit of memory"),
                field="cell",
                accepted=instead if limit is None else f"a larger limit; or {instead}",
            )


class _TrialLoop:
    """A plain loop that observes what its steps change. Tensors computed before are its leaves."""

    def __init__(self, call: Call, scope: Scope, limit: int | None) -> None:
        self._call, self._scope, self._limit = call, scope, limit
        self._passed = PassedState(None)
        self._passed_part = StatePart(self._passed)
        #: The steps that ran.
        self._steps = 0
        #: The tensors of the state after the last step, with their versions and parts.
        self._watched: list[tuple[Tensor, int, StatePart]] = []
        #: Outputs that are stacked, with their versions.
        self._outputs: list[tuple[Tensor, int]] = []
        #: The parts that carried a gradient after any step.
        self._carrying: set[StatePart] = set()

    def differentiate(self, *, copies: bool = False) -> Derivatives:
        """Run the steps, set the traits of the scope, and return the gradients."""
        scope = self._scope
        plain = differentiate(self._call, scope, self._run, self._mark_unread_parts, copies=copies)
        if plain.has_sparse:
            scope.set_traits(gives_sparse=True)
        for part in scope.lifted if plain.has_gradients else ():
            if isinstance(part.place, Place) and not part.is_content:
                content = scope.start.contents[scope.reach.holders.index(part.place.holder)]
                value = content if part.place.holder.is_whole else content.get(part.place.key)
                part.inherits = any(id(leaf) in plain.constants for leaf in list_leaves(value))
        return plain

    def _run(self, call: Call, constants: Constants) -> tuple[list[Tensor], Any, int]:
        """Run the steps, and set the traits of the scope."""
        scope, passed = self._scope, self._passed
        passed.value, snapshot = call.state, self._take_snapshot()
        inputs, nest = call.inputs.cut(0, call.inputs.steps)
        terms: list[Tensor] = []
        waiting: list[Any] = []
        created: list[list[Tensor]] = []
        before: list[Tensor] = []
        own = (*call.leaves, *find_leaves(call.leaves), *call.inputs.leaves, *constants.leaves)
        own_leaves = {id(leaf) for leaf in own}
        self._watch(observes=False)
        for step, x in enumerate(call.inputs.iterate(inputs, nest, 0, call.inputs.steps)):
            # Chunks run in the precision of the parameters.
            with disable_autocast(call.device) if call.has_own_backward else nullcontext():
                passed.value, output = take_step(call.cell, passed.value, x)
            between, versions = self._take_snapshot(), read_versions(list_leaves(passed.value))
            new = self._take_output(step, output, waiting)
            after = self._take_snapshot()
            writes = versions != read_versions(list_leaves(passed.value))
            changed = scope.reach.list_changes(between, after)
            if writes or changed:
                self._refuse_losses_with_memory(changed)
                scope.set_traits(losses_change_state=True)
            scope.lift(scope.reach.list_changes(snapshot, after), carries=False)
            scope.lift_written(constants.list_written())
            snapshot = after
            self._watch()
            ends = [*new, *(leaf for part in self._parts for leaf in list_leaves(part.place.get()))]
            created.append([leaf for leaf in find_leaves(ends, until=before) if id(leaf) not in own_leaves])
            terms, before = [*terms, *new], ends
            if not self._has_room([*terms, *ends], inputs, step + 1):
                break
        if waiting:
            terms.append(check_scalar(call.losses["chunk_loss"](0, stack(waiting)), "chunk_loss"))
        if "final_loss" in call.losses:
            terms.append(check_scalar(call.losses["final_loss"](passed.value), "final_loss"))
        self._check_outputs()
        self._name_caches()
        self._mark_parts(created)
        if not any(term.requires_grad for term in terms):
            scope.set_traits(losses_are_late=True)
        self._steps = len(created)
        return terms, passed.value, self._steps

    def _refuse_losses_with_memory(self, changed: Sequence[Place]) -> None:
        """Raise InputError if a loss keeps a value, and the backward pass of the cell computes it again.

        Losses that draw random numbers are refused where they draw.
        """
        if not self._call.has_own_backward or any(map(is_generator, changed)):
            return
        name = type(self._call.cell).__name__
        raise InputError(
            f"changes {join_names(changed) if changed else 'the output'}, and {name} computes losses a second "
            "time in its backward pass",
            field="loss",
            accepted="a loss that keeps nothing; or cell=lambda state, x: cell(state, x), which runs step by "
            "step under autograd",
        )

    def _has_room(self, ends: list[Tensor], inputs: list[Tensor], steps: int) -> bool:
        """Return whether another step has room, given the tensors in which the graph of some steps ends."""
        if self._limit is None or steps < TIGHT_TRIAL_STEPS:
            return True
        tapes = Tape(0, steps, [], [], ends, inputs, [], []).bytes
        gradients = count_bytes(self._scope.list_parameters(self._call))
        states = count_bytes(leaf for part in self._parts for leaf in list_leaves(part.place.get()))
        # Autograd adds two gradients of a parameter out of place, later steps may keep more, and operations on
        # tensors of the size of the state have results and gradients. Steps of cells with a backward pass of
        # their own have many such operations.
        spare_steps, spare_states = (8, 0) if self._call.has_own_backward else (3, 5)
        needed = 3 * gradients + tapes * (steps + spare_steps) // steps + spare_states * states
        return needed <= self._limit

    @property
    def _parts(self) -> list[StatePart]:
        return [self._passed_part, *self._scope.lifted]

    def _take_snapshot(self) -> Any:
        return self._scope.reach.take_snapshot(all_digests=True)

    def _take_output(self, step: int, output: Any, waiting: list[Any]) -> list[Tensor]:
        losses = self._call.losses
        if "loss" in losses:
            return [check_scalar(losses["loss"](step, output), "loss")]
        if "chunk_loss" in losses:
            waiting.append(output)
        if losses:
            return []
        leaves = list_leaves(output)
        self._outputs += [(leaf, read_version(leaf)) for leaf in leaves]
        return [weigh(leaf) for leaf in leaves if is_differentiable(leaf)]

    def _check_outputs(self) -> None:
        """Raise InputError if a step wrote into an output of an earlier step."""
        if any(read_version(leaf) != version for leaf, version in self._outputs):
            raise InputError(
                "returns tensors that its later steps change in place, so that the outputs of all steps become "
                "the last one",
                field="cell",
                accepted="a copy, as self.mem.clone(), or steps that make a new tensor, as "
                "self.mem = 0.9 * self.mem + x",
            )

    def _watch(self, *, observes: bool = True) -> None:
        """Find the parts that the last step wrote in place or that carry gradients; watch their tensors."""
        for tensor, version, part in self._watched:
            if not tensor.is_inference() and tensor._version != version:
                part.is_written = True
        self._watched = []
        for part in self._parts:
            leaves = list_leaves(part.place.get())
            self._watched += [(leaf, read_version(leaf), part) for leaf in leaves]
            if observes and any(leaf.grad_fn is not None for leaf in leaves):
                self._carrying.add(part)

    def _name_caches(self) -> None:
        """Set the trait that names the caches that steps fill with tensors that need no gradient."""
        caches = self._scope.reach.list_filled_caches(self._scope.start)
        earlier = self._scope.traits.constant_caches
        names = {
            cache.name for cache in caches if not any(tensor.requires_grad for tensor in cache.list_tensors())
        }
        self._scope.set_traits(constant_caches=earlier | names)

    def _mark_parts(self, created: list[list[Tensor]]) -> None:
        """Mark parts that carry gradients; find the leaves that steps use but that the scope does not reach."""
        scope = self._scope
        scope.set_traits(writes_passed=scope.traits.writes_passed or self._passed_part.is_written)
        for part in self._carrying:
            part.carries = True
        scope.lift_tensors([part for part in scope.lifted if part.is_content and part.carries])
        reached = {id(leaf) for leaf in scope.reach.list_parameters()}
        unreached = [leaf for leaf in created[0] if id(leaf) not in reached]
        used_last = {id(leaf) for leaf in created[-1]}
        # A leaf that both the first and the last step use existed before. The other leaves were created by the
        # step that uses them.
        lasting = [leaf for leaf in unreached if len(created) > 1 and id(leaf) in used_last]
        scope.set_traits(
            hidden_leaves=tuple(map(TensorWeakRef, lasting)), temporary_leaves=len(unreached) - len(lasting)
        )

    @contextmanager
    def _mark_unread_parts(self) -> Iterator[None]:
        """After the block, find the parts that steps write before they read them.

        One more step runs without their tensors.
        """
        yield
        call, scope, step = self._call, self._scope, self._steps - 1
        candidates = [part for part in scope.lifted if not part.is_written and list_leaves(part.place.get())]
        for part in candidates:
            part.is_read = False
            nest, placeholders = make_placeholders(part, _mark_read)
            part.place.set(fill(nest, placeholders, fresh=False))
        try:
            if candidates:
                with torch.set_grad_enabled(any(part.carries for part in candidates)):
                    self._passed.value, output = call.cell(self._passed.value, call.inputs.get_step(step))
                    self._take_output(step, output, [])
            for part in self._parts:
                for leaf in list_leaves(part.place.get()):
                    # A placeholder that is in another part after the step was read. One that stays counts as
                    # read only if its part carries gradients.
                    if isinstance(leaf, Placeholder) and (leaf.part is not part or part.carries):
                        leaf.part.is_read = True
        except Exception:
            for part in candidates:
                part.is_read = True


def _mark_read(part: StatePart) -> None:
    part.is_read = True


def list_trial_actions(steps: int) -> list[Action]:
    """Return actions that reverse the second half of the steps as one chunk, then the others one by one.

    The first step runs once more than needed, since a cell that counts its calls modulo 2 may give the same
    result after an even number of further runs.
    """
    half = max(steps // 2, 1) if steps > 1 else 0
    actions: list[Action] = [Save(0, Tier.LOCAL)]
    if half:
        actions.append(Advance(0, half))
    actions += [Record(half, steps), Backward(half, steps)]
    if half:
        actions += [Load(0, Tier.LOCAL), Advance(0, 1)]
    return [*actions, *list_single_actions(half)[1:-1], Free(0, Tier.LOCAL)]


def list_single_actions(steps: int, *, advances_again: bool = False) -> list[Action]:
    """Return actions that reverse steps one at a time, from one checkpoint.

    ``advances_again`` lets most steps run once more when there are gradients.
    """
    actions: list[Action] = [Save(0, Tier.LOCAL)]
    for step in reversed(range(steps)):
        actions.append(Load(0, Tier.LOCAL))
        if step:
            actions.append(Advance(0, step))
        actions += [Record(step, step + 1), Backward(step, step + 1)]
        if advances_again and step == steps - 1 and step:
            actions += [Load(0, Tier.LOCAL), Advance(0, step)]
    return [*actions, Free(0, Tier.LOCAL)]


def _compare(call: Call, scope: Scope, plain: Derivatives, observer: Any) -> InputError | None:
    """Compare the first steps under a small schedule with a plain loop; return an error if they differ."""
    try:
        planned = differentiate_actions(call, scope, list_trial_actions(call.inputs.steps), observer)
    except LateStateError:
        raise
    except InputError as error:
        return error
    except Exception as error:
        refusal = _refuse(f"they raise {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}")
        refusal.__cause__ = error
        return refusal
    problem, is_gradient = _find_difference(plain, planned)
    if problem is None or not call.has_own_backward:
        return None if problem is None else _refuse(problem)
    name = type(call.cell).__name__
    return InputError(
        f"{name}.reverse is not the backward pass of its forward: {problem}"
        if is_gradient
        else f"{name}.run gives something else than its forward: {problem}",
        field="cell",
        accepted="a ChunkCell whose run, replay and reverse say the same as its forward; a loss of tensors "
        "that have no graph from before; or cell=lambda state, x: cell(state, x), which runs step by step",
    )


def _find_difference(plain: Derivatives, planned: Derivatives) -> tuple[str | None, bool]:
    """Return how the loss or a gradient differs by more than rounding, and whether it is a gradient."""
    rounding = _SUM_ROUNDING * find_rounding(plain.dtypes)
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        rounding = max(rounding, 0.2)
    scale = max(abs(plain.total), abs(planned.total), 1e-30)
    if plain.total == plain.total and abs(planned.total - plain.total) > rounding * scale:
        return f"the loss is {planned.total:.6g} and was {plain.total:.6g}", False
    for name, _, share, is_missing in plain.list_differences(planned):
        if share > rounding:
            how = "is missing" if is_missing else f"differs by {share:.1g} of its norm"
            return f"the gradient of {name} {how}", True
    return None, False


def _refuse(difference: str) -> InputError:
    return InputError(
        f"the first steps give something else when they run again from a checkpoint than in a plain loop: "
        f"{difference}. {CAUSE}",
        field="cell or loss",
        accepted=REMEDY,
    )
