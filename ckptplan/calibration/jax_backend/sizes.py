"""Counts the bytes of a cell of JAX: state and tape from shapes, the workspace from compiled programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.core import Tracer

from ckptplan.calibration.backend import Counted, CountedSizes, assume_times
from ckptplan.calibration.jax_backend.cells import JaxNetwork
from ckptplan.jax.api import with_loss
from ckptplan.jax.footprint import StepFootprint, measure_step
from ckptplan.jax.jaxprs import replace_loop
from ckptplan.jax.leaves import byte_size, differentiable
from ckptplan.jax.limit import Ways
from ckptplan.jax.planned_scan import trace_scan
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
    "state_bytes": "from the shapes of a state, the number of the step and the sum of the loss",
    "tape_bytes": "from the shapes of a tape ({tape})",
    "resident_bytes": "counted: parameters",
    "resident_bytes_per_step": "counted: inputs",
    "workspace_bytes": "from the arrays of a traced step: gradients, states, scratch",
}


def count_sizes(network: JaxNetwork) -> dict[Tape, CompiledSizes]:
    """Return the sizes of a cell with each kind of tape, from its shapes; nothing is run or compiled."""
    footprints: list[StepFootprint] = []

    def trace(parameters: Any, state: Any, xs: Any) -> None:
        step, start = with_loss(lambda state, x: network.step(parameters, state, x), state, xs, network.loss)
        scan, closed, _ = trace_scan(step, start, xs, Ways())
        arguments: list[Any] = []

        def run(_: Any, *given: Any) -> Sequence[Any]:
            arguments.extend(given)
            return scan.run(*given)

        replace_loop(closed, scan.primitive, run, jax.tree.leaves((start, xs)))
        # Constants that do not depend on the parameters have no gradient.
        reached = tuple(
            index for index in differentiable(scan.step.constants) if isinstance(arguments[index], Tracer)
        )
        footprints.extend(measure_step(TracedGradient(scan.step, Wanted(constants=reached, inputs=()))))

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
        if found.steps_per_matmul == 1
    }
