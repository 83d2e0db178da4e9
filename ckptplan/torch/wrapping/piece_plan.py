"""Chooses how a sequence is cut into pieces, and the plan whose steps these pieces are."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.budget import describe_choice, plan_within
from ckptplan.torch.measurement import Measurement
from ckptplan.torch.wrapping.fused_cell import FusedCell, Hidden
from ckptplan.torch.wrapping.piece_costs import PieceCosts
from ckptplan.torch.wrapping.pieces import Rows

_log = logging.getLogger("ckptplan.torch")
#: The longest piece that is chosen: longer ones are hardly quicker, and take more memory at a time.
LONGEST = 64
#: Times are measured once. Of plans whose times differ by less, the one that takes less memory is chosen, which
#: leaves room for what is made of the outputs.
_ABOUT = 1.05


@dataclass(frozen=True, kw_only=True)
class PiecePlan:
    """A plan whose steps are pieces of so many time steps each; the last one may be shorter."""

    plan: Plan | Schedule
    piece: int


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    plan: Plan
    piece: int


@dataclass(frozen=True, kw_only=True)
class Room:
    """The memory of a call.

    Arguments:
        limit: the bytes that the call may take.
        kept: bytes that are there all the time: outputs, their gradients, those of the inputs.
        runs: sequences that share the rest equally, since each keeps its checkpoints until it is reversed.
    """

    limit: int
    kept: int
    runs: int

    def plan(self, measurement: Measurement, *, steps: int) -> Plan:
        """Return the quickest plan of one of the runs. Raises InputError if none fits."""
        if self.runs == 1:
            return plan_within(measurement, steps=steps, limit=self.limit, kept=self.kept)
        share = (self.limit - self.kept) // self.runs
        try:
            return plan_within(measurement, steps=steps, limit=max(share, 1), kept=0)
        except InputError:
            # The same for all runs together says what the call needs.
            names = ("state_bytes", "tape_bytes", "workspace_bytes", "parameter_bytes")
            together = replace(measurement, **{name: self.runs * getattr(measurement, name) for name in names})
            plan_within(together, steps=steps, limit=self.limit, kept=self.kept)
            raise


def choose_pieces(cell: FusedCell, rows: Rows, state: Hidden, *, room: Room, piece: int | None) -> PiecePlan:
    """Return the quickest plan within a limit of memory, and the length of its pieces.

    Arguments:
        cell: runs the pieces.
        rows: the sequence.
        state: the initial state.
        room: the memory.
        piece: the length of the pieces, None for the quickest.

    Raises InputError if nothing fits.
    """
    costs = PieceCosts(cell, rows, state)
    lengths = [min(piece, rows.steps)] if piece is not None else _list_lengths(rows.steps)
    while True:
        found = [
            one for one in (_try_length(costs, one, rows.steps, room) for one in lengths) if one is not None
        ]
        # The shortest pieces need least.
        length = _choose_least(found).piece if found else lengths[0]
        if costs.is_measured(length):
            break
        # Its sizes were estimated; kernels allocate in blocks.
        costs.measure(length)
    plan = room.plan(costs.at(length), steps=-(-rows.steps // length))
    _log.info("pieces of %d time steps, %s", length, describe_choice(plan, room.limit))
    return PiecePlan(plan=plan, piece=length)


def _try_length(costs: PieceCosts, length: int, steps: int, room: Room) -> _Candidate | None:
    """Return the quickest plan for pieces of a length, None if none fits."""
    try:
        return _Candidate(plan=room.plan(costs.at(length), steps=-(-steps // length)), piece=length)
    except InputError:
        # Not kept for later: its traceback holds the frames of the call, with the outputs of other runs.
        return None


def _choose_least(found: list[_Candidate]) -> _Candidate:
    """Return the candidate that takes least memory, of those that are about as quick as the quickest."""
    enough = _ABOUT * min(one.plan.predicted.seconds for one in found)
    quick = (one for one in found if one.plan.predicted.seconds <= enough)
    return min(quick, key=lambda one: one.plan.predicted.local_peak_bytes)


def _list_lengths(steps: int) -> list[int]:
    longest = min(steps, LONGEST)
    return sorted({longest, *(2**power for power in range(longest.bit_length()))})


def fit_pieces(plan: Plan | Schedule, steps: int, *, piece: int | None) -> PiecePlan:
    """Return a given plan with the length of its pieces. Raises InputError if it has another number of them."""
    length = -(-steps // plan.steps) if piece is None else min(piece, steps)
    count = -(-steps // length)
    if count != plan.steps:
        cut = f"pieces of {length} time steps are {count:,}" if piece is not None else f"{steps:,} time steps"
        raise InputError(
            f"has {plan.steps:,} steps, and {cut}: a step of the plan is a piece of the sequence",
            field="plan",
            value=plan.steps,
            accepted=f"a plan of {count:,} steps, another piece, or memory='2 GiB' in its place",
        )
    return PiecePlan(plan=plan, piece=length)
