"""Finds the optimal setting of a closed form by branch and bound over integer boxes, with proof.

Let cost(x) be the key of a setting x, compared lexicographically, and bound(B) a lower bound over a box B
that is exact at points, both from the strategy's closed form. With x* the best setting seen so far, a box B is

    dropped  if bound(B) breaks a limit, or bound(B) >= cost(x*),
    cut      into smaller boxes otherwise.

When no box is left, x* is the optimum: bound(B) <= cost(x) for every x in B, so no dropped box holds a better
setting, and nothing was rounded or sampled. If few points are left, all of them are evaluated at once. Tests
compare the result with brute force (tests/laws/test_search.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from ckptplan.model.record import Parameters
from ckptplan.search.boxes import (
    Boxes,
    BoxProblem,
    Mask,
    choose_sides,
    cut_all_sides,
    is_below,
    join_boxes,
    list_corners,
    list_points,
)
from ckptplan.search.objective import Key, Rival
from ckptplan.strategies.answer import Answer

#: Boxes are cut into more than two parts as long as there are no more parts than this.
_FEW_BOXES = 512


#: At most this many points are evaluated one by one, which is then faster than cutting boxes.
_FEW_POINTS = 8_192
#: At most this many boxes are cut at a time, those with the best bounds first, so that good points are found
#: early and prune other boxes.
_AT_ONCE = 2_048
#: If more cuts are needed, thousands of settings agree to many digits, as at a knee where the front follows its
#: own chord. Only this case can affect the answer, by a gap that is reported (``_allowed_gap``).
_EXACT_BOXES = 40_000


def find_best_setting(problem: BoxProblem, *, rival: Rival | None = None) -> Answer | None:
    """Return the optimum of a closed form within its limits, None if nothing fits or beats ``rival``.

    Ties go to the smaller parameters. Raises InputError if the strategy lacks the cost model.
    """
    boxes = Boxes.whole(problem.strategy.ranges(costs=problem.costs, budget=problem.limits.budget))
    if boxes is None:
        return None
    best = beaten = rival
    if beaten is not None:
        keys, useful = problem.bound(boxes)
        if not np.any(useful & is_below(keys, beaten)):
            return None
    if boxes.volume() > _FEW_POINTS:
        boxes = _peel(boxes)
    waiting: tuple[Boxes, Key] | None = None
    cut, least = 0, float("inf")
    while True:
        if boxes.volume() <= _FEW_POINTS:
            best = _choose_better(best, *problem.bound(list_points(boxes)))
        else:
            best, parts, part_keys = _cut(boxes, problem, best)
            waiting = _queue(waiting, parts, part_keys)
            cut += boxes.count()
        if waiting is None:
            break
        remaining, keys = waiting
        # Drop every box with bound(B) >= cost(x*).
        alive = is_below(keys, best)
        if best is not None and cut > _EXACT_BOXES:
            near = alive & (keys[0] >= best[0] - _allowed_gap(cut) * abs(best[0]))
            least = min(least, float(np.min(keys[0][near].astype(np.float64), initial=np.inf)))
            alive &= ~near
        chosen = np.flatnonzero(alive)
        if len(chosen) > _AT_ONCE:
            chosen = chosen[np.argpartition(keys[0][chosen], _AT_ONCE)[:_AT_ONCE]]
        if not len(chosen):
            break
        boxes = remaining.take(chosen)
        alive[chosen] = False
        waiting = (remaining.take(alive), tuple(column[alive] for column in keys))
    return None if best is None or best is beaten else _make_answer(best, least, problem)


def _allowed_gap(cut: int) -> float:
    """Return the share of the first key that may remain unproved after ``cut`` cuts.

    Boxes that could be better by less than a billionth are dropped, and ten times this after each further half
    of ``_EXACT_BOXES`` cuts.
    """
    return 1e-9 * 10.0 ** (2 * (cut - _EXACT_BOXES) // _EXACT_BOXES)


#: A cache of searches, for the points of a sweep that differ only in transfers.
cached_best_setting = lru_cache(maxsize=512)(find_best_setting)


def find_setting(problem: BoxProblem, *, rival: Rival | None) -> Answer | None:
    """Return ``find_best_setting`` from a cache if nothing moves, so that transfer costs do not matter."""
    if problem.moves_data or problem.model != "exact":
        return find_best_setting(problem, rival=rival)
    costs = problem.costs.model_copy(update=_NOTHING_MOVES)
    answer = cached_best_setting(replace(problem, costs=costs), rival=rival)
    return None if answer is None else replace(answer, solved_at=problem.costs)


_NOTHING_MOVES = dict.fromkeys(
    ("write_seconds", "read_seconds", "cache_write_seconds", "cache_read_seconds", "message_seconds"), 0.0
)


def _make_answer(best: tuple[float, ...], least: float, problem: BoxProblem) -> Answer:
    """Return a best point as an answer; ``least`` is the least bound that was dropped unproved."""
    strategy, costs = problem.strategy, problem.costs
    names = tuple(strategy.ranges(costs=costs, budget=problem.limits.budget))
    split = len(best) - len(names)
    gap = (best[0] - least) / abs(best[0]) if least < best[0] else 0.0
    parameters = _find_parameters(dict(zip(names, map(int, best[split:]), strict=True)), problem)
    tie = f"thousands of settings tie; this one is proved within {gap:.1g} of the best"
    return Answer(
        strategy=strategy,
        parameters=parameters,
        solved_at=costs,
        key=best[:split],
        notes=(tie,) if gap else (),
        gap=gap,
    )


def _find_parameters(setting: dict[str, int], problem: BoxProblem) -> Parameters:
    """Return the parameters of a setting, including those that say which caches its best plan keeps."""
    point = Boxes.points({name: np.array([value]) for name, value in setting.items()})
    caches = problem.find_caches(point) if problem.costs.cache_bytes else {}
    return problem.strategy.clamp(Parameters({**setting, **caches}), steps=problem.costs.steps)


def _queue(waiting: tuple[Boxes, Key] | None, boxes: Boxes, keys: Key) -> tuple[Boxes, Key]:
    if waiting is None:
        return boxes, keys
    remaining, old = waiting
    return join_boxes([remaining, boxes]), tuple(np.concatenate(pair) for pair in zip(old, keys, strict=True))


def _choose_better(best: tuple[float, ...] | None, keys: Key, useful: Mask) -> tuple[float, ...] | None:
    """Return the least of ``best`` and of the useful keys of points, with their parameters."""
    place = find_least(keys, useful)
    if place is None:
        return best
    point = tuple(column[place].item() for column in keys)
    return point if best is None else min(best, point)


def find_least(keys: Key, useful: Mask) -> int | None:
    """Return the place of the least useful key, the first of equal ones; None if none is useful."""
    chosen = np.flatnonzero(useful)
    if not len(chosen):
        return None
    for column in keys:
        values = column[chosen]
        chosen = chosen[values == values.min()]
    return int(chosen[0])


def _peel(boxes: Boxes) -> Boxes:
    """Return boxes in which the last value of each side is a box of its own.

    At this value a schedule is often of another kind (one segment, nothing moves), with much better bounds.
    """
    for name in boxes.low:
        low, high = boxes.low[name], boxes.high[name]
        wide = low < high
        others = Boxes(low=boxes.low, high={**boxes.high, name: np.maximum(low, high - 1)})
        last = Boxes(low={**boxes.low, name: high}, high=boxes.high)
        boxes = join_boxes([others, last.take(wide)])
    return boxes


def _cut(
    boxes: Boxes, problem: BoxProblem, best: tuple[float, ...] | None
) -> tuple[tuple[float, ...] | None, Boxes, Key]:
    """Cut each box across one side.

    Return the least of ``best`` and the corners of the boxes, the parts that may hold a better point, and the
    keys of these parts.
    """
    # Bounding a few boxes takes as long as bounding hundreds, so corners and parts are bounded together.
    corners = list_corners(boxes)
    parts = cut_all_sides(boxes, parts=max(2, min(32, _FEW_BOXES // boxes.count())))
    keys, useful = problem.bound(join_boxes([corners, parts]))
    first = corners.count()
    best = _choose_better(best, tuple(column[:first] for column in keys), useful[:first])
    keys, useful = tuple(column[first:] for column in keys), useful[first:]
    places = choose_sides(boxes, parts, useful & is_below(keys, best))
    return best, parts.take(places), tuple(column[places] for column in keys)
