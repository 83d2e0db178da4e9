"""Runs a table of rows as one program: a loop over rows, loops over steps inside.

Buffers are allocated once and written in place. The first sweep is the forward pass; the rows from the
first Backward run when gradients are asked for.

Reads and writes checkpoints and tapes in the buffers of a program, at the places of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
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
from ckptplan.jax.table import COLUMNS, Layout, RowTable
from ckptplan.jax.tapes import Wanted


class BufferStore:
    """The buffers of a program as a functional store: each write returns the buffers that follow."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self.states = _Leaves(table.layout, table.layout.state, table.state_places)
        self.tapes = _Leaves(table.layout, table.layout.tape, table.tape_places)
        #: The number of the tape of each step.
        self.tape_of = jnp.asarray(table.tape_of)

    def make(self) -> Arrays:
        """Return buffers of zeros."""
        sizes = zip(self._table.rooms, self._table.layout.buffers, strict=True)
        return tuple(one for room, leaf in sizes for one in make_room((leaf,), room))


class _Leaves:
    """Leaves of states or of tapes in their buffers, at the places of a row, which is given by its number."""

    def __init__(self, layout: Layout, buffers: Sequence[int], places: npt.NDArray[np.int32]) -> None:
        self._buffers = buffers
        self._leaves = [layout.buffers[buffer] for buffer in buffers]
        #: None if the number of a row is the place of each leaf.
        self._places = jnp.asarray(places) if (np.arange(len(places)) != places.T).any() else None

    def read(self, buffers: Arrays, number: Any) -> Arrays:
        """Return the leaves of a row."""
        pairs = zip(self._buffers, self._places_of(number), strict=True)
        return release([at(buffers[buffer], place) for buffer, place in pairs], self._leaves)

    def write(
        self, buffers: Arrays, leaves: Sequence[jax.Array], number: Any, *, only_if: Any = None
    ) -> Arrays:
        """Return the buffers with leaves in a row, or as they are unless ``only_if`` holds."""
        changed = list(buffers)
        places = self._places_of(number)
        for buffer, place, leaf in zip(self._buffers, places, leaves, strict=True):
            if only_if is not None:
                # What is there is read after the writes before: of unordered ones, the compiler makes a copy.
                leaf = jnp.where(only_if, hold(leaf), at(changed[buffer], place))  # noqa: PLW2901
            changed[buffer] = put_at(changed[buffer], leaf, place)
        return tuple(changed)

    def _places_of(self, number: Any) -> Any:
        return [number] * len(self._buffers) if self._places is None else self._places[number]


@dataclass(frozen=True, kw_only=True, eq=False)
class Loop:
    """A traced step with the schedule that it runs under."""

    sums: GradientSums
    table: RowTable
    #: Whether the sequence is run from its end.
    reverse: bool
    #: None if the schedule keeps nothing in remote memory.
    remote: RemoteStates | None

    @property
    def step(self) -> TracedStep:
        """The step."""
        return self.sums.recording.traced.step

    @property
    def wanted(self) -> Wanted:
        """The gradients that are wanted."""
        return self.sums.recording.traced.wanted

    @cached_property
    def sweep(self) -> Callable[..., Any]:
        """The rows before the first Backward as a program, which is compiled once."""
        return jax.jit(partial(sweep, self))

    @cached_property
    def go_back(self) -> Callable[..., Any]:
        """The rows from the first Backward as a program, which is compiled once."""
        return jax.jit(partial(reverse_loop, self))

    def input_place(self, t: Any) -> Any:
        """Return where the input and the output of step t are."""
        return self.table.steps - 1 - t if self.reverse else t


def run_both_passes(loop: Loop, constants: Arrays, state: Arrays, xs: Arrays) -> Any:
    """Return a loss and the gradients: the mean square of all results, in fp32 at least."""
    (after, outputs, sums), kept = loop.sweep(constants, state, xs)
    outputs = tuple(outputs[place] for place in differentiable(loop.step.outputs))
    final = tuple(after[place] for place in differentiable(loop.step.state))

    def loss(*results: Arrays) -> Any:
        leaves = (jnp.abs(one) for some in results for one in some if one.size)
        return sum(
            jnp.mean(jnp.square(one.astype(jnp.promote_types(one.dtype, jnp.float32)))) for one in leaves
        )

    value, gradients = jax.value_and_grad(loss, (0, 1, 2))(final, outputs, sums)
    final, stacked, sums = gradients
    return value, loop.go_back(constants, xs, kept, (final, stacked if outputs else None, sums))


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


class _Rows:
    """Rows of a table, by the names of their columns."""

    def __init__(self, rows: npt.NDArray[np.int32]) -> None:
        self._known = dict(zip(COLUMNS, rows.T, strict=True))
        self._table = jnp.asarray(rows)

    def at(self, number: Any) -> dict[str, Any]:
        """Return a row."""
        return dict(zip(COLUMNS, self._table[number], strict=True))

    def uses(self, column: str) -> bool:
        """Return whether any row has a slot in a column."""
        return bool((self._known[column] >= 0).any())

    def run(self, row: dict[str, Any], start: str, stop: str, body: Any, carry: Any) -> Any:
        """Run a body for the steps of a row between two columns; nothing is compiled if no row has any."""
        if not (self._known[stop] > self._known[start]).any():
            return carry
        return lax.fori_loop(row[start], row[stop], body, carry)


class _Mover:
    """Moves states between the working state, slots and remote memory, as a row says."""

    def __init__(self, rows: _Rows, store: BufferStore, remote: RemoteStates | None, run: Any) -> None:
        self._rows, self._states, self._remote, self._run = rows, store.states, remote, run

    def load(self, row: dict[str, Any], state: Arrays, buffers: Arrays) -> tuple[Arrays, Arrays]:
        """Return the working state and the buffers; without a load, the state is carried over."""
        if self._rows.uses("pull_from"):
            buffers = self._pull(row, buffers)
        if self._rows.uses("load"):
            kept = self._states.read(buffers, jnp.maximum(row["load"], 0))
            state = choose(row["load"] >= 0, kept, state)
        if self._rows.uses("remote_load"):
            state = self._read(row["remote_load"], state)
        return state, buffers

    def save(self, row: dict[str, Any], state: Arrays, buffers: Arrays) -> Arrays:
        """Return the buffers, with the working state in a slot."""
        if self._rows.uses("save"):
            slot = row["save"]
            buffers = self._states.write(buffers, state, jnp.maximum(slot, 0), only_if=slot >= 0)
        if self._rows.uses("remote_save"):
            self._write(row["remote_save"], lambda: state)
        if self._rows.uses("push_from"):
            self._write(row["push_to"], lambda: self._states.read(buffers, row["push_from"]))
        return buffers

    def _read(self, place: Any, state: Arrays) -> Arrays:
        def body(_: Any, some: Arrays) -> Arrays:
            return self._far.read(self._run, place, some)

        # A loop of no or one round: a condition would copy what passes through it.
        found: Arrays = lax.fori_loop(0, jnp.where(place >= 0, 1, 0), body, state)
        return found

    def _pull(self, row: dict[str, Any], buffers: Arrays) -> Arrays:
        def body(_: Any, buffers: Arrays) -> Arrays:
            like = self._states.read(buffers, row["pull_to"])
            found = self._far.read(self._run, row["pull_from"], like)
            return self._states.write(buffers, found, row["pull_to"])

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
    step, table, recording = loop.step, loop.table, loop.sums.recording
    xs = hold_all(xs)
    run = jnp.int32(0) if loop.remote is None else loop.remote.open()
    store, rows = BufferStore(table), _Rows(table.forward)
    mover = _Mover(rows, store, loop.remote, run)

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
        return state, put(outputs, some, place), sums, known, store.tapes.write(buffers, tape, store.tape_of[t])

    def body(number: Any, carry: Any) -> Any:
        state, outputs, sums, known, buffers = carry
        row = rows.at(number)
        state, buffers = mover.load(row, state, buffers)
        carry = state, outputs, sums, known
        state, outputs, sums, known = rows.run(row, "start", "stop", advance, carry)
        buffers = mover.save(row, state, buffers)
        carry = state, outputs, sums, known, buffers
        return rows.run(row, "record_start", "record_stop", record, carry)

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
    step, table, recording, wanted = loop.step, loop.table, loop.sums.recording, loop.wanted
    run, buffers, prepared = kept
    final, stacked, sums = gradients
    xs, stacked = hold_all(xs), None if stacked is None else hold_all(stacked)
    store, rows = BufferStore(table), _Rows(table.backward)
    mover = _Mover(rows, store, loop.remote, run)
    seen = [step.inputs[place] for place in wanted.inputs]
    none = make_zeros([step.outputs[place] for place in differentiable(step.outputs)])

    def advance(t: Any, state: Arrays) -> Arrays:
        return step.run(constants, state, step.take_input(xs, loop.input_place(t)), t)[0]

    def record(t: Any, carry: Any) -> Any:
        state, buffers = carry
        state, _, _, tape = recording.record(constants, state, step.take_input(xs, loop.input_place(t)), t)
        return state, store.tapes.write(buffers, tape, store.tape_of[t])

    def reverse(buffers: Arrays, t: Any, carry: Any) -> Any:
        gradient, totals, of_inputs = carry
        place = loop.input_place(t)
        incoming = gradient, none if stacked is None else release(take(stacked, place), none), sums
        tape = store.tapes.read(buffers, store.tape_of[t])
        given = constants, prepared, tape, step.take_input(xs, place), t, incoming
        totals, gradient, of_input = loop.sums.reverse(totals, given, t)
        return gradient, totals, put(of_inputs, of_input, place)

    def body(number: Any, carry: Any) -> Any:
        state, buffers, *gradients = carry
        row = rows.at(number)
        state, buffers = mover.load(row, state, buffers)
        state = rows.run(row, "start", "stop", advance, state)
        buffers = mover.save(row, state, buffers)
        state, buffers = rows.run(row, "record_start", "record_stop", record, (state, buffers))
        gradients = loop.sums.reverse_all(
            row["reverse_start"], row["reverse_stop"], partial(reverse, buffers), tuple(gradients), sums_at=1
        )
        return state, buffers, *gradients

    start = (
        make_zeros(step.state),
        buffers,
        final,
        loop.sums.start(),
        make_room(seen, table.steps),
    )
    *_, gradient, totals, of_inputs = lax.fori_loop(0, len(table.backward), body, start)
    if loop.remote is not None:
        loop.remote.close(run)
    return loop.sums.finish(totals), gradient, release(of_inputs, seen)
