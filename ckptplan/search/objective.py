"""Ranks costs by a key, and chooses between answers whose times cannot be told apart (docs/finding-optima.md).

Strategies are gone through from simple to complicated (``Strategy.simplicity``). The first answer is the
champion. A later one takes its place only if it is better by more than the resolution rho, the share of time
below which two plans cannot be told apart:

    x replaces c    if key(x) < mark(c),

where mark(c) is the key of c with its seconds, or the coordinate of a knee, lowered
by rho. If rho is 0, the lexicographic key decides, and ``Strategy.rank`` between equal keys.

The champion c is within rho of the best answer: key(x) >= mark(c) for every answer x. If x came after c, it did
not replace c. If x came before c, it was not below the mark of the champion of its time, because it either did
not replace that champion or was itself the champion, whose key is not below its own mark. Marks only fall, as
each champion has a lower key than the one before. For the objective time, this means seconds(x) >= (1 - rho)
seconds(c): the champion is within rho of the quickest.

Hence a search may skip what is not below the mark of the champion: it replaces neither this champion nor, as
marks only fall, a later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.cost.exact import Cost
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.protocol import Strategy

#: Columns that are compared lexicographically; all rise with the cost.
Key: TypeAlias = tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True)
class Least:
    """Ranks by columns of a cost, the most important first (docs/finding-optima.md)."""

    columns: tuple[str, ...]

    def __call__(self, cost: Cost) -> Key:
        """Return the columns."""
        return tuple(getattr(cost, name) for name in self.columns)

    @property
    def first(self) -> str:
        """The column that counts most."""
        return self.columns[0]

    def alone(self) -> Least:
        """Return the objective with this column only, for searches in which ties need not be broken."""
        return Least(self.columns[:1])


least_time = Least(("seconds", "local_peak_bytes", "remote_peak_bytes"))
least_memory = Least(("local_peak_bytes", "seconds", "remote_peak_bytes"))
least_remote_memory = Least(("remote_peak_bytes", "seconds", "local_peak_bytes"))


#: The decimals of the sum of the scaled axes that count. Where a front runs along its chord, all sums are equal
#: but for rounding: by 1e-15, or up to 1e-10 if the times of the ends differ by a millionth only.
_DIGITS = 9
#: The least seconds whose logarithm is taken.
_LEAST_SECONDS = 1e-300


@dataclass(frozen=True, kw_only=True)
class Knee:
    """The point of a front farthest below the chord between its ends, over memory and the logarithm of time.

    The chord runs from the fastest plan (``fast_seconds``, ``fast_bytes``) to the smallest one. If both axes
    are scaled so that its ends are (1, 0) and (0, 1), the distance below the chord falls as the sum of the two
    coordinates rises. So the knee is the plan with the least sum, and can be found without the front.

    Time is taken by its logarithm, as the smallest plan may take many times as long as the fastest: on a
    linear axis every plan below twice the least time would be as good as the fastest. The sum rises with
    seconds and bytes, so that bounds on both bound the sum.
    """

    fast_seconds: float
    fast_bytes: int
    small_seconds: float
    small_bytes: int
    first: ClassVar[str] = "share"

    def __call__(self, cost: Cost) -> Key:
        """Rank by the sum of the scaled axes, to nine decimals, then as ``least_time`` does."""
        share = (cost.local_peak_bytes - self.small_bytes) / (self.fast_bytes - self.small_bytes)
        share = share + self._place(cost.seconds) / self._place(self.small_seconds)
        return np.round(share, _DIGITS), *least_time(cost)

    def _place(self, seconds: Any) -> Any:
        """Return the logarithm of seconds over the fastest plan's; less time counts as the fastest plan's."""
        fast = max(self.fast_seconds, _LEAST_SECONDS)
        return np.log1p(np.maximum(seconds - fast, 0.0) / fast)


#: Both compare by value, as they are part of a cache key.
Objective: TypeAlias = Least | Knee
#: The key of another strategy's best setting, which a setting must beat, and a last entry: infinite if a
#: setting with the same key beats it, too, else minus infinity.
Rival: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Preference:
    """How to choose between answers: by ``objective``, up to ``resolution`` in time.

    Searches stop at the key ``limit``, but the chosen answer need not beat it.
    """

    objective: Objective
    resolution: float = 0.0
    limit: Rival | None = None

    def replaces(self, later: Answer, champion: Answer | None) -> bool:
        """Return whether an answer takes the place of the champion among the simpler strategies."""
        if champion is None:
            return True
        if not self.resolution:
            return rank_of(later) < rank_of(champion)
        return later.key < self._mark(champion)

    def find_rival(self, champion: Answer | None, strategy: Strategy) -> Rival | None:
        """Return the key that a setting must beat to replace the champion, at most ``limit``."""
        if champion is None:
            return self.limit
        if self.resolution:
            rival = (*self._mark(champion), -inf)
        else:
            rival = (*champion.key, inf if strategy.rank < champion.strategy.rank else -inf)
        return rival if self.limit is None else min(self.limit, rival)

    def _mark(self, champion: Answer) -> tuple[float, ...]:
        """Return the key that an answer must be below to replace the champion; as long as the key."""
        first, *rest = champion.key
        mark: list[float]
        if self.objective.first == Knee.first:
            # Both ends of the front have the coordinate 1, and a plan that is the quickest and the smallest has
            # 0. So the resolution is a share of the way between these, whatever the coordinate is.
            mark = [first - self.resolution]
        elif self.objective.first == "seconds":
            mark = [first * (1 - self.resolution)]
        else:
            # Bytes are exact: one byte less is better. Then seconds decide.
            mark = [first, *(seconds * (1 - self.resolution) for seconds in rest[:1])]
        return (*mark, *[-inf] * (len(champion.key) - len(mark)))


def rank_of(answer: Answer) -> tuple[tuple[float, ...], int]:
    """Return the sort key of an answer; the order of the strategies breaks ties."""
    return answer.key, answer.strategy.rank
