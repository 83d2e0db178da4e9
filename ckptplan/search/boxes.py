"""Defines boxes of settings, cuts them, and bounds the cost of a closed form over them.

A bound is a lower bound over a box that is exact at points, both from the strategy's closed form. Two searches
use it: for the best setting (``search/best_setting.py``) and for the front (``search/trace_closed.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import SUM_ROUNDING
from ckptplan.cost.exact import Cost, Counts, overhead
from ckptplan.model.budget import Budget
from ckptplan.model.goal import CacheName, Model
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.tree import OFFLOADED_STEPS
from ckptplan.search.objective import Key, Knee, Objective, least_memory
from ckptplan.strategies.closed_form import CacheRule, ClosedForm, Ranges
from ckptplan.strategies.protocol import CACHED_STEPS, Columns

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """n boxes as columns of shape (n,); a point is a box whose ends are equal."""

    low: Columns
    high: Columns
    #: The counts of actions in each box, if they were needed to choose the caches.
    counts: Counts | None = None

    @classmethod
    def points(cls, columns: Columns) -> Boxes:
        """Return points as boxes."""
        return cls(low=columns, high=columns)

    @classmethod
    def whole(cls, ranges: Ranges) -> Boxes | None:
        """Return a single box, None if a range is empty."""
        if any(last < first for first, last in ranges.values()):
            return None
        ends = {name: np.array(pair, dtype=np.int64) for name, pair in ranges.items()}
        return cls(
            low={name: pair[:1] for name, pair in ends.items()},
            high={name: pair[1:] for name, pair in ends.items()},
        )

    def take(self, chosen: Any) -> Boxes:
        """Return the boxes at an index, or those where a mask is true."""
        low = {name: column[chosen] for name, column in self.low.items()}
        # The ends of points are the same columns.
        high = {
            name: low[name] if column is self.low[name] else column[chosen]
            for name, column in self.high.items()
        }
        return Boxes(low=low, high=high)

    def count(self) -> int:
        """Return the number of boxes."""
        return len(next(iter(self.low.values()), ()))

    def with_columns(self, *, low: Columns, high: Columns) -> Boxes:
        """Return the boxes with further sides."""
        return replace(self, low={**self.low, **low}, high={**self.high, **high})

    def volumes(self) -> npt.NDArray[np.float64]:
        """Return the number of points in each box, as floats since they can exceed 2**63; shape (n,)."""
        sides: Any = np.ones(self.count())
        for name in self.low:
            sides = sides * (self.high[name] - self.low[name] + 1).astype(np.float64)
        result: npt.NDArray[np.float64] = sides
        return result

    def volume(self) -> float:
        """Return the total number of points."""
        # A strategy without parameters has a single setting.
        return float(np.sum(self.volumes())) if self.low else 1.0


def list_points(boxes: Boxes) -> Boxes:
    """Return every point of the boxes."""
    for name in boxes.low:
        boxes = cut_into_singles(boxes, name)
    return boxes


def list_corners(boxes: Boxes) -> Boxes:
    """Return the corners of the boxes, which are often good settings."""
    ends = [
        (low,) if np.array_equal(low, high) else (low, high)
        for low, high in zip(boxes.low.values(), boxes.high.values(), strict=True)
    ]
    choices = list(product(*ends))
    return Boxes.points(
        {name: np.concatenate([corner[i] for corner in choices]) for i, name in enumerate(boxes.low)}
    )


def cut_evenly(boxes: Boxes, name: str, count: int) -> Boxes:
    """Cut all boxes across one side; return all first parts, then all second parts, and so on.

    A box that is too narrow has empty parts, with a low end above the high end.
    """
    low, high = boxes.low[name], boxes.high[name]
    share = np.arange(1, count)[:, None] / count
    # Costs vary with T / chunk, so a long side is cut in geometric proportion.
    geometric = low * (high / low) ** share
    cuts = np.where(high > 4 * low, geometric, low + (high - low) * share).astype(np.int64)
    cuts = np.clip(cuts, low, np.maximum(low, high - 1))
    ends = [low - 1, *cuts, high]
    repeated = join_boxes([boxes] * count)
    return Boxes(
        low={**repeated.low, name: np.concatenate(ends[:-1]) + 1},
        high={**repeated.high, name: np.concatenate(ends[1:])},
    )


def cut_all_sides(boxes: Boxes, *, parts: int = 2) -> Boxes:
    """Cut all boxes across each side; return the parts of all sides, from which ``choose_sides`` chooses."""
    return join_boxes([cut_evenly(boxes, name, parts) for name in boxes.low])


def choose_sides(boxes: Boxes, parts: Boxes, weights: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Choose the side to cut each box across, and return the places of the parts to keep.

    The side is the one whose parts have the least sum of weights; parts without a weight are dropped. Of two
    equal sides, the proportionally longer one is cut. (If many settings tie, cutting another side would go on
    down to single points.)
    """
    names, count = list(boxes.low), boxes.count()
    for name in names:
        weights = np.where(parts.low[name] <= parts.high[name], weights, 0)
    # The first bounds may be infinite.
    left = np.minimum(weights, _HEAVY).reshape(len(names), -1, count).sum(axis=1)
    proportions = np.array([(boxes.high[name] + 1) / boxes.low[name] for name in names])
    is_point = np.array([boxes.high[name] == boxes.low[name] for name in names])
    side = np.argmin(np.where(is_point, np.inf, left * (1 + _TIE / proportions)), axis=0)
    chosen = np.zeros((len(names), len(weights) // len(names) // count, count), dtype=bool)
    chosen[side, :, np.arange(count)] = True
    return np.flatnonzero((weights > 0) & chosen.reshape(-1))


#: The largest weight of a part, and the share by which the sums of two equal sides may differ.
_HEAVY, _TIE = 1e30, 1e-3


def cut_into_singles(boxes: Boxes, name: str) -> Boxes:
    """Cut all boxes into boxes that are a single value wide across one side."""
    sides = boxes.high[name] - boxes.low[name] + 1
    index = np.repeat(np.arange(boxes.count()), sides)
    parts = boxes.take(index)
    values = parts.low[name] + np.arange(len(index)) - np.repeat(np.cumsum(sides) - sides, sides)
    return Boxes(low={**parts.low, name: values}, high={**parts.high, name: values})


def join_boxes(parts: list[Boxes]) -> Boxes:
    """Concatenate several arrays of boxes."""
    names = parts[0].low
    return Boxes(
        low={name: np.concatenate([part.low[name] for part in parts]) for name in names},
        high={name: np.concatenate([part.high[name] for part in parts]) for name in names},
    )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits that a setting must keep."""

    budget: Budget
    max_overhead: float | None = None
    base_seconds: float = 1.0

    @property
    def most_overhead(self) -> float:
        """The largest overhead that is allowed, with a margin for rounding."""
        limit = inf if self.max_overhead is None else self.max_overhead
        return limit + SUM_ROUNDING * (1 + limit)

    @property
    def most_seconds(self) -> float:
        """The longest time that is allowed; infinite without a limit."""
        return inf if self.max_overhead is None else self.base_seconds * (1 + self.most_overhead)

    def keeps(self, cost: Cost) -> Mask:
        """Return a mask of the settings that exceed no limit, shape (n,)."""
        keeps = cost.within(self.budget)
        if self.max_overhead is not None:
            keeps &= overhead(cost.seconds, self.base_seconds) <= self.most_overhead
        return keeps


@dataclass(frozen=True, kw_only=True)
class BoxProblem:
    """A closed form whose settings are bounded box by box, and evaluated where a box is a point."""

    strategy: ClosedForm
    costs: StepCosts
    model: Model = "exact"
    objective: Objective
    limits: Limits
    #: The caches that plans have to keep; None leaves the choice to the search.
    cache: CacheName | None = None

    def bound(self, boxes: Boxes) -> tuple[Key, Mask]:
        """Return the keys of boxes, followed by their low ends, and a mask of boxes that may hold a plan."""
        choices = (self._bound_costs(choice) for choice in self.choose_caches(boxes))
        keys, useful = next(choices)
        for other_keys, fits in choices:
            is_better = fits & (~useful | is_below(other_keys, keys))
            keys = tuple(np.where(is_better, new, old) for new, old in zip(other_keys, keys, strict=True))
            useful |= fits
        return (*keys, *boxes.low.values()), useful

    def choose_caches(self, boxes: Boxes) -> list[Boxes]:
        """Return the boxes with K among their sides, the least and the largest that a plan may have.

        If caches may move to remote memory, the last boxes have the number of moved caches instead.
        For a knee there are two: it lies at one end of the range of K, as the sum of both axes is concave along
        this range (memory is linear in K, and time is the logarithm of a linear function).
        """
        first = self.objective.first
        ends = (False, True) if first == Knee.first else (first == least_memory.first,)
        local_bytes, choices = self.limits.budget.local_bytes, list[Boxes]()
        for search in self.strategy.list_searches(self.cache, costs=self.costs):
            if self._moves_caches(search):
                choices.append(self.offload_caches(boxes))
            else:
                choices += [self.keep_caches(boxes, local_bytes=local_bytes, fewest=end) for end in ends]
        return choices

    @property
    def moves_data(self) -> bool:
        """Whether some settings move states or caches to remote memory."""
        may_offload = self.cache in (None, "offloaded") and self._moves_caches("offloaded")
        return self.strategy.moves_states or may_offload

    @property
    def offloads(self) -> bool:
        """Whether caches have to move to remote memory."""
        return self._moves_caches(self.cache)

    def _moves_caches(self, choice: CacheName | None) -> bool:
        return self._has_caches and choice == "offloaded" and OFFLOADED_STEPS in self.strategy.cache_names

    def offload_caches(self, boxes: Boxes) -> Boxes:
        """Return the boxes with the number of steps whose caches move among their sides."""
        low, high = self.strategy.bound_offloaded(boxes.low, boxes.high, steps=self.costs.steps)
        return boxes.with_columns(low={OFFLOADED_STEPS: low}, high={OFFLOADED_STEPS: high})

    def keep_caches(self, boxes: Boxes, *, local_bytes: Any, fewest: bool = False) -> Boxes:
        """Return boxes with K among their sides, if steps have caches.

        K is the most that fits ``local_bytes``, of all boxes or of each; with ``fewest``, the least that is
        allowed.
        """
        if not self._has_caches:
            return boxes
        rule = CacheRule(
            local_bytes=local_bytes,
            choice=self.cache,
            keeps_fewest=fewest,
            most_seconds=self.limits.most_seconds,
        )
        least, most, counts = self.strategy.count_cached(
            low=boxes.low, high=boxes.high, costs=self.costs, rule=rule
        )
        chosen = boxes.with_columns(low={CACHED_STEPS: least}, high={CACHED_STEPS: most})
        return replace(chosen, counts=counts)

    @property
    def _has_caches(self) -> bool:
        return bool(self.costs.cache_bytes) and self.model != "paper"

    def find_caches(self, point: Boxes) -> dict[str, int]:
        """Return the parameter for the caches of the best plan at a point: K, or the number that move."""
        ranked = []
        for choice in self.choose_caches(point):
            keys, useful = self._bound_costs(choice)
            sides = {name: int(choice.low[name][0]) for name in set(choice.low) - set(point.low)}
            # Among equal plans, prefer one that moves no caches.
            order = (OFFLOADED_STEPS in sides, *sides.values())
            ranked.append(((not useful[0], *(column[0] for column in keys), *order), sides))
        _, best = min(ranked, key=lambda pair: pair[0])
        # A plan of a single segment moves no caches.
        return {name: steps for name, steps in best.items() if steps}

    def _bound_costs(self, boxes: Boxes) -> tuple[Key, Mask]:
        """Return keys without low ends, and which boxes may hold a plan; K is one of the sides."""
        strategy = self.strategy
        cost = strategy.evaluate(
            low=boxes.low, high=boxes.high, costs=self.costs, model=self.model, counts=boxes.counts
        )
        useful = self.limits.keeps(cost)
        admitted = strategy.admits(low=boxes.low, high=boxes.high, steps=self.costs.steps)
        return self.objective(cost), useful if admitted is None else useful & admitted


def is_below(keys: Key, best: Sequence[Any] | None) -> Mask:
    """Return where keys are below ``best``, one key or a key for each place, compared lexicographically.

    Further columns of either do not count; every key is below None.
    """
    below: Mask = np.zeros(len(keys[0]), dtype=bool)
    if best is None:
        return ~below
    equal = ~below
    for column, value in zip(keys, best, strict=False):
        below |= equal & (column < value)
        equal &= column == value
    return below
