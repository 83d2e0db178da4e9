"""Runs a table of rows as one program, a loop over rows with inner loops over steps, and counts its bytes.

Buffers are allocated once and written in place. The rows before the first Backward are the forward pass. The
rows from the first Backward on run in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from ckptplan.jax.jaxprs import Step
from ckptplan.jax.leaves import (
    Arrays,
    argument_of,
    at,
    byte_size,
    differentiable,
    fill_zeros,
    is_small,
    make_room,
    make_zeros,
    pick,
    put,
    release,
    run_if,
    split,
    take_given,
    to_words,
    widen,
)
from ckptplan.jax.loops import Batch, Passes
from ckptplan.jax.remote import open_states, read_state, write_state
from ckptplan.jax.table import COLUMNS, REMOTE, RowTable

#: Bytes of the caller's small arrays and their alignment.
_SMALL_BYTES = 4096
#: Options that skip most of the code generation, which is not needed to count the bytes of a program.
_QUICKLY: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": "1",
}
#: Fusion emitters are slow, too. They change the bytes only of programs with small floating-point numbers.
_MORE_QUICKLY = {**_QUICKLY, "xla_cpu_use_fusion_emitters": False}
_SMALL_TYPES = ("f16", "f8E")
#: The most lengths of loops that are tried as numbers of steps per block.
_MOST_BLOCKS = 64
#: Takes t, a number of steps and a carry; returns the carry after these steps.
_Body = Callable[[Any, int, Any], Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScanPasses(Passes):
    """The passes of a scan: a traced step with its schedule as a table of rows."""

    table: RowTable
    #: Whether inner loops have constant trip counts. Without them, a GPU waits for the host before each round.
    counted: bool = field(default_factory=lambda: jax.default_backend() == "gpu")

    @property
    def host_bytes(self) -> int:
        return self.table.remote_slots * byte_size(self.step.state)

    def split_buffers(self, buffers: Arrays) -> tuple[Arrays, Arrays]:
        """Split buffers into those of checkpoints and tapes, and the arrays in host memory."""
        local, remote = split(buffers, len(self.table.layout.kinds))
        return local, remote

    def index_of(self, t: Any) -> Any:
        """Return the index of the input and the output of step t."""
        return self.table.steps - 1 - t if self.loop.params["reverse"] else t

    def sweep(self, *arguments: Any) -> Sequence[Any]:
        # Keep XLA from folding constants of the program into larger ones: they are counted like arguments.
        return self.run_forward(*map(lax.optimization_barrier, arguments))

    def run_forward(self, *arguments: Any) -> Sequence[Any]:
        """Run the rows before the first Backward, and return the final state, the outputs and the buffers."""
        step, table = self.step, self.table
        constants, state, xs = self.split(arguments)
        rows = _Rows(self, table.forward, constants, xs)

        def note(t: Any, stacked: Arrays, outputs: Arrays) -> Arrays:
            return put(stacked, outputs, self.index_of(t))

        def body(number: Any, carry: Any) -> Any:
            state, buffers, outputs = carry
            return rows.play(rows.at(number), state, buffers, outputs, note)

        local = table.layout.open(as_words=self.as_words)
        remote = open_states(step.state, table.remote_slots) if table.remote_slots else ()
        carry = state, (*local, *remote), make_room(step.outputs, table.steps, as_words=self.as_words)
        state, buffers, outputs = lax.fori_loop(0, len(rows), body, carry)
        return [*state, *release(outputs, step.outputs), *buffers]

    def reverse(
        self, kept: Arrays, arguments: Arrays, final: Arrays, stacked: Arrays
    ) -> tuple[Arrays, Arrays, Arrays]:
        """Run the rows from the first Backward on."""
        step, table, sums = self.step, self.table, self.sums
        constants, _, xs = self.split(arguments)
        rows = _Rows(self, table.backward, constants, xs)
        wanted_inputs = pick(step.inputs, sums.traced.wanted_inputs)
        zeros = fill_zeros([None] * len(stacked), step.outputs)
        has_gradients = any(gradient is not None for gradient in stacked)
        of_outputs = fill_zeros(stacked, step.outputs, table.steps) if has_gradients else ()

        def reverse_one(buffers: Arrays, t: Any, slot: Any, carry: Any) -> Any:
            gradient, totals, of_inputs = carry
            index = self.index_of(t)
            incoming = gradient, take_given(of_outputs, index) or zeros
            given = constants, rows.read_tape(buffers, t), rows.take_input(t), incoming
            totals, gradient, of_input = sums.reverse(totals, given, slot)
            return gradient, totals, put(of_inputs, of_input, index)

        def reverse(buffers: Arrays, stop: Any, count: int, carry: Any) -> Any:
            """Reverse ``count`` steps before ``stop``, and form the products of a complete group of steps."""
            group, run = sums.steps_per_matmul, partial(reverse_one, buffers)
            slot = lax.rem(stop - 1, jnp.int32(group))
            if self.counted:
                carry = lax.fori_loop(0, count, lambda slot, carry: run(stop - 1 - slot, slot, carry), carry)
            else:
                carry = run(stop - 1, slot, carry)
            gradient, totals, of_inputs = carry
            if group > 1 and self.counted:
                totals = sums.join(totals, count)
            elif group > 1:
                totals = run_if(slot == 0, partial(sums.join, count=group), totals)
            return gradient, totals, of_inputs

        def body(number: Any, carry: Any) -> Any:
            state, buffers, derivatives = carry
            row = rows.at(number)
            state, buffers, _ = rows.play(row, state, buffers)
            back, group = partial(reverse, buffers), sums.steps_per_matmul
            return state, buffers, rows.each(row, "reverse", back, derivatives, down=True, group=group)

        room = make_room([leaf.to_ct_aval() for leaf in wanted_inputs], table.steps, as_words=self.as_words)
        carry = make_zeros(step.state), kept, (final, sums.start(as_words=self.as_words), room)
        *_, (gradient, totals, of_inputs) = lax.fori_loop(0, len(rows), body, carry)
        return sums.finish(totals, constants), gradient, release(of_inputs, wanted_inputs)


def choose_block(lengths: npt.NDArray[np.int32], *, group: int = 1) -> int:
    """Return the number of steps per block, a multiple of ``group``, that minimizes the rounds of loops.

    A loop of n steps has n // block rounds of whole blocks, and n % block rounds of single steps. Without a
    group, the block is 1 unless a larger one halves the rounds, since single steps are compiled separately.
    """
    distinct, counts = np.unique(lengths, return_counts=True)
    powers = 1 << np.arange(int(distinct[-1]).bit_length())
    frequent = distinct[np.argsort(-counts, kind="stable")][:_MOST_BLOCKS]
    blocks = np.unique(group * np.array([1, *powers, *(frequent // group)[frequent >= group]]))
    rounds = np.array([(distinct // block + distinct % block) @ counts for block in blocks])
    best = int(rounds.argmin())
    return int(blocks[best]) if group > 1 or 2 * rounds[best] <= rounds[0] else 1


def run_in_words(step: Step, constants: Arrays, state: Arrays, xs: Arrays, **options: Any) -> Arrays:
    """Run a scan that stores stacked arrays of small floating-point numbers as integers.

    Otherwise, on a CPU, a scan converts such an array to fp32 and back in each step.
    """

    def body(state: Arrays, x: Arrays) -> tuple[Arrays, Arrays]:
        after, outputs = step.run(constants, state, release(x, step.inputs))
        return after, _as_words(outputs)

    state, outputs = lax.scan(body, state, _as_words(xs), **options)
    return *state, *release(outputs, step.outputs)


def _as_words(arrays: Arrays) -> Arrays:
    return tuple(to_words(array) if is_small(array) else array for array in arrays)


class _Rows:
    """Executes the rows of a table in a program: moves states, and runs and records steps."""

    def __init__(self, passes: ScanPasses, rows: npt.NDArray[np.int32], constants: Arrays, xs: Arrays) -> None:
        self._numbers = dict(zip(COLUMNS, rows.T, strict=True))
        # One array per column: reads of arrays of the same shape are the same code, which is compiled once.
        self._columns = {name: jnp.asarray(column) for name, column in self._numbers.items()}
        self._passes, self._constants, self._xs = passes, constants, xs
        self._layout, self._tape_of = passes.table.layout, jnp.asarray(passes.table.tape_of)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._numbers[COLUMNS[0]])

    def at(self, number: Any) -> dict[str, Any]:
        """Return a row by the names of its columns."""
        return {name: at(column, number) for name, column in self._columns.items()}

    def take_input(self, t: Any) -> Arrays:
        """Return the input of step t."""
        return take_given(self._xs, self._passes.index_of(t))

    def read_tape(self, buffers: Arrays, t: Any) -> Arrays:
        """Return the tape of step t."""
        return self._layout.tapes.read(buffers, at(self._tape_of, t))

    def play(
        self,
        row: dict[str, Any],
        state: Arrays,
        buffers: Arrays,
        noted: Any = (),
        note: Callable[..., Any] = lambda _, noted, __: noted,
    ) -> tuple[Arrays, Arrays, Any]:
        """Execute a row except its Backward, and return the working state, the buffers and the noted outputs.

        ``note(t, noted, outputs)`` returns ``noted`` with the outputs of step t added.
        """
        sums = self._passes.sums

        def advance(t: Any, _: int, carry: Any) -> Any:
            state, noted = carry
            state, outputs = sums.traced.run(self._constants, state, self.take_input(t))
            return state, note(t, noted, outputs)

        def record(t: Any, _: int, carry: Any) -> Any:
            state, noted, buffers = carry
            state, outputs, tape = sums.record(self._constants, state, self.take_input(t))
            buffers = self._layout.tapes.write(buffers, tape, at(self._tape_of, t))
            return state, note(t, noted, outputs), buffers

        moved = self._read(row, "move_from", buffers, state)
        buffers = self._write(row, "move_to", buffers, moved)
        state = self._read(row, "load", buffers, state)
        state, noted = self.each(row, "advance", advance, (state, noted))
        buffers = self._write(row, "save", buffers, state)
        state, noted, buffers = self.each(row, "record", record, (state, noted, buffers))
        return state, buffers, noted

    def each(
        self, row: dict[str, Any], action: str, body: _Body, carry: Any, *, down: bool = False, group: int = 1
    ) -> Any:
        """Run a body for the steps of a row, upwards or ``down``. If no row has such steps, compile nothing.

        ``body(t, count, carry)`` runs ``count`` steps from t on, or before t if ``down``. ``count`` is 1, or
        ``group`` in loops with a constant trip count.
        """
        first, last = f"{action}_start", f"{action}_stop"
        lengths = self._numbers[last] - self._numbers[first]
        if not lengths.any():
            return carry
        start, end = (row[last], row[first]) if down else (row[first], row[last])
        sign = -1 if down else 1

        def run(count: int, position: Any) -> Any:
            t, carry = position
            return t + sign * count, body(t, count, carry)

        position = start, carry
        block = choose_block(lengths, group=group) if self._passes.counted else 1
        if block > 1 and lengths.max() >= block:
            last_whole = end - lax.rem(end - start, jnp.int32(block))
            rounds = partial(lax.fori_loop, 0, block // group, lambda _, position: run(group, position))
            position = lax.while_loop(lambda position: position[0] != last_whole, rounds, position)
        if block == 1 or (lengths % block).any():
            position = lax.while_loop(lambda position: position[0] != end, partial(run, 1), position)
        return position[1]

    def _read(self, row: dict[str, Any], column: str, buffers: Arrays, state: Arrays) -> Arrays:
        """Return the state in the slot of a column, or ``state`` if the row has none."""
        slot, slots, like = row[column], self._numbers[column], self._passes.step.state
        local, remote = self._passes.split_buffers(buffers)
        if (slots >= 0).any():
            held = self._layout.states.read(local, jnp.maximum(slot, 0))
            state = tuple(jnp.where(slot >= 0, *pair) for pair in zip(held, state, strict=True))
        if (slots <= REMOTE).any():
            state = run_if(slot <= REMOTE, lambda _: read_state(remote, REMOTE - slot, like), state)
        return state

    def _write(self, row: dict[str, Any], column: str, buffers: Arrays, state: Arrays) -> Arrays:
        """Return the buffers with a state written to the slot of a column, if the row has one."""
        slot, slots = row[column], self._numbers[column]
        local, remote = self._passes.split_buffers(buffers)
        if (slots >= 0).any():
            local = run_if(slot >= 0, lambda held: self._layout.states.write(held, state, slot), local)
        if (slots <= REMOTE).any():
            remote = run_if(slot <= REMOTE, lambda held: write_state(held, state, REMOTE - slot), remote)
        return *local, *remote


def count_bytes(passes: ScanPasses, *, batch: Batch) -> int:
    """Compile the passes for a batch as one program, and return its bytes: temporary arrays and results.

    The caller's loss is not known. The mean square of the outputs stands in for it.
    """
    step, steps, run = passes.step, passes.table.steps, partial(_run_both, passes)
    given = [
        *map(argument_of, (*step.constants, *step.state)),
        *(argument_of(leaf, steps) for leaf in step.inputs),
    ]
    if batch.size > 1:
        run = jax.vmap(run, [0 if batched else None for batched in batch.batched], axis_size=batch.size)
        given = [
            leaf.update(shape=(batch.size, *leaf.shape)) if batched else leaf
            for leaf, batched in zip(given, batch.batched, strict=True)
        ]
    lowered = jax.jit(run).lower(*given)
    # The caller's initial state may be a constant, which is copied. Here it is an argument, so add its bytes.
    bytes_beside = batch.size * byte_size(step.state) + _SMALL_BYTES
    options: dict[str, str | bool] = {}
    if jax.default_backend() == "cpu":
        has_small = any(kind in lowered.as_text() for kind in _SMALL_TYPES)
        options = _QUICKLY if has_small else _MORE_QUICKLY
        # On a CPU, arrays in host memory are among the temporary arrays.
        bytes_beside -= passes.host_bytes
    memory: Any = lowered.compile(compiler_options=options).memory_analysis()
    return int(memory.temp_size_in_bytes + memory.output_size_in_bytes + bytes_beside)


def _run_both(passes: ScanPasses, *given: Any) -> Any:
    """Return a loss, the mean square of all results in at least fp32, and the gradients."""
    step = passes.step
    final, outputs, kept = split(passes.run_forward(*given), len(step.state), len(step.outputs))
    results = (*pick(final, differentiable(final)), *pick(outputs, differentiable(outputs)))

    def loss(results: Arrays) -> Any:
        leaves = (jnp.abs(leaf) for leaf in results if leaf.size)
        return sum(jnp.mean(jnp.square(widen(leaf))) for leaf in leaves)

    value, incoming = jax.value_and_grad(loss)(results)
    return value, passes.go_back(kept, given, incoming)
