"""Counts what a step takes under each kind of tape, from shapes alone: nothing is run or compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ckptplan.jax.layout import Leaves
from ckptplan.jax.leaves import byte_size, shapes_of
from ckptplan.jax.step import TracedStep, differentiable
from ckptplan.jax.tapes import TAPES, Recording, Tape, Wanted, make_recording
from ckptplan.jax.work import estimate_live_bytes, estimate_seconds


@dataclass(frozen=True, kw_only=True)
class StepFootprint:
    """Bytes and estimated seconds of a step with one kind of tape."""

    tape: Tape
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


def measure_step(step: TracedStep, wanted: Wanted) -> tuple[StepFootprint, ...]:
    """Return the footprint of a step for each kind of tape, in the order of ``TAPES``."""
    return tuple(_measure(step, kind, wanted) for kind in TAPES)


def _measure(step: TracedStep, kind: Tape, wanted: Wanted) -> StepFootprint:
    recording = make_recording(step, kind, wanted)
    constants, state, x = shapes_of(step.constants), shapes_of(step.state), step.inputs
    t = jax.ShapeDtypeStruct((), jnp.int32)
    record = jax.make_jaxpr(recording.record)(constants, state, x, t).jaxpr
    reverse = _trace_reverse(step, recording)
    forward = step.closed.jaxpr
    live = max(map(estimate_live_bytes, (forward, record, reverse)))
    total = byte_size([constants[place] for place in wanted.constants])
    return StepFootprint(
        tape=kind,
        state_leaves=state,
        tape_leaves=recording.tape,
        state_bytes=max(1, byte_size(state)),
        tape_bytes=max(1, recording.tape_bytes),
        # The sum of gradients with those of a step; the state and its gradient before and after a step.
        workspace_bytes=total + 2 * byte_size(state) + live,
        forward_seconds=estimate_seconds(forward),
        record_seconds=estimate_seconds(record),
        backward_seconds=estimate_seconds(reverse),
    )


def _trace_reverse(step: TracedStep, recording: Recording) -> Any:
    constants, x = shapes_of(step.constants), step.inputs
    prepared = jax.eval_shape(recording.prepare, constants)
    states = tuple(shapes_of(step.state)[place] for place in differentiable(step.state))
    outputs = tuple(step.outputs[place] for place in differentiable(step.outputs))
    t = jax.ShapeDtypeStruct((), jnp.int32)
    gradients = states, outputs, step.terms
    return jax.make_jaxpr(recording.reverse)(constants, prepared, recording.tape, (t, x), gradients).jaxpr
