"""Defines the measurements of a calibration: the bytes of a cell, and programs that run in rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from ckptplan.calibration.fit import Round
from ckptplan.execution.backend import CountedSizes, Report, Roofline, Run
from ckptplan.model.workload import TIMES
from ckptplan.units import format_wait

#: An interval needs at least this many rounds.
LEAST_ROUNDS = 3


def assume_times(seconds: Mapping[str, float], why: str) -> dict[str, tuple[float, str]]:
    """Return the times of a step among ``seconds``, each with the origin ``why``."""
    # Two digits, since more digits would suggest a precise measurement.
    return {name: (float(f"{seconds[name]:.2g}"), why) for name in TIMES}


class Bench(ABC):
    """The runs that measure a cell: some count its bytes, and others are timed in rounds."""

    #: The number of runs that count bytes, and the number of runs in a round.
    size_runs: int = 0
    round_runs: int
    #: The estimated seconds of counting bytes, of the runs before the first round, and of a round.
    size_seconds: float = 0.0
    start_seconds: float
    round_seconds: float
    #: The runs of a round, in words.
    text: str
    #: By field of a workload: how the time is obtained.
    ways: Mapping[str, str]

    def seconds(self, rounds: int) -> float:
        """Return the estimated seconds of the whole measurement; without rounds, of counting bytes."""
        return self.size_seconds + (self.start_seconds + rounds * self.round_seconds if rounds else 0.0)

    def describe(self, rounds: int) -> str:
        """Return how long the measurement takes, and why: 'about 40 s: 5 rounds of 6 schedules, ...'."""
        parts = [f"{rounds} rounds of {self.text}"] if rounds else []
        parts += [f"sizes in {self.size_runs} runs"] if self.size_runs else []
        return f"{format_wait(self.seconds(rounds))}: {', '.join(parts) or 'sizes from shapes'}"

    @abstractmethod
    def count_sizes(self, count: Callable[[], object]) -> CountedSizes:
        """Count bytes; ``count`` is called after each run. Raises InputError."""

    @abstractmethod
    def start(self) -> Sequence[Run]:
        """Warm up, and return the runs of a round."""

    @abstractmethod
    def read(self, reports: Sequence[Report]) -> Round:
        """Return the rows of a complete round."""

    def complete(self, sizes: CountedSizes) -> CountedSizes:
        """Return the sizes, improved by sizes that the runs showed."""
        return sizes

    def roofline(self) -> Roofline | None:
        """Measure the peaks of the machine and count the operations of a step; None if that is not possible."""
        return None
