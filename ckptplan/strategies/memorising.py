"""The strategies of Gruslys et al. 2016 (BPTT-HSM, BPTT-ISM, BPTT-MSM): one table for all budgets.

They memorise hidden states, tapes, or both. The schedules keep the laws of docs/schedule-format.md: a run
cannot restart from a tape, so a chunk whose tapes are kept is followed by a checkpoint, which costs memory.
Over states that are in a local slot, with r the cost of running a step again, and a, k, s and l those of
actions (``recursion/tables.py``),

    G(t, m) = 0 if t = 1 and M_a <= m;  else min of
              G(t - 1, m - M_a) if M_s <= m - M_a or t = 2, the chunk goes on;
              s + C(t - 1, m - M_a - M_s), the chunk ends, and the next state is stored again;
    C(t, m) = min of  k + G(t, m + M_s);
              a + y r + l + C(y, m) + s + C(t - y, m - M_s),  1 <= y < t, if hidden states are memorised;
              a + y r + l + C(y, m) + k + G(t - y, m),  1 <= y < t, if tapes are memorised or y = t - 1.

If tapes are not memorised, G is infinite for t > 1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from ckptplan.model.budget import Budget
from ckptplan.model.progress import Progress
from ckptplan.model.split import Choice, Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.problem import Candidate, Family, Prices, as_family, list_improving
from ckptplan.recursion.table_problem import is_affordable
from ckptplan.recursion.tables import PartValues, Splits, Values, shift
from ckptplan.recursion.tree import Decision, Part, UnitSizes, grow_tree
from ckptplan.strategies.solved import IsBeaten, Rung, Solved, Task


@dataclass(kw_only=True, eq=False)
class Memorisation(PartValues):
    """Values of parts whose first state is in a local slot: ``local`` is C and ``chunk`` is G, for all units.

    Hidden states are memorised if ``hidden``, internal ones (tapes) if ``internal``. Both tables have shape
    (steps + 1, units + 1).
    """

    hidden: bool
    internal: bool

    def _fill(self, progress: Progress | None) -> None:
        steps, (state, tape) = self.steps, self.sizes
        shape = (steps + 1, self.units + 1)
        self.local, self.chunk = np.full(shape, np.inf), np.full(shape, np.inf)
        rests, heads = np.full(shape, np.inf), np.full(shape, np.inf)
        splits = Splits(rests, heads)
        a, k, s, back = self.prices.actions
        for t in range(1, steps + 1):
            local, chunk, rest = self.local[t], self.chunk[t], rests[steps - t]
            if t == 1:
                chunk[tape:] = 0
            elif self.internal:
                np.copyto(chunk, shift(self._follow(t - 1), tape))
            np.copyto(local, shift(chunk + k, -state))
            if t > 1:
                np.minimum(local, splits.least(t, 1, t), out=local)
            np.add(local, t * self.prices.recompute + (a + back), out=heads[t])
            if self.hidden:
                np.copyto(rest, shift(local + s, state))
            if self.internal or t == 1:
                np.minimum(rest, chunk + k, out=rest)
            if progress is not None and t % 64 == 0:
                progress(t * t, steps * steps)

    def first_row(self) -> Values:
        """Return the least cost of the whole sequence, whose first state is not stored yet, for every m."""
        return self._follow(self.steps, opened=self.prices.chunk)

    def _follow(self, rest: int, *, opened: float = 0.0) -> Values:
        """Return the cost of steps behind a step of a chunk, which goes on at the cost ``opened``, or ends."""
        held = shift(self.local[rest] + self.prices.save, self.sizes.state)
        row: Values = np.minimum(held, self._goes_on(rest) + opened)
        return row

    def _goes_on(self, rest: int) -> Values:
        """Return the cost of an open chunk that goes on; there must be room for a state, except at the end."""
        row: Values = self.chunk[rest].copy()
        if rest > 1:
            row[: self.sizes.state] = np.inf
        return row

    def decide(self, part: Part) -> Decision:
        """Return the decision that attains the value of a part."""
        where, steps, units = part
        state, prices = self.sizes.state, self.prices
        if where is not Where.LOCAL:
            # The whole sequence, or what follows a chunk that has ended.
            held = self.local[steps, units - state] + prices.save if state <= units else np.inf
            if self._goes_on(steps)[units] + prices.chunk <= held:
                return self._record(steps, units)
            return Decision(Choice.CHECKPOINT)
        room = min(units + state, self.units)
        if self.chunk[steps, room] + prices.chunk == self.local[steps, units]:
            return self._record(steps, room)
        return self._decide_split(steps, units)

    def _record(self, steps: int, units: int) -> Decision:
        length = self._chunk_length(steps, units)
        return Decision(Choice.TAPE) if length == steps else Decision(Choice.RECORD, length)

    def _chunk_length(self, steps: int, units: int) -> int:
        """Return how many steps of a part to record at once."""
        state, tape = self.sizes
        for length in range(1, steps):
            rest, left = steps - length, units - length * tape
            goes_on = self.chunk[rest, left] if rest == 1 or left >= state else np.inf
            if left >= state and self.local[rest, left - state] + self.prices.save < goes_on:
                return length
        return steps

    def _decide_split(self, steps: int, units: int) -> Decision:
        state, prices = self.sizes.state, self.prices
        back = prices.advance + prices.load
        heads = self.local[1:steps, units] + (np.arange(1, steps) * prices.recompute + back)
        least, decision = np.inf, Decision(Choice.SPLIT)
        if self.hidden and state <= units:
            sums = self.local[steps - 1 : 0 : -1, units - state] + prices.save + heads
            place = int(np.argmin(sums))
            least, decision = sums[place], Decision(Choice.SPLIT, place + 1)
        taped = self.chunk[steps - 1 : 0 : -1, units] + prices.chunk
        if not self.internal:
            taped[:-1] = np.inf
        place = int(np.argmin(taped + heads))
        if taped[place] + heads[place] < least:
            recorded = self._chunk_length(steps - place - 1, units)
            decision = Decision(Choice.SPLIT_RECORD, place + 1 + recorded, recorded)
        return decision


class Memorising(Solved):
    """A strategy with local memory only. It never beats ``optimal``, so it is searched only when named."""

    by_default = False
    hidden: bool
    internal: bool

    def find(self, task: Task) -> list[Family]:
        _, _, units = _convert_to_units(task.costs, task.budget)
        found = self._tabulate(task, units) if is_affordable(task.costs.steps, units) else []
        return [as_family(found, task.costs)]

    def list_rungs(self, task: Task, *, is_beaten: IsBeaten) -> Iterator[Rung]:
        costs = task.costs
        _, _, units = _convert_to_units(costs, Budget())
        most = bisect_left(range(units + 1), True, key=lambda more: not is_affordable(costs.steps, more)) - 1
        candidates = self._tabulate(task, most)
        yield Rung(answers=[self.answer_with(candidate.build(), costs=costs) for candidate in candidates])

    def _tabulate(self, task: Task, units: int) -> list[Candidate]:
        """Return a schedule for each budget that allows a faster one than all smaller budgets."""
        costs = task.costs
        unit, sizes, _ = _convert_to_units(costs, Budget())
        if units < sizes.tape:
            return []
        # Memory for all tapes, or for all states, is enough.
        stored = sizes if self.internal else UnitSizes(sizes.tape, sizes.state)
        units = min(units, stored.state + costs.steps * stored.tape)
        prices, scale = Prices.of(costs), 1.0
        if not any(prices.actions):
            # Steps are counted, which is exact.
            prices, scale = replace(prices, recompute=1.0), prices.recompute
        table = Memorisation(
            prices=prices,
            steps=costs.steps,
            units=units,
            sizes=sizes,
            hidden=self.hidden,
            internal=self.internal,
            progress=task.progress,
        )
        tree = grow_tree(Part(Where.UNSTORED, costs.steps, units), table.decide, sizes=sizes)
        found = list_improving(table.first_row(), tree, unit=unit)
        return [replace(one, extra=one.extra * scale) for one in found]

    def has_schedule(self, task: Task) -> bool:
        costs, budget = task.costs, task.budget
        if budget.local_bytes is not None and budget.local_bytes < self.least_local_bytes(costs):
            return False
        return is_affordable(costs.steps, _convert_to_units(costs, budget)[2])

    def least_local_bytes(self, costs: StepCosts) -> int:
        state, tape = costs.state_bytes, costs.tape_bytes
        least = tape if costs.steps == 1 else tape + state
        if costs.steps == 2 and self.internal:
            # The first state is held until its tape is recorded, and only tapes after that.
            least = min(least, max(state, 2 * tape))
        return costs.resident_bytes + least


def _convert_to_units(costs: StepCosts, budget: Budget) -> tuple[int, UnitSizes, int]:
    """Return the bytes of a unit, the sizes in units, and the number of useful units of memory."""
    steps = costs.steps
    # A single step needs only its tape.
    unit = gcd(costs.state_bytes, costs.tape_bytes) if steps > 1 else costs.tape_bytes
    sizes = UnitSizes(-(-costs.state_bytes // unit), costs.tape_bytes // unit)
    # No schedule holds more than a state and a tape for each step.
    units = steps * (sizes.tape + sizes.state)
    if budget.local_bytes is not None:
        units = min(units, max(0, budget.local_bytes - costs.resident_bytes) // unit)
    return unit, sizes, units


class BpttHsm(Memorising):
    """Memorises hidden states only: binomial checkpointing (Gruslys et al. 2016).

    BPTT-HSM of the paper, executed under the laws of docs/schedule-format.md.
    """

    name = "bptt-hsm"
    rank = 21
    hidden = True
    internal = False


class BpttIsm(Memorising):
    """Memorises internal states (tapes) only (Gruslys et al. 2016).

    BPTT-ISM of the paper, executed under the laws of docs/schedule-format.md.
    """

    name = "bptt-ism"
    rank = 22
    hidden = False
    internal = True


class BpttMsm(Memorising):
    """Memorises hidden or internal states (Gruslys et al. 2016).

    BPTT-MSM of the paper, executed under the laws of docs/schedule-format.md.
    """

    name = "bptt-msm"
    rank = 23
    hidden = True
    internal = True


STRATEGIES = (BpttHsm(), BpttIsm(), BpttMsm())
