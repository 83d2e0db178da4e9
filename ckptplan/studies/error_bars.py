"""Computes error bars of a plan's time, and of its lead over other plans, for uncertain times.

Each time varies independently, uniformly in the logarithm, between its value over (1 + share) and its value
times (1 + share). In each sample, every strategy is compared at its best setting for that sample.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.model.goal import Model
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import ACTION_TIMES
from ckptplan.search.champion import Preference
from ckptplan.search.objective import least_time
from ckptplan.search.question import Question
from ckptplan.strategies.protocol import Strategy
from ckptplan.studies.fixed_plan import FixedPlan

SAMPLES, SEED = 300, 20241216
#: Relative differences below this are rounding.
_ROUNDING = 1e-12
#: A strategy must be faster by more than this share to count as faster, whatever the resolution.
_TIE = 1e-9
#: The times that are single numbers of the step costs.
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
    """The uncertainty of a plan if every time is known to within ``share``.

    90 % of the samples are between ``low_seconds`` and ``high_seconds``. ``better_chance`` is the share of
    samples in which another strategy is faster than any setting of the plan's strategy, by more than the
    resolution of the question; ``better`` is this share by the strategy to choose. ``regret`` is the 95 %
    quantile of the plan's excess time, as a share of the least time.
    """

    share: float
    samples: int
    seed: int
    low_seconds: float
    high_seconds: float
    better_chance: float
    better: Mapping[str, float]
    regret: float


def compute_error_bars(
    question: Question,
    kept: FixedPlan,
    *,
    profile: HardwareProfile,
    share: float,
    samples: int = SAMPLES,
    seed: int = SEED,
    on_sample: Callable[[], None] | None = None,
) -> ErrorBars:
    """Return the error bars of a plan.

    Arguments:
        question: the question that the plan answers.
        kept: the plan.
        profile: the hardware, for T_s and the latency.
        share: how far each time may be off, e.g. 0.1.
        samples: the number of samples.
        seed: the seed of the random numbers.
        on_sample: called after each sample.
    """
    columns = _vary_times(question.costs, profile, share=share, samples=samples, seed=seed)
    costs = [
        StepCosts(**{**dict(question.costs), **{name: float(column[i]) for name, column in columns.items()}})
        for i in range(samples)
    ]
    asked = question.replace(strategies=_select_contenders(question, share))
    own = asked.for_strategy(kept.strategy)
    known = _KnownSettings(columns=columns, costs=costs, model=kept.model)
    ours = known.add(kept)
    closest = 1 - max(question.resolution, _TIE)
    best = np.empty(samples)
    better: Counter[str] = Counter()
    for sample in range(samples):
        strategy, best[sample] = known.find_quickest(asked, sample)
        # The search attributes a tie to one strategy, so the plan's own strategy is searched separately.
        if strategy is not kept.strategy and known.find_quickest(own, sample)[1] * closest > best[sample]:
            better[known.choose(asked, sample, enough=float(best[sample])).name] += 1
        if on_sample is not None:
            on_sample()
    return ErrorBars(
        share=share,
        samples=samples,
        seed=seed,
        low_seconds=float(np.quantile(ours, 0.05)),
        high_seconds=float(np.quantile(ours, 0.95)),
        better_chance=better.total() / samples,
        better={name: count / samples for name, count in better.most_common()},
        regret=max(0.0, float(np.quantile(ours / best - 1, 0.95))),
    )


@dataclass(frozen=True, kw_only=True)
class _KnownSettings:
    """The settings that were fastest in some sample, with their seconds in all; they speed up searches."""

    columns: Mapping[str, npt.NDArray[Any]]
    costs: list[StepCosts]
    model: Model
    plans: list[FixedPlan] = field(default_factory=list)
    seconds: list[npt.NDArray[Any]] = field(default_factory=list)

    def add(self, plan: FixedPlan) -> npt.NDArray[Any]:
        """Remember a plan, and return its seconds in each sample, shape (samples,)."""
        self.plans.append(plan)
        self.seconds.append(plan.seconds_at(self.columns, self.costs))
        return self.seconds[-1]

    def find_quickest(self, asked: Question, sample: int) -> tuple[Strategy, float]:
        """Return the fastest of the question's strategies in a sample, and its seconds.

        At least one of these strategies must have a known plan.
        """
        places = [place for place, plan in enumerate(self.plans) if plan.strategy in asked.strategies]
        first = min(places, key=lambda place: self.seconds[place][sample])
        least = float(self.seconds[first][sample])
        answer = asked.replace(costs=self.costs[sample]).faster_than(least * (1 - _ROUNDING))
        if answer is None:
            return self.plans[first].strategy, least
        return answer.strategy, float(self.add(FixedPlan(answer=answer, model=self.model))[sample])

    def choose(self, asked: Question, sample: int, *, enough: float) -> Strategy:
        """Return the strategy to choose in a sample, whose least time is ``enough``."""
        answer = asked.replace(costs=self.costs[sample]).best(enough=enough * (1 + _TIE))
        if answer is None:
            raise RuntimeError("the question has an answer, since a time is known to be attainable")
        return answer.strategy


def _select_contenders(question: Question, share: float) -> tuple[str, ...]:
    """Return the strategies that may be the best one in some sample.

    All have base's time in common. The time that a strategy adds to it is a sum of times, so in every sample it
    is within a factor (1 + share) of its nominal value. The best one need not be the fastest, but it takes at
    most a time that the resolution determines (``Preference.widen``). If transfers overlap compute, base's time
    hides some of it, and any strategy may win.
    """
    if question.costs.overlaps_compute:
        return question.goal.strategies
    added = {
        answer.strategy.name: answer.key[0] - question.base_seconds
        for answer in question.replace(objective="time").rank()
    }
    least = min(added.values()) * (1 + share)
    longest = question.base_seconds * (1 + share) + least
    preference = Preference(objective=least_time, resolution=question.resolution)
    wider = preference.widen(longest, strategies=len(added)) - longest
    most = (least + wider) * (1 + share) + _ROUNDING * question.base_seconds
    return tuple(name for name, seconds in added.items() if seconds <= most)


def _vary_times(
    costs: StepCosts, profile: HardwareProfile, *, share: float, samples: int, seed: int
) -> dict[str, npt.NDArray[Any]]:
    """Return samples of the times of the elementary actions, shape (samples,) each.

    T_s and the latency vary independently.
    """
    random = np.random.default_rng(seed)

    def times(value: float) -> npt.NDArray[Any]:
        return value * np.exp(random.uniform(-math.log1p(share), math.log1p(share), samples))

    columns = {name: times(getattr(costs, name)) for name in _TIMES}
    columns["message_seconds"] = times(profile.synchronisation_seconds) + times(profile.latency_seconds)
    columns.update({name: times(getattr(costs, name)) for name in ACTION_TIMES})
    return columns
