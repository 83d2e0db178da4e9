"""Runs, records and reverses the steps of a plan.

This is the interface between a schedule and the steps of a cell. An ``Executor`` walks the actions of a
schedule and calls three functions with ranges of steps:

- ``advance(start, stop, cached)`` runs steps from the working state, without a tape;
- ``record(start, stop)`` runs steps from the working state with a tape, and returns the tape;
- ``reverse(tape, incoming)`` backpropagates through a tape: it takes the gradients of the state at its end from
  ``state_gradients``, and leaves those of the state at its beginning there.

The working state is ``state``, a ``LiftedState``. Gradients of parameters are added to ``sums``, those of
inputs are written into ``input_gradients``.

A step is one time step, or a piece of several time steps that the cell takes in one call. Only ``inputs``
decides between the two: its ``rows`` says which time steps belong to a step. So layers that take whole
sequences and networks in multi-step mode need no class of their own. A subclass that runs several steps in
another way, such as compiled code, overrides ``run``. A subclass with its own backward pass, such as
``ChunkSteps``, overrides all three functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ckptplan.errors import InputError
from ckptplan.schedule.actions import Tier
from ckptplan.torch.run.gradients import (
    Gradient,
    GradientSums,
    check_node_hooks,
    find_leaves,
    hand_over_hooks,
    list_saved,
    take_hooks,
)
from ckptplan.torch.run.inputs import Inputs, describe_tensors, detach_inputs, is_list_of_steps
from ckptplan.torch.run.outputs import Outputs, SummedLoss, check_scalar
from ckptplan.torch.run.verify import Verifier
from ckptplan.torch.state.lifted import Checkpoint, LiftedState, Placeholder, StatePart, detach_computed
from ckptplan.torch.state.nests import Nest, get_storage, has_memory
from ckptplan.torch.store.store import TensorStore

#: A cell takes a state and an input, and returns the next state and an output.
Cell = Callable[[Any, Any], tuple[Any, Any]]
_ACCEPTED = (
    "cell(state, x) -> (state, output); ckptplan.torch.adapters makes such cells of layers of torch.nn, "
    "snnTorch, Norse and SpikingJelly"
)


class LateStateError(InputError):
    """A later step did something that no earlier step did. The sweep begins again, and lifts the parts given.

    Arguments:
        problem: what the step did, for the user, if the sweep cannot begin again.
        written: parts into whose tensors steps write in place.
        carrying: parts whose tensors carry gradients.
        inheriting: parts that steps use with the graph from before the call.
        reading: parts that steps read.
    """

    def __init__(
        self,
        problem: str,
        *,
        written: Sequence[StatePart] = (),
        carrying: Sequence[StatePart] = (),
        inheriting: Sequence[StatePart] = (),
        reading: Sequence[StatePart] = (),
    ) -> None:
        self.carrying, self.written = tuple(carrying), tuple(written)
        for part in written:
            part.is_written = True
        for part in carrying:
            part.carries = True
        for part in inheriting:
            part.inherits = True
        for part in reading:
            part.is_read = True
        super().__init__(problem, field="cell", accepted="the same call again, which takes this into account")


@dataclass(eq=False)
class Tape:
    """The graph of recorded steps.

    Arguments:
        start, stop: the steps.
        roots: the leaves with which the graph begins, one for each tensor of the state; None for a tensor that
            carries no gradient.
        given: the tensors that steps got for the roots; None for a placeholder. As in the middle of a plain
            loop they are no leaves, unless the caller passed a leaf.
        ends: the tensors of the state after the steps.
        inputs: the inputs of the steps, time first.
        terms: the tensors through which gradients of the results enter, in the order of
            ``Outputs.list_gradients``.
        final_terms: losses of the final state.
        has_hooks: whether hooks were registered while the steps ran.
    """

    start: int
    stop: int
    roots: list[Tensor | None]
    given: list[Tensor | None]
    ends: list[Tensor]
    inputs: list[Tensor]
    terms: list[Tensor]
    final_terms: list[Tensor]
    has_hooks: bool = False

    def list_outputs(self) -> list[Tensor]:
        """Return the tensors in which its graph ends."""
        return [*self.ends, *self.terms, *self.final_terms]

    @property
    def bytes(self) -> int:
        """The bytes that its graph keeps alive besides its roots, inputs and leaves."""
        return self._count_bytes(self.list_outputs())

    @property
    def step_bytes(self) -> int:
        """The bytes that its graph keeps alive without losses of the final state."""
        return self._count_bytes([*self.ends, *self.terms])

    def _count_bytes(self, outputs: list[Tensor]) -> int:
        # The value of a loss is one number, which is added up and freed.
        values = (term for term in self.terms if term.untyped_storage().nbytes() == term.itemsize)
        excluded = (*self.roots, *self.given, *self.inputs, *find_leaves(outputs), *values)
        excluded_storages = {get_storage(tensor) for tensor in excluded if tensor is not None}
        sizes = {
            get_storage(tensor): tensor.untyped_storage().nbytes()
            for tensor in (*outputs, *list_saved(outputs))
            if has_memory(tensor)
        }
        return sum(size for storage, size in sizes.items() if storage not in excluded_storages)


@dataclass(frozen=True, kw_only=True)
class StepTraits:
    """The traits of the steps of a call that its trial observed.

    Arguments:
        writes_passed: whether steps write into the tensors of the state that they are passed.
        losses_change_state: whether losses change state, so that they run whenever their steps run again.
        needs_graph: whether steps compute the same values only if gradients are enabled and the state requires
            them, as steps that call autograd do.
        has_gradients: whether anything requires a gradient.
        losses_are_late: whether the losses of the first steps have no gradient, as if only the outputs of the
            last steps are used.
        gives_sparse: whether a parameter gets a sparse gradient, whose sum must not begin with dense zeros.
        constant_caches: the names of caches that steps fill with tensors that need no gradient.
        temporary_leaves: the most leaves requiring a gradient that a step may create; None skips the check,
            since an earlier call showed all leaves.
        hidden_leaves: leaves that only the graph of the first steps showed, as weak references.
        lifted: of an earlier call, the flags of the ``StatePart`` of each place that steps change, by the label
            of the place, so that no object is kept alive.
    """

    writes_passed: bool = False
    losses_change_state: bool = False
    needs_graph: bool = False
    has_gradients: bool = True
    losses_are_late: bool = False
    gives_sparse: bool = False
    constant_caches: frozenset[str] = frozenset()
    temporary_leaves: int | None = None
    hidden_leaves: tuple[Any, ...] = ()
    lifted: Mapping[tuple[str, bool], tuple[bool, ...]] = field(default_factory=dict)


class Steps:
    """The steps of a call. Each step calls the cell, and the loss with the output of the cell.

    Arguments:
        cell: the cell.
        inputs: provides the inputs.
        state: the working state.
        outputs: takes the outputs.
        final_loss: the loss of the final state, or None.
        parameters: the leaves whose gradients are wanted.
        constants: how many of the last ``parameters`` stand for constants with a graph.
        first_roots: for each tensor of the first state, whether it requires a gradient, and whether it has a
            ``grad_fn``.
        traits: the observed traits of the steps.
    """

    #: The sums of the losses that a backward pass of its own computed again, and of their absolute values.
    recomputed_loss = recomputed_scale = 0.0
    #: Whether steps have a backward pass of their own, and whether some of them run compiled.
    has_own_backward = is_compiled = False

    def __init__(
        self,
        cell: Cell,
        inputs: Inputs,
        state: LiftedState,
        outputs: Outputs,
        *,
        final_loss: Callable[[Any], Any] | None,
        parameters: Sequence[Tensor],
        constants: int,
        first_roots: Sequence[tuple[bool, bool]],
        traits: StepTraits,
    ) -> None:
        self.cell, self.inputs, self.state, self.outputs = cell, inputs, state, outputs
        self._final_loss, self._first_roots, self._traits = final_loss, first_roots, traits
        self.parameters = parameters
        begin_empty = len(parameters) if traits.gives_sparse else constants
        self.sums = GradientSums(parameters, begin_empty=begin_empty)
        #: The number of steps that have run at least once.
        self.frontier = 0
        #: Keeps numbers of new steps, None if nothing is compared.
        self.verifier: Verifier | None = None
        #: The gradients of the state at the end of the next tape to reverse, and hooks on its tensors.
        self.state_gradients: list[Gradient] = []
        self._hooks: list[list[Any]] = []
        #: The gradients of all inputs.
        self.input_gradients: list[Gradient] = []
        self._took_final_loss = False
        #: Whether steps leave a graph although gradients are disabled, as steps that enable them do.
        self._leaves_graph = False

    def advance(self, start: int, stop: int, cached: int | None = None) -> None:
        """Run steps without a tape. If steps need a graph, record each step, and drop its tape at once.

        The caches of the last ``cached`` steps stay, None for all; most steps have no caches.
        """
        if self._traits.needs_graph:
            for step in range(start, stop):
                self.record(step, step + 1)
            return
        with torch.no_grad():
            while start < stop:
                # Either all steps of a run ran before, or none.
                end = min(self._find_end(start, stop), self.frontier if start < self.frontier else stop)
                leaves, nest = self.inputs.cut(start, end)
                terms = self.run(leaves, nest, start, end)
                if start >= self.frontier:
                    self.end_new_run(start, end, terms)
                    self.frontier = end
                start = end

    def _find_end(self, start: int, stop: int) -> int:
        """Return the latest end of a run without a tape, which limits how many inputs exist at a time."""
        return min(stop, start + self.inputs.cut_steps)

    def record(self, start: int, stop: int) -> Tape:
        """Run steps with a tape. Afterwards the working state is outside of any graph.

        Raises LateStateError, and InputError for a leaf that requires a gradient and that is no known
        parameter.
        """
        begin = self.state.read()
        with torch.enable_grad():
            roots, given = self._make_roots(begin, is_first=start == 0)
            self.state.write(begin, given)
            leaves, nest = self.inputs.cut(start, stop)
            leaves, hooks = detach_inputs(leaves), RemovableHandle.next_id
            try:
                terms = self.run(leaves, nest, start, stop)
            except RuntimeError as error:
                if "a view of a leaf Variable" not in str(error):
                    raise
                written = [part for part in self.state.parts if part.carries]
                raise LateStateError("a later step writes into its state in place", written=written) from error
            final_terms = self._take_final_loss() if stop == self.inputs.steps else []
        end = self.state.read()
        self._check_carried(end)
        given_tensors = [None if isinstance(leaf, Placeholder) else leaf for leaf in given]
        tape = Tape(start, stop, roots, given_tensors, end.leaves, leaves, terms, final_terms)
        tape.has_hooks = RemovableHandle.next_id != hooks
        if self._traits.temporary_leaves is not None:
            self._check_leaves(tape, self._traits.temporary_leaves * (stop - start))
        # Tensors that no step replaced stay the same objects.
        triples = zip(given, begin.leaves, begin.owners, strict=True)
        unreplaced = {id(new): old for new, old, part in triples if not part.is_written}
        self.state.write(end, detach_computed([unreplaced.get(id(leaf), leaf) for leaf in end.leaves]))
        if start >= self.frontier:
            self.end_new_run(start, stop, terms)
        self.frontier = max(self.frontier, stop)
        return tape

    def run(self, leaves: Sequence[Tensor], nest: Nest, start: int, stop: int) -> list[Tensor]:
        """Run steps on their inputs in the current grad mode; return the terms through which gradients enter.

        If steps run again without a tape, their losses are taken only if losses change state. Subclasses that
        run several steps at once override this function.
        """
        cell, take, passed = self.cell, self.outputs.take, self.state.passed
        records, frontier = torch.is_grad_enabled(), self.frontier
        takes = start >= frontier or records or self._traits.losses_change_state
        is_new, terms, state = start >= frontier, list[Tensor](), passed.value
        for step, x in enumerate(self.inputs.iterate(leaves, nest, start, stop), start):
            result = cell(state, x)
            if result.__class__ is not tuple or len(result) != 2:
                check_result(result)
            state, output = result
            if takes:
                terms += take(step, output, is_new=is_new)
            if not records and (self._leaves_graph or step == start):
                passed.value = state
                self._drop_leftover_graph()
                state = passed.value
        passed.value = state
        return [*terms, *self.outputs.flush(stop)]

    def _drop_leftover_graph(self) -> None:
        """Drop the graph that a step left, which would keep the graphs of all earlier steps alive."""
        self._leaves_graph = self._leaves_graph or any(
            leaf.grad_fn is not None for leaf in self.state.read().leaves
        )
        if self._leaves_graph:
            self.state.detach()

    def _make_roots(self, begin: Checkpoint, *, is_first: bool) -> tuple[list[Tensor | None], list[Tensor]]:
        """Return the roots of a graph, and the tensors that steps get for them (see ``Tape``)."""
        roots: list[Tensor | None] = []
        given: list[Tensor] = []
        pairs: dict[int, tuple[Tensor | None, Tensor]] = {}
        for place, (leaf, part) in enumerate(begin.pair()):
            if isinstance(leaf, Placeholder):
                roots.append(None)
                given.append(leaf)
                continue
            if id(leaf) not in pairs:
                carries, is_computed = part.is_carried(leaf), True
                if is_first and place < len(self._first_roots):
                    carries, is_computed = self._first_roots[place]
                pairs[id(leaf)] = (
                    _make_root(leaf, part, is_computed=is_computed) if carries else (None, leaf.detach())
                )
            root, given_leaf = pairs[id(leaf)]
            roots.append(root)
            given.append(given_leaf if root is not None or leaf.grad_fn is not None else leaf)
        return roots, given

    def _take_final_loss(self) -> list[Tensor]:
        if self._final_loss is None:
            return []
        term = check_scalar(self._final_loss(self.state.passed.value), "final_loss")
        if not self._took_final_loss and isinstance(self.outputs, SummedLoss):
            self.outputs.add([term])
        self._took_final_loss = True
        return [term]

    def _check_carried(self, end: Checkpoint) -> None:
        """Raise LateStateError if a part carries a gradient that was not known to do so."""
        late = [part for leaf, part in end.pair() if leaf.grad_fn is not None and not part.carries]
        if late:
            raise LateStateError(f"{late[0].name} carries a gradient from a later step on", carrying=late)

    def _check_leaves(self, tape: Tape, temporary: int) -> None:
        """Raise InputError if a tape reaches a leaf that is no known parameter."""
        known = {id(leaf) for leaf in (*self.parameters, *tape.roots, *tape.inputs) if leaf is not None}
        unknown = [leaf for leaf in find_leaves(tape.list_outputs()) if id(leaf) not in known]
        if len(unknown) > temporary:
            tensors = f"{len(unknown)} tensors" if len(unknown) > 1 else "a tensor"
            raise InputError(
                f"steps {tape.start} to {tape.stop - 1} use {tensors} with requires_grad that neither the cell "
                f"nor its first steps reached (shape {tuple(unknown[0].shape)}); the gradient would be lost",
                field="parameters",
                accepted="parameters=[...] with every tensor that needs a gradient",
            )

    def reverse(self, tape: Tape, incoming: Sequence[Gradient]) -> None:
        """Backpropagate through a tape, given the gradients of the results; the tape is used up."""
        hand_over_hooks(self._hooks, tape.ends)
        roots = tape.roots
        self._hooks = take_hooks(tape.given)
        if tape.has_hooks:
            roots = self._list_targets(tape)
        gradients = [*(self.state_gradients or [None] * len(tape.ends))]
        if incoming:
            gradients += self.list_gradients(tape, incoming)
            gradients += [incoming[0]] * len(tape.final_terms)
        else:
            gradients += [None] * (len(tape.terms) + len(tape.final_terms))
        leaves = (*roots, *tape.inputs)
        wanted = list({id(leaf): leaf for leaf in leaves if leaf is not None and leaf.requires_grad}.values())
        self.state_gradients = []
        reached = self.sums.backpropagate(tape.list_outputs(), gradients, wanted)
        by_leaf = {id(leaf): gradient for leaf, gradient in zip(wanted, reached, strict=True)}
        # A tensor in several places of the state has one root, which gets the gradients of all places.
        self.state_gradients = [by_leaf.pop(id(root), None) for root in roots]
        start, stop = self.inputs.rows(tape.start, tape.stop)
        for whole, piece in zip(self.input_gradients, tape.inputs, strict=False):
            part = by_leaf.get(id(piece))
            if whole is not None and part is not None:
                whole[start:stop] = part

    def _list_targets(self, tape: Tape) -> list[Tensor | None]:
        """Check hooks on the ``grad_fn`` of given tensors; return the tensors to differentiate by."""
        targets = tape.roots.copy()
        for number, (root, given, hooks) in enumerate(zip(tape.roots, tape.given, self._hooks, strict=True)):
            if root is not None and given is not None and given.grad_fn is not None and tape.start:
                hooks.append(check_node_hooks(given, root, tape.start))
                targets[number] = given
        return targets

    def move_caches(self, steps: tuple[int, int], store: TensorStore[Any], target: Tier) -> None:
        """Move the caches of steps to or from a store. Only a ``ChunkCell`` has caches besides its tapes."""

    def number_caches(self, steps: tuple[int, int]) -> list[int]:
        """Return the numbers under which a store keeps the caches of ``steps``."""
        return []

    @property
    def compares_terms(self) -> bool:
        """Whether the terms of steps that run again can be compared with those of their first run."""
        return self.outputs.has_step_terms

    def end_new_run(self, start: int, stop: int, terms: Sequence[Tensor]) -> None:
        """End a run of steps that ran for the first time."""
        self.outputs.add(terms)
        if self.verifier is not None and self.compares_terms:
            self.verifier.compare_terms(start, stop, terms)

    def list_gradients(self, tape: Tape, incoming: Sequence[Gradient]) -> list[Gradient]:
        """Return the gradients of the terms of a tape, given the gradients of the results."""
        return list(self.outputs.list_gradients(tape.start, tape.stop, incoming, len(tape.terms)))

    @property
    def saved_bytes(self) -> int:
        """The bytes of the caches that are kept now."""
        return 0

    @property
    def cache_bytes(self) -> int:
        """The bytes of the cache of a step: the larger of the means of kept and of dropped caches."""
        return 0

    def take_first_hooks(self) -> list[list[Any]]:
        """Return the hooks that steps registered on the first state."""
        hooks, self._hooks = self._hooks, []
        return hooks

    def close(self) -> None:
        """Release the data of one sequence. There is none here; subclasses may override this."""


def _make_root(leaf: Tensor, part: StatePart, *, is_computed: bool) -> tuple[Tensor, Tensor]:
    root = leaf.detach().requires_grad_()
    if part.is_written or root.layout is not torch.strided:
        return root, root.clone()
    return root, root.view_as(root) if is_computed else root


def take_step(cell: Cell, state: Any, x: Any) -> tuple[Any, Any]:
    """Call a cell for one step, and return its result. Errors of the cell get a note with its arguments.

    Raises InputError if the result is not (state, output).
    """
    try:
        result = cell(state, x)
    except Exception as error:
        is_list = (
            f"; torch.stack makes one tensor of a list of {len(x)} time steps" if is_list_of_steps(x) else ""
        )
        error.add_note(
            f"ckptplan: raised by cell(state, x) with state {describe_tensors(state)} and x "
            f"{describe_tensors(x)}{is_list}. Accepted: {_ACCEPTED}"
        )
        raise
    return check_result(result)


def check_result(result: Any) -> tuple[Any, Any]:
    """Return the result of a cell. Raises InputError if the result is not (state, output)."""
    if not isinstance(result, tuple) or len(result) != 2:
        count = f" of {len(result)}" if isinstance(result, tuple) else ""
        raise InputError(f"returned {type(result).__name__}{count}", field="cell", accepted=_ACCEPTED)
    return result
