"""Counts what a step takes under each kind of tape, from shapes alone: nothing is run or compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ckptplan.jax.leaves import byte_size
from ckptplan.jax.sums import GradientSums
from ckptplan.jax.table import Leaves
from ckptplan.jax.tapes import TAPES, Recording, Tape, TracedGradient
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


@dataclass(frozen=True, kw_only=True, eq=False)
class StepFootprint:
    """Bytes and estimated times of a step with one kind of tape, and what records and reverses it."""

    sums: GradientSums
    #: Gradients of the constants, and what a step holds while it runs.
    workspace_bytes: int
    #: The times as fields of a workload.
    seconds: dict[str, float]

    @property
    def together(self) -> int:
        """The steps whose products of gradients are formed at once."""
        return self.sums.together

    @property
    def tape(self) -> Tape:
        """The kind of tape."""
        return self.sums.recording.kind

    @property
    def traced(self) -> TracedGradient:
        """The step and its backward."""
        return self.sums.recording.traced

    @property
    def state_leaves(self) -> Leaves:
        """Shapes and types of the leaves of a state."""
        return self.traced.step.state

    @property
    def tape_leaves(self) -> Leaves:
        """Shapes and types of the leaves of the tape of a step."""
        return self.sums.recording.tape

    @property
    def state_bytes(self) -> int:
        """The bytes of a state."""
        return max(1, byte_size(self.state_leaves))

    @property
    def tape_bytes(self) -> int:
        """The bytes of the tape of a step."""
        return max(1, byte_size(self.tape_leaves))

    @property
    def kept_bytes(self) -> int:
        """What stays for a step the whole time: outputs, their gradients, wanted gradients of inputs."""
        step, wanted = self.traced.step, self.traced.wanted
        return 2 * byte_size(step.outputs) + byte_size([step.inputs[place] for place in wanted.inputs])

    def add(self, more: int) -> StepFootprint:
        """Return one with so many bytes more of workspace, or less."""
        return replace(self, workspace_bytes=max(0, self.workspace_bytes + more))

    @property
    def name(self) -> str:
        """The name of workloads of this kind."""
        return f"jax-{self.tape}{self.suffix}"

    @property
    def suffix(self) -> str:
        """What the name says of products of several steps at once."""
        return f"-{self.together}" if self.together > 1 else ""


def measure_step(traced: TracedGradient) -> tuple[StepFootprint, ...]:
    """Return the footprint of a step for each kind of tape, in the order of ``TAPES``.

    Each kind comes alone, and with products of several steps at once if there are any.
    """
    return tuple(one for kind in TAPES for one in _measure(Recording(traced, kind)))


def _measure(recording: Recording) -> Iterator[StepFootprint]:
    step, wanted = recording.traced.step, recording.traced.wanted
    record, forward = recording.each, step.jaxpr
    constants, state = step.constants, step.state
    total = byte_size([constants[place] for place in wanted.constants])
    alone = GradientSums(recording)
    formed = sum(byte_size([one.outvars[0].aval]) for one in alone.products)
    running = max(estimate_live_bytes(forward), estimate_live_bytes(record))
    seconds = max(estimate_seconds(forward), _LEAST_SECONDS)
    for sums in (alone, alone.group()) if alone.products else (alone,):
        if sums.together > 1:
            # Factors are written in place. What else a step leaves may be held while products are formed.
            kept = sums.together * sums.factor_bytes
            live = formed + max(running, estimate_live_bytes(sums.each) - sums.factor_bytes)
        else:
            # Compilers may form the products of a step last, beside all of their factors.
            kept = 0
            last = formed + sums.factor_bytes + sums.added_bytes
            live = max(running, estimate_live_bytes(recording.reverse), last)
        products = sum(estimate_product_seconds(one, together=sums.together) for one in sums.products)
        yield StepFootprint(
            sums=sums,
            # The sums of gradients, with the factors of a group; the state and its gradient; what a step holds;
            # what depends on constants only, which is computed before the steps.
            workspace_bytes=total
            + kept
            + 2 * byte_size(state)
            + live
            + max(estimate_hoisted_bytes(forward, forward.invars[: len(constants)]), sums.hoisted_bytes)
            + _SMALL_BYTES,
            seconds={
                "forward_seconds": seconds,
                "recompute_seconds": seconds,
                "record_overhead_seconds": max(0.0, estimate_seconds(record) - seconds),
                "backward_seconds": max(estimate_seconds(sums.each) + products, _LEAST_SECONDS),
            },
        )
