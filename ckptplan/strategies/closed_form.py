"""The base class of strategies that a few parameters determine, whose cost is a closed form.

One closed form serves as a bound and as a value. For a box of parameters from ``low`` to ``high`` it gives
lower bounds that hold everywhere in the box; for a point, where ``low`` equals ``high``, these bounds are the
exact values. With these alone, the search finds the optimum and proves it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import SUM_ROUNDING, Integers
from ckptplan.cost.exact import Cost, Counts, price
from ckptplan.cost.overlap import SweepEnds, TransferTiming, least_overlapped_seconds, overlapped_seconds
from ckptplan.model.budget import Budget
from ckptplan.model.goal import CacheName, Model
from ckptplan.model.prediction import COUNTS, Totals
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.tree import CACHE_UNITS, OFFLOADED_STEPS
from ckptplan.schedule.actions import Action
from ckptplan.schedule.loops import Nest, expand
from ckptplan.strategies.protocol import (
    CACHED_STEPS,
    Columns,
    Splits,
    Strategy,
    no_equation,
)

#: Parameter name -> its first and its last value.
Ranges: TypeAlias = Mapping[str, tuple[int, int]]
#: The parameters that sizes determine.
SIZE_NAMES = ("state_units", "tape_units", CACHE_UNITS)


@dataclass(frozen=True, kw_only=True)
class CacheRule:
    """How a search chooses K, the number of the last steps whose caches the first sweep keeps.

    More caches take more memory and less time: without its cache a step runs again in f, with it in r. So a
    search for the least time keeps as many as fit, and one for the least memory as few as are allowed.

    Arguments:
        local_bytes: the local budget of one unit, for all boxes or for each, shape (n,); None is unbounded.
        choice: the caches to keep; None leaves the choice to the search.
        keeps_fewest: whether as few caches are kept as are allowed, instead of as many as fit.
        most_seconds: the longest time that is allowed, where as few are kept as are allowed.
    """

    local_bytes: Any = None
    choice: CacheName | None = None
    keeps_fewest: bool = False
    most_seconds: float = inf


class ClosedForm(Strategy):
    """A strategy whose cost is a formula of a few integers.

    ``printed`` takes ``low``, ``high`` and ``costs`` and evaluates the paper's equations. A strategy that
    ``moves_states`` implements ``transfers`` and ``bound_ends``.
    """

    is_closed_form = True
    always_regular = True
    moves_states = False

    def ranges(self, *, costs: StepCosts, budget: Budget) -> Ranges:
        """Return ranges that contain every setting that can keep the budget; one may be empty.

        Unless overridden, a chunk is at most as long as all tapes that the budget holds, there are at most as
        many slots as checkpoints, and other parameters are at most T. The search finds which settings keep the
        budget. The ranges say which parameters there are: some exist only if steps have caches. K is not among
        them, as it follows from the others (``count_cached``).
        """
        tapes, checkpoints, _ = count_room(budget, costs=costs)
        most = {"chunk_size": tapes, "nb_local": max(1, checkpoints)}
        return {name: (1, most.get(name, costs.steps)) for name in self.parameter_names}

    @abstractmethod
    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        """Return lower bounds of the counts in each box, and the exact counts if ``low`` equals ``high``.

        Each column has shape (n,); its values are within the range of ``clamp``. docs/equations.md tabulates
        the counts.
        """

    def transfers(self, point: Columns, *, costs: StepCosts) -> TransferTiming:
        """Return when transfers are due at each point."""
        raise NotImplementedError(f"{self.name} moves states, but does not implement transfers")

    def bound_ends(self, low: Columns, high: Columns, *, steps: int) -> SweepEnds:
        """Return bounds on both ends of the forward sweep in each box."""
        raise NotImplementedError(f"{self.name} moves states, but does not implement bound_ends")

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        clamped = {
            name: value if name in SIZE_NAMES else min(value, steps) for name, value in parameters.items()
        }
        if clamped.get(CACHED_STEPS) == steps:
            # A plan without K keeps the caches of all steps.
            del clamped[CACHED_STEPS]
        return Parameters(clamped)

    @abstractmethod
    def loops(self, parameters: Parameters, *, steps: int) -> Nest:
        """Return the schedule as loops. A strategy that overrides ``actions`` needs loops if it is regular."""

    def actions(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> Iterator[Action]:
        return expand(self.loops(parameters, steps=steps))

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_] | None:
        """Return which boxes contain a legal setting, shape (n,), or None if all do."""
        return None

    def least_cached(self, point: Columns, *, steps: int) -> Integers:
        """Return the least K at each point: a chunk that is recorded has the caches of all its steps."""
        return np.full(1, steps, dtype=np.int64)

    @property
    def grows_by_caches(self) -> bool:
        """Whether chunks grow by the caches that are released, so that their number depends on K."""
        return CACHE_UNITS in self.cache_names

    def varies_caches(self, choice: CacheName | None) -> bool:
        """Return whether some of the schedules that a caller allows keep fewer caches than others."""
        return choice not in ("all", "offloaded") and CACHED_STEPS in self.cache_names

    def list_searches(self, choice: CacheName | None, *, costs: StepCosts) -> list[CacheName | None]:
        """Return the choices of caches to search, one after another, for the choice of a caller.

        Caches that move need a search of their own. If moving a cache takes longer than running a step in full,
        this search is made only if the caller asks for it.
        """
        moving = costs.cache_write_seconds + costs.cache_read_seconds
        gains = costs.overlaps_compute or costs.recompute_seconds + moving < costs.forward_seconds
        if choice is None and costs.cache_bytes and gains and "offloaded" in self.cache_choices:
            return [None, "offloaded"]
        return [choice]

    def bound_offloaded(self, low: Columns, high: Columns, *, steps: int) -> tuple[Integers, Integers]:
        """Return the least and the most steps whose caches move in each box; they are equal at points."""
        raise NotImplementedError(f"{self.name} does not move caches")

    def offload(self, counts: Counts, *, low: Columns, high: Columns, steps: int) -> Counts:
        """Return the counts of schedules that move the caches of ``offloaded_steps`` steps."""
        raise NotImplementedError(f"{self.name} does not move caches")

    def evaluate(
        self, *, low: Columns, high: Columns, costs: StepCosts, model: Model, counts: Counts | None = None
    ) -> Cost:
        """Return bounds by the given cost model, shape (n,). Raises InputError if the strategy lacks it.

        K is a column of the boxes. Without it all caches are kept, as the printed equations assume. ``counts``
        are those of ``count_cached``, if it chose K.
        """
        if model == "paper":
            if self.printed is None:
                raise no_equation(self.name)
            return self.printed(low=low, high=high, costs=costs.with_resident_caches.with_chunk_workspace)
        counted = self._count_all(low=low, high=high, costs=costs, counts=counts)
        return self._price(counted, low=low, high=high, costs=costs)

    def count_cached(
        self, *, low: Columns, high: Columns, costs: StepCosts, rule: CacheRule
    ) -> tuple[Integers, Integers, Counts | None]:
        """Return the least and the largest K that a search may choose in each box; they are equal at points.

        The last item are the counts of actions with this K, if they had to be known to choose it.

        The caches of K steps take K M_r of the memory that a schedule leaves free:

            K = min(T, (budget - peak without caches) / M_r),

        and at least the K that every schedule needs (``least_cached``). As chunks that grow are fewer if more
        caches are released, K is found from above, step by step, until the peak holds.
        """
        steps, gained = costs.steps, costs.forward_seconds - costs.recompute_seconds
        drops = self.varies_caches(rule.choice)
        fewest = self.least_cached(low, steps=steps) if drops else np.full(1, steps, dtype=np.int64)
        # If caches save no time, no step needs one, unless chunks grow by the caches that are released.
        needs_none = drops and (rule.choice == "none" or (gained <= 0 and not self.grows_by_caches))
        largest = self.least_cached(high, steps=steps) if needs_none else np.full(1, steps, dtype=np.int64)
        is_point = self._is_point(low, high)
        fewest, largest, is_point = np.broadcast_arrays(fewest, largest, is_point)
        most, counts = largest, None
        while drops and rule.local_bytes is not None:
            counts = self._count_all(low=low, high={**high, CACHED_STEPS: most}, costs=costs, caches=False)
            peak = self._price_serially(counts, is_point=is_point, costs=costs).local_peak_bytes
            fitting = np.clip(np.minimum(most, (rule.local_bytes - peak) // costs.cache_bytes), fewest, largest)
            settled = not self.grows_by_caches or np.array_equal(fitting, most)
            most = fitting
            if settled:
                break
        if not rule.keeps_fewest:
            return np.where(is_point, most, fewest), most, counts
        if rule.most_seconds < inf and gained > 0:
            fewest = self._count_needed(low, high, fewest=fewest, most=most, costs=costs, rule=rule)
        return fewest, np.where(is_point, fewest, most), None if self.grows_by_caches else counts

    def _count_needed(
        self,
        low: Columns,
        high: Columns,
        *,
        fewest: Integers,
        most: Integers,
        costs: StepCosts,
        rule: CacheRule,
    ) -> Integers:
        """Return the least K with which a batch takes at most ``most_seconds``: each cache saves f - r.

        At a point this K is enough; if transfers overlap compute, a smaller K may be enough, too. In a box it
        is a lower bound on the K of every point.
        """
        gained = costs.forward_seconds - costs.recompute_seconds
        counts = self._count_all(low=low, high={**high, CACHED_STEPS: most}, costs=costs)
        is_point = self._is_point(low, high)

        def add(cached: Integers, seconds: npt.NDArray[np.float64]) -> Integers:
            lacking = np.ceil((seconds - rule.most_seconds) / gained - SUM_ROUNDING * costs.steps)
            added: Integers = cached + np.clip(lacking, -cached, costs.steps).astype(np.int64)
            return added

        compute = costs.compute_seconds(counts)
        needed = np.clip(add(most, compute), fewest, most)
        ends = {**low, CACHED_STEPS: needed}, {**high, CACHED_STEPS: needed}
        seconds = self._price(
            self._count_all(low=ends[0], high=ends[1], costs=costs), low=ends[0], high=ends[1], costs=costs
        ).seconds
        late = is_point & (seconds > rule.most_seconds * (1 + SUM_ROUNDING))
        return np.where(late, np.clip(add(needed, seconds), fewest, most), needed)

    def _count_all(
        self,
        *,
        low: Columns,
        high: Columns,
        costs: StepCosts,
        caches: bool = True,
        counts: Counts | None = None,
    ) -> Counts:
        """Return the counts of actions and caches. If ``caches`` is false, caches take no memory.

        The counts of actions are those of ``counts``, if they are known.
        The first sweep keeps the caches of the last K steps, and every later run keeps the caches of its steps.
        So T - K steps run again in full once, however often they run.
        """
        counts = counts or self.counts(low=low, high=high, steps=costs.steps)
        if OFFLOADED_STEPS in high:
            return self.offload(counts, low=low, high=high, steps=costs.steps)
        if not costs.cache_bytes and CACHED_STEPS not in high:
            return counts
        all_steps = np.full(1, costs.steps, dtype=np.int64)
        most, fewest = high.get(CACHED_STEPS, all_steps), low.get(CACHED_STEPS, all_steps)
        return replace(
            counts, recomputed_without_cache=costs.steps - most, caches=fewest if caches else 0 * fewest
        )

    def _is_point(self, low: Columns, high: Columns) -> npt.NDArray[np.bool_]:
        pairs = [low[name] == high[name] for name in self.parameter_names]
        return np.logical_and.reduce(pairs) if pairs else np.ones(1, dtype=np.bool_)

    def _price(self, counts: Counts, *, low: Columns, high: Columns, costs: StepCosts) -> Cost:
        overlaps = costs.overlaps_compute and (self.moves_states or OFFLOADED_STEPS in high)
        if not overlaps and not costs.chunk_bytes:
            return price(counts, costs)
        is_point = self._is_point(low, high)
        cost = self._price_serially(counts, is_point=is_point, costs=costs)
        if not overlaps:
            return cost
        if is_point.all():
            timing = self.transfers(high, costs=costs)
            return replace(cost, seconds=overlapped_seconds(timing, counts=counts, costs=costs))
        ends = self.bound_ends(low, high, steps=costs.steps)
        seconds: npt.NDArray[np.float64] = least_overlapped_seconds(counts, costs, ends).astype(np.float64)
        if is_point.any():
            timing = self.transfers(high, costs=costs)
            exact = overlapped_seconds(timing, counts=counts, costs=costs)
            seconds = np.where(is_point, exact, seconds)
        return replace(cost, seconds=seconds)

    def _price_serially(self, counts: Counts, *, is_point: npt.NDArray[np.bool_], costs: StepCosts) -> Cost:
        """Return the cost with transfers and compute in sequence, and the workspace of chunks."""
        cost = price(counts, costs)
        # In a box, the number of chunks is a lower bound, and tapes that are held together belong to one chunk.
        has_long_chunks = np.where(is_point, counts.chunks < costs.steps, counts.tapes > 1)
        return replace(cost, local_peak_bytes=cost.local_peak_bytes + costs.chunk_bytes * has_long_chunks)

    def cost(self, parameters: Parameters, *, costs: StepCosts, model: Model = "exact") -> Cost:
        point = self.point(parameters, steps=costs.steps)
        return self.evaluate(low=point, high=point, costs=costs, model=model)

    def totals(self, parameters: Parameters, *, costs: StepCosts, splits: Splits = None) -> Totals:
        point = self.point(parameters, steps=costs.steps)
        counts = self._count_all(low=point, high=point, costs=costs)
        cost = self._price(counts, low=point, high=point, costs=costs)
        return Totals(
            seconds=float(cost.seconds[0]),
            local_peak_bytes=int(cost.local_peak_bytes[0]),
            remote_peak_bytes=int(cost.remote_peak_bytes[0]),
            **{name: int(getattr(counts, name)[0]) for name in COUNTS},
        )

    def point(self, parameters: Parameters, *, steps: int) -> Columns:
        """Return one setting as columns of length one, clamped. Raises InputError for wrong names."""
        self.check_names(parameters)
        clamped = self.clamp(parameters, steps=steps)
        return {name: np.array([value], dtype=np.int64) for name, value in clamped.items()}


def count_room(budget: Budget, *, costs: StepCosts) -> tuple[int, int, int]:
    """Return the tapes, local and remote checkpoints that a budget holds, each counted alone and up to T."""
    free, remote = budget.local_bytes, budget.remote_bytes
    if free is not None:
        free = max(0, free - costs.resident_bytes)
    sizes = (
        (free, costs.recorded_bytes),
        (free, costs.state_bytes),
        (remote, costs.remote_state_bytes),
    )
    tapes, local, moved = (
        costs.steps if room is None else min(costs.steps, room // size) for room, size in sizes
    )
    return tapes, local, moved
