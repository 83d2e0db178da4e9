"""Chooses the units of memory of a problem, and decides how large its table may be.

Units that do not divide the sizes are chosen so that rounding loses least. With sizes rounded up, a schedule in
units keeps the budget in bytes. With sizes rounded down, every schedule in bytes is also one in units, so the
optimum in units is a lower bound (docs/optimality.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import replace
from fractions import Fraction
from math import gcd, inf
from threading import Lock
from typing import Any

import numpy as np

from ckptplan.cost.arrays import Integers
from ckptplan.model.progress import Progress
from ckptplan.recursion.prices import bound_by_prices, find_promising_splits
from ckptplan.recursion.problem import CELLS, WORK, Prices, Problem, most_units
from ckptplan.recursion.tables import Tables, Values
from ckptplan.recursion.tree import UnitSizes

#: How many units are tried for each size, starting at the finest affordable one.
_LOOKED_AT = 500


def choose_unit(
    state: int, tape: int, *, cache: int = 0, steps: int, total: int, most_units: int, down: bool
) -> tuple[float, int]:
    """Return the least loss, as a share of ``total`` bytes, and the unit in bytes that attains it.

    Whole fractions of either size are tried. Rounding a size loses the difference for each state or tape that
    can be held. Using more units than affordable counts as a loss, too: the table would cover only a part of
    the sequence.

    Arguments:
        state: bytes of a state.
        tape: bytes of a tape.
        cache: bytes of a cache, if caches take memory.
        steps: T.
        total: bytes of free local memory.
        most_units: the most units that a table can afford.
        down: whether sizes are rounded down.
    """
    finest = total // (most_units + 1) + 1
    sizes = (state, tape, cache) if cache else (state, tape)
    parts = [_divide(size, finest=min(finest, size), down=down) for size in sizes]
    units = np.unique(np.concatenate([*parts, [finest, min(state, tape)]]))
    # A size must not round down to zero.
    units = units[units <= (min(state, tape) if down else max(state, tape))]
    lost = (total % units) / total * (-1 if down else 1)
    lost = lost + np.maximum(0.0, total // units / most_units - 1)
    for size in sizes:
        lost = lost + (size % units if down else -size % units) * (min(steps, total / size) / total)
    best = int(np.argmin(lost))
    return float(lost[best]), int(units[best])


def _divide(size: int, *, finest: int, down: bool) -> Integers:
    """Return the finest whole fractions of a size that are at least ``finest``."""
    most = size // finest
    numbers = np.arange(max(1, most - _LOOKED_AT), most + 1, dtype=np.int64)
    parts: Integers = size // numbers if down else -(-size // numbers)
    return parts


#: The shortest useful table of a longer sequence, in steps.
_SOME_STEPS = 1_000
#: The share of memory that may be lost in order to tabulate all steps.
_LITTLE = 0.05


def coarsen(problem: Problem) -> Problem:
    """Return the problem in units large enough that a table of a thousand steps is affordable.

    If that loses little, units are made large enough for a table of all steps.
    """
    if problem.units <= _most_units(problem, _SOME_STEPS):
        return problem
    state, tape, total = problem.state_bytes, problem.tape_bytes, problem.units * problem.unit
    lost, unit = inf, 0
    for steps in (problem.steps, _SOME_STEPS):
        if lost > _LITTLE:
            most = _most_units(problem, steps)
            lost, unit = choose_unit(state, tape, steps=problem.steps, total=total, most_units=most, down=False)
    return replace(problem, free_bytes=total, unit_bytes=unit)


#: The lengths of blocks that are tried, besides those whose caches take as much as some states.
_BLOCKS = 32
#: Blocks that lose no more than this share of memory are fine enough: of these, the quickest ones are taken.
_FINE = 0.004
#: Tables of blocks are of single precision, so that the same effort fills larger ones.
_IN_BLOCKS = {"glance": "glance", "quick": "blocks", "thorough": "thorough"}


def cut_into_blocks(problem: Problem, *, horizon: int) -> tuple[float, int, Problem]:
    """Return the problem in blocks of several steps, in units for a table of ``horizon`` steps.

    The first two items are the memory that is lost, as a share, and the steps of a block. A block is a step of
    the new problem. A chunk of whole blocks leaves half a block of memory unused on average.
    """
    state, tape, cache = problem.state_bytes, problem.tape_bytes, problem.cache_bytes
    total, effort = problem.units * problem.unit, _IN_BLOCKS[problem.effort]
    most = max(1, min(horizon, total // (2 * tape)))
    ratios = (Fraction(state * up, cache * down) for up in range(1, 9) for down in range(1, 9))
    lengths = {int(ratio) for ratio in ratios if ratio.denominator == 1 and ratio <= most}
    lengths.update(np.geomspace(1, most, _BLOCKS).astype(int).tolist())

    def cut(length: int) -> tuple[float, float, float, int, int]:
        limit = max(1, most_units(-(-horizon // length), effort=effort))
        sizes = {"state": state, "tape": length * tape, "cache": length * cache}
        lost, unit = choose_unit(**sizes, steps=problem.steps, total=total, most_units=limit, down=False)
        # Units that divide all sizes lose nothing more than larger ones that do.
        shared = gcd(*sizes.values())
        unit = shared if shared % unit == 0 else unit
        lost += (length - 1) * tape / (2 * total)
        return max(lost, _FINE), (horizon / length) ** 2 / unit, lost, length, unit

    *_, lost, length, unit = min(map(cut, sorted(lengths)))
    prices = problem.prices
    dearer = replace(prices, recompute=length * prices.recompute, replay=length * prices.replay)
    blocks = replace(
        problem,
        steps=-(-problem.steps // length),
        free_bytes=total,
        tape_bytes=length * tape,
        cache_bytes=length * cache,
        prices=dearer,
        unit_bytes=unit,
        effort=effort,
        in_blocks=True,
    )
    return lost, length, blocks


def _most_units(problem: Problem, steps: int) -> int:
    """Return the most units that a table of ``steps`` steps, or of all if fewer, can have."""
    return max(1, most_units(min(steps, problem.steps), effort=problem.effort))


def longest_table(problem: Problem, *, tape: int = 0) -> int:
    """Return the length of the longest affordable table that is shorter than the sequence.

    With the units of a ``tape``, it has no more units than all tapes of that length take.
    """

    def is_too_long(steps: int) -> bool:
        width = (min(problem.units, steps * tape) if tape else problem.units) + 1
        return steps**2 * width > WORK[problem.effort] // 2 or (steps + 1) * width > CELLS

    return bisect_left(range(1, problem.steps), True, key=is_too_long)


def find_range(problem: Problem, units: int) -> int:
    """Return the units of the tables, and of the bounds by prices, that a budget of ``units`` reads.

    The units of the largest affordable table of all steps, or of one tape if there is none, are doubled until
    they reach ``units``, but not beyond those of all tapes.
    """
    top = max(most_units(problem.steps, effort=problem.effort), problem.sizes.tape)
    doublings = max(0, (-(-units // top) - 1).bit_length())
    return min(top << doublings, problem.all_tapes)


#: For bounds by prices: the most units of memory, in all and for each state or tape, and the sums of a table
#: that take as long as one step of the sweep.
_MOST_UNITS, _UNITS_EACH, _SUMS_FOR_A_STEP = 2**15, 128, 200_000


def list_price_bounds(problem: Problem) -> tuple[int, Values]:
    """Return a unit, and the bound by prices on the cost of schedules within each number of such units.

    The budgets of a range have the same units and bounds. There are no bounds if the sweep would take too long.
    """
    lowered, top = problem.lowered(), find_range(problem, problem.units)
    # In the lowered problem, caches take no memory.
    sizes = UnitSizes(problem.sizes.state, problem.sizes.tape - problem.sizes.cache)
    held = top // min(sizes[:2]) + 1
    most_levels = WORK[problem.effort] // _SUMS_FOR_A_STEP // held
    if most_levels < 3:
        return problem.unit, np.zeros(0)
    unit, total = problem.unit, top * problem.unit
    most_units = min(_MOST_UNITS, _UNITS_EACH * held)
    if top > most_units:
        sizes_in_bytes = lowered.state_bytes, lowered.tape_bytes
        _, unit = choose_unit(
            *sizes_in_bytes, steps=problem.steps, total=total, most_units=most_units, down=True
        )
        sizes = UnitSizes(*(size // unit for size in sizes_in_bytes))
    is_first = find_range(problem, problem.sizes.tape) == top
    return unit, bound_by_prices(
        steps=problem.steps,
        units=total // unit,
        sizes=sizes,
        prices=lowered.prices,
        first=sizes.tape if is_first else total // unit // 2,
        most_levels=most_levels,
    )


def prove_bound(problem: Problem) -> float:
    """Return a lower bound on the seconds that any schedule within the budget adds."""
    unit, least = list_price_bounds(problem)
    place = problem.units * problem.unit // unit
    return max(problem.bound_by_memory(), float(least[place]) if len(least) else 0.0)


#: Finding the promising splits saves time if there are more steps for each unit than the first number, and if
#: a level of prices replaces at least the second number of sums of a unit. With them, the default plan of 4,096
#: steps of paper-snn on ipu-mk2 takes a third of the time.
_LONG, _SUMS_FOR_A_LEVEL, _MOST_LEVELS = 8, 140_000, 64
#: A question needs the same tables once for each objective, and a front for each budget. Tables are kept while
#: all of them have at most this many entries.
_MOST_ENTRIES = 4 * CELLS
#: The widest table of each problem, the most recently used table last.
_tables: OrderedDict[Any, Tables] = OrderedDict()
_lock = Lock()


def cached_tables(problem: Problem, *, steps: int, units: int) -> Tables:
    """Return the table of ``steps`` steps and ``units`` units; recent tables are kept, and narrowed.

    If the problem is ``alone``, values of other steps or of fewer units can be too large.
    """
    costs: dict[str, Any] = {"steps": steps, "sizes": problem.sizes, "prices": problem.prices}
    costs["single_precision"] = problem.in_blocks
    shared_key = tuple(costs.values())
    exact_key = (*shared_key, units)
    is_alone = problem.alone and steps == problem.steps and units == problem.units and steps > _LONG * units
    is_alone &= not problem.cache_bytes
    with _lock:
        for key in (shared_key, exact_key) if is_alone else (shared_key,):
            cached = _tables.get(key)
            if cached is not None and cached.units >= units:
                _tables.move_to_end(key)
                return cached.narrow(units)
        # After another budget at these costs, more are likely, and one table serves them all.
        is_alone &= all(key[:-1] != shared_key for key in _tables)
        narrower = _find_narrower(**costs, units=units)
        _make_room(steps * units * (2 if problem.cache_bytes else 1))
    costs |= {"units": units, "progress": problem.progress}
    tables = _fill_promising(**costs) if is_alone else None
    key = shared_key if tables is None else exact_key
    tables = tables or Tables(**costs, known=narrower, kept=_tabulate_kept(**costs))
    with _lock:
        _tables[key] = tables
        _tables.move_to_end(key)
    return tables


def _make_room(entries: int) -> None:
    """Drop the tables that were not used for longest, until there is room for a table of so many entries."""
    tables = [table for kept in _tables.values() for table in (kept, kept.kept) if table is not None]
    total = entries + sum(table.unstored.size for table in tables)
    while _tables and total > _MOST_ENTRIES:
        _, oldest = _tables.popitem(last=False)
        total -= sum(table.unstored.size for table in (oldest, oldest.kept) if table is not None)


def _find_narrower(
    *, steps: int, units: int, sizes: UnitSizes, prices: Prices, single_precision: bool
) -> Tables | None:
    """Return the widest kept table of no fewer steps and of fewer units, None if there is none."""
    narrower = [
        table
        for table in _tables.values()
        if table.promising is None
        and (table.sizes, table.prices, table.single_precision) == (sizes, prices, single_precision)
        and table.steps >= steps
        and table.units < units
    ]
    return max(narrower, key=lambda table: table.units, default=None)


def _tabulate_kept(
    *,
    steps: int,
    units: int,
    sizes: UnitSizes,
    prices: Prices,
    single_precision: bool,
    progress: Progress | None,
) -> Tables | None:
    """Return the table of parts that keep their caches, None if caches take no memory or none fits."""
    state, tape, cache = sizes
    if not cache or units < cache:
        return None
    return Tables(
        steps=min(steps, units // cache),
        units=units,
        sizes=UnitSizes(state, tape - cache),
        prices=replace(prices, recompute=prices.replay),
        released=cache,
        single_precision=single_precision,
        progress=progress,
    )


def _fill_promising(*, progress: Progress | None, **costs: Any) -> Tables | None:
    """Return a table made from promising splits if its last value is the optimum, else None."""
    state, tape, _ = costs["sizes"]
    levels = costs["steps"] ** 2 * min(state, tape) // _SUMS_FOR_A_LEVEL
    problem = {name: costs[name] for name in ("steps", "units", "sizes", "prices")}
    promising = find_promising_splits(**problem, most_levels=min(levels, _MOST_LEVELS))
    if promising is None:
        return None
    tables = Tables(**costs, promising=promising, progress=progress)
    return tables if tables.unstored[-1, -1] <= promising.most else None


def clear_caches() -> None:
    """Drop the cached tables and bounds, e.g. before a time measurement."""
    with _lock:
        _tables.clear()
    bound_by_prices.cache_clear()
