"""A while loop with reverse mode under a memory limit. Its T is unknown until it ends (docs/online.md).

States are held by the rule of ``recursion.online``, from a table that the loop reads. Then one loop of XLA
reverses the gaps by binomial checkpointing with the free slots. Each round runs from the last held state to the
state before the adjoint, and reverses its step, or to another state, which it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from ckptplan.cost.arrays import Integers
from ckptplan.errors import InputError
from ckptplan.jax.jaxprs import Step, check_repeatable, walk
from ckptplan.jax.leaves import Arrays, byte_size, make_room, pick, put, release, take, varying_axes
from ckptplan.jax.limit import read_limit
from ckptplan.jax.loops import Batch, Loop, Passes, run_planned, trace
from ckptplan.jax.sums import GradientSums
from ckptplan.jax.tapes import TracedGradient
from ckptplan.recursion.online import Snapshots
from ckptplan.schedule.schedule import check_count
from ckptplan.units import format_bytes, format_limit, parse_bytes, parse_limit

_MOST = 2**31 - 1
#: States in addition to the held ones: the working state, the previous one, and a row for states to discard.
_BESIDE = 3
#: Bytes in addition to each held state: its step, its row in sorted order, and the sort.
_ROW_BYTES = 24


def while_loop(
    cond: Callable[[Any], Any],
    body: Callable[[Any], Any],
    state: Any,
    *,
    memory: SupportsIndex | str | None = None,
    slots: int | None = None,
    max_steps: int = 10_000,
) -> Any:
    """Return the final state: ``jax.lax.while_loop`` with gradients in reverse mode.

    Arguments:
        cond: ``cond(state)`` says whether another step runs; it has no gradients.
        body: ``body(state)`` returns the next state. Arrays that it closes over have gradients, too.
        state: the initial state, any pytree.
        memory: the bytes that states, the tape of a step and the table of the rule may take, or text as
            "64 MiB". Without gradients no states are held.
        slots: in place of ``memory``, the number of states that are held at a time.
        max_steps: the number of steps in the table of the rule, which has one to four bytes per step. Later
            states are not held, so longer loops give the right gradients but recompute more.

    JAX traces the loop and raises its own errors. Forward mode is JAX's. A second reverse pass is refused.
    Raises InputError.
    """
    if (slots is None) == (memory is None):
        problem = "is missing" if slots is None else "is given together with memory"
        raise InputError(problem, field="slots", accepted="slots or memory")
    check_count("max_steps", max_steps)
    if slots is None:
        memory = read_limit(memory)
    else:
        check_count("slots", slots)
    closed, tree = trace(lambda state: lax.while_loop(cond, body, state), state)
    (loop,) = (equation for equation in closed.jaxpr.eqns if equation.primitive is While.primitive)
    planned = While(params=loop.params, slots=slots, memory=memory, max_steps=max_steps)
    check_repeatable(loop.params["cond_jaxpr"], field="cond")
    check_repeatable(closed, field="body")
    _check_lengths(planned.body.jaxpr, planned.apart, field="body")
    _check_lengths(planned.test.closed.jaxpr, planned.apart, field="cond")
    return jax.tree.unflatten(tree, run_planned(closed, planned, state))


#: Operations over a named axis that do not communicate.
_SILENT = frozenset(("axis_index", "pvary"))


def _check_lengths(jaxpr: Any, apart: Sequence[str], *, field: str, verb: str = "calls") -> None:
    """Raise InputError if a jaxpr communicates over axes whose devices may run different numbers of steps."""
    manual = jax.sharding.get_abstract_mesh().manual_axes
    for name, axis in _find_collectives(jaxpr):
        if axis not in manual:
            raise InputError(
                f"{verb} {name} over the axis {axis!r} of jax.vmap, and each example runs steps again alone",
                field=field,
                accepted="collectives of shard_map, or the same sum over an axis of the state",
            )
        if axis in apart and name not in _SILENT:
            raise InputError(
                f"{verb} {name} over the axis {axis!r} of shard_map, and cond may end the loop of each of its "
                "devices at another step: they would wait for each other",
                field=field,
                accepted=f"jax.lax.pcast(array, {axis!r}, to='varying') of arrays from outside, or a cond that "
                "is the same on all devices",
            )


def _find_collectives(jaxpr: core.Jaxpr) -> Iterator[tuple[str, str]]:
    """Yield the name of each operation over a named axis, and the axis."""
    for equation in (equation for inner in walk(jaxpr) for equation in inner.eqns):
        for value in (equation.params.get("axes"), equation.params.get("axis_name")):
            for axis in value if isinstance(value, tuple) else (value,):
                if isinstance(axis, str):
                    yield equation.primitive.name, axis


def _count_slots(traced: TracedGradient, memory: Any, max_steps: int, *, batch: int = 1) -> int:
    """Return how many states fit a limit, in addition to a tape and the table of the rule.

    Raises InputError if there is no room for a state.
    """
    total = parse_limit(memory, field="memory")
    limit = total // batch
    step = traced.step
    state = byte_size(step.state)
    tape = byte_size([variable.aval for variable in traced.residuals])
    tape += byte_size(pick(step.constants, traced.wanted_constants))
    per_state, fixed = state + _ROW_BYTES, _BESIDE * state + _ROW_BYTES + tape
    # Rows are numbers of one, two or four bytes.
    for row_bytes in (1, 2, 4):
        slots = (limit - fixed - row_bytes * max_steps) // per_state
        if slots < 2 ** (8 * row_bytes):
            break
    if slots < 1:
        least = format_limit(batch * (per_state + fixed + max_steps), like=total)
        raise InputError(
            f"{format_bytes(total, like=total)} are too little for a held state, the tape of a step "
            f"and the table of the rule for {max_steps:,} steps",
            field="memory",
            value=memory,
            accepted=f"at least {least} ({parse_bytes(least):,} bytes), or smaller max_steps",
        )
    return int(slots)


@lru_cache(maxsize=64)
def _tabulate(slots: int, steps: int) -> Integers:
    """Return the row of each state, or ``slots`` if the state is not held; shape (steps,)."""
    rows = np.full(steps, slots, dtype=np.min_scalar_type(slots))
    rows[0] = 0
    snapshots, places = Snapshots(slots), {0: 0}
    for state in range(1, steps):
        dropped = snapshots.offer(state)
        if dropped != state:
            rows[state] = places[state] = len(places) if dropped is None else places.pop(dropped)
    rows.setflags(write=False)
    return rows


def _split(length: Any, free: Any) -> Any:
    """Return how many of ``length`` >= 2 steps to run before holding the next state, with ``free`` slots.

    It is the least number with which the runs of all steps are fewest (``revolve.split``).
    """
    length, free = (number.astype(jnp.uint32) for number in (length, free))

    def is_short(level: Any) -> Any:
        # A single slot would climb as many levels as there are steps, and is handled below.
        return (free > 1) & (level[3] < length)

    def climb(level: Any) -> Any:
        """Go from C(free + k, free) and the two values before it to the next k, capped at 2**31 - 1."""
        k, _, before, reach = level
        k = k + 1
        whole, remainder = reach // k, reach % k
        large = reach.astype(jnp.float32) / k * (free + k) >= _MOST
        # Below the cap, no product exceeds 32 bits.
        following = jnp.where(large, _MOST, whole * (free + k) + remainder * (free + k) // k)
        return k, before, reach, following.astype(jnp.uint32)

    one = jnp.ones_like(free)
    _, fewest, before, reach = lax.while_loop(is_short, climb, (one, one, one, free + 1))
    # Between C(free + k - 2, free - 1) and C(free + k - 1, free - 1) steps are left after the next state.
    least, most = before - fewest, reach - before
    left = jnp.clip(length - jnp.minimum(most, length), fewest, length - least)
    return jnp.clip(jnp.where(free == 1, length - 1, left), 1, length - 1).astype(jnp.int32)


@dataclass(frozen=True, kw_only=True, eq=False)
class While(Loop):
    """A while loop that JAX has traced."""

    #: The number of states that are held at a time; None for as many as fit ``memory``.
    slots: int | None
    memory: SupportsIndex | str | None
    max_steps: int
    primitive = core.primitives.while_p
    names = ("body_jaxpr", "body_nconsts")

    @cached_property
    def test(self) -> Step:
        """The condition of the loop: a step without a next state."""
        return Step(self.params["cond_jaxpr"], constants=self.first, states=0)

    @property
    def apart(self) -> tuple[str, ...]:
        """The axes whose devices may end their loops at different steps."""
        return varying_axes(self.params["cond_jaxpr"].out_avals[0])

    def plan(self, wanted: tuple[int, ...], *, batch: Batch, as_words: bool) -> WhilePasses:
        traced = TracedGradient(self.step, wanted)
        slots = self.slots or _count_slots(traced, self.memory, self.max_steps, batch=batch.size)
        sums = GradientSums(traced, "states")
        _check_lengths(sums.each, self.apart, field="body", verb="has gradients that take")
        return WhilePasses(
            loop=self,
            sums=sums,
            as_words=as_words,
            size=None if self.memory is None else batch.size,
            slots=min(slots, self.max_steps),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class WhilePasses(Passes):
    """The passes of a while loop, which holds states by the rule of ``recursion.online``."""

    loop: While
    slots: int

    def sweep(self, *arguments: Any) -> Sequence[Any]:
        """Run the loop, and return the final state, the held states, the step of each row, and T."""
        slots, of_test = self.slots, arguments[: self.loop.first]
        constants, state, _ = self.split(arguments)
        rows = jnp.asarray(_tabulate(slots, self.loop.max_steps))
        held = make_room(state, slots + 1, as_words=self.as_words)
        steps = jnp.full(slots + 1, _MOST, jnp.int32)

        def go_on(carry: Any) -> Any:
            return self.loop.test.run(of_test, (), carry[0])[1][0]

        def run(carry: Any) -> Any:
            present, held, steps, t = carry
            row = jnp.where(t < len(rows), rows[jnp.minimum(t, len(rows) - 1)].astype(jnp.int32), slots)
            held, steps = put(held, present, row), steps.at[row].set(t)
            return self.sums.traced.run(constants, present, ())[0], held, steps, t + 1

        final, held, steps, last = lax.while_loop(go_on, run, (state, held, steps, jnp.int32(0)))
        return [*final, *held, steps, last]

    def reverse(
        self, kept: Arrays, arguments: Arrays, final: Arrays, stacked: Arrays
    ) -> tuple[Arrays, Arrays, Arrays]:
        *held, steps, last = kept
        slots, step, traced = self.slots, self.step, self.sums.traced
        constants, _, _ = self.split(arguments)
        rows = jnp.argsort(steps[:slots]).astype(jnp.int32)
        count = jnp.sum(steps[:slots] < _MOST).astype(jnp.int32)

        def run(carry: Any) -> Any:
            held, steps, count, adjoint, gradients, sums = carry
            row = rows[count - 1]
            start = steps[row]
            length = adjoint - start
            ahead = jnp.where(length == 1, 0, _split(length, slots - count + 1))
            before = release(take(held, row), step.state)
            present = lax.fori_loop(0, ahead, lambda _, state: traced.run(constants, state, ())[0], before)

            reverses = start + ahead == adjoint - 1
            # Write outside the branches of lax.cond, which would copy the held states.
            free = jnp.where(reverses, slots, rows[count])
            held, steps = put(held, present, free), steps.at[free].set(start + ahead)

            def step_back(_: None) -> Any:
                added, before = self.sums.reverse(sums, (constants, present, gradients), jnp.int32(0))[:2]
                return count - jnp.where(ahead == 0, 1, 0), adjoint - 1, before, added

            def go_on(_: None) -> Any:
                return count + 1, adjoint, gradients, sums

            return held, steps, *lax.cond(reverses, step_back, go_on, None)

        first = tuple(held), steps, count, last, final, self.sums.start()
        *_, gradients, sums = lax.while_loop(lambda carry: carry[3] > 0, run, first)
        return self.sums.finish(sums, constants), gradients, ()
