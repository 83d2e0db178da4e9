"""Times programs of JAX by two clocks, and the pace of the machine by a reference program."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.accuracy_plans import REFERENCE_STEPS
from ckptplan.calibration.in_jax.networks import JaxNetwork
from ckptplan.calibration.in_jax.programs import CompiledLoop, compile_gradient
from ckptplan.calibration.in_jax.rest import settle
from ckptplan.planning.playback import make_schedule


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a run took, in seconds; or how many times as long as another one."""

    processor: float
    wall: float

    def over(self, other: Taken) -> Taken:
        """Return this as a multiple of another one."""
        return Taken(processor=self.processor / other.processor, wall=self.wall / other.wall)


def measure(program: CompiledLoop) -> Taken:
    """Run a program once the process is at rest, and return what it took."""
    settle()
    return measure_at_once(program)


def measure_at_once(program: CompiledLoop) -> Taken:
    """Run a program, and return what it took."""
    wall, processor = time.perf_counter(), time.process_time()
    program.call()
    return Taken(processor=time.process_time() - processor, wall=time.perf_counter() - wall)


class Reference:
    """Measures the pace of the machine by runs of a fixed program, plain backpropagation of a few steps."""

    def __init__(self, network: JaxNetwork) -> None:
        plan = make_schedule("base", steps=REFERENCE_STEPS)
        self._program = compile_gradient(network, plan, steps=REFERENCE_STEPS)
        self._program.call()
        self._calibrated: list[Taken] = []

    def measure(self) -> Taken:
        """Return what a run takes."""
        return measure(self._program)

    def add(self, *_: object) -> None:
        """Measure during the calibration."""
        self._calibrated.append(self.measure())

    def pace(self, *taken: Taken) -> Taken:
        """Return how many times as long as during the calibration the reference took."""
        return _middle(statistics.mean, taken).over(_middle(statistics.median, self._calibrated))


def _middle(kind: Callable[[Iterable[float]], float], taken: Sequence[Taken]) -> Taken:
    return Taken(processor=kind(one.processor for one in taken), wall=kind(one.wall for one in taken))
