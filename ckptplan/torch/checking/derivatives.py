"""Runs a call on copies of its tensors, and compares the gradients of two such runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ckptplan.schedule.actions import Action
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.constants import Constants
from ckptplan.torch.run.executor import Executor
from ckptplan.torch.run.gradients import Gradient, drop_waiting_operations, without_hooks
from ckptplan.torch.run.scope import Scope
from ckptplan.torch.run.sequence import execute
from ckptplan.torch.state.digests import digest, repeat_weights
from ckptplan.torch.state.nests import fill, flatten, is_differentiable, list_leaves


@dataclass(frozen=True, kw_only=True)
class Derivatives:
    """The loss of a run, and the digests of its gradients, which take less memory than the gradients.

    Arguments:
        steps: the steps that ran.
        total: the loss.
        names: the names of the leaves whose gradients are wanted.
        dtypes: the types of these leaves.
        has_gradients: whether the loss leads to any of these leaves.
        digests: two numbers of each gradient, zeros if there is none.
        has_sparse: whether a gradient is sparse.
        constants: the ids of the constants that have a gradient.
    """

    steps: int
    total: float
    names: list[str]
    dtypes: list[torch.dtype]
    has_gradients: bool
    digests: list[tuple[float, float]]
    has_sparse: bool
    constants: set[int]

    def list_differences(self, other: Derivatives) -> Iterator[tuple[str, torch.dtype, float, bool]]:
        """Compare the gradients with those of another run.

        Yields the name and the type of each leaf, by which share of its norm the gradient differs, and whether
        it is missing in the other run.
        """
        rows = zip(self.names, self.dtypes, self.digests, other.digests, strict=True)
        for name, dtype, (old, norm), (new, new_norm) in rows:
            size = norm or new_norm
            share = max(abs(old - new), abs(norm - new_norm)) / size if size else 0.0
            yield name, dtype, share, not new_norm


#: Runs a call with its constants; returns the terms of the loss, the final state, and the steps that ran.
Runner = Callable[[Call, Constants], tuple[Sequence[Tensor], Any, int]]


def differentiate(
    call: Call,
    scope: Scope,
    run: Runner,
    enter: Callable[[], AbstractContextManager[Any]] = nullcontext,
    *,
    copies: bool = False,
) -> Derivatives:
    """Run a call on copies of its tensors; return the gradients of parameters, state, inputs and constants.

    All changes are undone.

    Arguments:
        call: the call.
        scope: the scope of the call.
        run: runs the copy of the call.
        enter: returns a context around the forward and the backward pass.
        copies: whether steps write in place into tensors that an earlier call left with a graph.
    """
    leaves, nest = flatten(call.state, parameters=True)
    # Steps may write into the tensors that they get.
    state = [leaf.detach().clone().requires_grad_(leaf.requires_grad) for leaf in leaves]
    # A computed tensor is no leaf.
    given = [
        copied if leaf.grad_fn is None else copied.view_as(copied)
        for copied, leaf in zip(state, leaves, strict=True)
    ]
    inputs = call.inputs.take_first(call.inputs.steps)
    constants = Constants(scope.reach.list_graph_places())
    constants.insert_computed(copies=copies)
    try:
        with enter():
            # Hold the final state until gradients arrive, as a user does.
            terms, final, steps = run(replace(call, inputs=inputs, state=fill(nest, given)), constants)
            live = [term for term in terms if term.requires_grad]
            if scope.traits.losses_are_late:
                live += _weigh_state(final, scope)
            names = _name_leaves(call, scope, state, inputs.leaves, constants)
            wanted = [leaf for leaf, _ in names]
            has_gradients = bool(live and wanted)
            gradients: Sequence[Gradient] = [None] * len(wanted)
            if has_gradients:
                gradients = _backpropagate(live, wanted, scope.list_parameters(call))
        reached = {id(leaf) for leaf, gradient in zip(wanted, gradients, strict=True) if gradient is not None}
        originals = zip(constants.originals, constants.leaves, strict=True)
        rows, in_rows = inputs.rows(0, steps)[1], {id(leaf) for leaf in inputs.leaves}
        return Derivatives(
            steps=steps,
            total=float(sum(float(term.detach()) for term in terms)),
            names=[name for _, name in names],
            dtypes=[leaf.dtype for leaf in wanted],
            has_gradients=has_gradients,
            digests=[
                _digest(gradient, rows if id(leaf) in in_rows else None)
                for leaf, gradient in zip(wanted, gradients, strict=True)
            ],
            has_sparse=any(gradient is not None and gradient.is_sparse for gradient in gradients),
            constants={id(original) for original, leaf in originals if id(leaf) in reached},
        )
    finally:
        scope.reach.restore(scope.start)


def differentiate_actions(
    call: Call,
    scope: Scope,
    actions: Iterable[Action],
    observer: Any = None,
) -> Derivatives:
    """Run a call under the actions of a schedule, as ``differentiate``, within a context of the observer."""

    def run(copied: Call, _: Constants) -> tuple[Sequence[Tensor], Any, int]:
        results, final = execute(Executor(copied, iter(actions), scope, observer=observer))
        return weigh_results(copied, results), final, copied.inputs.steps

    return differentiate(call, scope, run, getattr(observer, "enter", nullcontext))


def _backpropagate(ends: list[Tensor], wanted: list[Tensor], parameters: list[Tensor]) -> Sequence[Gradient]:
    """Return the gradients of leaves. The hooks of parameters are not called."""
    try:
        with without_hooks(parameters):
            return torch.autograd.grad(ends, wanted, [torch.ones_like(end) for end in ends], allow_unused=True)
    except BaseException:
        drop_waiting_operations()
        raise


def _digest(gradient: Any, rows: int | None) -> tuple[float, float]:
    """Return two numbers of a gradient, or of its first rows."""
    if gradient is None:
        return 0.0, 0.0
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return digest(dense if rows is None else dense[:rows])


def weigh(tensor: Tensor) -> Tensor:
    """Return a weighted sum of a tensor, whose gradient has many values."""
    # A DTensor cannot be multiplied by weights that are no DTensor.
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    flat = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).reshape(-1)
    return (flat * repeat_weights(flat.numel(), flat.dtype, flat.device)).sum()


def weigh_results(call: Call, results: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the losses of a call; without losses, a weighted sum of the outputs of each step."""
    if call.losses:
        return results
    inputs, steps = call.inputs, range(call.inputs.steps)
    terms: list[Tensor] = []
    for result in results:
        if is_differentiable(result):
            rows = [inputs.rows(step, step + 1) for step in steps] if inputs.joins_outputs else []
            parts = result.split([stop - start for start, stop in rows]) if rows else result.unbind(0)
            terms += map(weigh, parts)
    return terms


def _weigh_state(passed: Any, scope: Scope) -> list[Tensor]:
    """Return weighted sums of the tensors of a state that require gradients."""
    places = [part.place.get() for part in scope.lifted if not part.is_content]
    leaves = [leaf for value in (passed, *places) for leaf in list_leaves(value)]
    return [weigh(leaf) for leaf in leaves if leaf.requires_grad and is_differentiable(leaf)]


def _name_leaves(
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
