"""A while loop with reverse mode under a limit of memory, whose T is known when it ends (docs/online.md).

States are held by the rule of ``recursion.online``, whose choices are a table that the loop reads. Then the
gaps are reversed by binomial checkpointing with the slots that are free by then, in one loop of XLA as well:
the last held state is run from, to the step before the adjoint, which is reversed, or to a state to hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from ckptplan.cost.arrays import Integers
from ckptplan.errors import InputError
from ckptplan.execution.execute import check_functions
from ckptplan.jax.jaxprs import evaluate, find_known, slice_jaxpr
from ckptplan.jax.leaves import Arrays, axes_of, byte_size, make_room, put, release, take
from ckptplan.jax.primitive import Static, guard, once, perturbed, spread, zero_or
from ckptplan.jax.step import TracedStep, differentiable, find_collectives, trace_step
from ckptplan.jax.sums import GradientSums
from ckptplan.jax.tapes import Recording, TracedGradient, Wanted
from ckptplan.recursion.online import Snapshots
from ckptplan.schedule.schedule import check_count
from ckptplan.units import format_bytes, format_limit, parse_bytes, parse_limit

_MOST = 2**31 - 1
#: States beside the held ones: the working state, the one before it, and a row for those that are not held.
_BESIDE = 3
#: Beside each held state: its step, its row in their order, and what sorting them takes.
_ROW_BYTES = 24


def while_loop(
    cond: Callable[[Any], Any],
    body: Callable[[Any], Any],
    state: Any,
    *,
    memory: int | str | None = None,
    slots: int | None = None,
    max_steps: int = 10_000,
) -> Any:
    """Return the final state: ``jax.lax.while_loop`` with gradients in reverse mode.

    Arguments:
        cond: ``cond(state)`` says whether another step runs; it has no gradients.
        body: ``body(state)`` returns the next state; what it closes over has gradients, too.
        state: the initial state, any pytree.
        memory: the bytes that states, the tape of a step and the table of the rule may take, or text as
            "64 MiB". Without gradients nothing is held.
        slots: in place of ``memory``, the states that are held at a time.
        max_steps: the steps for which the rule is tabulated, in one to four bytes each. No more states are
            held. Longer loops are right, and run steps more often.

    Works under ``jit`` and ``grad``. First derivatives only. Raises InputError.
    """
    check_functions(cond=cond, body=body)
    if (slots is None) == (memory is None):
        what = "is missing" if slots is None else "is given together with memory"
        raise InputError(what, field="slots", accepted="slots or memory")
    check_count("max_steps", max_steps)
    step, constants, flat = trace_step(
        lambda _, present, __: (body(present), (), ()), state, None, field="body", first="state"
    )
    # With the types of the states that follow, which those of Python numbers give way to.
    first = jax.tree.unflatten(jax.tree.structure(state), flat)
    test, of_test, _ = trace_step(
        lambda _, present, __: (present, jnp.asarray(cond(present)), ()),
        first,
        None,
        field="cond",
        first="state",
    )
    (kind,) = test.outputs
    if kind.shape or kind.dtype != jnp.bool_:
        raise InputError(f"returns {kind.dtype}{list(kind.shape)}", field="cond", accepted="a single boolean")
    apart = axes_of(kind)
    step, constants = _vary_first(step, constants, apart)
    _check_lengths(step.jaxpr, apart, field="body")
    _check_lengths(test.jaxpr, apart, field="cond")
    if slots is None:
        parse_limit(memory, field="memory")
    else:
        check_count("slots", slots)
    loop = _Loop(step=step, test=test, apart=apart, slots=slots, memory=memory, max_steps=max_steps)
    final = loop.run(constants, of_test, flat)
    found, _ = step.raise_results(final, ())
    return found


#: Operations over a named axis that do not communicate.
_SILENT = frozenset(("axis_index", "pvary"))


def _vary_first(step: TracedStep, constants: Arrays, apart: Sequence[str]) -> tuple[TracedStep, Arrays]:
    """Return a step with its constants, which vary over axes of devices early, where they do in a step.

    What varies then is computed once, before the loop: so the devices add up its gradients once, after it.
    """
    jaxpr, count = step.jaxpr, len(step.constants)
    known = find_known(jaxpr, jaxpr.invars[:count])
    varied = [
        equation.outvars[0]
        for equation in jaxpr.eqns
        if equation.primitive.name == "pvary"
        and not known.isdisjoint(equation.outvars)
        and not set(apart).isdisjoint(equation.params["axes"])
    ]
    if not varied:
        return step, constants
    before = slice_jaxpr(jaxpr, varied, jaxpr.invars[:count], effects=False)
    given = jaxpr.invars[count:]
    after = slice_jaxpr(jaxpr, jaxpr.outvars, (*jaxpr.invars, *varied), effects=True)
    used = {one for equation in after.eqns for one in equation.invars if isinstance(one, core.Var)}
    pairs = zip(jaxpr.invars, constants, strict=False)
    kept = {variable: value for variable, value in pairs if variable in used or variable in after.outvars}
    kept |= zip(varied, evaluate(before, constants), strict=True)
    changed = step.change(after.replace(invars=(*kept, *given)), constants=len(kept))
    return changed, tuple(kept.values())


def _check_lengths(jaxpr: Any, apart: Sequence[str], *, field: str, what: str = "calls") -> None:
    """Raise InputError if a jaxpr communicates over axes of devices whose loops may end apart."""
    for name, axis in find_collectives(jaxpr):
        if axis in apart and name not in _SILENT:
            raise InputError(
                f"{what} {name} over the axis {axis!r} of shard_map, and cond may end the loop of each of its "
                "devices at another step: they would wait for each other",
                field=field,
                accepted=f"jax.lax.pcast(array, {axis!r}, to='varying') of arrays from outside, or a cond that "
                "is the same on all devices",
            )


def _count_slots(traced: TracedGradient, memory: Any, max_steps: int) -> int:
    """Return how many states fit a limit beside a tape and the table of the rule.

    Raises InputError if there is no room for one.
    """
    limit = parse_limit(memory, field="memory")
    step = traced.step
    state = byte_size(step.state)
    gradients = [step.constants[place] for place in traced.wanted.constants]
    tape = byte_size([one.aval for one in traced.residuals]) + byte_size(gradients)
    each, beside = state + _ROW_BYTES, _BESIDE * state + _ROW_BYTES + tape
    # Rows are numbers of one, two or four bytes.
    for row_bytes in (1, 2, 4):
        slots = (limit - beside - row_bytes * max_steps) // each
        if slots < 2 ** (8 * row_bytes):
            break
    if slots < 1:
        least = format_limit(each + beside + max_steps, like=limit)
        raise InputError(
            f"{format_bytes(limit, like=limit)} are too little for a held state, the tape of a step and the "
            f"table of the rule for {max_steps:,} steps",
            field="memory",
            value=memory,
            accepted=f"at least {least} ({parse_bytes(least):,} bytes), or smaller max_steps",
        )
    return int(slots)


@lru_cache(maxsize=64)
def _tabulate(slots: int, steps: int) -> Integers:
    """Return the row in which each state is held, ``slots`` for one that is not; shape (steps,)."""
    rows = np.full(steps, slots, dtype=np.min_scalar_type(slots))
    rows[0] = 0
    snapshots, places = Snapshots(slots), {0: 0}
    for state in range(1, steps):
        gone = snapshots.offer(state)
        if gone != state:
            rows[state] = places[state] = len(places) if gone is None else places.pop(gone)
    rows.setflags(write=False)
    return rows


def _split(length: Any, free: Any) -> Any:
    """Return how many of at least two steps to run to the next held state, with ``free`` slots.

    As few as keep the fewest runs (``revolve.split``).
    """
    length, free = (one.astype(jnp.uint32) for one in (length, free))

    def is_short(level: Any) -> Any:
        # A single slot takes as many runs as there are steps.
        return (free > 1) & (level[3] < length)

    def climb(level: Any) -> Any:
        """From C(free + k, free) and the two before it to the next k; beyond 2**31 - 1, that."""
        k, _, before, reach = level
        k = k + 1
        whole, rest = reach // k, reach % k
        large = reach.astype(jnp.float32) / k * (free + k) >= _MOST
        # Below that, no product is beyond 32 bits.
        following = jnp.where(large, _MOST, whole * (free + k) + rest * (free + k) // k)
        return k, before, reach, following.astype(jnp.uint32)

    one = jnp.ones_like(free)
    _, fewest, before, reach = lax.while_loop(is_short, climb, (one, one, one, free + 1))
    # From C(free + k - 2, free - 1) to C(free + k - 1, free - 1) steps are beyond the next state.
    least, most = before - fewest, reach - before
    left = jnp.clip(length - jnp.minimum(most, length), fewest, length - least)
    return jnp.clip(jnp.where(free == 1, length - 1, left), 1, length - 1).astype(jnp.int32)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Loop:
    """The loop over flat arrays."""

    step: TracedStep
    test: TracedStep
    #: The axes of devices whose loops may end apart.
    apart: tuple[str, ...]
    #: The states that are held at a time; None for those that fit ``memory``.
    slots: int | None
    memory: int | str | None
    max_steps: int

    def run(self, constants: Arrays, of_test: Arrays, state: Arrays) -> Arrays:
        """Return the final state."""

        @jax.custom_vjp
        def whole(constants: Arrays, of_test: Arrays, state: Arrays) -> Arrays:
            def go_on(present: Arrays) -> Any:
                return self.goes_on(of_test, present)

            return lax.while_loop(go_on, lambda present: self.advance(constants, present), state)

        def forward(*given: Any) -> tuple[Arrays, Any]:
            constants, of_test, state = (tuple(one.value for one in part) for part in given)
            wanted = Wanted(constants=perturbed(given[0], self.step.constants), inputs=())
            traced = TracedGradient(self.step, wanted)
            slots = self.slots or _count_slots(traced, self.memory, self.max_steps)
            slots = min(slots, self.max_steps)
            final, *held = once(partial(self.sweep, slots))(constants, of_test, state)
            return final, (Static((traced, slots)), constants, held)

        def backward(kept: Any, incoming: Any) -> Any:
            static, constants, held = kept
            some = differentiable(self.step.state)
            gradients = tuple(zero_or(incoming[place], self.step.state[place]) for place in some)
            of_constants, of_state = once(partial(self.reverse, *static.value))(constants, held, gradients)
            return of_constants, tuple(None for _ in of_test), of_state

        whole.defvjp(forward, backward, symbolic_zeros=True)
        return whole(*(tuple(map(guard, part)) for part in (constants, of_test, state)))

    def goes_on(self, of_test: Arrays, state: Arrays) -> Any:
        _, (found,), _ = self.test.run(of_test, state, (), jnp.int32(0))
        return found

    def advance(self, constants: Arrays, state: Arrays) -> Arrays:
        return self.step.run(constants, state, (), jnp.int32(0))[0]

    def sweep(self, slots: int, constants: Arrays, of_test: Arrays, state: Arrays) -> Any:
        """Return the final state, the held states, the step of each row, and T."""
        rows = jnp.asarray(_tabulate(slots, self.max_steps))
        held = make_room(state, slots + 1)
        steps = jnp.full(slots + 1, _MOST, jnp.int32)

        def go_on(carry: Any) -> Any:
            return self.goes_on(of_test, carry[0])

        def run(carry: Any) -> Any:
            present, held, steps, t = carry
            row = jnp.where(t < len(rows), rows[jnp.minimum(t, len(rows) - 1)].astype(jnp.int32), slots)
            held, steps = put(held, present, row), steps.at[row].set(t)
            return self.advance(constants, present), held, steps, t + 1

        return lax.while_loop(go_on, run, (state, held, steps, jnp.int32(0)))

    def reverse(
        self,
        traced: TracedGradient,
        slots: int,
        constants: Arrays,
        kept: tuple[Arrays, Any, Any],
        incoming: Arrays,
    ) -> Any:
        """Return the gradients of the constants and of the initial state, None for those that have none.

        Arguments:
            traced: a step and its backward.
            slots: the states that are held at a time.
            constants: those of the step.
            kept: the held states, the step of each row, and T, as ``sweep`` returns them.
            incoming: the gradients of the final state, where it has them.
        """
        held, steps, last = kept
        recording = Recording(traced, "states")
        sums_of = GradientSums(recording)
        _check_lengths(sums_of.each, self.apart, field="body", what="has gradients that take")
        of_constants, of_state = traced.wanted.constants, differentiable(self.step.state)
        rows = jnp.argsort(steps[:slots]).astype(jnp.int32)
        count = jnp.sum(steps[:slots] < _MOST).astype(jnp.int32)

        def run(carry: Any) -> Any:
            held, steps, count, adjoint, gradients, sums = carry
            row = rows[count - 1]
            start = steps[row]
            length = adjoint - start
            ahead = jnp.where(length == 1, 0, _split(length, slots - count + 1))
            before = release(take(held, row), self.step.state)
            present = lax.fori_loop(0, ahead, lambda _, one: self.advance(constants, one), before)

            reverses = start + ahead == adjoint - 1
            # Outside the branches, which would copy what is held.
            free = jnp.where(reverses, slots, rows[count])
            held, steps = put(held, present, free), steps.at[free].set(start + ahead)

            def step_back(_: None) -> Any:
                zero = jnp.int32(0)
                added, before = sums_of.reverse(sums, (constants, present, zero, gradients), zero)[:2]
                return count - jnp.where(ahead == 0, 1, 0), adjoint - 1, before, added

            def go_on(_: None) -> Any:
                return count + 1, adjoint, gradients, sums

            return held, steps, *lax.cond(reverses, step_back, go_on, None)

        first = (
            *(held, steps, count, last),
            incoming,
            sums_of.start(),
        )
        *_, gradients, sums = lax.while_loop(lambda carry: carry[3] > 0, run, first)
        return spread(constants, of_constants, sums_of.finish(sums)), spread(held, of_state, gradients)
