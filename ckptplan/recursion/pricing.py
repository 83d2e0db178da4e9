"""What a whole tree costs in seconds and bytes: counted part by part, or played."""

from __future__ import annotations

from ckptplan.cost.exact import serial_seconds
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.totals import Totals
from ckptplan.recursion.schedule_tree import Tree
from ckptplan.recursion.tally import tally
from ckptplan.schedule.simulator import play

#: Steps of the longest schedule that is played where its time can only be seen by playing it.
MOST_PLAYED = 200_000


def memory_variants(costs: StepCosts) -> tuple[bool, ...]:
    """Return what to look for apart: schedules that may use remote memory, and those that may not.

    One after the other, what uses none is among what may use some. Beside compute, transfers need buffers,
    and a schedule with them must be played to see its time, which is too much for a long one.
    """
    if not costs.overlaps_compute:
        return (True,)
    return (True, False) if costs.steps <= MOST_PLAYED else (False,)


def price_tree(tree: Tree, *, costs: StepCosts) -> Totals:
    """Return what a schedule costs: counted part by part, or played where transfers overlap compute."""
    counted = tally(tree, state_bytes=costs.state_bytes, tape_bytes=costs.tape_bytes)
    if costs.overlaps_compute and counted.remote_writes + counted.remote_reads:
        return play(tree.actions(), costs=costs)
    # Each state is a message of its own.
    messages = counted.remote_writes + counted.remote_reads
    seconds = serial_seconds(
        costs,
        recomputed_steps=counted.recomputed_steps,
        remote_writes=counted.remote_writes,
        remote_reads=counted.remote_reads,
        messages=messages,
    )
    return Totals(
        seconds=float(seconds),
        local_peak_bytes=counted.local_bytes + costs.resident_bytes,
        remote_peak_bytes=counted.remote_states * costs.remote_state_bytes,
        recomputed_steps=counted.recomputed_steps,
        remote_writes=counted.remote_writes,
        remote_reads=counted.remote_reads,
        messages=messages,
    )
