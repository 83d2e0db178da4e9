"""Counts what a step takes under each kind of tape, from shapes alone: nothing is run or compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ckptplan.jax.leaves import byte_size
from ckptplan.jax.step import TracedStep
from ckptplan.jax.sums import TOGETHER, GradientSums
from ckptplan.jax.table import Leaves
from ckptplan.jax.tapes import TAPES, Tape, Wanted, make_recording
from ckptplan.jax.work import (
    estimate_hoisted_bytes,
    estimate_live_bytes,
    estimate_product_seconds,
    estimate_seconds,
)

#: Numbers of rows and steps, and what their alignment takes.
_SMALL_BYTES = 2048
#: A step that computes nothing.
_LEAST_SECONDS = 1e-9


@dataclass(frozen=True, kw_only=True)
class StepFootprint:
    """Bytes and estimated seconds of a step with one kind of tape."""

    tape: Tape
    #: The steps whose products of gradients are formed at once.
    together: int
    #: Shapes and types of the leaves of a state and of the tape of a step.
    state_leaves: Leaves
    tape_leaves: Leaves
    state_bytes: int
    tape_bytes: int
    #: Gradients of the constants, and what a step holds while it runs.
    workspace_bytes: int
    forward_seconds: float
    record_seconds: float
    backward_seconds: float

    @property
    def name(self) -> str:
        """The name of workloads of this kind."""
        return f"jax-{self.tape}{self.suffix}"

    @property
    def suffix(self) -> str:
        """What the name says of products of several steps at once."""
        return f"-{self.together}" if self.together > 1 else ""

    @property
    def seconds(self) -> dict[str, float]:
        """The times of a step as fields of a workload."""
        forward = max(self.forward_seconds, _LEAST_SECONDS)
        return {
            "forward_seconds": forward,
            "recompute_seconds": forward,
            "record_overhead_seconds": max(0.0, self.record_seconds - forward),
            "backward_seconds": max(self.backward_seconds, _LEAST_SECONDS),
        }


def measure_step(step: TracedStep, wanted: Wanted) -> tuple[StepFootprint, ...]:
    """Return the footprint of a step for each kind of tape, in the order of ``TAPES``.

    Each kind comes alone, and with products of several steps at once if there are any.
    """
    return tuple(one for kind in TAPES for one in _measure(step, kind, wanted))


def _measure(step: TracedStep, kind: Tape, wanted: Wanted) -> Iterator[StepFootprint]:
    recording = make_recording(step, kind, wanted)
    constants, state, x = step.constant_shapes, step.state_shapes, step.inputs
    t = jax.ShapeDtypeStruct((), jnp.int32)
    record = jax.make_jaxpr(recording.record)(constants, state, x, t).jaxpr
    forward = step.closed.jaxpr
    total = byte_size([constants[place] for place in wanted.constants])
    groups = GradientSums(step, recording, count=len(wanted.constants), together=TOGETHER)
    formed = sum(byte_size([one.outvars[0].aval]) for one in groups.products)
    factors = groups.kept_bytes // TOGETHER
    running = max(estimate_live_bytes(forward), estimate_live_bytes(record))
    alone = GradientSums(step, recording, count=len(wanted.constants))
    for sums in (alone, groups) if groups.products else (alone,):
        together = sums.together
        reversing = estimate_live_bytes(sums.each)
        if together > 1:
            # Factors are written in place. What else a step leaves may be held while products are formed.
            live = formed + max(running, reversing - factors)
        else:
            # Compilers may form the products of a step last, beside all of their factors.
            live = max(running, reversing, formed + factors + groups.added_bytes)
        products = sum(estimate_product_seconds(one, together=together) for one in sums.products)
        yield StepFootprint(
            tape=kind,
            together=together,
            state_leaves=state,
            tape_leaves=recording.tape,
            state_bytes=max(1, byte_size(state)),
            tape_bytes=max(1, recording.tape_bytes),
            # The sums of gradients, with the factors of a group; the state and its gradient; what a step holds;
            # what depends on constants only, which is computed before the steps.
            workspace_bytes=total
            + sums.kept_bytes
            + 2 * byte_size(state)
            + live
            + byte_size(recording.prepared)
            + max(estimate_hoisted_bytes(forward, forward.invars[: len(constants)]), sums.hoisted_bytes)
            + _SMALL_BYTES,
            forward_seconds=estimate_seconds(forward),
            record_seconds=estimate_seconds(record),
            backward_seconds=estimate_seconds(sums.each) + products,
        )
