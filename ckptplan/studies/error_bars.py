"""Error bars: a plan's time, and its lead over others, when no time is known exactly.

Times are varied one by one and independently, evenly in the logarithm, between the value over (1 + share)
and the value times (1 + share). For each sample every strategy is taken at its best setting for that sample.
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
from ckptplan.search.question import Question
from ckptplan.strategies.protocol import Strategy
from ckptplan.studies.fixed_plan import FixedPlan

SAMPLES, SEED = 300, 20241216
#: Differences below this share are rounding.
_ROUNDING = 1e-12
#: A strategy that is quicker by no more than this share is as quick.
_TIE = 1e-9
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
    share of samples in which another strategy is quicker than any setting of the plan's, ``better`` the
    same by strategy. ``regret`` is how much longer than the best the plan takes, as a share of the best,
    in all but 5 % of the samples.
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
    """Return the error bars of a plan that answers ``question``; ``on_sample`` is called after each sample."""
    columns = _vary_times(question.costs, profile, share=share, samples=samples, seed=seed)
    costs = [
        StepCosts(**{**dict(question.costs), **{name: float(column[i]) for name, column in columns.items()}})
        for i in range(samples)
    ]
    asked = question.replace(strategies=_select_contenders(question, share))
    own = asked.for_strategy(kept.strategy)
    known = _KnownSettings(columns=columns, costs=costs, model=kept.model)
    ours = known.add(kept)
    best = np.empty(samples)
    better: Counter[str] = Counter()
    for sample in range(samples):
        strategy, best[sample] = known.find_quickest(asked, sample)
        # The search gives what several attain to one of them, so the plan's own strategy is asked by itself.
        if strategy is not kept.strategy and known.find_quickest(own, sample)[1] > best[sample] * (1 + _TIE):
            better[strategy.name] += 1
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
    """Every setting that was the quickest of a sample, and its seconds in all: a search begins with those."""

    columns: Mapping[str, npt.NDArray[Any]]
    costs: list[StepCosts]
    model: Model
    plans: list[FixedPlan] = field(default_factory=list)
    seconds: list[npt.NDArray[Any]] = field(default_factory=list)

    def add(self, plan: FixedPlan) -> npt.NDArray[Any]:
        """Remember a plan; returns its seconds by sample."""
        self.plans.append(plan)
        self.seconds.append(plan.seconds_at(self.columns, self.costs))
        return self.seconds[-1]

    def find_quickest(self, asked: Question, sample: int) -> tuple[Strategy, float]:
        """Return the quickest strategy of those asked for, one of which is known, and its seconds."""
        places = [place for place, plan in enumerate(self.plans) if plan.strategy in asked.strategies]
        first = min(places, key=lambda place: self.seconds[place][sample])
        least = float(self.seconds[first][sample])
        found = asked.replace(costs=self.costs[sample]).faster_than(least * (1 - _ROUNDING))
        if found is None:
            return self.plans[first].strategy, least
        return found.strategy, float(self.add(FixedPlan(answer=found, model=self.model))[sample])


def _select_contenders(question: Question, share: float) -> tuple[str, ...]:
    """Return the strategies that may be the best one in any sample.

    All share base's time. What they add to it is a sum of times, and so within (1 + share) of what it is
    for the unchanged times, whatever the sample. Beside compute, base's time hides some, and all may win.
    """
    if question.costs.overlaps_compute:
        return question.goal.strategies
    added = {
        answer.strategy.name: answer.key[0] - question.base_seconds
        for answer in question.replace(objective="time").rank()
    }
    most = min(added.values()) * (1 + share) ** 2 + _ROUNDING * question.base_seconds
    return tuple(name for name, seconds in added.items() if seconds <= most)


def _vary_times(
    costs: StepCosts, profile: HardwareProfile, *, share: float, samples: int, seed: int
) -> dict[str, npt.NDArray[Any]]:
    """Return the times of the elementary actions, a column each; T_s and the latency vary by themselves."""
    random = np.random.default_rng(seed)

    def times(value: float) -> npt.NDArray[Any]:
        return value * np.exp(random.uniform(-math.log1p(share), math.log1p(share), samples))

    columns = {name: times(getattr(costs, name)) for name in _TIMES}
    columns["message_seconds"] = times(profile.synchronisation_seconds) + times(profile.latency_seconds)
    return columns
