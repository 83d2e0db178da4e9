"""Runs a table of rows as one program with a reverse-mode rule: a loop over rows, loops over steps inside.

Buffers are allocated once and written in place. The first sweep is the forward pass; the rows from the
first Backward run when gradients are asked for.

Reads and writes checkpoints and tapes in the buffers of a program, at the places of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from ckptplan.errors import InputError
from ckptplan.jax.leaves import Arrays, choose, has_gradient, make_zeros, put, set_weak, take, zeros_of
from ckptplan.jax.remote import RemoteStates, refuse_batches
from ckptplan.jax.step import TracedStep, differentiable
from ckptplan.jax.sums import GradientSums
from ckptplan.jax.table import COLUMNS, SLOT_COLUMNS, Position, RowTable
from ckptplan.jax.tapes import Recording, Wanted, find_wanted


class BufferStore:
    """The buffers of a program as a functional store: each write returns the buffers that follow."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._tape_of = jnp.asarray(table.tape_of)
        self._states = _Leaves(table.layout.state, table.state_places)
        self._tapes = _Leaves(table.layout.tape, table.tape_places)

    def make(self) -> Arrays:
        """Return buffers of zeros."""
        sizes = zip(self._table.rooms, self._table.layout.buffers, strict=True)
        return tuple(zeros_of(leaf, room) for room, leaf in sizes)

    def load(self, buffers: Arrays, slot: Any) -> Arrays:
        """Return the checkpoint in a slot."""
        return self._states.read(buffers, slot)

    def save(self, buffers: Arrays, state: Arrays, slot: Any) -> Arrays:
        """Return the buffers with a state in a slot; a negative slot leaves them as they are."""
        return self._states.write(buffers, state, jnp.maximum(slot, 0), only_if=slot >= 0)

    def put(self, buffers: Arrays, state: Arrays, slot: Any) -> Arrays:
        """Return the buffers with a state in a slot."""
        return self._states.write(buffers, state, slot)

    def record(self, buffers: Arrays, tape: Arrays, t: Any) -> Arrays:
        """Return the buffers with the tape of step t."""
        return self._tapes.write(buffers, tape, self._tape_of[t])

    def tape(self, buffers: Arrays, t: Any) -> Arrays:
        """Return the tape of step t."""
        return self._tapes.read(buffers, self._tape_of[t])


class _Leaves:
    """Leaves at the places of a row, which is given by its number."""

    def __init__(self, positions: Sequence[Position], places: npt.NDArray[np.int32]) -> None:
        self._positions = positions
        numbers = np.arange(len(places), dtype=np.int32)[:, None]
        #: None if the number of a row is the place of each leaf.
        self._places = None if np.array_equal(places, numbers) else jnp.asarray(places)

    def read(self, buffers: Arrays, number: Any) -> Arrays:
        places = self._places_of(number)
        return tuple(
            _at(buffers[buffer], place) for (buffer, _), place in zip(self._positions, places, strict=True)
        )

    def write(
        self, buffers: Arrays, leaves: Sequence[jax.Array], number: Any, *, only_if: Any = None
    ) -> Arrays:
        changed = list(buffers)
        places = self._places_of(number)
        for (buffer, _), place, leaf in zip(self._positions, places, leaves, strict=True):
            if only_if is not None:
                # What is there is read after the writes before: of unordered ones, the compiler makes a copy.
                leaf = jnp.where(only_if, leaf, _at(changed[buffer], place))  # noqa: PLW2901
            changed[buffer] = lax.dynamic_update_index_in_dim(changed[buffer], leaf, place, 0)
        return tuple(changed)

    def _places_of(self, number: Any) -> list[Any]:
        if self._places is None:
            return [number] * len(self._positions)
        row = self._places[number]
        return [row[column] for _, column in self._positions]


def _at(buffer: jax.Array, place: Any) -> jax.Array:
    found: jax.Array = lax.dynamic_index_in_dim(buffer, place, keepdims=False)
    return found


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A traced step with the schedule that it runs under."""

    step: TracedStep
    wanted: Wanted
    recording: Recording
    sums: GradientSums
    table: RowTable
    #: Whether the sequence is run from its end.
    reverse: bool
    #: None if the schedule keeps nothing in remote memory.
    remote: RemoteStates | None

    def input_place(self, t: Any) -> Any:
        """Return where the input and the output of step t are."""
        return self.table.steps - 1 - t if self.reverse else t


def run_loop(
    step: TracedStep, xs: Arrays, *, loop_of: Callable[[Wanted], Loop]
) -> tuple[Arrays, Arrays, Arrays]:
    """Return the final state, the stacked outputs and the sums of terms; all can be differentiated once.

    ``loop_of`` chooses how to run the steps once it is known which gradients are wanted.
    """
    loop_for = lru_cache(loop_of)
    loop = loop_for(find_wanted(step))

    @jax.custom_vjp
    def call(constants: Arrays, state: Arrays, xs: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        return _run_forward(loop, constants, state, xs)

    def forward(constants: Any, state: Any, xs: Any) -> Any:
        values = tuple(tuple(jnp.asarray(one.value) for one in part) for part in (constants, state, xs))
        wanted = Wanted(constants=_perturbed(constants, step.constants), inputs=_perturbed(xs, step.inputs))
        results, kept = _once(partial(_sweep, loop_for(wanted)))(*values)
        return results, (_Static(wanted), *values, kept)

    def backward(held: Any, gradients: Any) -> Any:
        static, constants, state, xs, kept = held
        wanted = static.value
        incoming = _materialise(step, gradients)
        found = _once(partial(_reverse, loop_for(wanted)))(constants, xs, kept, incoming)
        return (
            _spread(constants, wanted.constants, found[0]),
            _spread(state, differentiable(step.state), found[1]),
            _spread(xs, wanted.inputs, found[2]),
        )

    call.defvjp(forward, backward, symbolic_zeros=True)
    if loop.remote is not None:
        refuse_batches((*step.constants, *step.state, *xs))
    given = (tuple(map(_guard, part)) for part in (step.constants, step.state, xs))
    results: tuple[Arrays, Arrays, Arrays] = call(*given)
    return results


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Static:
    """A value that passes from the forward to the backward pass beside arrays."""

    value: Wanted


def _perturbed(primals: Sequence[Any], shapes: Sequence[Any]) -> tuple[int, ...]:
    return tuple(place for place in differentiable(shapes) if primals[place].perturbed)


def _spread(leaves: Sequence[Any], places: Sequence[int], found: Sequence[Any]) -> tuple[Any, ...]:
    """Return a gradient for each leaf, None where none was computed."""
    by_place = dict(zip(places, found, strict=True))
    return tuple(by_place.get(place) for place in range(len(leaves)))


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that refuses to be differentiated."""
    guarded = jax.custom_jvp(function)

    def refuse(*_: Any) -> NoReturn:
        raise _refused("second derivatives")

    guarded.defjvp(refuse)
    return guarded


def _refused(what: str) -> InputError:
    return InputError(
        f"{what} of a loop under a plan are not supported",
        accepted="first derivatives in reverse mode, as by jax.grad and jax.vjp, or jax.lax.scan",
    )


def _refuse_forward(*_: Any, **__: Any) -> NoReturn:
    raise _refused("derivatives in forward mode")


#: The tangent of an argument. Reverse mode transposes it; only forward mode evaluates it, at once or in a
#: program.
_tangent = core.Primitive("tangent_of_a_plan")
_tangent.def_abstract_eval(lambda kind: kind)
_tangent.def_impl(_refuse_forward)
ad.deflinear(_tangent, lambda gradient: [gradient])
batching.primitive_batchers[_tangent] = lambda given, axes: (_tangent.bind(*given), axes[0])
mlir.register_lowering(_tangent, _refuse_forward)


def _guard(leaf: jax.Array) -> jax.Array:
    """Return an argument of a loop, whose type is not weak, so that forward mode is refused by name."""
    if not has_gradient(leaf):
        return leaf
    guarded = jax.custom_jvp(lambda one: one)
    guarded.defjvp(lambda primals, tangents: (primals[0], _tangent.bind(tangents[0])))
    found: jax.Array = guarded(set_weak(leaf, weak=False))
    return found


def _materialise(step: TracedStep, gradients: Any) -> tuple[Arrays, Arrays | None, Arrays]:
    """Return the incoming gradients of what is differentiable; None if none of the outputs has one."""
    final, stacked, sums = gradients
    states = tuple(_zero_or(final[place], step.state_shapes[place]) for place in differentiable(step.state))
    places = differentiable(step.outputs)
    unused = all(isinstance(stacked[place], jax.custom_derivatives.SymbolicZero) for place in places)
    some = tuple(_zero_or(stacked[place], step.outputs[place], *stacked[place].shape[:1]) for place in places)
    terms = tuple(_zero_or(one, leaf) for one, leaf in zip(sums, step.terms, strict=True))
    return states, None if unused else some, terms


def _zero_or(gradient: Any, leaf: jax.ShapeDtypeStruct, *room: int) -> jax.Array:
    """Return a gradient, or that of nothing: zeros with room for a number of leaves."""
    if isinstance(gradient, jax.custom_derivatives.SymbolicZero):
        return zeros_of(leaf, *room)
    return jnp.asarray(gradient)


def _run_forward(loop: Loop, constants: Arrays, state: Arrays, xs: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    """Run all steps without checkpoints, as if there were no plan."""

    def body(carry: Any, given: Any) -> Any:
        state, sums = carry
        t, x = given
        after, outputs, terms = loop.step.run(constants, state, x, t)
        return (after, _add(sums, terms)), outputs

    steps = loop.table.steps
    ts = jnp.arange(steps, dtype=jnp.int32)
    if loop.reverse:
        ts = ts[::-1]
    start = state, make_zeros(loop.step.terms)
    (state, sums), outputs = lax.scan(body, start, (ts, xs), reverse=loop.reverse)
    return state, tuple(outputs), sums


def _add(sums: Sequence[Any], terms: Sequence[Any]) -> Arrays:
    return tuple(one + other for one, other in zip(sums, terms, strict=True))


def _rows_of(rows: Any) -> Callable[[Any], dict[str, Any]]:
    """Return a function that names the columns of a row."""
    table = jnp.asarray(rows)
    return lambda number: dict(zip(COLUMNS, table[number], strict=True))


class _Mover:
    """Moves states between the working state, slots and remote memory, as a row says."""

    def __init__(self, table: RowTable, store: BufferStore, remote: RemoteStates | None, run: Any) -> None:
        self._store, self._remote, self._run = store, remote, run
        self._uses = {name: table.uses(name) for name in SLOT_COLUMNS}

    def load(self, row: dict[str, Any], state: Arrays, buffers: Arrays) -> tuple[Arrays, Arrays]:
        """Return the working state and the buffers; without a load, the state is carried over."""
        if self._uses["pull_from"]:
            buffers = self._pull(row, buffers)
        if self._uses["load"]:
            kept = self._store.load(buffers, jnp.maximum(row["load"], 0))
            state = choose(row["load"] >= 0, kept, state)
        if self._uses["remote_load"]:
            state = self._read(row["remote_load"], state)
        return state, buffers

    def save(self, row: dict[str, Any], state: Arrays, buffers: Arrays) -> Arrays:
        """Return the buffers, with the working state in a slot."""
        if self._uses["save"]:
            buffers = self._store.save(buffers, state, row["save"])
        if self._uses["remote_save"]:
            self._write(row["remote_save"], lambda: state)
        if self._uses["push_from"]:
            self._write(row["push_to"], lambda: self._store.load(buffers, row["push_from"]))
        return buffers

    def _read(self, place: Any, state: Arrays) -> Arrays:
        def body(_: Any, some: Arrays) -> Arrays:
            return self._far.read(self._run, place, some)

        # A loop of no or one round: a condition would copy what passes through it.
        found: Arrays = lax.fori_loop(0, jnp.where(place >= 0, 1, 0), body, state)
        return found

    def _pull(self, row: dict[str, Any], buffers: Arrays) -> Arrays:
        def body(_: Any, buffers: Arrays) -> Arrays:
            like = self._store.load(buffers, row["pull_to"])
            return self._store.put(buffers, self._far.read(self._run, row["pull_from"], like), row["pull_to"])

        found: Arrays = lax.fori_loop(0, jnp.where(row["pull_from"] >= 0, 1, 0), body, buffers)
        return found

    def _write(self, place: Any, state: Callable[[], Arrays]) -> None:
        def body(_: Any, done: Any) -> Any:
            self._far.write(self._run, place, state())
            return done

        lax.fori_loop(0, jnp.where(place >= 0, 1, 0), body, jnp.int32(0))

    @property
    def _far(self) -> RemoteStates:
        assert self._remote is not None  # noqa: S101 - schedules that use it are given one
        return self._remote


def _sweep(loop: Loop, constants: Arrays, state: Arrays, xs: Arrays) -> Any:
    """Run the rows before the first Backward: return the results, and buffers and what was prepared."""
    step, table, recording = loop.step, loop.table, loop.recording
    run = jnp.int32(0) if loop.remote is None else loop.remote.open()
    store = BufferStore(table)
    mover = _Mover(table, store, loop.remote, run)
    row_of = _rows_of(table.forward)

    def count(t: Any, known: Any, sums: Arrays, terms: Arrays) -> tuple[Any, Arrays]:
        """Add terms of a step that runs for the first time."""
        if not table.repeats:
            return known, _add(sums, terms)
        new = _add(sums, terms)
        return jnp.maximum(known, t + 1), choose(t >= known, new, sums)

    def advance(t: Any, carry: Any) -> Any:
        state, outputs, sums, known = carry
        place = loop.input_place(t)
        state, some, terms = step.run(constants, state, take(xs, place), t)
        known, sums = count(t, known, sums, terms)
        return state, put(outputs, some, place), sums, known

    def record(t: Any, carry: Any) -> Any:
        state, outputs, sums, known, buffers = carry
        place = loop.input_place(t)
        state, some, terms, tape = recording.record(constants, state, take(xs, place), t)
        known, sums = count(t, known, sums, terms)
        return state, put(outputs, some, place), sums, known, store.record(buffers, tape, t)

    def body(number: Any, carry: Any) -> Any:
        state, outputs, sums, known, buffers = carry
        row = row_of(number)
        state, buffers = mover.load(row, state, buffers)
        state, outputs, sums, known = lax.fori_loop(
            row["start"], row["stop"], advance, (state, outputs, sums, known)
        )
        buffers = mover.save(row, state, buffers)
        return lax.fori_loop(
            row["record_start"], row["record_stop"], record, (state, outputs, sums, known, buffers)
        )

    start = (
        state,
        make_zeros(step.outputs, table.steps),
        make_zeros(step.terms),
        jnp.int32(0),
        store.make(),
    )
    state, outputs, sums, _, buffers = lax.fori_loop(0, len(table.forward), body, start)
    return (state, outputs, sums), (run, buffers, recording.prepare(constants))


def _reverse(
    loop: Loop,
    constants: Arrays,
    xs: Arrays,
    kept: Any,
    gradients: tuple[Arrays, Arrays | None, Arrays],
) -> tuple[Arrays, Arrays, Arrays]:
    """Run the rows from the first Backward: return gradients of constants, the initial state and inputs."""
    step, table, recording, wanted = loop.step, loop.table, loop.recording, loop.wanted
    run, buffers, prepared = kept
    final, stacked, sums = gradients
    store = BufferStore(table)
    mover = _Mover(table, store, loop.remote, run)
    row_of = _rows_of(table.backward)
    none = make_zeros([step.outputs[place] for place in differentiable(step.outputs)])

    def advance(t: Any, state: Arrays) -> Arrays:
        return step.run(constants, state, take(xs, loop.input_place(t)), t)[0]

    def record(t: Any, carry: Any) -> Any:
        state, buffers = carry
        state, _, _, tape = recording.record(constants, state, take(xs, loop.input_place(t)), t)
        return state, store.record(buffers, tape, t)

    def reverse(buffers: Arrays, t: Any, carry: Any) -> Any:
        gradient, totals, of_inputs = carry
        place = loop.input_place(t)
        incoming = gradient, none if stacked is None else take(stacked, place), sums
        given = constants, prepared, store.tape(buffers, t), (t, take(xs, place)), incoming
        totals, gradient, of_input = loop.sums.reverse(totals, given, t)
        return gradient, totals, put(of_inputs, of_input, place)

    def body(number: Any, carry: Any) -> Any:
        state, buffers, *gradients = carry
        row = row_of(number)
        state, buffers = mover.load(row, state, buffers)
        state = lax.fori_loop(row["start"], row["stop"], advance, state)
        buffers = mover.save(row, state, buffers)
        state, buffers = lax.fori_loop(row["record_start"], row["record_stop"], record, (state, buffers))
        gradients = loop.sums.reverse_all(
            row["reverse_start"], row["reverse_stop"], partial(reverse, buffers), tuple(gradients), sums_at=1
        )
        return state, buffers, *gradients

    start = (
        make_zeros(step.state_shapes),
        buffers,
        final,
        loop.sums.start(),
        make_zeros([step.inputs[place] for place in wanted.inputs], table.steps),
    )
    *_, gradient, totals, of_inputs = lax.fori_loop(0, len(table.backward), body, start)
    if loop.remote is not None:
        loop.remote.close(run)
    return loop.sums.finish(totals), gradient, of_inputs
