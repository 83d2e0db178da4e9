"""Prices a whole tree in seconds and bytes, by counting its parts or by simulation."""

from __future__ import annotations

from ckptplan.cost.exact import action_seconds, serial_seconds
from ckptplan.model.prediction import Totals
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.schedule_tree import Tree
from ckptplan.recursion.tally import Tally, tally
from ckptplan.schedule.simulator import play

#: The longest schedule whose time may be found by simulation, and the steps of all those of a front together.
MOST_PLAYED = 200_000
MOST_PLAYED_IN_ALL = 200_000


def memory_variants(costs: StepCosts) -> tuple[bool, ...]:
    """Return the variants to solve separately: with remote memory (True) and without (False).

    If transfers are serial, the variant with remote memory includes the other. If they overlap compute, they
    need buffers, and only a simulation gives the time of a schedule, which takes too long for a long one.
    """
    if not costs.overlaps_compute:
        return (True,)
    return (True, False) if costs.steps <= MOST_PLAYED else (False,)


def price_tree(tree: Tree, *, costs: StepCosts) -> Totals:
    """Return the cost of a tree: counted part by part, or simulated if its transfers overlap compute."""
    if is_played(tree, costs=costs):
        return play(tree.actions(), costs=costs)
    return _price_counts(tally(tree, state_bytes=costs.state_bytes, tape_bytes=costs.tape_bytes), costs)


def is_played(tree: Tree, *, costs: StepCosts) -> bool:
    """Return whether only a simulation gives the cost of a tree."""
    counted = tally(tree, state_bytes=costs.state_bytes, tape_bytes=costs.tape_bytes)
    return costs.overlaps_compute and counted.remote_writes + counted.remote_reads > 0


def least_seconds_of(tree: Tree, *, costs: StepCosts) -> float:
    """Return what a tree takes if its transfers are serial, and at least if they overlap compute."""
    counted = tally(tree, state_bytes=costs.state_bytes, tape_bytes=costs.tape_bytes)
    if costs.overlaps_compute:
        counted = counted._replace(remote_writes=0, remote_reads=0)
    return _price_counts(counted, costs).seconds


def _price_counts(counted: Tally, costs: StepCosts) -> Totals:
    # Each state is a message of its own.
    messages = counted.remote_writes + counted.remote_reads
    seconds = serial_seconds(
        costs,
        recomputed_steps=counted.recomputed_steps,
        remote_writes=counted.remote_writes,
        remote_reads=counted.remote_reads,
        messages=messages,
        actions=action_seconds(counted, costs),
    )
    return Totals(
        seconds=float(seconds),
        local_peak_bytes=counted.local_bytes + costs.resident_bytes,
        remote_peak_bytes=counted.remote_states * costs.remote_state_bytes,
        recomputed_steps=counted.recomputed_steps,
        remote_writes=counted.remote_writes,
        remote_reads=counted.remote_reads,
        messages=messages,
        advances=counted.advances,
        chunks=counted.chunks,
        local_saves=counted.local_saves,
        local_loads=counted.local_loads,
    )
