"""Tries the first steps of a call: finds the state that they keep, and checks gradients by a plain loop.

A few steps run as a plain loop, with a snapshot before and after each. Places that changed are lifted into the
state. Then the same steps run under a small schedule, in chunks of one and two steps and from checkpoints. Both
loops begin with the same content, which is restored afterwards. Under a limit of memory, the tape of the first
step decides how many steps are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from ckptplan.errors import InputError
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.constants import Constants
from ckptplan.torch.run.context import ForwardContext, disable_autocast
from ckptplan.torch.run.executor import Executor
from ckptplan.torch.run.gradients import drop_waiting_operations, find_leaves, without_hooks
from ckptplan.torch.run.outputs import check_scalar
from ckptplan.torch.run.scope import Scope
from ckptplan.torch.run.sequence import execute
from ckptplan.torch.run.steps import LateStateError, Tape, take_step
from ckptplan.torch.state.digests import digest, find_rounding, repeat_weights
from ckptplan.torch.state.lifted import PassedState, Placeholder, StatePart, make_placeholders
from ckptplan.torch.state.nests import (
    count_bytes,
    fill,
    flatten,
    is_differentiable,
    list_leaves,
    read_version,
    read_versions,
    stack,
)
from ckptplan.torch.state.places import Place, has_graph, join_names
from ckptplan.torch.state.reach import is_generator

#: How many steps are tried, and how many are tried within a tight limit of memory.
TRIAL_STEPS, TIGHT_TRIAL_STEPS = 4, 2
#: How many steps are tried of a cell with its own backward pass, which may be wrong where neurons fire.
_OWN_TRIAL_STEPS = 16
_HALF_ROUNDING = 1e-3
#: How often steps are tried, or a sequence begins, if later steps do what earlier steps did not.
MAX_ATTEMPTS = 4
#: The share of its norm by which a gradient may differ, since it is a sum in another order.
_ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-4}
_OTHER_ROUNDING = 10


@dataclass(frozen=True, kw_only=True)
class PlainLoop:
    """The results of a plain loop over the first steps: digests, names and types of gradients, and the loss."""

    #: The steps that ran.
    steps: int
    gradients: list[tuple[float, float]]
    names: list[str]
    dtypes: set[torch.dtype]
    total: float

    @property
    def has_gradients(self) -> bool:
        """Whether any gradient is wanted."""
        return bool(self.names)


class TrialObserver(Protocol):
    """An observer of the small schedule of a trial, with a context around the schedule."""

    def enter(self) -> AbstractContextManager[Any]:
        """Begin to observe; return the context in which the schedule is to run."""

    def __call__(self, action: Action, run: Any) -> object:
        """Observe an action that is done."""


def try_steps(
    call: Call, scope: Scope, *, limit: int | None = None, observer: TrialObserver | None = None
) -> PlainLoop:
    """Try the first steps of a call, again after a LateStateError; return the results of a plain loop.

    Arguments:
        call: the call.
        scope: the scope of the call.
        limit: bytes that the trial may take: two steps are tried if more do not fit; None for no limit.
        observer: observes the small schedule, unless the limit allows for fewer steps than usual.

    Raises InputError if the small schedule gives other gradients than the plain loop.
    """
    tensors = (*call.leaves, *call.inputs.leaves, *scope.list_parameters(call))
    # In half precision, more steps differ by rounding alone.
    is_precise = find_rounding(tensor.dtype for tensor in tensors) < _HALF_ROUNDING
    steps = _OWN_TRIAL_STEPS if call.has_own_backward and is_precise else TRIAL_STEPS
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
                _compare_with_or_without_graph(first, scope, plain, watching)
                return plain
    return plain


def _compare_with_or_without_graph(
    call: Call, scope: Scope, plain: PlainLoop, observer: TrialObserver | None
) -> None:
    """Compare the first steps. If they differ, compare again, with a graph in steps without a tape."""
    try:
        _compare(call, scope, plain, observer)
    except LateStateError:
        raise
    except InputError as error:
        if scope.traits.needs_graph:
            raise
        scope.set_traits(needs_graph=True)
        try:
            _compare(call, scope, plain, observer)
        except LateStateError:
            raise
        except InputError:
            raise error from None


def run_plain_steps(call: Call, scope: Scope, limit: int | None = None) -> PlainLoop:
    """Run steps as a plain loop, and lift the places that they change. Undo all changes.

    Raises InputError for a tensor that steps write in place and that is too large to be copied.
    """
    try:
        with ForwardContext(call.device.type).cast_again():
            return _TrialLoop(call, scope, limit).run()
    except RuntimeError as error:
        if "a view of a leaf Variable" not in str(error):
            raise
        # Steps write in place into tensors that an earlier call left with a graph.
        scope.reach.restore(scope.start)
        with ForwardContext(call.device.type).cast_again():
            return _TrialLoop(call, scope, limit, copies=True).run()
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
    """A plain loop that observes what its steps change. Tensors with a graph from before begin new graphs."""

    def __init__(self, call: Call, scope: Scope, limit: int | None, *, copies: bool = False) -> None:
        self._call, self._scope, self._limit = call, scope, limit
        self._constants = Constants(scope.reach.list_graph_places())
        self._constants.insert_computed(copies=copies)
        leaves, nest = flatten(call.state, parameters=True)
        # Steps may write into the tensors that they get.
        self._state_leaves = [leaf.detach().clone().requires_grad_(leaf.requires_grad) for leaf in leaves]
        computed = _view_computed(self._state_leaves, leaves)
        cut, self._input_nest = call.inputs.cut(0, call.inputs.steps)
        self._inputs = [leaf.detach().requires_grad_(leaf.requires_grad) for leaf in cut]
        self._passed = PassedState(fill(nest, computed))
        self._passed_part = StatePart(self._passed)
        self._snapshot = scope.reach.take_snapshot(all_digests=True)
        #: The tensors of the state after the last step, with their versions and parts.
        self._watched: list[tuple[Tensor, int, StatePart]] = []
        #: Outputs that are stacked, with their versions.
        self._outputs: list[tuple[Tensor, int]] = []
        #: The parts that carried a gradient after any step.
        self._carrying: set[StatePart] = set()

    def run(self) -> PlainLoop:
        """Run the steps, and set the traits of the scope."""
        call, scope, passed = self._call, self._scope, self._passed
        terms: list[Tensor] = []
        waiting: list[Any] = []
        created: list[list[Tensor]] = []
        before: list[Tensor] = []
        own_leaves = {id(leaf) for leaf in (*self._state_leaves, *self._inputs, *self._constants.leaves)}
        self._watch(observes=False)
        for step, x in enumerate(call.inputs.iterate(self._inputs, self._input_nest, 0, call.inputs.steps)):
            # Chunks run in the precision of the parameters.
            with disable_autocast(call.device) if call.has_own_backward else nullcontext():
                passed.value, output = take_step(call.cell, passed.value, x)
            between, versions = self._take_snapshot(), read_versions(list_leaves(passed.value))
            new = self._take_output(step, output, waiting)
            after = self._take_snapshot()
            writes = versions != read_versions(list_leaves(passed.value))
            changed = scope.reach.list_changes(between, after)
            if writes or changed:
                self._refuse_records(changed)
                scope.set_traits(losses_keep=True)
            scope.lift(scope.reach.list_changes(self._snapshot, after), carries=False)
            scope.lift_written(self._constants.list_written())
            self._snapshot = after
            self._watch()
            ends = [*new, *(leaf for part in self._parts for leaf in list_leaves(part.place.get()))]
            created.append([leaf for leaf in find_leaves(ends, until=before) if id(leaf) not in own_leaves])
            terms, before = [*terms, *new], ends
            if not self._has_room([*terms, *ends], step + 1):
                break
        if waiting:
            terms.append(check_scalar(call.losses["chunk_loss"](0, stack(waiting)), "chunk_loss"))
        if "final_loss" in call.losses:
            terms.append(check_scalar(call.losses["final_loss"](passed.value), "final_loss"))
        self._check_outputs()
        self._name_caches()
        self._mark_parts(created)
        plain = self._differentiate(terms, len(created))
        self._find_unread(len(created) - 1)
        return plain

    def _refuse_records(self, changed: Sequence[Place]) -> None:
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

    def _has_room(self, ends: list[Tensor], steps: int) -> bool:
        """Return whether another step has room, given the tensors in which the graph of some steps ends."""
        if self._limit is None or steps < TIGHT_TRIAL_STEPS:
            return True
        tapes = Tape(0, steps, [], [], ends, self._inputs, [], []).bytes
        gradients = count_bytes(self._scope.list_parameters(self._call))
        # Autograd adds two gradients of a parameter out of place, and later steps may keep more. Steps of cells
        # with a backward pass of their own have many operations on tensors of the size of the state.
        spare_steps = 8 if self._call.has_own_backward else 3
        return 3 * gradients + tapes * (steps + spare_steps) // steps <= self._limit

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
        # Leaves that another step uses, too, existed before. Each step creates its other leaves.
        lasting = [leaf for leaf in unreached if len(created) > 1 and id(leaf) in used_last]
        scope.hidden_leaves = tuple(map(TensorWeakRef, lasting))
        scope.set_traits(temporary_leaves=len(unreached) - len(lasting))

    def _differentiate(self, terms: Sequence[Tensor], steps: int) -> PlainLoop:
        """Return the gradients of all terms; mark parts that steps use with the graph from before the call."""
        call, scope, constants = self._call, self._scope, self._constants
        pairs = name_leaves(call, scope, self._state_leaves, self._inputs, constants)
        wanted: list[Tensor] = [leaf for leaf, _ in pairs]
        names = [name for _, name in pairs]
        live = [term for term in terms if term.requires_grad]
        if not live:
            scope.set_traits(losses_are_late=True)
            live = _weigh_state(self._passed.value, scope)
        total = float(sum(float(term.detach()) for term in terms))
        dtypes = {leaf.dtype for leaf in wanted}
        if not live or not wanted:
            return PlainLoop(steps=steps, gradients=[], names=[], dtypes=dtypes, total=total)
        try:
            ones = [torch.ones_like(term) for term in live]
            with without_hooks(scope.list_parameters(call)):
                gradients: tuple[Any, ...] = torch.autograd.grad(live, wanted, ones, allow_unused=True)
        except BaseException as error:
            drop_waiting_operations()
            if not isinstance(error, RuntimeError) or not _is_of_autograd(error):
                raise
            raise InputError(
                f"has no gradients in a plain loop over its first steps ({str(error).partition('.')[0]})",
                field="cell or loss",
                accepted="a cell that torch.autograd.grad works with: use_reentrant=False, no tensor kept "
                "with a graph from before",
            ) from error
        if any(gradient is not None and gradient.is_sparse for gradient in gradients):
            scope.set_traits(gives_sparse=True)
        used = {id(leaf) for leaf, gradient in zip(wanted, gradients, strict=True) if gradient is not None}
        originals = {
            id(original)
            for original, leaf in zip(constants.originals, constants.leaves, strict=True)
            if id(leaf) in used
        }
        for part in scope.lifted:
            if isinstance(part.place, Place) and not part.is_content:
                content = scope.start.contents[scope.reach.holders.index(part.place.holder)]
                value = content if part.place.holder.is_whole else content.get(part.place.key)
                part.inherits = any(id(leaf) in originals for leaf in list_leaves(value) if has_graph(leaf))
        rows, inputs = call.inputs.rows(0, steps)[1], {id(leaf) for leaf in self._inputs}
        leaf_grads = zip(wanted, gradients, strict=True)
        cut = [grad[:rows] if grad is not None and id(leaf) in inputs else grad for leaf, grad in leaf_grads]
        return PlainLoop(steps=steps, gradients=digest_gradients(cut), names=names, dtypes=dtypes, total=total)

    def _find_unread(self, step: int) -> None:
        """Find the parts that steps write before they read them. One more step runs without their tensors."""
        call, scope = self._call, self._scope
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
                    # A tensor that a step moves is read. Gradients pass through a tensor that a step leaves.
                    if isinstance(leaf, Placeholder) and (leaf.part is not part or part.carries):
                        leaf.part.is_read = True
        except Exception:
            for part in candidates:
                part.is_read = True


def _view_computed(copies: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return the copies of tensors. A copy of a computed tensor becomes a view, so that it is no leaf."""
    pairs = zip(copies, leaves, strict=True)
    return [copied.view_as(copied) if leaf.grad_fn is not None else copied for copied, leaf in pairs]


def _is_of_autograd(error: RuntimeError) -> bool:
    """Return whether autograd raised an error, and not a backward pass that is written in Python."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("torch.autograd")


def _mark_read(part: StatePart) -> None:
    part.is_read = True


def _weigh_state(passed: Any, scope: Scope) -> list[Tensor]:
    """Return weighted sums of the tensors of a state that require gradients."""
    places = [part.place.get() for part in scope.lifted if not part.is_content]
    leaves = [leaf for value in (passed, *places) for leaf in list_leaves(value)]
    return [weigh(leaf) for leaf in leaves if leaf.requires_grad and is_differentiable(leaf)]


def weigh(tensor: Tensor) -> Tensor:
    """Return a weighted sum of a tensor, whose gradient has many values."""
    # A DTensor cannot be multiplied by weights that are no DTensor.
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    flat = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).reshape(-1)
    return (flat * repeat_weights(flat.numel(), flat.dtype, flat.device)).sum()


def list_trial_actions(steps: int) -> list[Action]:
    """Return actions that reverse a few steps in chunks of two steps and of one, from one checkpoint.

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


#: Runs a call, and returns its results, which are the loss or the stacked outputs, and the final state.
Runner = Callable[[Call], tuple[Sequence[Tensor], Any]]


def differentiate_copy(
    call: Call,
    scope: Scope,
    run: Runner,
    enter: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> tuple[list[Any], list[str], float]:
    """Run a call on copies of its tensors; return the gradients, the names of their leaves, and the loss.

    The gradients are those of parameters, the state, the inputs and constants. All changes are undone.
    ``enter`` returns a context around the forward and the backward pass.
    """
    steps = call.inputs.steps
    leaves, nest = flatten(call.state, parameters=True)
    state = [leaf.detach().clone().requires_grad_(leaf.requires_grad) for leaf in leaves]
    computed = _view_computed(state, leaves)
    inputs = call.inputs.take_first(steps)
    constants = Constants(scope.reach.list_graph_places())
    constants.insert_computed()
    try:
        with enter():
            # Hold the final state until gradients arrive, as a user does.
            results, final = run(replace(call, inputs=inputs, state=fill(nest, computed)))
            terms = results if call.losses else _weigh_steps(call, results)
            live = [term for term in terms if term.requires_grad]
            if scope.traits.losses_are_late:
                live += _weigh_state(final, scope)
            pairs = name_leaves(call, scope, state, inputs.leaves, constants)
            wanted = [leaf for leaf, _ in pairs]
            ones = [torch.ones_like(term) for term in live]
            with without_hooks(scope.list_parameters(call)):
                is_reached = bool(live and wanted)
                gradients = torch.autograd.grad(live, wanted, ones, allow_unused=True) if is_reached else ()
        total = float(sum(float(term.detach()) for term in terms))
        return list(gradients), [name for _, name in pairs], total
    finally:
        scope.reach.restore(scope.start)


def differentiate_trial(
    call: Call,
    scope: Scope,
    actions: Iterable[Action],
    observer: Any = None,
    enter: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> tuple[list[Any], list[str], float]:
    """Run a call under the actions of a schedule, as ``differentiate_copy``."""

    def run(copied: Call) -> tuple[list[Tensor], Any]:
        return execute(Executor(copied, iter(actions), scope, observer=observer))

    return differentiate_copy(call, scope, run, enter)


def _weigh_steps(call: Call, results: Sequence[Tensor]) -> list[Tensor]:
    """Return a weighted sum of the outputs of each step, as of the outputs of a plain loop."""
    inputs, steps = call.inputs, range(call.inputs.steps)
    terms: list[Tensor] = []
    for result in results:
        if is_differentiable(result):
            rows = [inputs.rows(step, step + 1) for step in steps] if inputs.joins_outputs else []
            parts = result.split([stop - start for start, stop in rows]) if rows else result.unbind(0)
            terms += map(weigh, parts)
    return terms


def name_leaves(
    call: Call, scope: Scope, state: Sequence[Tensor], inputs: Sequence[Tensor], constants: Constants
) -> list[tuple[Tensor, str]]:
    """Return the leaves whose gradients are wanted, each with a name."""
    reached = {id(leaf): name for leaf, name in zip(scope.reach.tensors, scope.reach.names, strict=True)}
    parameters = scope.list_parameters(call)
    pairs = [
        *((leaf, reached.get(id(leaf), f"parameter {number}")) for number, leaf in enumerate(parameters)),
        # A step may have written into a tensor of the state in place.
        *((leaf, f"tensor {number} of the state") for number, leaf in enumerate(state) if leaf.is_leaf),
        *((leaf, f"tensor {number} of the inputs") for number, leaf in enumerate(inputs)),
    ]
    originals = zip(constants.leaves, constants.originals, strict=True)
    pairs += [(leaf, reached.get(id(original), "a constant")) for leaf, original in originals]
    return [(leaf, name) for leaf, name in pairs if leaf.requires_grad]


def _compare(call: Call, scope: Scope, plain: PlainLoop, observer: TrialObserver | None) -> None:
    """Compare the first steps under a small schedule with a plain loop. Raises InputError."""
    try:
        planned, _, total = differentiate_trial(
            call,
            scope,
            list_trial_actions(call.inputs.steps),
            observer,
            nullcontext if observer is None else observer.enter,
        )
    except InputError:
        raise
    except Exception as error:
        raise _refuse(f"they raise {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}") from error
    try:
        compare_gradients(plain, digest_gradients(planned), total)
    except InputError as error:
        if not call.has_own_backward:
            raise
        name, problem = type(call.cell).__name__, error.message.partition(": ")[2].partition(". They ")[0]
        is_gradient = problem.startswith("the gradient")
        raise InputError(
            f"{name}.reverse is not the backward pass of its forward: {problem}"
            if is_gradient
            else f"{name}.run gives something else than its forward: {problem}",
            field="cell",
            accepted="a ChunkCell whose run, replay and reverse say the same as its forward; a loss of tensors "
            "that have no graph from before; or cell=lambda state, x: cell(state, x), which runs step by step",
        ) from None


def digest_gradients(gradients: Sequence[Any]) -> list[tuple[float, float]]:
    """Return digests of gradients, zeros where there is none. They take less memory than the gradients."""
    dense = [
        gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient
        for gradient in gradients
    ]
    return [(0.0, 0.0) if gradient is None else digest(gradient) for gradient in dense]


def compare_gradients(plain: PlainLoop, planned: Sequence[tuple[float, float]], total: float) -> None:
    """Raise InputError if gradients or the loss differ from those of a plain loop by more than rounding."""
    rounding = max(
        (_ROUNDING.get(dtype, _OTHER_ROUNDING * find_rounding((dtype,))) for dtype in plain.dtypes), default=0.0
    )
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        rounding = max(rounding, 0.2)
    scale = max(abs(plain.total), abs(total), 1e-30)
    if plain.total == plain.total and abs(total - plain.total) > rounding * scale:
        raise _refuse(f"the loss is {total:.6g} and was {plain.total:.6g}")
    for name, (old, norm), (new, new_norm) in zip(plain.names, plain.gradients, planned, strict=True):
        size = norm or new_norm
        if max(abs(old - new), abs(norm - new_norm)) > rounding * size:
            share = max(abs(old - new), abs(norm - new_norm)) / size
            raise _refuse(
                f"the gradient of {name} {f'differs by {share:.1g} of its norm' if new_norm else 'is missing'}"
            )


def _refuse(difference: str) -> InputError:
    return InputError(
        f"the first steps give something else when they run again from a checkpoint than in a plain loop: "
        f"{difference}. "
        "They depend on something outside of attributes, variables and containers, such as a file or a clock, "
        "or on "
        "whether gradients are enabled",
        field="cell or loss",
        accepted="a cell that keeps what it needs from step to step in its state or in attributes, or a plan "
        "that runs "
        "each step once (base); verify=False if only rounding differs",
    )
