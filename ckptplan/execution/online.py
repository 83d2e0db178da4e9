"""Makes the actions of a sequence whose length is known only when it ends (docs/online.md).

The steps run one by one. States are saved by the rule of ``recursion.online``, and the oldest ones move to
remote memory. When the sequence ends, the gaps between saved states are reversed, the last gap first. Each gap
uses the quickest schedule within free memory, which includes the memory of later states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from ckptplan.errors import InputError
from ckptplan.execution.advice import find_limit, leave_margin
from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.online import Snapshots
from ckptplan.recursion.pricing import tally
from ckptplan.recursion.problem import Prices, Problem
from ckptplan.recursion.revolve import count_recomputed, make_revolve_tree
from ckptplan.recursion.solver import solve
from ckptplan.recursion.tree import Tree
from ckptplan.schedule.actions import Action, Advance, Free, Load, Save, Tier, Transfer, renumber
from ckptplan.schedule.schedule import check_count
from ckptplan.units import format_bytes, format_limit, parse_bytes, parse_limit

_LOCAL, _REMOTE = Tier.LOCAL, Tier.REMOTE


@dataclass(frozen=True, kw_only=True)
class OnlineSchedule:
    """A schedule for a sequence of unknown length. ``online`` makes and checks it."""

    #: Local bytes for states and tapes.
    memory: int
    #: The number of states in remote memory, in addition to local memory.
    remote_slots: int
    #: The costs of single actions. Their number of steps has no meaning here.
    costs: StepCosts

    @property
    def slots(self) -> int:
        """The number of states that fit local memory together with the tape of a step."""
        return (self.memory - self.costs.tape_bytes) // self.costs.state_bytes

    @property
    def short_steps(self) -> int:
        """The number of steps whose states and tapes all fit local memory, beside one more state and tape.

        An executor that can drop tapes may record these steps at once, in case the sequence ends with them.
        """
        step_bytes = self.costs.state_bytes + self.costs.tape_bytes
        return max(0, self.memory // step_bytes - 1)

    @property
    def budget(self) -> Budget:
        """The limits in bytes."""
        return Budget(
            local_bytes=self.memory + self.costs.resident_bytes,
            remote_bytes=self.remote_slots * self.costs.remote_state_bytes,
        )

    def actions(self, has_ended: Callable[[int], object]) -> Iterator[Action]:
        """Yield the actions. ``has_ended(t)`` is called after each step t = 1, 2, ..., until it returns true.

        Execute each action before you request the next one.
        """
        shelves = _Shelves(self.slots)
        snapshots = Snapshots(self.slots + self.remote_slots)
        yield from shelves.save(0)
        steps = 0
        while True:
            yield Advance(steps, steps + 1)
            steps += 1
            if has_ended(steps):
                break
            dropped = snapshots.offer(steps)
            if dropped != steps:
                if dropped is not None:
                    yield shelves.free(dropped)
                yield from shelves.save(steps)
        held = snapshots.settle(steps)
        for state in sorted(set(snapshots.held) - set(held), reverse=True):
            yield shelves.free(state)
        for start in reversed(held):
            yield from self._reverse_gap(start, steps, shelves)
            steps = start

    def _reverse_gap(self, start: int, stop: int, shelves: _Shelves) -> Iterator[Action]:
        """Yield the actions that reverse steps start to stop-1 from their saved state, and drop this state."""
        tier = shelves.tier_of(start)
        yield Load(start, tier)
        freed = shelves.free(start)
        tree = self._find_schedule(
            stop - start,
            local_bytes=self.memory - len(shelves.local) * self.costs.state_bytes,
            remote_slots=self.remote_slots - len(shelves.remote),
        )
        actions = (renumber(action, lambda state: state + start) for action in tree.actions())
        first = next(actions)
        if first != Save(start, tier):
            yield freed
            yield first
        yield from actions

    def _find_schedule(self, steps: int, *, local_bytes: int, remote_slots: int) -> Tree:
        """Return the quickest schedule found for the steps, never slower than binomial checkpointing."""
        costs = self.costs
        slots = (local_bytes - costs.tape_bytes) // costs.state_bytes
        least = count_recomputed(steps, chunk=1, slots=slots) * costs.recompute_seconds
        best = make_revolve_tree(slots, steps=steps)
        for remote in (True, False) if remote_slots else (False,):
            write, read = (costs.write_seconds, costs.read_seconds) if remote else (inf, inf)
            problem = Problem(
                steps=steps,
                free_bytes=local_bytes,
                state_bytes=costs.state_bytes,
                tape_bytes=costs.tape_bytes,
                prices=Prices(recompute=costs.recompute_seconds, write=write, read=read),
                least_write=write,
                least_read=read,
                effort="glance",
                alone=True,
            )
            solved = solve(problem)
            for candidate in solved.candidates if solved is not None else ():
                if candidate.extra < least and candidate.local_bytes <= local_bytes:
                    tree = candidate.build()
                    counted = tally(tree, state_bytes=costs.state_bytes, tape_bytes=costs.tape_bytes)
                    if counted.remote_states <= remote_slots:
                        least, best = candidate.extra, tree
        return best


class _Shelves:
    """The saved states of each tier, ascending. The oldest ones are remote."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.local: list[int] = []
        self.remote: list[int] = []

    def tier_of(self, state: int) -> Tier:
        return _REMOTE if state in self.remote else _LOCAL

    def free(self, state: int) -> Free:
        tier = self.tier_of(state)
        (self.remote if tier is _REMOTE else self.local).remove(state)
        return Free(state, tier)

    def save(self, state: int) -> Iterator[Action]:
        """Yield the actions that save the working state locally. If there is no room, the oldest one moves."""
        if len(self.local) == self.slots:
            oldest = self.local.pop(0)
            self.remote.append(oldest)
            yield Transfer((oldest,), _LOCAL, _REMOTE)
        self.local.append(state)
        yield Save(state, _LOCAL)


def fit_online(
    limit: int, costs: StepCosts, *, memory: object, remote_slots: int = 0, has_margin: bool = False
) -> OnlineSchedule:
    """Return the schedule for a limit of local bytes.

    Arguments:
        limit: the limit in bytes, including the resident bytes of ``costs``.
        costs: the costs of single actions.
        memory: the limit as the caller gave it, for errors.
        remote_slots: the number of states that remote memory holds.
        has_margin: whether a margin of the limit stays free (``leave_margin``).

    Raises InputError if there is no room for a state and the tape of a step.
    """
    need = costs.resident_bytes + costs.state_bytes + costs.tape_bytes
    room = leave_margin(limit) if has_margin else limit
    if room < need:
        least = format_limit(find_limit(need) if has_margin else need, like=limit)
        resident = costs.resident_bytes
        beside = f", beside {format_bytes(resident, like=limit)}" if resident else ""
        raise InputError(
            f"{format_bytes(limit, like=limit)} are too little for a state and the tape of a step{beside}",
            field="memory",
            value=memory,
            accepted=f"at least {least} ({parse_bytes(least):,} bytes)",
        )
    return OnlineSchedule(memory=room - costs.resident_bytes, remote_slots=remote_slots, costs=costs)


def online(
    slots: int | None = None,
    *,
    memory: int | str | None = None,
    state_bytes: int | str = 1,
    tape_bytes: int | str | None = None,
    remote_slots: int = 0,
    recompute_seconds: float = 1.0,
    write_seconds: float = 0.0,
    read_seconds: float = 0.0,
) -> OnlineSchedule:
    """Return a schedule for a sequence of unknown length; ``execute`` and ``ckptplan.torch.bptt`` run it.

    For every T below C(slots + r, slots), steps run at most r times without a tape, on average. In addition,
    each step is recorded once (docs/online.md, after Wang, Moin and Iaccarino 2009).

    Arguments:
        slots: the number of states that memory holds at a time, beside one tape.
        memory: in place of ``slots``, local memory for states and tapes: bytes, or text as "2 GiB".
        state_bytes: the bytes of a state; with ``slots`` alone, 1.
        tape_bytes: the bytes of the tape of a step, by default ``state_bytes``. Tapes use the room of states
            that are no longer needed.
        remote_slots: the number of further states in remote memory, which holds the oldest ones.
        recompute_seconds: the time of a step without a tape. With ``remote_slots``, the schedule weighs
            transfers against this time.
        write_seconds: the time of writing a state to remote memory.
        read_seconds: the time of reading a state from remote memory.

    Raises InputError.
    """
    if (slots is None) == (memory is None):
        problem = "is missing" if slots is None else "is given together with memory"
        raise InputError(problem, field="slots", accepted="slots or memory")
    sizes: dict[str, Any] = {
        "state_bytes": state_bytes,
        "tape_bytes": state_bytes if tape_bytes is None else tape_bytes,
        "remote_state_bytes": state_bytes,
    }
    costs = StepCosts(
        steps=1,
        **sizes,
        forward_seconds=0,
        backward_seconds=0,
        recompute_seconds=recompute_seconds,
        write_seconds=write_seconds,
        read_seconds=read_seconds,
    )
    costs = costs.replace(forward_seconds=costs.recompute_seconds)
    check_count("remote_slots", remote_slots, least=0)
    if slots is None:
        limit = parse_limit(memory, field="memory")
    else:
        check_count("slots", slots, least=1)
        limit = slots * costs.state_bytes + costs.tape_bytes
    return fit_online(limit, costs, remote_slots=remote_slots, memory=memory)
