"""Counts the bytes of a cell of JAX: state and tape from shapes, the workspace from compiled programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.core import Tracer

from ckptplan.calibration.backend import Counted, CountedSizes, assume_times
from ckptplan.calibration.jax_backend.cells import JaxNetwork
from ckptplan.jax.api import make_step
from ckptplan.jax.footprint import StepFootprint, measure_step
from ckptplan.jax.leaves import byte_size
from ckptplan.jax.step import differentiable, trace_step
from ckptplan.jax.tapes import Tape, TracedGradient, Wanted
from ckptplan.model.plan import Plan
from ckptplan.model.workload import Basis
from ckptplan.schedule.schedule import Schedule
from ckptplan.units import format_share


@dataclass(frozen=True, kw_only=True)
class CompiledSizes(CountedSizes):
    """Bytes of a cell with one kind of tape, and the footprint that they come from."""

    footprint: StepFootprint

    def kept(self, plan: Plan) -> Counted:
        """Return the bytes that a plan's program allocates for checkpoints and tapes."""
        table = self.footprint.tabulate(plan)
        return Counted(
            state_bytes=self.state_bytes,
            local_bytes=table.buffer_bytes,
            remote_bytes=table.remote_slots * self.state_bytes,
        )

    def with_programs(self, memory: Sequence[tuple[Schedule, int]]) -> CompiledSizes:
        """Return the sizes with the workspace that compiled programs show; the largest counts."""
        spaces = [max(0, whole - self._held(schedule)) for schedule, whole in memory]
        residual = (max(spaces) - min(spaces)) / max(whole for _, whole in memory)
        why = (
            f"what {len(spaces)} compiled programs need besides the bytes above (memory_analysis): gradients, "
            f"working states, scratch; its range is {format_share(residual)} of the peak"
        )
        return replace(
            self,
            workspace_bytes=max(spaces),
            residual=residual,
            basis={**self.basis, "workspace_bytes": Basis(kind="measured", why=why)},
        )

    def _held(self, schedule: Schedule) -> int:
        """Return the bytes that a schedule needs besides the workspace."""
        kept = schedule.steps * self.resident_bytes_per_step + self.resident_bytes
        return self.footprint.tabulate(schedule).buffer_bytes + kept


#: How each field is counted.
_TEXTS = {
    "state_bytes": "from the shapes of a state",
    "tape_bytes": "from the shapes of a tape ({tape})",
    "resident_bytes": "counted: parameters",
    "resident_bytes_per_step": "counted: inputs",
    "workspace_bytes": "from the arrays of a traced step: gradients, states, scratch",
}


def count_sizes(network: JaxNetwork) -> dict[Tape, CompiledSizes]:
    """Return the sizes of a cell with each kind of tape, from its shapes; nothing is run or compiled."""
    footprints: list[StepFootprint] = []

    def trace(parameters: Any, state: Any, xs: Any) -> None:
        step = make_step(lambda state, x: network.step(parameters, state, x), network.loss)
        traced, constants, _ = trace_step(step, state, xs)
        # What the parameters do not reach has no gradient.
        reached = tuple(
            place for place in differentiable(traced.constants) if isinstance(constants[place], Tracer)
        )
        footprints.extend(measure_step(TracedGradient(traced, Wanted(constants=reached, inputs=()))))

    inputs = network.inputs(1)
    jax.eval_shape(trace, network.parameters, network.state, inputs)
    return {
        found.tape: CompiledSizes(
            footprint=found,
            state_bytes=found.state_bytes,
            tape_bytes=found.tape_bytes,
            resident_bytes=byte_size(network.parameters),
            resident_bytes_per_step=byte_size(jax.tree.leaves(inputs)),
            workspace_bytes=found.workspace_bytes,
            basis={
                field: Basis(kind="derived", why=why.format(tape=found.tape)) for field, why in _TEXTS.items()
            },
            assumed=assume_times(found.seconds, "operations of the traced step, at assumed rates"),
        )
        for found in footprints
        if found.together == 1
    }
