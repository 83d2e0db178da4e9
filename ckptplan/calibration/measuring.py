"""Measures as much of a cell as fits in a given time, and says what it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import Any

from ckptplan.calibration.backend import (
    Announce,
    Backend,
    CountedSizes,
    Extent,
    PilotTimes,
    Rounds,
    RunCounter,
)
from ckptplan.calibration.fit import Fit, Round
from ckptplan.errors import InputError
from ckptplan.model.progress import Progress
from ckptplan.units import format_wait
from ckptplan.wording import Argument

#: An interval needs at least this many rounds.
LEAST_ROUNDS = 3
#: So many times as many rounds follow at most while they differ by too much.
_MORE = 4
#: The share of the limit that estimates may take, since they may be off.
_SHARE = 0.8
#: The share of the limit by which three rounds may end late, if the first one took longer than estimated.
_TOLERATED = 0.1


def fit_in(extent: Extent, *, max_seconds: float | None, seconds_left: float | None = None) -> Extent:
    """Return ``extent``, or as much of it as fits in ``max_seconds``; None means no limit.

    ``seconds_left``: what is left of the time for the rounds, if bytes are counted already. Raises InputError
    if even the least takes too long.
    """
    if max_seconds is None:
        return extent
    for candidate in (extent, *extent.reduce()):
        if seconds_left is None:
            seconds, most = candidate.seconds, max_seconds
        else:
            seconds, most = sum(candidate.time_seconds), seconds_left
        if seconds <= _SHARE * most:
            return candidate
    alone = f"sizes without times ({Argument('bytes_only', True)}), " if extent.chunks else ""
    longer = Argument("max_seconds", _round_up(seconds / _SHARE + max_seconds - most))
    raise InputError(
        f"measuring this cell takes {format_wait(seconds)} even with the fewest runs, and may take "
        f"{max_seconds:g} s at most, of which estimates may take {100 * _SHARE:g} %, as they may be off",
        field="max_seconds",
        value=max_seconds,
        accepted=f"a smaller batch or fewer neurons, {alone}or {longer}",
    )


def _round_up(seconds: float) -> int:
    """Return whole seconds, the next ten from 20 on."""
    unit = 10 if seconds > 20 else 1
    return unit * (int(seconds // unit) + 1)


class Measuring:
    """A measurement of a cell: times a few steps first, and decides how much to measure.

    Arguments:
        backend: what runs the cell.
        network: the cell.
        choose: returns what to measure if there is enough time.
        max_seconds: the time that it may take; None means no limit.
        announce: called with lines on how long it takes, and on what is left out.
        progress: called with the time done and the time expected, in milliseconds.
        tolerance: more rounds follow while those of a time of a step spread by more than half of this; None
            means that there are none.
    """

    def __init__(
        self,
        backend: Backend,
        network: Any,
        *,
        choose: Callable[[PilotTimes], Extent],
        max_seconds: float | None,
        announce: Announce | None,
        progress: Progress | None,
        tolerance: float | None = None,
    ) -> None:
        self._backend, self._network, self._choose = backend, network, choose
        self._tolerance = tolerance
        self._max_seconds, self._progress = max_seconds, progress
        self._announce = announce
        self._began = 0.0
        #: What ended the rounds before the last one, such as KeyboardInterrupt.
        self.ended_by: BaseException | None = None
        #: The rows of the rounds that are complete; others do not count.
        self.rounds: list[Round] = []

    @cached_property
    def _planned(self) -> tuple[Extent, RunCounter]:
        """What is measured, and the counter of its runs. Raises InputError if even the least takes too long."""
        self._began = perf_counter()
        self._full = self._choose(self._backend.pilot(self._network))
        extent = fit_in(self._full, max_seconds=self._max_seconds)
        self._say(extent.text)
        self._say_left_out(extent)
        return extent, RunCounter([*extent.size_seconds, *extent.time_seconds], progress=self._progress)

    @property
    def pilot(self) -> PilotTimes:
        """Times of a few steps. Raises InputError if even the least takes longer than the limit."""
        return self._planned[0].pilot

    @property
    def fewer_chunks(self) -> bool:
        """Whether sizes of chunks were left out: nothing then shows how far times hold for others."""
        return self._extent.chunks != self._full.chunks

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was not measured for want of time, or since something ended the rounds."""
        found = self._extent.left_out(self._full)
        if len(self.rounds) < self._extent.rounds:
            why = "interrupted" if self.ended_by is not None else f"{self._max_seconds:g} s were over"
            found = (*found, f"{why} after {len(self.rounds)} of {self._extent.rounds} rounds")
        return found

    def count_sizes(self) -> CountedSizes:
        """Count the bytes of the cell. Raises InputError."""
        return self._backend.sizes(self._network, lambda: self._planned)

    def time_rounds(self, sizes: CountedSizes) -> Rounds:
        """Time steps and messages in rounds, which end early after three if time is over or anything ends them.

        More rounds follow, as long as there is time, while they differ by too much.

        Raises InputError if the first round shows that not even the fewest rounds fit in the time.
        """
        self._extent, self._counter = self._planned
        rounds = self._backend.rounds(self._network, self._extent, sizes)
        longest = 0.0
        try:
            while self._needs_more() and not self._is_over(longest):
                if not self.rounds:
                    rounds.start(self._counter)
                began = perf_counter()
                self.rounds.append(rounds.run(self._counter))
                longest = max(longest, perf_counter() - began)
                if self._takes_too_long(longest):
                    self._leave_out_more(longest)
                    rounds = self._backend.rounds(self._network, self._extent, sizes)
                    self.rounds, longest = [], 0.0
        except Exception:
            raise
        except BaseException as end:
            # Ctrl-C, or what the caller makes of a signal.
            if len(self.rounds) < LEAST_ROUNDS:
                raise
            self.ended_by = end
        else:
            self._counter.end()
        return rounds

    @property
    def _seconds_left(self) -> float:
        if self._max_seconds is None:
            return float("inf")
        return self._max_seconds - (perf_counter() - self._began)

    def _needs_more(self) -> bool:
        """Return whether rounds are missing, or differ by too much; the counter then expects another one."""
        done, wanted = len(self.rounds), self._extent.rounds
        if done < wanted:
            return True
        if self._tolerance is None or done >= _MORE * wanted:
            return False
        if Fit(self.rounds).widest[1] <= self._tolerance / 2:
            return False
        if done == wanted:
            self._say("rounds differ: more follow")
        self._counter.expect(self._extent.round_seconds)
        return True

    def _is_over(self, longest: float) -> bool:
        """Return whether there are enough rounds, and no time for another one."""
        return len(self.rounds) >= LEAST_ROUNDS and longest > self._seconds_left

    def _takes_too_long(self, longest: float) -> bool:
        """Return whether the fewest rounds would take too long, by the first one."""
        if len(self.rounds) > 1 or self._max_seconds is None:
            return False
        missing = min(LEAST_ROUNDS, self._extent.rounds) - 1
        return missing * longest > self._seconds_left + _TOLERATED * self._max_seconds

    def _leave_out_more(self, longest: float) -> None:
        """Choose less to measure, because steps take longer than the first few did. Raises InputError."""
        extent = self._extent
        slower = extent.pilot.scaled(longest / sum(extent.round_seconds))
        self._extent = fit_in(
            replace(extent, pilot=slower), max_seconds=self._max_seconds, seconds_left=self._seconds_left
        )
        self._say("rounds take longer than estimated")
        self._say_left_out(self._extent)
        self._counter.expect(self._extent.time_seconds)

    def _say_left_out(self, extent: Extent) -> None:
        texts = extent.left_out(self._full)
        if texts:
            self._say(f"less is measured, to end within {self._max_seconds:g} s: {'; '.join(texts)}")

    def _say(self, text: str) -> None:
        if self._announce is not None:
            self._announce(text)
