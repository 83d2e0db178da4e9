"""Error bars: a plan's time, and its lead over others, when no time is known exactly.

Times are varied one by one and independently, evenly in the logarithm, between the value over (1 + share)
and the value times (1 + share). For each sample every strategy is taken at its best setting for that sample.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.kept import KeptPlan, kept_plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.step_costs import StepCosts
from ckptplan.search.question import Question
from ckptplan.strategies.protocol import Strategy

SAMPLES, SEED = 300, 20241216
#: Differences below this share are rounding.
_ROUNDING = 1e-12
#: The times of a case, as far as they are one number of the step costs.
_TIMES = (
    "forward_seconds",
    "backward_seconds",
    "recompute_seconds",
    "record_overhead_seconds",
    "write_seconds",
    "read_seconds",
)


@dataclass(frozen=True, kw_only=True)
class ErrorBars:
    """How sure a plan is where every time is known to within ``share``.

    ``low_seconds`` and ``high_seconds`` hold 90 % of the samples between them. ``better_chance`` is the
    share of samples in which another strategy is quicker, ``better`` the same by strategy. ``regret`` is
    how much longer than the best the plan takes, as a share of the best, in all but 5 % of the samples.
    """

    share: float
    samples: int
    seed: int
    low_seconds: float
    high_seconds: float
    better_chance: float
    better: Mapping[str, float]
    regret: float


def error_bars(
    question: Question,
    kept: KeptPlan,
    *,
    profile: HardwareProfile,
    share: float,
    samples: int = SAMPLES,
    seed: int = SEED,
    told: Callable[[], None] | None = None,
) -> ErrorBars:
    """Return the error bars of a plan that answers ``question``; ``told`` is called after each sample."""
    columns = _varied(question.costs, profile, share=share, samples=samples, seed=seed)
    costs = [
        StepCosts(**{**dict(question.costs), **{name: float(column[i]) for name, column in columns.items()}})
        for i in range(samples)
    ]
    asked = question.changed(strategies=_contenders(question, share))
    ours = kept.seconds_at(columns, costs)
    # Every setting that was the best of a sample, and its seconds in all: the next samples begin with those.
    pool, seconds = [kept], [ours]
    best = np.empty(samples)
    strategies: Counter[str] = Counter()
    for i, here in enumerate(costs):
        leader = min(range(len(pool)), key=lambda j: seconds[j][i])
        least = float(seconds[leader][i])
        found = asked.changed(costs=here).quicker_than(least * (1 - _ROUNDING))
        if found is not None:
            pool.append(kept_plan(found, model=kept.model))
            seconds.append(pool[-1].seconds_at(columns, costs))
            leader = len(pool) - 1
        best[i] = seconds[leader][i]
        strategies[pool[leader].strategy.name] += 1
        if told is not None:
            told()
    del strategies[kept.strategy.name]
    return ErrorBars(
        share=share,
        samples=samples,
        seed=seed,
        low_seconds=float(np.quantile(ours, 0.05)),
        high_seconds=float(np.quantile(ours, 0.95)),
        better_chance=strategies.total() / samples,
        better={name: count / samples for name, count in strategies.most_common()},
        regret=max(0.0, float(np.quantile(ours / best - 1, 0.95))),
    )


def _contenders(question: Question, share: float) -> tuple[Strategy, ...]:
    """Return the strategies that may be the best one in any sample.

    All share base's time. What they add to it is a sum of times, and so within (1 + share) of what it is
    for the unchanged times, whatever the sample. Beside compute, base's time hides some, and all may win.
    """
    if question.costs.overlaps_compute:
        return question.strategies
    added = {
        answer.strategy: answer.best.key[0] - question.base_seconds
        for answer in question.changed(objective="time").answers()
    }
    most = min(added.values()) * (1 + share) ** 2 + _ROUNDING * question.base_seconds
    return tuple(strategy for strategy, seconds in added.items() if seconds <= most)


def _varied(
    costs: StepCosts, profile: HardwareProfile, *, share: float, samples: int, seed: int
) -> dict[str, npt.NDArray[Any]]:
    """Return the times of the elementary actions, a column each; T_s and the latency vary by themselves."""
    random = np.random.default_rng(seed)

    def times(value: float) -> npt.NDArray[Any]:
        return value * np.exp(random.uniform(-math.log1p(share), math.log1p(share), samples))

    columns = {name: times(getattr(costs, name)) for name in _TIMES}
    columns["message_seconds"] = times(profile.synchronisation_seconds) + times(profile.latency_seconds)
    return columns
