"""Defines the problem that the recursions solve, bounds on its schedules, and the candidates of a solution."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import gcd, inf
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers, ceil_div
from ckptplan.cost.exact import Cost
from ckptplan.model.progress import Progress
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.tree import Tree, UnitSizes

#: The most sums that a table may take: from tenths of a second to a minute. Tables of blocks of several steps
#: are of single precision, and may take more sums than those of single steps.
WORK = {"glance": 10**8, "quick": 6 * 10**8, "blocks": 24 * 10**8, "thorough": 3 * 10**10}
#: The most actions of a schedule that is simulated, and the most steps whose transfers overlap compute.
MOST_SIMULATED = 200_000
#: Largest number of entries of one table; there are seven tables of eight bytes an entry.
CELLS = 5 * 10**6


def most_units(steps: int, *, effort: str = "thorough") -> int:
    """Return the most units of an affordable table of ``steps`` steps; below 0 if none is affordable."""
    return min(WORK[effort] // steps**2, CELLS // (steps + 1)) - 1


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Seconds of the actions of a schedule besides the first run of its steps.

    They are the seconds of running a step again, of writing a state to remote memory (infinite without any) and
    reading it, with their messages, and of each run, recorded chunk, local save and local load besides its
    steps. If caches take memory, ``replay`` is the price of running a step again whose cache is kept, and
    ``offload`` the price of moving its cache to remote memory and back.
    """

    recompute: float
    write: float = inf
    read: float = inf
    advance: float = 0.0
    chunk: float = 0.0
    save: float = 0.0
    load: float = 0.0
    replay: float = inf
    offload: float = inf

    @classmethod
    def of(cls, costs: StepCosts, *, remote: bool = False, message: float = 0.0) -> Prices:
        """Return the prices of a job, with or without remote memory; each state moved pays a ``message``."""
        replay = costs.recompute_seconds
        return cls(
            recompute=costs.forward_seconds if costs.cache_bytes else replay,
            replay=replay if costs.cache_bytes else inf,
            # Transfers that overlap compute may cost nothing.
            offload=(not costs.overlaps_compute) * (costs.cache_write_seconds + costs.cache_read_seconds),
            write=costs.write_seconds + message if remote else inf,
            read=costs.read_seconds + message if remote else inf,
            advance=costs.advance_seconds,
            chunk=costs.chunk_seconds,
            save=costs.save_seconds,
            load=costs.load_seconds,
        )

    @property
    def actions(self) -> tuple[float, float, float, float]:
        """The costs a, k, s and l of the recursions (``tables``)."""
        return self.advance, self.chunk, self.save, self.load

    @property
    def recursion_is_exact(self) -> bool:
        """Whether local saves and loads are cheap enough for the recursions.

        Otherwise a detour by way of remote memory can replace one: a state is written and fetched back instead
        of saved, or written and read instead of loaded (docs/optimality.md).
        """
        save, load, write, read = self.save, self.load, self.write, self.read
        return save <= write + load and load <= write + read and min(save, load) <= read

    @property
    def fetch_price(self) -> float:
        """The cost of a local copy of a state that is due to be read: fetched, or read and saved."""
        return min(self.save, self.load) if self.recursion_is_exact else self.save

    def lowered(self, *, write: float, read: float) -> Prices:
        """Return prices with lower transfer prices that the recursions cover, for a lower bound."""
        lower = replace(self, write=write, read=read)
        return (
            lower
            if lower.recursion_is_exact
            else replace(lower, save=min(self.save, write), load=min(self.load, read))
        )


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A sequence to reverse, and how it is to be solved: sizes in bytes, costs in seconds.

    ``least_write`` and ``least_read`` are the minimum costs of a state, where several states may share a
    message or transfers may overlap compute. ``free_bytes`` None is unbounded local memory. With ``front``,
    schedules for every smaller budget are wanted, too. With ``alone``, only the quickest schedule within all
    memory is wanted. Memory is counted in units of ``unit_bytes``, or of the greatest common divisor of all
    sizes. Sizes are rounded up, so that a schedule that fits in units fits in bytes. A recorded step takes
    ``tape_bytes``, its cache included.
    """

    steps: int
    free_bytes: int | None
    state_bytes: int
    tape_bytes: int
    prices: Prices
    least_write: float
    least_read: float
    #: The work that is allowed, one of ``WORK``.
    effort: str = "quick"
    front: bool = False
    alone: bool = False
    progress: Progress | None = None
    unit_bytes: int | None = None
    cache_bytes: int = 0
    #: Whether steps are blocks of several steps, whose tables are of single precision.
    in_blocks: bool = False
    #: Whether the caches of parts that do not keep them are in remote memory between two runs of their steps.
    offloads: bool = False

    @cached_property
    def unit(self) -> int:
        """The bytes of a unit of local memory."""
        return self.unit_bytes or gcd(self.state_bytes, self.tape_bytes, self.cache_bytes)

    @cached_property
    def sizes(self) -> UnitSizes:
        """The sizes in units; a tape takes at least one unit besides its cache."""
        sizes = (self.state_bytes, self.tape_bytes, self.cache_bytes)
        state, tape, cache = (ceil_div(size, self.unit) for size in sizes)
        return UnitSizes(state, max(tape, cache + 1), cache)

    @cached_property
    def units(self) -> int:
        """The units of free local memory, at most those of all tapes."""
        return self.all_tapes if self.free_bytes is None else min(self.all_tapes, self.free_bytes // self.unit)

    @property
    def all_tapes(self) -> int:
        """The units that the tapes of all steps take."""
        return self.steps * self.sizes.tape

    @property
    def is_affordable(self) -> bool:
        """Whether a table of all steps and units is affordable."""
        return self.units <= most_units(self.steps, effort=self.effort)

    def within(self, units: int, **changes: Any) -> Problem:
        """Return the problem with ``units`` of free local memory, and other changes."""
        return replace(self, free_bytes=units * self.unit, **changes)

    @property
    def recursion_is_exact(self) -> bool:
        """Whether the recursion covers every legal schedule at its full cost."""
        at_full_cost = (self.prices.write, self.prices.read) == (self.least_write, self.least_read)
        return at_full_cost and self.prices.recursion_is_exact

    def bound_by_memory(self) -> float:
        """Return the bound by memory, in seconds, counted in bytes however coarse the units of a table are."""
        if self.free_bytes is None:
            return self.prices.chunk
        return float(self.list_bounds_by_memory(np.array([self.free_bytes]))[0])

    def list_bounds_by_memory(self, free_bytes: Integers) -> npt.NDArray[np.float64]:
        """Return the least cost of recomputation and of chunks within each of some free bytes; shape (n,).

        Every step whose tape is not held at the end of the first sweep runs again: at r if its cache is held
        then, else at f' = min(f, r + 2 T_r), as its cache may be in remote memory. With t tapes and K other
        caches this takes (T - t - K) f' + K r, where t and K are the cheapest numbers that fit,
        t M_a + (t + K) M_r <= m. A chunk has no more steps than there is room for tapes:
        ceil(T / floor(m / (M_a + M_r))) k. Infinite without room for one tape.
        """
        steps, tape, cache, prices = self.steps, self.tape_bytes, self.cache_bytes, self.prices
        uncached = min(prices.recompute, prices.replay + prices.offload)
        most = np.minimum(free_bytes // tape, steps)
        chunks = ceil_div(steps, np.maximum(most, 1)) * prices.chunk
        tapes, saved = [most], 0.0
        if cache:
            # The cost is convex in t: it is least at an end, or where the caches of all other steps just fit.
            all_fit = (free_bytes - steps * cache) // (tape - cache)
            tapes += [0 * most, *(np.clip(all_fit + further, 0, most) for further in (0, 1))]
            saved = max(0.0, uncached - prices.replay)
        again = [
            (steps - held) * uncached
            - (np.minimum(steps - held, (free_bytes - held * tape) / cache) * saved if cache else 0.0)
            for held in tapes
        ]
        bounds: npt.NDArray[np.float64] = np.where(most > 0, np.min(again, axis=0) + chunks, inf)
        return bounds

    def lowered(self) -> Problem:
        """Return a problem that the recursion covers and that costs no more, for a lower bound.

        In it, caches take no memory.
        """
        prices = self.prices.lowered(write=self.least_write, read=self.least_read)
        if not self.cache_bytes:
            return replace(self, prices=prices)
        prices = replace(prices, recompute=min(prices.recompute, prices.replay))
        return replace(self, prices=prices, tape_bytes=self.tape_bytes - self.cache_bytes, cache_bytes=0)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A schedule that ``build`` constructs, with the seconds it adds to the first sweep and its local bytes.

    ``local_bytes`` is an upper bound. Where ``extra`` is one, too, ``least_extra`` is the lower bound.
    """

    extra: float
    local_bytes: int
    build: Callable[[], Tree]
    least_extra: float | None = None


def list_improving(
    row: npt.NDArray[np.float64], tree: Tree, *, unit: int, least: npt.NDArray[np.float64] | None = None
) -> list[Candidate]:
    """Return a schedule for each number of units that allows a faster one than all smaller numbers.

    Arguments:
        row: the seconds that each number of units adds; shape (units + 1,).
        tree: the schedule within all units; the others differ in their root alone.
        unit: the bytes of a unit.
        least: lower bounds of the seconds, of the same shape, if ``row`` holds upper bounds.
    """
    before = np.concatenate([[inf], np.minimum.accumulate(row)[:-1]])
    return [
        Candidate(
            extra=float(row[units]),
            local_bytes=units * unit,
            build=partial(replace, tree, root=tree.root._replace(units=units)),
            least_extra=None if least is None else float(least[units]),
        )
        for units in np.flatnonzero(row < before).tolist()
    ]


def choose_within(candidates: Sequence[Candidate], budgets: Iterable[int]) -> list[Candidate]:
    """Return the best candidate for each budget of free bytes, in order of memory.

    The best is the fastest, and of equally fast candidates the smallest.
    """
    order = sorted(candidates, key=lambda candidate: candidate.local_bytes)
    sizes = [candidate.local_bytes for candidate in order]
    best: list[int] = []
    for place, candidate in enumerate(order):
        improves = not best or candidate.extra < order[best[-1]].extra
        best.append(place if improves else best[-1])
    ends = {bisect_right(sizes, free) for free in budgets}
    return [order[place] for place in sorted({best[end - 1] for end in ends if end})]


@dataclass(frozen=True, kw_only=True)
class Family:
    """Schedules of one form within a budget; ``build`` constructs the schedule at an index.

    ``cost`` is the cost of executing them, up to rounding.
    """

    cost: Cost
    build: Callable[[int], Tree]

    def __len__(self) -> int:
        return len(self.cost.seconds)


def as_family(candidates: Sequence[Candidate], costs: StepCosts) -> Family:
    """Return candidates as a family."""
    local_bytes = np.array([candidate.local_bytes for candidate in candidates], dtype=np.int64)
    cost = Cost(
        seconds=costs.sweep_seconds + np.array([candidate.extra for candidate in candidates]),
        local_peak_bytes=local_bytes + costs.resident_bytes,
        remote_peak_bytes=np.zeros_like(local_bytes),
    )
    return Family(cost=cost, build=lambda place: candidates[place].build())


@dataclass(frozen=True, kw_only=True)
class SolvedProblem:
    """Schedules to choose from, and a lower bound on the seconds that any schedule in the budget adds."""

    candidates: list[Candidate]
    least_extra: float
    exact: bool
    #: Texts that say how many bytes are lost by rounding up to units.
    notes: tuple[str, ...] = ()
