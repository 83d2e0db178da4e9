"""One step of a loop as a function of flat arrays, traced once: what it closes over becomes an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from ckptplan.errors import InputError
from ckptplan.jax.jaxprs import evaluate, inline_calls, walk
from ckptplan.jax.leaves import (
    Arrays,
    axes_of,
    has_gradient,
    set_weak,
    shape_of,
    shapes_of,
    split,
)

#: Operations that a loop under a plan cannot carry -> what calls them, and what is accepted.
_UNSUPPORTED = {
    "check": ("calls checkify.check", "a check of outputs after the call, or jax.lax.scan"),
    "new_ref": ("makes a jax.Ref", "arrays that are replaced, as by x.at[0].set(y)"),
}
#: ``step(t, state, x)`` returns the next state, outputs to stack over time, and terms to sum over time.
Step = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


class TracedStep:
    """A step as a jaxpr over flat arrays: constants, state, input, t -> state, outputs, terms.

    Constants are what the step closes over. Shapes are those of the trace: in eager code, ``shard_map`` tells
    other axes of the arrays themselves.
    """

    def __init__(
        self, jaxpr: core.Jaxpr, counts: tuple[int, int, int], trees: tuple[Any, Any], *, is_batch: bool = False
    ) -> None:
        """Take the numbers of leaves of constants, state and outputs, and the trees of the last two.

        In a batch, constants may have its axis, too: of the outputs, which the caller turns, a compiler then
        makes a copy.
        """
        self.jaxpr, self.counts, self.is_batch, self._trees = jaxpr, counts, is_batch, trees
        self.constants, self.state, self.inputs = self.split_given(shapes_of(_kinds_of(jaxpr.invars[:-1])))
        _, self.outputs, self.terms = self.split_results(shapes_of(_kinds_of(jaxpr.outvars)))

    def change(self, jaxpr: core.Jaxpr, *, constants: int | None = None, is_batch: bool = False) -> TracedStep:
        """Return a step with other operations, and perhaps another number of constants."""
        counts = len(self.constants) if constants is None else constants, *self.counts[1:]
        return TracedStep(jaxpr, counts, self._trees, is_batch=is_batch)

    def run(
        self, constants: Sequence[Any], state: Sequence[Any], x: Sequence[Any], t: Any
    ) -> tuple[Arrays, Arrays, Arrays]:
        """Return the next state, the outputs and the terms of a step."""
        return self.split_results(evaluate(self.jaxpr, (*constants, *state, *x, t)))

    def split_given(self, leaves: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Return constants, state and the rest."""
        constants, state, rest = split(leaves, *self.counts[:2])
        return constants, state, rest

    def split_results(self, leaves: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Return state, outputs and the rest: terms."""
        state, outputs, rest = split(leaves, *self.counts[1:])
        return state, outputs, rest

    def batch(self, size: int, *, constants: Sequence[bool], inputs: Sequence[bool]) -> TracedStep:
        """Return a step that takes a batch of steps at once: the first axis of states, outputs and terms.

        Arguments:
            size: the batch.
            constants: whether each of the constants has such an axis.
            inputs: whether each leaf of an input has one.
        """
        chosen = (*constants, *(True for _ in self.state), *inputs)
        leaves = zip((*self.constants, *self.state, *self.inputs), chosen, strict=True)
        given = [leaf.update(shape=(size, *leaf.shape)) if some else leaf for leaf, some in leaves]
        run = jax.vmap(
            lambda *flat: evaluate(self.jaxpr, flat),
            in_axes=(*(0 if some else None for some in chosen), None),
            axis_size=size,
        )
        jaxpr = jax.make_jaxpr(run)(*given, jax.ShapeDtypeStruct((), jnp.int32)).jaxpr
        return self.change(jaxpr, is_batch=any(constants))

    def raise_results(self, state: Arrays, outputs: Arrays) -> tuple[Any, Any]:
        """Return the last state and stacked outputs as the user's cell returns them, with its weak types."""
        pairs = zip((*state, *outputs), _kinds_of(self.jaxpr.outvars), strict=False)
        found = split([set_weak(array, weak=kind.weak_type) for array, kind in pairs], len(state))
        after, stacked = map(jax.tree.unflatten, self._trees, found)
        return after, stacked


def _kinds_of(atoms: Sequence[Any]) -> list[Any]:
    return [one.aval for one in atoms]


def trace_step(
    step: Step, init: Any, xs: Any, *, field: str = "f", first: str = "init"
) -> tuple[TracedStep, Arrays, Arrays]:
    """Trace a step at its initial state and at the shapes of its inputs, which have time as the first axis.

    Returns it with its constants, and with the initial state in the types of the states that follow.

    Messages name the function of the caller as ``field``, and the initial state as ``first``. Raises
    InputError if the step changes the structure, shapes or types of its state, or mutable arrays; if it uses
    what a callback returns; if it communicates over an axis of ``jax.vmap``; or if arrays are sharded over
    explicit axes of a mesh.
    """
    given: list[Any]
    state_tree: Any
    given, state_tree = jax.tree.flatten(init)
    inputs, input_tree = jax.tree.flatten(xs)
    _check_shardings(map(jax.typeof, given), field=first)
    _check_shardings(map(jax.typeof, inputs), field="xs")
    state = _as_arrays(given)
    slices = tuple(
        shape_of(leaf, skip=1).update(weak_type=leaf.weak_type) for leaf in jax.eval_shape(_as_arrays, inputs)
    )
    notes: dict[str, Any] = {}

    def flat_step(state: Arrays, x: Arrays, t: jax.Array) -> tuple[Arrays, Arrays, Arrays]:
        before = jax.tree.unflatten(state_tree, state)
        after, outputs, terms = step(t, before, jax.tree.unflatten(input_tree, x))
        after_leaves, after_tree = jax.tree.flatten(after)
        if after_tree != state_tree:
            raise InputError(
                f"changes the structure of its state{_find_difference(before, after)}: {state_tree} becomes "
                f"{after_tree}",
                field=field,
                accepted="a state of the same structure after each step",
            )
        output_leaves, notes["output_tree"] = jax.tree.flatten(outputs)
        return _as_arrays(after_leaves), _as_arrays(output_leaves), _as_arrays(jax.tree.leaves(terms))

    t = jax.ShapeDtypeStruct((), jnp.int32)
    closed, shapes = jax.make_jaxpr(flat_step, return_shape=True)(state, slices, t)
    promoted = tuple(map(_promote, state, shapes[0]))
    if any(one is not leaf for one, leaf in zip(promoted, state, strict=True)):
        state = promoted
        closed, shapes = jax.make_jaxpr(flat_step, return_shape=True)(state, slices, t)
    _check_state(init, closed.in_avals[: len(state)], shapes[0], field=field, first=first)
    check_repeatable(closed, field=field)
    jaxpr, constants = inline_calls(closed)
    _check_operations(jaxpr, field=field)
    _check_collectives(jaxpr, field=field)
    kinds = (
        one.aval
        for inner in walk(jaxpr)
        for one in (
            *inner.constvars,
            *inner.invars,
            *(out for equation in inner.eqns for out in equation.outvars),
        )
    )
    _check_shardings(kinds, field=field)
    counts = len(constants), len(state), len(shapes[1])
    return TracedStep(jaxpr, counts, (state_tree, notes["output_tree"])), constants, state


def _as_arrays(leaves: Sequence[Any]) -> Arrays:
    return tuple(map(jnp.asarray, leaves))


def _promote(leaf: Any, shape: jax.ShapeDtypeStruct) -> Any:
    """Return a leaf of a state with the type of the next one if it was a Python number, else as it is.

    As ``jax.lax.scan`` does: of a number and another type, it is the type of their sum.
    """
    changes = leaf.dtype != shape.dtype and getattr(leaf, "weak_type", False)
    return leaf.astype(jnp.result_type(leaf, shape.dtype)) if changes else leaf


def _find_difference(before: Any, after: Any, path: str = "") -> str:
    """Return the path to where the structures of two trees differ first; the empty text is the whole."""
    parts = [
        dict(jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda one, whole=tree: one is not whole)[0])
        for tree in (before, after)
    ]
    if parts[0].keys() == parts[1].keys():
        for key, one in parts[0].items():
            other = parts[1][key]
            first: Any = jax.tree.structure(one)
            if key and first != jax.tree.structure(other):
                return _find_difference(one, other, path + jax.tree_util.keystr(key))
    return path


def _check_shardings(kinds: Iterable[Any], *, field: str) -> None:
    """Raise InputError if an array is sharded over explicit axes of a mesh."""
    if any(axis is not None for kind in kinds if hasattr(kind, "sharding") for axis in kind.sharding.spec):
        raise InputError(
            "has arrays that are sharded over explicit axes of a mesh, which is not supported under a plan",
            field=field,
            accepted="a mesh with AxisType.Auto, or jax.shard_map around the call",
        )


def check_repeatable(closed: core.ClosedJaxpr, *, field: str = "f") -> None:
    """Raise InputError if a step uses what may differ when it runs again.

    That is a mutable array from outside, and what a callback with effects returns.
    """
    for jaxpr in walk(closed.jaxpr):
        used = {
            id(one) for one in (*jaxpr.outvars, *(one for equation in jaxpr.eqns for one in equation.invars))
        }
        for equation in jaxpr.eqns:
            if equation.primitive.name == "io_callback" and any(id(one) in used for one in equation.outvars):
                raise InputError(
                    "uses what io_callback returns, and a step may run more than once",
                    field=field,
                    accepted="values that are part of the state or the inputs, or jax.pure_callback of a "
                    "function that always returns the same for the same arguments",
                )
    if any(isinstance(one, jax.Ref) for one in closed.consts):
        raise InputError(
            "reads or writes a jax.Ref from outside, and a step may run more than once",
            field=field,
            accepted="a step whose changing arrays are part of its state",
        )


def _check_operations(jaxpr: core.Jaxpr, *, field: str) -> None:
    """Raise InputError if a step has operations that are not supported."""
    for equation in (equation for inner in walk(jaxpr) for equation in inner.eqns):
        if equation.primitive.name in _UNSUPPORTED:
            what, accepted = _UNSUPPORTED[equation.primitive.name]
            raise InputError(f"{what}, which is not supported under a plan", field=field, accepted=accepted)


def find_collectives(jaxpr: core.Jaxpr) -> Iterator[tuple[str, str]]:
    """Yield the name of each operation over a named axis, and the axis."""
    for equation in (equation for inner in walk(jaxpr) for equation in inner.eqns):
        for value in (equation.params.get("axes"), equation.params.get("axis_name")):
            for axis in value if isinstance(value, tuple) else (value,):
                if isinstance(axis, str):
                    yield equation.primitive.name, axis


def _check_collectives(jaxpr: core.Jaxpr, *, field: str) -> None:
    """Raise InputError if a step communicates over an axis of ``jax.vmap``; axes of ``shard_map`` are fine."""
    manual = set(jax.sharding.get_abstract_mesh().manual_axes)
    for name, axis in find_collectives(jaxpr):
        if axis not in manual:
            raise InputError(
                f"calls {name} over the axis {axis!r} of jax.vmap, which is not supported under a plan",
                field=field,
                accepted="collectives of shard_map, or the same sum over an axis of the state",
            )


def _check_state(
    init: Any, state: Sequence[Any], after: Sequence[jax.ShapeDtypeStruct], *, field: str, first: str
) -> None:
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(init)[0]]
    for path, leaf, shape in zip(paths, state, after, strict=True):
        if leaf.shape != shape.shape or leaf.dtype != shape.dtype:
            before = f"{leaf.dtype}{list(leaf.shape)}"
            raise InputError(
                f"changes its state{path} from {before} to {shape.dtype}{list(shape.shape)}",
                field=field,
                accepted="a state of the same shapes and types after each step",
            )
        axes, later = axes_of(leaf), axes_of(shape)
        if axes != later:
            raise InputError(
                f"changes the devices that its state{path} varies over from {axes or 'none'} to "
                f"{later or 'none'}",
                field=field,
                accepted="a first state that varies as later ones do: "
                f"jax.lax.pcast({first}, axes, to='varying')",
            )


def differentiable(leaves: Sequence[Any]) -> tuple[int, ...]:
    """Return the places of leaves that may have a gradient."""
    return tuple(place for place, leaf in enumerate(leaves) if has_gradient(leaf))
