"""Measures cells of JAX on the processor, in compiled programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import jax

from ckptplan.calibration.backend import (
    Announce,
    Backend,
    CountedSizes,
    Environment,
    Extent,
    PilotTimes,
    RunCounter,
    describe_remote,
)
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.host import processor_name
from ckptplan.calibration.jax_backend.cells import JaxNetwork, build_jax_network
from ckptplan.calibration.jax_backend.programs import JaxProgram
from ckptplan.calibration.jax_backend.rounds import JaxExtent, JaxRounds, time_few_steps
from ckptplan.calibration.jax_backend.sizes import CompiledSizes, count_sizes
from ckptplan.jax.tapes import check_tape
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.memory import find_free_memory, host_memory_bytes


class JaxBackend(Backend):
    """Measures cells as compiled programs of JAX, which runs with this number of threads.

    Remote memory is host memory.
    """

    def __init__(self, *, threads: int, tape: str | None = None) -> None:
        self._threads, self._tape = threads, tape or "residuals"
        check_tape(self._tape)
        # Processor time with one thread: other programs do not lengthen it.
        self._clock = time.process_time if threads == 1 else time.perf_counter

    @property
    def environment(self) -> Environment:
        return Environment(
            machine=processor_name(),
            device="cpu",
            threads=self._threads,
            clock="processor time" if self._clock is time.process_time else "wall time",
            versions={"jax": jax.__version__, "tape": self._tape},
            memory_bytes=host_memory_bytes(),
            **describe_remote(
                None,
                memory="host memory of the program",
                messages="states of {state}, which a program copies to arrays in host memory and back",
            ),
            remark=f"tapes of {self._tape}",
        )

    def build(self, spec: CellSpec, *, batch: int, seed: int, announce: Announce | None = None) -> JaxNetwork:
        return build_jax_network(spec, batch=batch, seed=seed)

    def pilot(self, network: JaxNetwork, *, most: int | None = None) -> Iterator[PilotTimes]:
        yield time_few_steps(network, most=most)

    def choose(self, pilot: PilotTimes, *, rounds: int, quick: bool = False) -> JaxExtent:
        return JaxExtent.choose(pilot, rounds=rounds, quick=quick)

    def sizes(self, network: JaxNetwork, runs: Callable[[], tuple[Extent, RunCounter]]) -> CompiledSizes:
        return next(one for kind, one in count_sizes(network).items() if kind == self._tape)

    def rounds(self, network: JaxNetwork, extent: Extent, sizes: CountedSizes) -> JaxRounds:
        chosen, counted = cast("JaxExtent", extent), cast("CompiledSizes", sizes)
        return JaxRounds(network, chosen, counted, clock=self._clock)

    def program(
        self, network: JaxNetwork, plan: Plan | Schedule | None, *, inputs: Any, steps: int
    ) -> JaxProgram:
        return JaxProgram(network, plan, inputs=inputs, steps=steps, clock=self._clock)

    def free_bytes(self) -> int | None:
        return find_free_memory()
