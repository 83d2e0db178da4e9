"""Finds the exact front of memory and time: every setting that no other setting beats in both.

This is branch and bound as in ``search/best_setting.py``, for all budgets at once. With M and S the bounds of a
box B on local bytes and seconds, and

    least(m) = min of seconds(x) over all settings x seen so far with memory(x) <= m,

B is dropped if its gain, least(M) - S, is not above 0: a setting seen needs no more memory and no more time
than any in B. Other boxes are cut, and small boxes are evaluated point by point. The settings that remain are
the front; nothing was rounded or sampled. Tests compare it with brute force (tests/laws/test_front.py).

A front at given budgets holds the fastest setting within each of them, and of equally fast ones the smallest.
Memory is then counted in these budgets: least(m) is the least time within the first of them that is no less.
If steps have caches, the number of the budget is a further side of each box: within a budget, a setting keeps
as many caches as fit (``ClosedForm.count_cached``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import SUM_ROUNDING, Integers, spread_out
from ckptplan.cost.exact import Cost, price
from ckptplan.cost.overlap import least_overlapped_seconds
from ckptplan.model.prediction import COUNTS
from ckptplan.model.step_costs import StepCosts
from ckptplan.search.boxes import (
    Boxes,
    BoxProblem,
    Mask,
    choose_sides,
    cut_all_sides,
    cut_into_singles,
    list_corners,
    list_points,
)
from ckptplan.search.objective import Key, Objective, least_memory
from ckptplan.strategies.protocol import CACHED_STEPS, Columns

#: Up to this many points of a strategy, and of a box, are evaluated instead of cut.
_FEW_POINTS, _LEAF = 65_536, 48
#: A box of up to this many chunk sizes is bounded for each of them.
_ROWS = 64
#: While all parts together are at most the first number, a box is cut into at most the second number.
_AT_ONCE, _MOST_PARTS = 4_096, 16
_CHUNK = "chunk_size"
#: The side of boxes that is the number of a budget, from 1.
_BUDGET = "budget"
#: With more boxes at a time than this, the search begins again with a coarse resolution, or a coarser one.
_MOST_BOXES, COARSE, _COARSER = 400_000, 0.001, 4
#: It also begins again if it has to evaluate more points than this, which takes some ten seconds.
_MOST_EVALUATED = 2**24
#: The ratio of neighbouring chunk sizes that a search at given budgets begins with.
_NEAR = 1.01
#: Up to this many steps, all chunk sizes are evaluated one by one.
_LONG_LINE = 2**21
#: Points are evaluated in lots of this size, which fit the cache.
_LOT = 2**17


@dataclass(frozen=True, kw_only=True)
class Front(Cost):
    """The costs of the points of a front, local memory ascending and time descending; arrays of shape (n,).

    ``parameters`` holds a column for each parameter of the strategy.
    """

    parameters: Columns
    #: 0 if every point is included, else the share by which omitted points may differ.
    resolution: float = 0.0

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, places: npt.NDArray[Any]) -> Front:
        """Return the points at the given indices."""
        return replace(
            self,
            local_peak_bytes=self.local_peak_bytes[places],
            seconds=self.seconds[places],
            remote_peak_bytes=self.remote_peak_bytes[places],
            parameters={name: column[places] for name, column in self.parameters.items()},
        )


@dataclass(frozen=True, kw_only=True)
class FrontProblem(BoxProblem):
    """The front of a closed form within limits. Its keys are local bytes, seconds, remote bytes, parameters.

    With ``budgets``, ascending local bytes of one unit, the front holds the best setting within each of them
    alone. With a ``resolution`` above 0, it holds fewer points: each setting of the exact front needs more than
    (1 - resolution) of the memory and of the time of a listed point.
    """

    objective: Objective = least_memory
    resolution: float = 0.0
    budgets: Integers | None = None

    @property
    def numbers_budgets(self) -> bool:
        """Whether the number of a budget is a side of the boxes, since the caches of plans depend on it."""
        return self.budgets is not None and self._has_caches and self.strategy.varies_caches(self.cache)

    @property
    def trades_steps_for_tapes(self) -> bool:
        """Whether each chunk size of a box can be bounded separately (``_bound_gains_by_row``)."""
        # With caches that move, memory may grow by less than a tape a step.
        return _CHUNK in self.strategy.parameter_names and not self.numbers_budgets and not self.offloads

    def bound(self, boxes: Boxes) -> tuple[Key, Mask]:
        """Return keys and mask as ``BoxProblem.bound``. A plan belongs to the smallest budget it fits."""
        if self.budgets is None or not self.numbers_budgets:
            return super().bound(boxes)
        first, last = boxes.low[_BUDGET], boxes.high[_BUDGET]
        settings = Boxes(
            low={name: column for name, column in boxes.low.items() if name != _BUDGET},
            high={name: column for name, column in boxes.high.items() if name != _BUDGET},
        )
        plans = self.keep_caches(settings, local_bytes=self.budgets[last - 1])
        # Of several budgets, the smallest may hold the least number of caches.
        fewest = self.strategy.least_cached(settings.low, steps=self.costs.steps)
        least = np.where(first < last, np.minimum(fewest, plans.low[CACHED_STEPS]), plans.low[CACHED_STEPS])
        plans = plans.with_columns(low={CACHED_STEPS: least}, high={})
        (local, *others), useful = self._bound_costs(plans)
        below = np.where(first > 1, self.budgets[first - 2], -1)
        is_point = np.logical_and.reduce([boxes.low[name] == boxes.high[name] for name in boxes.low])
        useful = useful & (local <= self.budgets[last - 1]) & (~is_point | (local > below))
        return (np.maximum(local, below + 1), *others, *boxes.low.values()), useful

    def relax(self, keys: Key) -> Key:
        """Return bounds raised by the resolution: a point above them need not be listed."""
        if not self.resolution:
            return keys
        local, seconds, *rest = keys
        larger = (local * (1 + self.resolution)).astype(np.int64)
        return (larger, seconds * (1 + self.resolution), *rest)


def trace_front(problem: FrontProblem) -> Front:
    """Return the front of a closed form; it is empty if nothing fits.

    If transfers overlap compute, times that differ only by rounding count as equal. Of the evaluated settings
    with equal memory and time, the front holds the one with the least remote memory, then with the smallest
    parameters. A front that is too fine is returned with a resolution of 0.001, or of 4, 16, 64 times as much
    if that is too fine, too.
    """
    searches = problem.strategy.list_searches(problem.cache, costs=problem.costs)
    return _join_fronts([_trace_front(replace(problem, cache=search)) for search in searches])


def _join_fronts(fronts: Sequence[Front]) -> Front:
    """Return the common front of one strategy, whose parameters are 0 where a plan lacks them."""
    if len(fronts) == 1:
        return fronts[0]
    joined, origins = merge_fronts(fronts)
    parameters = pick_columns([front.parameters for front in fronts], origins)
    return replace(joined, parameters=parameters, resolution=max(front.resolution for front in fronts))


def _trace_front(problem: FrontProblem) -> Front:
    """Return the front of ``trace_front`` for one of the searches of a strategy."""
    ranges = dict(problem.strategy.ranges(costs=problem.costs, budget=problem.limits.budget))
    if problem.budgets is not None and problem.numbers_budgets:
        ranges[_BUDGET] = (1, len(problem.budgets))
    names, start = tuple(ranges), Boxes.whole(ranges)
    if start is None:
        return _make_front(names, _empty_key(len(names)))
    while True:
        seen = SeenPoints(costs=problem.costs, budgets=problem.budgets)
        try:
            _search(start, problem, seen)
            break
        except _TooFine:
            problem = replace(problem, resolution=max(COARSE, _COARSER * problem.resolution))
    front = _make_front(names, seen.front() or _empty_key(len(names)), resolution=problem.resolution)
    return _name_caches(front, problem)


def _name_caches(front: Front, problem: FrontProblem) -> Front:
    """Return the front with K, or the steps whose caches move, in place of the numbers of budgets."""
    points = Boxes.points({name: column for name, column in front.parameters.items() if name != _BUDGET})
    plans = points
    if len(front) and problem.numbers_budgets:
        plans = problem.keep_caches(points, local_bytes=front.local_peak_bytes)
    elif len(front) and problem.offloads:
        plans = problem.offload_caches(points)
    return replace(front, parameters=plans.low)


class _TooFine(Exception):  # noqa: N818 - a signal, not an error
    """The search needs too many boxes at once."""


def _empty_key(parameters: int) -> Key:
    integers = np.zeros(0, dtype=np.int64)
    return (integers, np.zeros(0), integers, *(integers,) * parameters)


def _make_front(names: Sequence[str], keys: Key, *, resolution: float = 0.0) -> Front:
    local, seconds, remote, *parameters = keys
    return Front(
        local_peak_bytes=local,
        seconds=seconds,
        remote_peak_bytes=remote,
        parameters=dict(zip(names, parameters, strict=True)),
        resolution=resolution,
    )


def merge_fronts(fronts: Iterable[Front]) -> tuple[Front, Integers]:
    """Return the common front of several fronts, without parameters, and the origin of each point.

    The second result has shape (2, n): the index of the front, and of the point in it. Of points with equal
    memory and time, the one with less remote memory is kept, then the point of the earlier front.
    """
    keys = _empty_key(2)
    for place, front in enumerate(fronts):
        added: Key = (
            front.local_peak_bytes,
            front.seconds,
            front.remote_peak_bytes,
            np.full(len(front), place, dtype=np.int32),
            np.arange(len(front), dtype=np.int32),
        )
        # One after the other: fronts may have a million points, and all at once need several times the memory.
        if not len(keys[0]):
            keys = added
        elif len(front):
            keys = drop_dominated(tuple(np.concatenate(columns) for columns in zip(keys, added, strict=True)))
    return _make_front((), keys[:3]), np.stack(keys[3:])


def pick_columns(sources: Sequence[Columns], origins: Integers) -> Columns:
    """Collect the parameters of points from the columns of their sources, 0 where a source lacks a parameter.

    ``origins`` is as ``merge_fronts`` returns it.
    """
    picked = {name: np.zeros(len(origins[0]), dtype=np.int64) for columns in sources for name in columns}
    for place, columns in enumerate(sources):
        chosen = origins[0] == place
        for name, column in columns.items():
            picked[name][chosen] = column[origins[1][chosen]]
    return picked


def _search(boxes: Boxes, problem: FrontProblem, seen: SeenPoints) -> None:
    """Cut, prune and evaluate until no box is left."""
    is_line = len(boxes.low) == 1 and problem.resolution == 0 and problem.costs.steps <= _LONG_LINE
    if is_line or boxes.volume() <= _FEW_POINTS:
        _evaluate(boxes, problem, seen)
        return
    if problem.trades_steps_for_tapes and not problem.resolution and problem.costs.steps <= _LONG_LINE:
        # With its other parameters at their maximum, a strategy usually reduces to a simpler one, whose front
        # is close to this one.
        edge = Boxes(low={**boxes.high, _CHUNK: boxes.low[_CHUNK]}, high=boxes.high)
        if seen.budgets is None:
            lots = _split_into_lots(cut_into_singles(edge, _CHUNK))
        else:
            # Few points are enough to begin with.
            chunks = spread_out(int(boxes.high[_CHUNK][0]), dense=_LEAF, ratio=_NEAR)
            columns = {name: np.full_like(chunks, column[0]) for name, column in boxes.high.items()}
            lots = [Boxes.points({**columns, _CHUNK: chunks})]
        for lot in lots:
            seen.add(_keep_legal(lot, problem))
    seen.add(_keep_legal(list_corners(boxes), problem))
    evaluated = 0.0
    while boxes.count():
        boxes = _cut(boxes, problem, seen)
        small = boxes.volumes() <= _LEAF
        evaluated += float(boxes.volumes()[small].sum())
        if evaluated > _MOST_EVALUATED:
            raise _TooFine
        _evaluate(boxes.take(small), problem, seen)
        boxes = boxes.take(~small)
        if boxes.count() > _MOST_BOXES:
            raise _TooFine
        if boxes.count():
            seen.add(_keep_legal(list_corners(boxes), problem))


def _keep_legal(points: Boxes, problem: FrontProblem) -> Key:
    """Return the keys of the points that keep the limits."""
    keys, useful = problem.bound(points)
    return tuple(column[useful] for column in keys)


def _evaluate(boxes: Boxes, problem: FrontProblem, seen: SeenPoints) -> None:
    """Evaluate every point of the boxes, a lot at a time."""
    if boxes.low and not boxes.count():
        return
    for lot in _split_into_lots(boxes):
        seen.add(_keep_legal(list_points(lot), problem))


def _split_into_lots(boxes: Boxes) -> list[Boxes]:
    """Split boxes into lots of about ``_LOT`` points; a line is split into its points."""
    if len(boxes.low) == 1:
        boxes = cut_into_singles(boxes, *boxes.low)
    if boxes.count() < 2:
        return [boxes]
    lot = (np.cumsum(boxes.volumes()) // _LOT).astype(np.int64)
    edges = [0, *(np.flatnonzero(np.diff(lot)) + 1).tolist(), boxes.count()]
    return [boxes.take(slice(first, last)) for first, last in pairwise(edges)]


def _cut(boxes: Boxes, problem: FrontProblem, seen: SeenPoints) -> Boxes:
    """Cut each box across one side; return the parts that may contain a point of the front.

    Some wide boxes are close to the front, but not their parts: the side is that with the smaller total gain.
    """
    # Counting caches takes about as long for thousands of boxes as for one.
    few = _AT_ONCE // boxes.count() if problem.numbers_budgets else 1
    parts = cut_all_sides(boxes, parts=max(2, min(_MOST_PARTS, few)))
    return parts.take(choose_sides(boxes, parts, _bound_gains(parts, problem, seen)))


def _bound_gains(boxes: Boxes, problem: FrontProblem, seen: SeenPoints) -> npt.NDArray[np.float64]:
    """Return by how much a setting of each box may be faster than the points seen; 0 if none may be."""
    keys, useful = problem.bound(boxes)
    gains = np.where(useful, seen.gain(problem.relax(keys)), 0.0)
    if problem.trades_steps_for_tapes:
        lengths = boxes.high[_CHUNK] - boxes.low[_CHUNK] + 1
        wide = np.flatnonzero((gains > 0) & (lengths > 1) & (lengths <= _ROWS))
        gains[wide] = _bound_gains_by_row(boxes.take(wide), keys[0][wide], problem, seen)
    return gains


def _bound_gains_by_row(
    boxes: Boxes, local: Integers, problem: FrontProblem, seen: SeenPoints
) -> npt.NDArray[np.float64]:
    """Return the largest gain of any chunk size in each box, from a bound for each chunk size.

    With chunks of c steps instead of the longest, c1, at least c1 - c more steps run again. With c instead of
    the shortest, c0, the tapes of c - c0 more steps are held (``ClosedForm.counts``):

        S(c) = S + (c1 - c) r,    M(c) = M + (c - c0) M_a.

    The bounds of the box combine the least of both. With these alone, a front that falls step by step as
    memory rises would be cut down to single chunk sizes.
    """
    costs = problem.costs
    counts = problem.strategy.counts(low=boxes.low, high=boxes.high, steps=costs.steps)
    lengths = boxes.high[_CHUNK] - boxes.low[_CHUNK] + 1
    starts = np.cumsum(lengths) - lengths
    box = np.repeat(np.arange(boxes.count()), lengths)
    longer = np.arange(len(box)) - starts[box]
    # Repeat only the counts that the time depends on, and only if they are not all 0.
    timed = {
        name: column[box] if (column := getattr(counts, name)).any() else np.zeros(1, dtype=np.int64)
        for name in (*COUNTS, "largest_message")
    }
    timed["recomputed_steps"] = (counts.recomputed_steps + lengths - 1)[box] - longer
    counts = replace(counts, **timed)
    if costs.overlaps_compute and problem.strategy.moves_states:
        repeated = boxes.take(box)
        ends = problem.strategy.bound_ends(repeated.low, repeated.high, steps=costs.steps)
        seconds = least_overlapped_seconds(counts, costs, ends)
    else:
        seconds = price(counts, costs).seconds
    gains = seen.gain(problem.relax((local[box] + longer * costs.tape_bytes, seconds)))
    most: npt.NDArray[np.float64] = np.maximum.reduceat(gains, starts) if len(starts) else gains
    return most


#: The most levels of memory that a search distinguishes.
_LEVELS = 2**22
#: The gain, in seconds, of a bound that is as fast but needs less memory.
_TIE = 1e-300


class SeenPoints:
    """The points seen so far that may be on the front, and the least time within each amount of memory.

    Memory is counted in the levels of given budgets, or of a unit that divides states and tapes or, if that
    makes too many levels, of a larger unit. Memory is rounded up for points and down for bounds, so that
    no box is dropped wrongly.
    """

    def __init__(self, *, costs: StepCosts, budgets: Integers | None = None) -> None:
        most = costs.steps * costs.tape_bytes + costs.chunk_bytes
        # Without budgets, all caches are kept.
        self.resident_bytes = costs.with_resident_caches.resident_bytes
        self.budgets = budgets
        # Overlapped times are summed in several orders: a difference by rounding alone is not a gain.
        self.share = 1 - SUM_ROUNDING if costs.overlaps_compute else 1.0
        self.unit = max(math.gcd(costs.state_bytes, costs.tape_bytes), -(-most // _LEVELS))
        count = most // self.unit + 2 if budgets is None else len(budgets)
        #: least(m): the least time seen with at most m levels of memory; at budgets, sizes(m) are its bytes.
        self.least = np.full(count, np.inf)
        self.sizes = np.full(count if budgets is not None else 0, np.iinfo(np.int64).max)
        self._points: list[Key] = []

    def add(self, keys: Key) -> None:
        """Add the points that no point seen so far beats."""
        gaining = self.gain(keys) > 0
        if not gaining.any():
            return
        keys = tuple(column[gaining] for column in keys)
        level = self._find_levels(keys[0], up=True)
        # Points that need more memory than plain BPTT have no level.
        within = level < len(self.least)
        old_least = self.least.copy() if len(self.sizes) else self.least
        np.minimum.at(self.least, level[within], keys[1][within])
        above = self.least[level.min() :]
        np.minimum.accumulate(above, out=above)
        if len(self.sizes):
            self.sizes[self.least < old_least] = np.iinfo(np.int64).max
            best = within & (keys[1] == self.least[np.minimum(level, len(self.least) - 1)])
            np.minimum.at(self.sizes, level[best], keys[0][best])
            # Larger budgets that are no faster have the plan of the first budget with that time.
            is_first = np.concatenate([[True], self.least[1:] < self.least[:-1]])
            self.sizes = self.sizes[np.maximum.accumulate(np.where(is_first, np.arange(len(self.sizes)), 0))]
        self._points.append(self._best_of(keys))

    def gain(self, keys: Key) -> npt.NDArray[np.float64]:
        """Return max(0, least(M) - S): how much faster bounds are than all points within their memory.

        At a budget, a bound that is as fast within less memory gains next to nothing, but not 0.
        """
        level = self._find_levels(keys[0], up=False)
        within = np.minimum(level, len(self.least) - 1)
        gain: npt.NDArray[np.float64] = np.maximum(0.0, self.share * self.least[within] - keys[1])
        if not len(self.sizes):
            return gain
        ties = (keys[1] == self.least[within]) & (keys[0] < self.sizes[within])
        return np.where(level < len(self.least), np.where(ties, _TIE, gain), 0.0)

    def _find_levels(self, local_bytes: Integers, *, up: bool) -> Integers:
        """Return the first budgets that are no less, or the units of free memory, rounded up or down."""
        if self.budgets is not None:
            places: Integers = np.searchsorted(self.budgets, local_bytes, side="left")
            return places
        free = local_bytes - self.resident_bytes
        return -(-free // self.unit) if up else np.minimum(free // self.unit, len(self.least) - 1)

    def front(self) -> Key:
        """Return the front of the points seen, and forget the points."""
        if not self._points:
            return ()
        # There may be millions of points, so free each column once it is joined.
        parts = [list(columns) for columns in zip(*self._points, strict=True)]
        self._points.clear()
        columns: list[npt.NDArray[Any]] = []
        while parts:
            columns.append(np.concatenate(parts.pop(0)))
        return drop_dominated(self._best_of(tuple(columns)))

    def _best_of(self, keys: Key) -> Key:
        """Drop points that a faster point on the same or a lower level beats."""
        level = self._find_levels(keys[0], up=False)
        within = np.minimum(level, len(self.least) - 1)
        unbeaten = keys[1] <= self.least[within]
        if len(self.sizes):
            unbeaten &= (level < len(self.least)) & (keys[0] <= self.sizes[within])
        return tuple(column[unbeaten] for column in keys)


def drop_dominated(keys: Key) -> Key:
    """Return the points of the front in order of memory; of equal points, the first by the key."""
    order = np.lexsort((keys[1], keys[0]))
    local, seconds = keys[0][order], keys[1][order]
    # The first point with the same memory, and the least time of all points with less.
    first = np.searchsorted(local, local)
    least = np.concatenate([[np.inf], np.minimum.accumulate(seconds)])[first]
    best = order[(seconds < least) & (seconds == seconds[first])]
    _, places = np.unique(keys[0][best], return_index=True)
    if len(places) < len(best):
        # Points are equal. Sorting keeps them together.
        best = best[np.lexsort([column[best] for column in keys[::-1]])]
    return tuple(column[best[places]] for column in keys)
