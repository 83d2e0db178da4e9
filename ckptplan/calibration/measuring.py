"""Measures as much of a cell as fits in a given time, and says what it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from ckptplan.calibration import footprint
from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.calibration.counter import RunCounter
from ckptplan.calibration.extent import Extent, fit_in
from ckptplan.calibration.footprint import Footprint
from ckptplan.calibration.pilot import PilotTimes, time_few_steps
from ckptplan.calibration.rounds import LEAST_ROUNDS, TimedRounds
from ckptplan.calibration.runs import compile_pieces
from ckptplan.model.progress import Progress

#: Receives lines about a measurement: how long it takes, and what is left out.
Announce = Callable[[str], None]
#: The share of the limit by which three rounds may end late, if the first one took longer than estimated.
_TOLERATED = 0.1


class Measuring:
    """A measurement of a cell: times a few steps first, and decides how much to measure.

    Arguments:
        network: the cell.
        choose: returns what to measure if there is enough time.
        max_seconds: the time that it may take; None means no limit.
        announce: called with lines on how long it takes, and on what is left out.
        progress: called with the time done and the time expected, in milliseconds.

    Raises InputError if even the least takes longer than ``max_seconds``.
    """

    def __init__(
        self,
        network: MeasuredNetwork,
        *,
        choose: Callable[[PilotTimes], Extent],
        max_seconds: float | None,
        announce: Announce | None,
        progress: Progress | None,
    ) -> None:
        self._network, self._max_seconds, self._announce = network, max_seconds, announce
        if network.piece is not None:
            self._say(f"compiling pieces of {network.piece} steps, besides the time below")
            compile_pieces(network)
        self._began = perf_counter()
        self.pilot = time_few_steps(network)
        self._full = choose(self.pilot)
        self._extent = fit_in(self._full, self.pilot, max_seconds=max_seconds)
        #: What ended the rounds before the last one, such as KeyboardInterrupt.
        self.ended_by: BaseException | None = None
        self._rounds_done = self._extent.rounds
        self._say(self._extent.text(self.pilot))
        self._say_left_out()
        expected = [*self._extent.size_seconds(self.pilot), *self._extent.round_seconds(self.pilot)]
        self._counter = RunCounter(seconds=expected, progress=progress)

    @property
    def fewer_chunks(self) -> bool:
        """Whether sizes of chunks were left out: nothing then shows how far times hold for others."""
        return self._extent.chunks != self._full.chunks

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was not measured for want of time, or since something ended the rounds."""
        found = list(self._extent.left_out(self._full))
        if self._rounds_done < self._extent.rounds:
            why = "interrupted" if self.ended_by is not None else f"{self._max_seconds:g} s were over"
            found.append(f"{why} after {self._rounds_done} of {self._extent.rounds} rounds")
        return tuple(found)

    def count_sizes(self) -> Footprint:
        """Count the bytes of the cell. Raises InputError."""
        return footprint.measure(self._network, counter=self._counter, runs=self._extent.size_runs)

    def time_rounds(self) -> TimedRounds:
        """Time steps and messages in rounds, which end early after three if time is over or anything ends them.

        Raises InputError if the first round shows that not even the fewest rounds fit in the time.
        """
        rounds = self._make_rounds()
        try:
            while rounds.complete < self._extent.rounds and not self._is_over(rounds):
                if not rounds.complete:
                    rounds.warm_up(self._counter)
                rounds.run(self._counter)
                if self._takes_too_long(rounds):
                    self._leave_out_more(rounds)
                    rounds = self._make_rounds()
        except Exception:
            raise
        except BaseException as end:
            # Ctrl-C, or what the caller makes of a signal.
            if rounds.complete < LEAST_ROUNDS:
                raise
            self.ended_by = end
        else:
            self._counter.end()
        self._rounds_done = rounds.complete
        return rounds

    def _make_rounds(self) -> TimedRounds:
        extent = self._extent
        return TimedRounds(self._network, chunks=extent.chunks, steps_between=extent.steps_between)

    @property
    def _seconds_left(self) -> float:
        if self._max_seconds is None:
            return float("inf")
        return self._max_seconds - (perf_counter() - self._began)

    def _is_over(self, rounds: TimedRounds) -> bool:
        """Return whether there are enough rounds, and no time for another one."""
        return rounds.complete >= LEAST_ROUNDS and rounds.longest_seconds > self._seconds_left

    def _takes_too_long(self, rounds: TimedRounds) -> bool:
        """Return whether the fewest rounds would take too long, by the first one."""
        if rounds.complete > 1 or self._max_seconds is None:
            return False
        missing = min(LEAST_ROUNDS, self._extent.rounds) - 1
        return missing * rounds.longest_seconds > self._seconds_left + _TOLERATED * self._max_seconds

    def _leave_out_more(self, rounds: TimedRounds) -> None:
        """Choose less to measure, because steps take longer than the first few did. Raises InputError."""
        _, *runs = self._extent.round_seconds(self.pilot)
        estimated = sum(runs) / self._extent.rounds
        slower = self.pilot.scaled(rounds.longest_seconds / estimated)
        self._extent = fit_in(
            self._extent, slower, max_seconds=self._max_seconds, seconds_left=self._seconds_left
        )
        self._say("rounds take longer than estimated")
        self._say_left_out()
        self._counter.expect(self._extent.round_seconds(slower))

    def _say_left_out(self) -> None:
        texts = self._extent.left_out(self._full)
        if texts:
            self._say(f"less is measured, to end within {self._max_seconds:g} s: {'; '.join(texts)}")

    def _say(self, text: str) -> None:
        if self._announce is not None:
            self._announce(text)
