"""Runs a table of rows as one program: a loop over rows, loops over steps inside.

Buffers are allocated once and written in place. The first sweep is the forward pass; the rows from the
first Backward run when gradients are asked for.

Reads and writes checkpoints and tapes in the buffers of a program, at the places of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from ckptplan.jax.leaves import (
    Arrays,
    at,
    choose,
    hold,
    hold_all,
    make_room,
    make_zeros,
    put,
    put_at,
    release,
    take,
)
from ckptplan.jax.remote import RemoteStates
from ckptplan.jax.step import TracedStep, differentiable
from ckptplan.jax.sums import GradientSums
from ckptplan.jax.table import COLUMNS, SLOT_COLUMNS, Layout, Position, RowTable
from ckptplan.jax.tapes import Recording, Wanted


class BufferStore:
    """The buffers of a program as a functional store: each write returns the buffers that follow."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._tape_of = jnp.asarray(table.tape_of)
        self._states = _Leaves(table.layout, table.layout.state, table.state_places)
        self._tapes = _Leaves(table.layout, table.layout.tape, table.tape_places)

    def make(self) -> Arrays:
        """Return buffers of zeros."""
        sizes = zip(self._table.rooms, self._table.layout.buffers, strict=True)
        return tuple(one for room, leaf in sizes for one in make_room((leaf,), room))

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

    def __init__(self, layout: Layout, positions: Sequence[Position], places: npt.NDArray[np.int32]) -> None:
        self._positions = positions
        self._leaves = [layout.buffers[buffer] for buffer, _ in positions]
        numbers = np.arange(len(places), dtype=np.int32)[:, None]
        #: None if the number of a row is the place of each leaf.
        self._places = None if np.array_equal(places, numbers) else jnp.asarray(places)

    def read(self, buffers: Arrays, number: Any) -> Arrays:
        places = self._places_of(number)
        found = tuple(
            at(buffers[buffer], place) for (buffer, _), place in zip(self._positions, places, strict=True)
        )
        return release(found, self._leaves)

    def write(
        self, buffers: Arrays, leaves: Sequence[jax.Array], number: Any, *, only_if: Any = None
    ) -> Arrays:
        changed = list(buffers)
        places = self._places_of(number)
        for (buffer, _), place, leaf in zip(self._positions, places, leaves, strict=True):
            if only_if is not None:
                # What is there is read after the writes before: of unordered ones, the compiler makes a copy.
                leaf = jnp.where(only_if, hold(leaf), at(changed[buffer], place))  # noqa: PLW2901
            changed[buffer] = put_at(changed[buffer], leaf, place)
        return tuple(changed)

    def _places_of(self, number: Any) -> list[Any]:
        if self._places is None:
            return [number] * len(self._positions)
        row = self._places[number]
        return [row[column] for _, column in self._positions]


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


def run_both_passes(loop: Loop, constants: Arrays, state: Arrays, xs: Arrays) -> Any:
    """Return a loss and the gradients: the mean square of all results, in fp32 at least."""
    (after, outputs, sums), kept = sweep(loop, constants, state, xs)
    outputs = tuple(outputs[place] for place in differentiable(loop.step.outputs))
    final = tuple(after[place] for place in differentiable(loop.step.state))

    def loss(*results: Arrays) -> Any:
        leaves = (jnp.abs(one) for some in results for one in some if one.size)
        return sum(
            jnp.mean(jnp.square(one.astype(jnp.promote_types(one.dtype, jnp.float32)))) for one in leaves
        )

    value, gradients = jax.value_and_grad(loss, (0, 1, 2))(final, outputs, sums)
    final, stacked, sums = gradients
    return value, reverse_loop(loop, constants, xs, kept, (final, stacked if outputs else None, sums))


def run_forward(
    step: TracedStep, constants: Arrays, state: Arrays, xs: Arrays, *, steps: int, reverse: bool
) -> tuple[Arrays, Arrays, Arrays]:
    """Run all steps without checkpoints, as if there were no plan."""

    def body(carry: Any, given: Any) -> Any:
        state, sums = carry
        t, x = given
        after, outputs, terms = step.run(constants, state, x, t)
        return (after, _add(sums, terms)), outputs

    ts = jnp.arange(steps, dtype=jnp.int32)
    if reverse:
        ts = ts[::-1]
    start = state, make_zeros(step.terms)
    (state, sums), outputs = lax.scan(body, start, (ts, xs), reverse=reverse)
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


def sweep(loop: Loop, constants: Arrays, state: Arrays, xs: Arrays) -> Any:
    """Run the rows before the first Backward: return the results, and buffers and what was prepared."""
    step, table, recording = loop.step, loop.table, loop.recording
    xs = hold_all(xs)
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
        state, some, terms = step.run(constants, state, step.take_input(xs, place), t)
        known, sums = count(t, known, sums, terms)
        return state, put(outputs, some, place), sums, known

    def record(t: Any, carry: Any) -> Any:
        state, outputs, sums, known, buffers = carry
        place = loop.input_place(t)
        state, some, terms, tape = recording.record(constants, state, step.take_input(xs, place), t)
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
        make_room(step.outputs, table.steps),
        make_zeros(step.terms),
        jnp.int32(0),
        store.make(),
    )
    state, outputs, sums, _, buffers = lax.fori_loop(0, len(table.forward), body, start)
    return (state, release(outputs, step.outputs), sums), (run, buffers, recording.prepare(constants))


def reverse_loop(
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
    xs, stacked = hold_all(xs), None if stacked is None else hold_all(stacked)
    store = BufferStore(table)
    mover = _Mover(table, store, loop.remote, run)
    row_of = _rows_of(table.backward)
    seen = [step.inputs[place] for place in wanted.inputs]
    none = make_zeros([step.outputs[place] for place in differentiable(step.outputs)])

    def advance(t: Any, state: Arrays) -> Arrays:
        return step.run(constants, state, step.take_input(xs, loop.input_place(t)), t)[0]

    def record(t: Any, carry: Any) -> Any:
        state, buffers = carry
        state, _, _, tape = recording.record(constants, state, step.take_input(xs, loop.input_place(t)), t)
        return state, store.record(buffers, tape, t)

    def reverse(buffers: Arrays, t: Any, carry: Any) -> Any:
        gradient, totals, of_inputs = carry
        place = loop.input_place(t)
        incoming = gradient, none if stacked is None else release(take(stacked, place), none), sums
        given = constants, prepared, store.tape(buffers, t), (t, step.take_input(xs, place)), incoming
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
        make_room(seen, table.steps),
    )
    *_, gradient, totals, of_inputs = lax.fori_loop(0, len(table.backward), body, start)
    if loop.remote is not None:
        loop.remote.close(run)
    return loop.sums.finish(totals), gradient, release(of_inputs, seen)
