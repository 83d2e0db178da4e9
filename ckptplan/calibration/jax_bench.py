"""Measures a cell of JAX: bytes from shapes, and times of compiled programs and of messages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ckptplan.calibration.bench import Bench, assume_times
from ckptplan.calibration.fit import Counts, Round, TimedRow, count_actions
from ckptplan.execution.backend import CountedSizes, Pace, Report, Run
from ckptplan.jax.backend import (
    JaxBackend,
    JaxNetwork,
    JaxProgram,
    compile_gradient,
    compile_loop,
    compile_messages,
    time_message,
)
from ckptplan.jax.leaves import byte_size
from ckptplan.model.workload import ACTION_TIMES, TIMES, Basis
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import READ, WRITE
from ckptplan.units import format_share

#: The expected seconds of a timed program, and the least and the largest T of such programs.
_RUN_SECONDS, _LEAST_STEPS, _MOST_STEPS = 0.1, 64, 1024
#: Steps of the chunks of the programs that are timed.
_CHUNKS, _QUICK_CHUNKS = (1, 4, 16, 64), (4, 16)
#: Segments of a nested schedule.
_SEGMENTS = 4
#: The number of programs that are parts of base: two forward passes and its sweep. They come first in a round.
_PARTS_OF_BASE = 3
#: How each field is counted.
_TEXTS = {
    "state_bytes": "from the shapes of a state, the number of the step and the sum of the loss",
    "tape_bytes": "from the shapes of a tape ({tape})",
    "resident_bytes": "counted: parameters",
    "resident_bytes_per_step": "counted: inputs",
    "workspace_bytes": "from the arrays of a traced step: gradients, states, scratch",
    "save_seconds": "0: a program writes checkpoints into arrays, and the times of steps include this",
    "load_seconds": "0: a program reads checkpoints from arrays, and the times of steps include this",
}


class JaxBench(Bench):
    """Compiles programs of one cell, and runs them in rounds.

    A message is a state that a program moves to host memory or back.

    Arguments:
        backend: JAX.
        network: the cell.
        pace: the pace of its steps.
        is_quick: whether fewer programs run.
    """

    def __init__(self, backend: JaxBackend, network: JaxNetwork, pace: Pace, *, is_quick: bool = False) -> None:
        self._backend, self._network = backend, network
        self._footprint = network.measure_footprints()[backend.tape]
        length = int(min(_MOST_STEPS, max(_LEAST_STEPS, _RUN_SECONDS / pace.step_seconds)))
        length = length // _LEAST_STEPS * _LEAST_STEPS
        chunks = [chunk for chunk in (_QUICK_CHUNKS if is_quick else _CHUNKS) if chunk * _SEGMENTS <= length]
        #: Base, then for each chunk size a standard schedule and a nested one, which runs steps three times.
        self._schedules = [make_schedule("base", steps=length)]
        for chunk in chunks:
            segment = max(2 * chunk, length // _SEGMENTS // chunk * chunk)
            self._schedules.append(make_schedule("standard", steps=length, chunk_size=chunk))
            self._schedules.append(
                make_schedule("nested", steps=length, chunk_size=chunk, segment_size=segment)
            )
        self._programs: list[tuple[JaxProgram, Counts]] = []

        # The parts of base take at most as long as base.
        programs = [*self._schedules[:1] * _PARTS_OF_BASE, *self._schedules]
        # The programs, and a message in each direction.
        self.round_runs = len(programs) + 2
        self.round_seconds = sum(map(pace.run, programs))
        self.start_seconds = len(programs) * pace.compile_seconds + self.round_seconds
        self.text = f"{len(programs)} compiled programs"
        fitted = f"fit over compiled programs in chunks of {', '.join(map(str, chunks))} steps"
        self.ways = {field: fitted for field in (*TIMES, *ACTION_TIMES) if field not in _TEXTS}

    def count_sizes(self, count: Callable[[], object]) -> CountedSizes:  # noqa: ARG002 - nothing runs
        """Count the bytes of a step with the backend's kind of tape, without running or compiling."""
        footprint = self._footprint
        return CountedSizes(
            state_bytes=footprint.state_bytes,
            tape_bytes=footprint.tape_bytes,
            resident_bytes=byte_size(self._network.parameters),
            resident_bytes_per_step=byte_size(jax.tree.leaves(self._network.inputs(1))),
            workspace_bytes=footprint.workspace_bytes,
            basis={
                field: Basis(kind="derived", why=why.format(tape=footprint.sums.kind))
                for field, why in _TEXTS.items()
            },
            assumed=assume_times(footprint.seconds, "operations of the traced step, at assumed rates"),
        )

    def start(self) -> Sequence[Run]:
        """Compile the programs, run each once, and return the runs of a round."""
        network, tape, clock = self._network, self._backend.tape, self._backend.clock
        base = self._schedules[0]
        inputs, loss_of_base = network.inputs(base.steps), network.loss_under(base, tape=tape)

        def sweep(parameters: Any, state: Any, xs: Any) -> Any:
            """Run the actions of base before its first Backward."""
            return jax.vjp(lambda weights: loss_of_base(weights, state, xs), parameters)

        # Forward passes of two lengths separate the time of a step from the time of a call.
        for steps in (base.steps, base.steps // _SEGMENTS):
            loss = network.loss_under(make_schedule("base", steps=steps))
            forward = compile_loop(loss, network, network.inputs(steps), clock=clock)
            self._programs.append((forward, {"forward": steps, "call": 1}))
        self._programs.append((compile_loop(sweep, network, inputs, clock=clock), _count(base, sweep=True)))
        for schedule in self._schedules:
            program = compile_gradient(network, schedule, inputs, clock=clock, tape=tape)
            self._programs.append((program, _count(schedule)))
        write, read, moved = compile_messages(self._footprint.state_bytes)
        state = jnp.ones(self._footprint.state_bytes, jnp.uint8)
        host_arrays = write(state)
        runs = [program.time for program, _ in self._programs]
        runs += [partial(time_message, write, state, moved), partial(time_message, read, host_arrays, moved)]
        for run in runs:
            run()
        return runs

    def read(self, reports: Sequence[Report]) -> Round:
        """Return the rows of a round: programs, and states that move in each direction."""
        counts = [counts for _, counts in self._programs] + [{WRITE: 1}, {READ: 1}]
        rows: dict[Hashable, TimedRow] = {}
        for number, (parts, report) in enumerate(zip(counts, reports, strict=True)):
            rows[number] = TimedRow(counts=parts, seconds=report.seconds)
        return rows

    def complete(self, sizes: CountedSizes) -> CountedSizes:
        """Return the sizes with the largest workspace that compiled programs report."""
        memory = [program.memory_bytes for program, _ in self._programs[_PARTS_OF_BASE:]]
        spaces = [
            max(0, program_bytes - self._footprint.tabulate(schedule).layout.byte_size - sizes.resident_bytes
                - schedule.steps * sizes.resident_bytes_per_step)
            for schedule, program_bytes in zip(self._schedules, memory, strict=True)
        ]  # fmt: skip
        residual = (max(spaces) - min(spaces)) / max(memory)
        why = (
            f"what {len(spaces)} compiled programs need besides the bytes above (memory_analysis): gradients, "
            f"working states, scratch; its range is {format_share(residual)} of the peak"
        )
        return replace(
            sizes,
            workspace_bytes=max(spaces),
            residual=residual,
            basis={**sizes.basis, "workspace_bytes": Basis(kind="measured", why=why)},
        )


def _count(schedule: Schedule, *, sweep: bool = False) -> Counts:
    """Return the parts of a program, without local saves and loads, which are cheap copies of array rows."""
    parts = count_actions(schedule, sweep=sweep)
    return {name: count for name, count in parts.items() if name not in ("save", "load")} | {"call": 1}
