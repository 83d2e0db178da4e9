"""Branch and bound over integer boxes: the true optimum, with bounds as its proof.

A strategy gives lower bounds of its cost on a box of parameters that are exact at points. A box is
dropped when its bounds break a limit or are no better than the best point seen; else it is cut in
two. What remains at the end is the optimum: nothing was skipped, rounded or sampled. When few points
are left they are all evaluated at once. Equal to brute force by test (tests/laws/test_search.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.cost.exact import Cost, overhead
from ckptplan.model.budget import Budget
from ckptplan.model.goal import Model
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.search.boxes import Boxes, join_boxes, list_corners, list_points
from ckptplan.search.objective import Key, Objective
from ckptplan.strategies.closed_form import ClosedForm

_Mask: TypeAlias = npt.NDArray[np.bool_]
#: Boxes are cut in two, or in more parts as long as these are fewer than so many.
_FEW_BOXES = 512


@dataclass(frozen=True, kw_only=True)
class SearchEffort:
    """How the search works; the answer depends on ``exact_boxes`` only, and says by how much.

    ``few_points`` are evaluated one by one, which is quicker than cutting boxes. ``at_once`` boxes are
    cut at a time, those with the best bounds first: good points come early and prune. After
    ``exact_boxes`` cuts the front is so flat that thousands of settings tie to many digits (a knee where
    the front runs along its own chord). Boxes that could be better by less than a billionth are then
    dropped, ten times as much after each further half of that, and the gap is reported.
    """

    few_points: int = 8_192
    at_once: int = 2_048
    exact_boxes: int = 40_000

    def slack(self, cut: int) -> float:
        """Return what may be left unproved, as a share of the first key, after ``cut`` cuts."""
        return 1e-9 * 10.0 ** (2 * (cut - self.exact_boxes) // self.exact_boxes)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a setting must keep."""

    budget: Budget
    max_overhead: float | None = None
    base_seconds: float = 1.0

    def keeps(self, cost: Cost) -> _Mask:
        """Return where no limit is broken."""
        kept: _Mask = np.ones(len(cost.seconds), dtype=bool)
        if self.budget.local_bytes is not None:
            kept &= cost.local_peak_bytes <= self.budget.local_bytes
        if self.budget.remote_bytes is not None:
            kept &= cost.remote_peak_bytes <= self.budget.remote_bytes
        if self.max_overhead is not None:
            # The very number that is reported, so that a plan keeps the overhead it was told to have.
            kept &= overhead(cost.seconds, self.base_seconds) <= self.max_overhead
        return kept


@dataclass(frozen=True, kw_only=True)
class BestSetting:
    """The best setting of one closed form: its parameters and the key that made it the best.

    ``gap`` is 0 where it is proved to be the optimum, else the share of the key's first entry by which
    another setting could at most be better.
    """

    parameters: Parameters
    key: tuple[float, ...]
    gap: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Rival:
    """What a setting has to beat to be of interest: the key of another strategy's best.

    ``ties_win`` says that a setting with the same key beats it, too.
    """

    key: tuple[float, ...]
    ties_win: bool

    def best(self, names: tuple[str, ...]) -> tuple[float, ...]:
        """Return the rival as a best point whose parameters no point has."""
        return (*self.key, *[float("inf") if self.ties_win else float("-inf")] * len(names))


@dataclass(frozen=True, kw_only=True)
class _BoxProblem:
    strategy: ClosedForm
    costs: StepCosts
    model: Model
    objective: Objective
    limits: Limits

    def bound(self, boxes: Boxes) -> tuple[Key, _Mask]:
        """Return the bounds that rank boxes, their low ends included, and which boxes may hold a plan."""
        cost = self.strategy.evaluate(low=boxes.low, high=boxes.high, costs=self.costs, model=self.model)
        useful = self.limits.keeps(cost)
        admitted = self.strategy.admits(low=boxes.low, high=boxes.high, steps=self.costs.steps)
        if admitted is not None:
            useful &= admitted
        return (*self.objective(cost), *boxes.low.values()), useful


def find_best_setting(
    strategy: ClosedForm,
    *,
    costs: StepCosts,
    limits: Limits,
    objective: Objective,
    model: Model = "exact",
    effort: SearchEffort | None = None,
    rival: Rival | None = None,
) -> BestSetting | None:
    """Return the optimum of ``strategy`` within ``limits``, None where nothing fits or beats ``rival``.

    Ties go to the smaller parameters. Raises InputError where the strategy lacks the cost model.
    """
    start = strategy.candidates(costs=costs, budget=limits.budget)
    if start is None:
        return None
    effort = effort or SearchEffort()
    problem = _BoxProblem(strategy=strategy, costs=costs, model=model, objective=objective, limits=limits)
    boxes = Boxes.whole(start)
    best = beaten = None if rival is None else rival.best(strategy.parameter_names)
    if beaten is not None and not _may_improve(boxes, problem, beaten):
        return None
    if boxes.volume() > effort.few_points:
        boxes = _peel(boxes)
    waiting: tuple[Boxes, Key] | None = None
    cut, least = 0, float("inf")
    while True:
        if boxes.volume() <= effort.few_points:
            best = _choose_better(best, _find_best_point(list_points(boxes), problem))
        else:
            best = _choose_better(best, _find_best_point(list_corners(boxes), problem))
            waiting = _queue(waiting, *_cut(boxes, problem, best))
            cut += boxes.count()
        if waiting is None:
            break
        rest, keys = waiting
        alive = _is_below(keys, best)
        if best is not None and cut > effort.exact_boxes:
            near = alive & (keys[0] >= best[0] - effort.slack(cut) * abs(best[0]))
            least = min(least, float(np.min(keys[0][near].astype(np.float64), initial=np.inf)))
            alive &= ~near
        chosen = _choose_most_promising(keys, alive, most=effort.at_once)
        if not len(chosen):
            break
        boxes = rest.take(chosen)
        alive[chosen] = False
        waiting = (rest.take(alive), tuple(column[alive] for column in keys))
    return None if best is None or best is beaten else _make_best_setting(best, least, strategy.parameter_names)


def _may_improve(boxes: Boxes, problem: _BoxProblem, best: tuple[float, ...]) -> bool:
    """Return whether any box may hold a better point than the best one."""
    keys, useful = problem.bound(boxes)
    return bool(np.any(useful & _is_below(keys, best)))


def _make_best_setting(best: tuple[float, ...], least: float, names: tuple[str, ...]) -> BestSetting:
    """Part the key from the parameters; ``least`` is the least bound of what was dropped unproved."""
    split = len(best) - len(names)
    gap = (best[0] - least) / abs(best[0]) if least < best[0] else 0.0
    parameters = Parameters(dict(zip(names, map(int, best[split:]), strict=True)))
    return BestSetting(parameters=parameters, key=best[:split], gap=gap)


def _is_below(keys: Key, best: tuple[float, ...] | None) -> _Mask:
    """Where a bound comes before the best point: what may still hold a better one."""
    below: _Mask = np.zeros(len(keys[0]), dtype=bool)
    if best is None:
        return ~below
    equal = ~below
    for column, value in zip(keys, best, strict=True):
        below |= equal & (column < value)
        equal &= column == value
    return below


def _choose_most_promising(keys: Key, alive: _Mask, *, most: int) -> npt.NDArray[np.intp]:
    chosen = np.flatnonzero(alive)
    if len(chosen) > most:
        chosen = chosen[np.argpartition(keys[0][chosen], most)[:most]]
    return chosen


def _queue(waiting: tuple[Boxes, Key] | None, boxes: Boxes, keys: Key) -> tuple[Boxes, Key]:
    if waiting is None:
        return boxes, keys
    rest, old = waiting
    return join_boxes([rest, boxes]), tuple(np.concatenate(pair) for pair in zip(old, keys, strict=True))


def _choose_better(best: tuple[float, ...] | None, other: tuple[float, ...] | None) -> tuple[float, ...] | None:
    if best is None or other is None:
        return best or other
    return min(best, other)


def _find_best_point(points: Boxes, problem: _BoxProblem) -> tuple[float, ...] | None:
    """Return the first of the points that keep the limits, by key and then by parameters."""
    keys, useful = problem.bound(points)
    chosen = np.flatnonzero(useful)
    if not len(chosen):
        return None
    for column in keys:
        values = column[chosen]
        chosen = chosen[values == values.min()]
    return tuple(column[chosen[0]].item() for column in keys)


def _peel(boxes: Boxes) -> Boxes:
    """Return boxes with the last value of each side apart.

    There a schedule is often of another kind (one segment, and nothing moves), which bounds tell at once.
    """
    for name in boxes.low:
        low, high = boxes.low[name], boxes.high[name]
        wide = low < high
        rest = Boxes(low=boxes.low, high={**boxes.high, name: np.maximum(low, high - 1)})
        last = Boxes(low={**boxes.low, name: high}, high=boxes.high)
        boxes = join_boxes([rest, last.take(wide)])
    return boxes


def _cut(boxes: Boxes, problem: _BoxProblem, best: tuple[float, ...] | None) -> tuple[Boxes, Key]:
    """Cut each box across one side; return the parts that may hold a better point, and their keys.

    The side is the one that leaves fewest parts alive. (Where many settings tie, cutting the wrong
    side would go on until single points.) Of two such sides, the longer one in proportion is cut.
    """
    count = boxes.count()
    # A look at a few boxes takes as long as at hundreds.
    each = max(2, min(32, _FEW_BOXES // count))
    sides = [_cut_side(boxes, name, each) for name in boxes.low]
    parts = sides[0] if len(sides) == 1 else join_boxes(sides)
    keys, useful = problem.bound(parts)
    useful &= _is_below(keys, best)
    for name in boxes.low:
        useful &= parts.low[name] <= parts.high[name]
    alive = useful.reshape(len(sides), each, count).sum(axis=1)
    proportions = np.array([(boxes.high[name] + 1) / boxes.low[name] for name in boxes.low])
    is_point = np.array([boxes.high[name] == boxes.low[name] for name in boxes.low])
    # One number to rank by: whole steps for parts alive, less than one for the proportion.
    rank = np.where(is_point, np.inf, alive + 1 / proportions)
    side = np.argmin(rank, axis=0)
    chosen = np.zeros_like(useful).reshape(len(sides), each, count)
    chosen[side, :, np.arange(count)] = True
    useful &= chosen.reshape(-1)
    return parts.take(useful), tuple(column[useful] for column in keys)


def _cut_side(boxes: Boxes, name: str, each: int) -> Boxes:
    """Return the first parts of all boxes cut across one side, then the second parts, and so on.

    A box that is too narrow for so many has parts that are empty, their low end above the high one.
    """
    low, high = boxes.low[name], boxes.high[name]
    share = np.arange(1, each)[:, None] / each
    # Costs go with T / chunk: a long side is cut in proportion.
    geometric = low * (high / low) ** share
    cuts = np.where(high > 4 * low, geometric, low + (high - low) * share).astype(np.int64)
    cuts = np.clip(cuts, low, np.maximum(low, high - 1))
    ends = [low - 1, *cuts, high]
    repeated = join_boxes([boxes] * each)
    return Boxes(
        low={**repeated.low, name: np.concatenate(ends[:-1]) + 1},
        high={**repeated.high, name: np.concatenate(ends[1:])},
    )
