"""Runs a table of rows as one program, and counts its bytes: a loop over rows, loops over steps inside.

Buffers are allocated once and written in place. The first sweep is the forward pass; the rows from the
first Backward run when gradients are asked for.
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

from ckptplan.jax.footprint import StepFootprint
from ckptplan.jax.leaves import (
    Arrays,
    at,
    byte_size,
    choose,
    make_room,
    make_zeros,
    put,
    put_at,
    release,
    run_if,
    take_given,
    widen,
)
from ckptplan.jax.remote import HostStates, RemoteStates, make_remote
from ckptplan.jax.step import TracedStep, differentiable
from ckptplan.jax.sums import GradientSums
from ckptplan.jax.table import COLUMNS, Layout, RowTable
from ckptplan.jax.tapes import Wanted
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.memory import find_cached_room
from ckptplan.storage.place import OffloadPlace

#: What a caller's numbers and their alignment take.
_SMALL_BYTES = 4096
#: Machine code is not needed to know the bytes of a program.
_QUICKLY: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": "1",
}
#: Nor are slower writers of loops, by which only programs with small floating-point numbers need more bytes.
_MORE_QUICKLY = {**_QUICKLY, "xla_cpu_use_fusion_emitters": False}
_SMALL_TYPES = ("f16", "f8E")
#: Lengths of loops that are tried as the numbers of steps to run as one.
_MOST_BLOCKS = 64
#: Takes t, a number of steps and a carry; returns the carry after these steps.
_Body = Callable[[Any, int, Any], Any]


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

    def write(self, buffers: Arrays, leaves: Sequence[jax.Array], number: Any) -> Arrays:
        """Return the buffers with leaves in a row."""
        changed = list(buffers)
        for buffer, place, leaf in zip(self._buffers, self._places_of(number), leaves, strict=True):
            changed[buffer] = put_at(changed[buffer], leaf, place)
        return tuple(changed)

    def _places_of(self, number: Any) -> Any:
        return [number] * len(self._buffers) if self._places is None else at(self._places, number)


@dataclass(frozen=True, kw_only=True, eq=False)
class Loop:
    """A traced step with the schedule that it runs under."""

    sums: GradientSums
    table: RowTable
    #: Whether the sequence is run from its end.
    reverse: bool
    #: None if the schedule keeps nothing in remote memory.
    remote: RemoteStates | None
    #: Whether XLA is to know how many steps inner loops have: else a GPU waits for its host before each.
    counted: bool

    @property
    def step(self) -> TracedStep:
        """The step."""
        return self.sums.recording.traced.step

    @property
    def wanted(self) -> Wanted:
        """The gradients that are wanted."""
        return self.sums.recording.traced.wanted

    @property
    def host_bytes(self) -> int:
        """The bytes of states in arrays in host memory."""
        on_host = isinstance(self.remote, HostStates)
        return self.table.remote_slots * byte_size(self.step.state) if on_host else 0

    @cached_property
    def sweep(self) -> Callable[..., Any]:
        """The rows before the first Backward as a program, which is compiled once."""
        return jax.jit(partial(sweep, self))

    @cached_property
    def go_back(self) -> Callable[..., Any]:
        """The rows from the first Backward as a program, which is compiled once."""
        return jax.jit(partial(reverse_loop, self))

    def split(self, buffers: Arrays) -> tuple[Arrays, Arrays]:
        """Return the buffers of checkpoints and tapes, and the run of remote memory after them."""
        count = len(self.table.layout.buffers)
        return buffers[:count], buffers[count:]

    def input_place(self, t: Any) -> Any:
        """Return where the input and the output of step t are."""
        return self.table.steps - 1 - t if self.reverse else t


def make_loop(
    plan: Plan | Schedule,
    footprint: StepFootprint,
    *,
    reverse: bool = False,
    place: OffloadPlace | None = None,
) -> Loop:
    """Return a step with the schedule that it runs under.

    Arguments:
        plan: a plan or a schedule.
        footprint: that of the step (``choose_footprint``).
        reverse: whether the sequence runs from its end.
        place: where remote states go; None for host memory.
    """
    table, remote = footprint.tabulate(plan), None
    if table.remote_slots:
        room = find_cached_room(table.buffer_bytes)
        through = room is not None and table.remote_slots * byte_size(footprint.traced.step.state) > room
        remote = make_remote(place, through=through)
    counted = jax.default_backend() == "gpu"
    return Loop(sums=footprint.sums, table=table, reverse=reverse, remote=remote, counted=counted)


def choose_block(lengths: npt.NDArray[np.int32], *, group: int = 1) -> int:
    """Return the number of steps to run as one, a multiple of ``group``, to go round loops least often.

    A loop of n steps goes round n // block times, and n % block times for the rest, step by step. Without a
    group, it is 1 unless that halves the rounds, since the rest is compiled apart.
    """
    known, counts = np.unique(lengths, return_counts=True)
    powers = 1 << np.arange(int(known[-1]).bit_length())
    often = known[np.argsort(-counts, kind="stable")][:_MOST_BLOCKS]
    blocks = np.unique(group * np.array([1, *powers, *(often // group)[often >= group]]))
    rounds = np.array([(known // block + known % block) @ counts for block in blocks])
    best = int(rounds.argmin())
    return int(blocks[best]) if group > 1 or 2 * rounds[best] <= rounds[0] else 1


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
    """Rows of a table that are played in a program: states move, steps run and are recorded."""

    def __init__(self, loop: Loop, rows: npt.NDArray[np.int32], constants: Arrays, xs: Arrays) -> None:
        self._known = dict(zip(COLUMNS, rows.T, strict=True))
        # Apart: reads of arrays of one shape are the same code, which is compiled once.
        self._columns = {name: jnp.asarray(column) for name, column in self._known.items()}
        self._loop, self._constants, self._xs = loop, constants, xs
        table = loop.table
        self._states = _Leaves(table.layout, table.layout.state, table.state_places)
        self._tapes = _Leaves(table.layout, table.layout.tape, table.tape_places)
        self._tape_of = jnp.asarray(table.tape_of)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._known[COLUMNS[0]])

    def at(self, number: Any) -> dict[str, Any]:
        """Return a row by the names of its columns."""
        return {name: at(column, number) for name, column in self._columns.items()}

    def take_input(self, t: Any) -> Arrays:
        """Return the input of step t."""
        return take_given(self._xs, self._loop.input_place(t))

    def read_tape(self, buffers: Arrays, t: Any) -> Arrays:
        """Return the tape of step t."""
        return self._tapes.read(buffers, at(self._tape_of, t))

    def play(
        self,
        row: dict[str, Any],
        state: Arrays,
        buffers: Arrays,
        noted: Any = (),
        note: Callable[..., Any] = lambda _, noted, *__: noted,
    ) -> tuple[Arrays, Arrays, Any]:
        """Return the working state, the buffers and what was noted, after all of a row but its Backward.

        ``note`` keeps what a step gives beside its state: of t, what was kept before, outputs and terms.
        """
        step, recording = self._loop.step, self._loop.sums.recording

        def advance(t: Any, _: int, carry: Any) -> Any:
            state, noted = carry
            state, outputs, terms = step.run(self._constants, state, self.take_input(t), t)
            return state, note(t, noted, outputs, terms)

        def record(t: Any, _: int, carry: Any) -> Any:
            state, noted, buffers = carry
            state, outputs, terms, tape = recording.record(self._constants, state, self.take_input(t), t)
            buffers = self._tapes.write(buffers, tape, at(self._tape_of, t))
            return state, note(t, noted, outputs, terms), buffers

        state, buffers = self._load(row, state, buffers)
        state, noted = self.each(row, "advance", advance, (state, noted))
        buffers = self._save(row, state, buffers)
        state, noted, buffers = self.each(row, "record", record, (state, noted, buffers))
        return state, buffers, noted

    def each(
        self, row: dict[str, Any], what: str, body: _Body, carry: Any, *, down: bool = False, group: int = 1
    ) -> Any:
        """Run a body for the steps of a row, upwards or ``down``; nothing is compiled if no row has any.

        ``body(t, count, carry)`` runs ``count`` steps from t on, or before t if ``down``: one, or ``group`` in
        loops that XLA counts.
        """
        first, last = f"{what}_start", f"{what}_stop"
        lengths = self._known[last] - self._known[first]
        if not lengths.any():
            return carry
        start, end = (row[last], row[first]) if down else (row[first], row[last])
        sign = -1 if down else 1

        def run(count: int, some: Any) -> Any:
            t, carry = some
            return t + sign * count, body(t, count, carry)

        some = start, carry
        block = choose_block(lengths, group=group) if self._loop.counted else 1
        if block > 1 and lengths.max() >= block:
            last_whole = end - lax.rem(end - start, jnp.int32(block))
            rounds = partial(lax.fori_loop, 0, block // group, lambda _, some: run(group, some))
            some = lax.while_loop(lambda some: some[0] != last_whole, rounds, some)
        if block == 1 or (lengths % block).any():
            some = lax.while_loop(lambda some: some[0] != end, partial(run, 1), some)
        return some[1]

    def _uses(self, column: str) -> bool:
        """Return whether any row has a slot in a column."""
        return bool((self._known[column] >= 0).any())

    def _load(self, row: dict[str, Any], state: Arrays, buffers: Arrays) -> tuple[Arrays, Arrays]:
        """Return the working state and the buffers; without a load, the state is carried over."""
        states = self._states

        local, run = self._loop.split(buffers)

        def pull(local: Arrays) -> Arrays:
            found = self._remote.read(run, row["pull_from"], states.read(local, row["pull_to"]))
            return states.write(local, found, row["pull_to"])

        def read(state: Arrays) -> Arrays:
            return self._remote.read(run, row["remote_load"], state)

        if self._uses("pull_from"):
            buffers = *run_if(row["pull_from"] >= 0, pull, local), *run
        if self._uses("load"):
            kept = states.read(buffers, jnp.maximum(row["load"], 0))
            state = choose(row["load"] >= 0, kept, state)
        if self._uses("remote_load"):
            state = run_if(row["remote_load"] >= 0, read, state)
        return state, buffers

    def _save(self, row: dict[str, Any], state: Arrays, buffers: Arrays) -> Arrays:
        """Return the buffers, with the working state in a slot."""
        local, run = self._loop.split(buffers)
        if self._uses("save"):
            slot = row["save"]
            local = run_if(slot >= 0, lambda held: self._states.write(held, state, slot), local)
        if self._uses("remote_save"):
            run = self._write(run, row["remote_save"], lambda: state)
        if self._uses("push_from"):
            run = self._write(run, row["push_to"], lambda: self._states.read(local, row["push_from"]))
        return *local, *run

    def _write(self, run: Arrays, place: Any, state: Callable[[], Arrays]) -> Arrays:
        found: Arrays = run_if(place >= 0, lambda run: self._remote.write(run, place, state()), run)
        return found

    @property
    def _remote(self) -> RemoteStates:
        assert self._loop.remote is not None  # noqa: S101 - schedules that use it are given one
        return self._loop.remote


def sweep(loop: Loop, constants: Arrays, state: Arrays, xs: Arrays) -> Any:
    """Run the rows before the first Backward: return the results, and the buffers."""
    step, table = loop.step, loop.table
    rows = _Rows(loop, table.forward, constants, xs)

    def note(t: Any, noted: Any, outputs: Arrays, terms: Arrays) -> Any:
        """Keep the outputs, and add the terms of a step that runs for the first time."""
        stacked, sums, known = noted
        new = _add(sums, terms)
        if table.repeats:
            new, known = choose(t >= known, new, sums), jnp.maximum(known, t + 1)
        return put(stacked, outputs, loop.input_place(t)), new, known

    def body(number: Any, carry: Any) -> Any:
        state, buffers, noted = carry
        return rows.play(rows.at(number), state, buffers, noted, note)

    noted = make_room(step.outputs, table.steps), make_zeros(step.terms), jnp.int32(0)
    sizes = zip(table.rooms, table.layout.buffers, strict=True)
    local = tuple(one for room, leaf in sizes for one in make_room((leaf,), room))
    run = () if loop.remote is None else loop.remote.open(step.state, table.remote_slots)
    carry = state, (*local, *run), noted
    state, buffers, (outputs, sums, _) = lax.fori_loop(0, len(rows), body, carry)
    return (state, release(outputs, step.outputs), sums), buffers


def reverse_loop(
    loop: Loop,
    constants: Arrays,
    xs: Arrays,
    buffers: Arrays,
    gradients: tuple[Arrays, Arrays | None, Arrays],
) -> tuple[Arrays, Arrays, Arrays]:
    """Run the rows from the first Backward: return gradients of constants, the initial state and inputs."""
    step, table, wanted = loop.step, loop.table, loop.wanted
    final, stacked, sums = gradients
    rows = _Rows(loop, table.backward, constants, xs)
    seen = [step.inputs[place] for place in wanted.inputs]
    none = make_zeros([step.outputs[place] for place in differentiable(step.outputs)])

    def reverse_one(buffers: Arrays, t: Any, slot: Any, carry: Any) -> Any:
        gradient, totals, of_inputs = carry
        place = loop.input_place(t)
        incoming = gradient, none if stacked is None else take_given(stacked, place), sums
        given = constants, rows.read_tape(buffers, t), rows.take_input(t), t, incoming
        totals, gradient, of_input = loop.sums.reverse(totals, given, slot)
        return gradient, totals, put(of_inputs, of_input, place)

    def reverse(buffers: Arrays, stop: Any, count: int, carry: Any) -> Any:
        """Reverse as many steps before ``stop``."""
        if loop.counted:
            run = partial(reverse_one, buffers)
            carry = lax.fori_loop(0, count, lambda slot, some: run(stop - 1 - slot, slot, some), carry)
            join = partial(loop.sums.join, count=count)
        else:
            slot = lax.rem(stop - 1, jnp.int32(loop.sums.together))
            carry = reverse_one(buffers, stop - 1, slot, carry)
            join = partial(loop.sums.join_at, slot=slot)
        gradient, totals, of_inputs = carry
        return gradient, join(totals), of_inputs

    def body(number: Any, carry: Any) -> Any:
        state, buffers, found = carry
        row = rows.at(number)
        state, buffers, _ = rows.play(row, state, buffers)
        back = partial(reverse, buffers)
        return state, buffers, rows.each(row, "reverse", back, found, down=True, group=loop.sums.together)

    found = final, loop.sums.start(), make_room(seen, table.steps)
    carry = make_zeros(step.state), buffers, found
    _, buffers, (gradient, totals, of_inputs) = lax.fori_loop(0, len(rows), body, carry)
    if loop.remote is not None:
        loop.remote.close(loop.split(buffers)[1])
    return loop.sums.finish(totals), gradient, release(of_inputs, seen)


def count_bytes(loop: Loop) -> int:
    """Return the bytes that the program of a loop takes: temporary arrays and results.

    What the caller's loss holds of the outputs is not known: it is that of the mean of their squares.
    """
    step, steps = loop.step, loop.table.steps
    xs = tuple(jax.ShapeDtypeStruct((steps, *leaf.shape), leaf.dtype) for leaf in step.inputs)
    lowered = jax.jit(partial(_run_both_passes, loop)).lower(step.constants, step.state, xs)
    # A first state that is a constant of the program is copied; here it is an argument.
    more = byte_size(step.state) + _SMALL_BYTES
    options: dict[str, str | bool] = {}
    if jax.default_backend() == "cpu":
        has_small = any(one in lowered.as_text() for one in _SMALL_TYPES)
        options = _QUICKLY if has_small else _MORE_QUICKLY
        # There, arrays in host memory are temporary arrays.
        more -= loop.host_bytes
    found: Any = lowered.compile(compiler_options=options).memory_analysis()
    if step.is_batch:
        more += steps * byte_size(step.outputs)
    return int(found.temp_size_in_bytes + found.output_size_in_bytes + more)


def _run_both_passes(loop: Loop, constants: Arrays, state: Arrays, xs: Arrays) -> Any:
    """Return a loss and the gradients: the mean square of all results, in fp32 at least."""
    (after, outputs, sums), kept = loop.sweep(constants, state, xs)
    outputs = tuple(outputs[place] for place in differentiable(loop.step.outputs))
    final = tuple(after[place] for place in differentiable(loop.step.state))

    def loss(*results: Arrays) -> Any:
        leaves = (jnp.abs(one) for some in results for one in some if one.size)
        return sum(jnp.mean(jnp.square(widen(one))) for one in leaves)

    value, gradients = jax.value_and_grad(loss, (0, 1, 2))(final, outputs, sums)
    final, stacked, sums = gradients
    # JAX sets the mesh where it traces a backward pass, and traces are kept by that: it will find this one.
    with jax.sharding.use_abstract_mesh(jax.sharding.get_abstract_mesh()):
        return value, loop.go_back(constants, xs, kept, (final, stacked if outputs else None, sums))
