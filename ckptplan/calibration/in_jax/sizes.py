"""Counts the bytes of a cell of JAX: state and tape from shapes, the workspace from compiled programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.core import Tracer

from ckptplan.calibration.in_jax.networks import JaxNetwork
from ckptplan.errors import InputError, quote_value
from ckptplan.jax.api import with_loss
from ckptplan.jax.footprint import StepFootprint, measure_step
from ckptplan.jax.layout import Leaves
from ckptplan.jax.leaves import byte_size
from ckptplan.jax.step import differentiable, trace_step
from ckptplan.jax.table import RowTable, make_table
from ckptplan.jax.tapes import Tape, Wanted
from ckptplan.model.workload import Basis
from ckptplan.schedule.actions import Action
from ckptplan.schedule.schedule import Schedule
from ckptplan.units import format_share


@dataclass(frozen=True, kw_only=True)
class CompiledSizes:
    """Bytes as the fields of a workload of one unit."""

    tape: Tape
    #: Shapes and types of the leaves of a state and of the tape of a step.
    state_leaves: Leaves
    tape_leaves: Leaves
    state_bytes: int
    tape_bytes: int
    resident_bytes: int
    resident_bytes_per_step: int
    #: Before any program was compiled, an estimate.
    workspace_bytes: int
    #: Times of a workload, from the operations of a step at assumed rates.
    assumed_seconds: dict[str, float]
    #: Range of the workspaces of the compiled programs, as a share of the peak; the number of programs.
    residual: float = 0.0
    programs: int = 0

    def held(self, schedule: Schedule) -> int:
        """Return the bytes that a schedule needs besides the workspace."""
        kept = schedule.steps * self.resident_bytes_per_step + self.resident_bytes
        return self.table(lambda: schedule, steps=schedule.steps).buffer_bytes + kept

    def table(self, schedule: Callable[[], Iterable[Action]], *, steps: int) -> RowTable:
        """Return the table that a program runs, which has the buffers that it allocates."""
        return make_table(schedule, steps=steps, state=self.state_leaves, tape=self.tape_leaves)

    def with_programs(self, memory: Sequence[tuple[Schedule, int]]) -> CompiledSizes:
        """Return the sizes with the workspace that compiled programs show; the largest counts."""
        spaces = [max(0, whole - self.held(schedule)) for schedule, whole in memory]
        return replace(
            self,
            workspace_bytes=max(spaces),
            residual=(max(spaces) - min(spaces)) / max(whole for _, whole in memory),
            programs=len(spaces),
        )

    def fields(self) -> dict[str, Any]:
        """Return the bytes by the fields of a workload."""
        names = ("state_bytes", "tape_bytes", "resident_bytes", "resident_bytes_per_step", "workspace_bytes")
        return {name: getattr(self, name) for name in names}

    def basis(self) -> dict[str, Basis]:
        """Return how each field was counted."""
        texts = {
            "state_bytes": "from the shapes of a state",
            "tape_bytes": f"from the shapes of a tape ({self.tape})",
            "resident_bytes": "counted: parameters",
            "resident_bytes_per_step": "counted: inputs",
        }
        measured = (
            f"what {self.programs} compiled programs need besides the bytes above (memory_analysis): "
            f"gradients, working states, scratch; its range is {format_share(self.residual)} of the peak"
        )
        workspace = (
            Basis(kind="measured", why=measured)
            if self.programs
            else Basis(kind="derived", why="from the arrays of a traced step: gradients, states, scratch")
        )
        derived = {field: Basis(kind="derived", why=text) for field, text in texts.items()}
        return {**derived, "workspace_bytes": workspace}


def count_jax_sizes(network: JaxNetwork) -> dict[Tape, CompiledSizes]:
    """Return the sizes of a cell with each kind of tape, from its shapes; nothing is run or compiled."""
    footprints: list[StepFootprint] = []

    def trace(parameters: Any, state: Any, xs: Any) -> None:
        step = with_loss(lambda state, x: network.step(parameters, state, x), network.loss)
        traced = trace_step(step, state, xs)
        # What the parameters do not reach has no gradient.
        reached = tuple(
            place for place in differentiable(traced.constants) if isinstance(traced.constants[place], Tracer)
        )
        footprints.extend(measure_step(traced, Wanted(constants=reached, inputs=())))

    _, _, inputs = given = network.arguments(1)
    jax.eval_shape(trace, *given)
    return {
        found.tape: CompiledSizes(
            tape=found.tape,
            state_leaves=found.state_leaves,
            tape_leaves=found.tape_leaves,
            state_bytes=found.state_bytes,
            tape_bytes=found.tape_bytes,
            resident_bytes=network.resident_bytes,
            resident_bytes_per_step=byte_size(jax.tree.leaves(inputs)),
            workspace_bytes=found.workspace_bytes,
            assumed_seconds={
                "forward_seconds": found.forward_seconds,
                "recompute_seconds": found.forward_seconds,
                "record_overhead_seconds": max(0.0, found.record_seconds - found.forward_seconds),
                "backward_seconds": found.backward_seconds,
            },
        )
        for found in footprints
        if found.together == 1
    }


def choose_sizes(kinds: dict[Tape, CompiledSizes], *, tape: str) -> CompiledSizes:
    """Return the sizes with a kind of tape. Raises InputError if a step cannot have it."""
    for kind, sizes in kinds.items():
        if kind == tape:
            return sizes
    raise InputError(
        f"{quote_value(tape)} is not a kind of tape of this cell",
        field="tape",
        value=tape,
        accepted=", ".join(kinds),
    )
