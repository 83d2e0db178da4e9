"""The least cost over all legal schedules, by a shortest path through all states of the machine.

Knows the laws of docs/schedule-format.md and nothing of recursions or strategies. One state a message. A run or
a recorded chunk that another action interrupts is paid for again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple


class Machine(NamedTuple):
    """What a schedule has done so far; sets of steps and states are bits."""

    position: int  # the working state, -1 for none
    adjoint: int
    frontier: int
    taped: int
    local: int
    remote: int
    cached: int = 0
    doing: str = ""  # "advance" or "record" where the next step continues such an action


class Prices(NamedTuple):
    """Costs of single actions, and sizes; at most ``units`` of local memory, ``most_remote`` remote states.

    If a ``cache`` takes memory, steps run again in ``recompute`` with their cache, else in ``forward``.
    """

    units: int
    state: int
    tape: int
    forward: float
    recompute: float
    write: float
    read: float
    advance: float = 0.0
    chunk: float = 0.0
    save: float = 0.0
    load: float = 0.0
    most_remote: float = float("inf")
    cache: int = 0


def least_cost(steps: int, prices: Prices) -> float:
    """Return the least cost of runs and transfers, infinite where no schedule is legal."""
    start = Machine(0, steps, 0, 0, 0, 0)
    queue: list[tuple[float, Machine]] = [(0.0, start)]
    done: set[Machine] = set()
    while queue:
        cost, machine = heapq.heappop(queue)
        if machine in done:
            continue
        done.add(machine)
        if machine.adjoint == 0:
            return cost
        for price, after in moves(machine, prices):
            if after not in done and fits(after, prices):
                heapq.heappush(queue, (cost + price, after))
    return float("inf")


def fits(machine: Machine, prices: Prices) -> bool:
    """Whether both memories suffice."""
    if machine.remote.bit_count() > prices.most_remote:
        return False
    held = machine.local.bit_count() * prices.state + machine.taped.bit_count() * prices.tape
    return held + machine.cached.bit_count() * prices.cache <= prices.units


def moves(machine: Machine, prices: Prices) -> Iterator[tuple[float, Machine]]:
    """Every legal action of one step or one state. Nothing leaves a remote memory that is unbounded."""
    doing, machine = machine.doing, machine._replace(doing="")
    at, adjoint = machine.position, machine.adjoint
    last = 1 << (adjoint - 1)
    if machine.taped & last:
        below = (1 << (adjoint - 1)) - 1
        yield (
            0.0,
            machine._replace(
                position=-1,
                adjoint=adjoint - 1,
                taped=machine.taped & ~last,
                # What lies at or behind the adjoint is of no more use.
                local=machine.local & below,
                remote=machine.remote & below,
                cached=machine.cached & below,
            ),
        )
    if 0 <= at < adjoint:
        is_cheap = at < machine.frontier and (not prices.cache or machine.cached >> at & 1)
        price = prices.recompute if is_cheap else prices.forward
        ahead = machine._replace(position=at + 1, frontier=max(machine.frontier, at + 1))
        cached = machine.cached | 1 << at if prices.cache else 0
        begin = 0.0 if doing == "advance" else prices.advance
        for caches in {machine.cached, cached}:
            yield price + begin, ahead._replace(doing="advance", cached=caches)
        if not machine.taped >> at & 1:
            begin = 0.0 if doing == "record" else prices.chunk
            yield price + begin, ahead._replace(taped=machine.taped | 1 << at, doing="record", cached=cached)
        if not machine.local >> at & 1:
            yield prices.save, machine._replace(local=machine.local | 1 << at)
        if not machine.remote >> at & 1:
            yield prices.write, machine._replace(remote=machine.remote | 1 << at)
    # A tape holds its cache.
    bits = (1 << step for step in range(adjoint))
    droppable = [bit for bit in bits if machine.cached & bit and not machine.taped & bit]
    yield from ((0.0, machine._replace(cached=machine.cached & ~bit)) for bit in droppable)
    for state in range(adjoint):
        bit = 1 << state
        if machine.local & bit:
            yield 0.0, machine._replace(local=machine.local & ~bit)
            yield prices.load, machine._replace(position=state)
            if not machine.remote & bit:
                yield prices.write, machine._replace(local=machine.local & ~bit, remote=machine.remote | bit)
        if machine.remote & bit and prices.most_remote < float("inf"):
            yield 0.0, machine._replace(remote=machine.remote & ~bit)
        if machine.remote & bit:
            yield prices.read, machine._replace(position=state)
            if not machine.local & bit:
                yield prices.read, machine._replace(local=machine.local | bit, remote=machine.remote & ~bit)
