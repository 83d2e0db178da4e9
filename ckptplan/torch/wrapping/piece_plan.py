"""Chooses how a sequence is cut into pieces, and the plan whose steps these pieces are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.budget import describe_choice, plan_within
from ckptplan.torch.wrapping.fused_cell import FusedCell, Hidden
from ckptplan.torch.wrapping.piece_costs import PieceCosts
from ckptplan.torch.wrapping.pieces import RowKind

_log = logging.getLogger("ckptplan.torch")
#: The longest piece that is chosen: longer ones are hardly quicker, and take more memory at a time.
LONGEST = 64
#: Times are measured once. Of plans whose times differ by less, the one that takes less memory is chosen, which
#: leaves room for what is made of the outputs.
_ABOUT = 1.02
_BYTES = ("state_bytes", "tape_bytes", "workspace_bytes", "parameter_bytes")


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
class PieceRun:
    """A sequence that is to run in pieces."""

    cell: FusedCell
    kind: RowKind
    state: Hidden


@dataclass(frozen=True, kw_only=True)
class Room:
    """The memory of runs that begin one after another, and are reversed in the end.

    Each run has the same share for its checkpoints and tapes, which it keeps until it is reversed. One works at
    a time.

    Arguments:
        costs: what pieces of each run take.
        steps: T, of all runs.
        limit: the bytes that all may take.
        kept: bytes that are there all the time.
    """

    costs: Sequence[PieceCosts]
    steps: int
    limit: int
    kept: int

    def plan(self, costs: PieceCosts, length: int) -> Plan | None:
        """Return the quickest plan of a run with pieces of a length, None if none fits."""
        measurement, count = costs.at(length), -(-self.steps // length)
        limit, kept = self.limit, self.kept
        if len(self.costs) > 1:
            limit = max((limit - kept - self._find_most(length)["workspace_bytes"]) // len(self.costs), 1)
            measurement, kept = replace(measurement, workspace_bytes=0), 0
        try:
            return plan_within(measurement, steps=count, limit=limit, kept=kept)
        except InputError:
            # Not kept for later: its traceback holds the frames of the call, and their tensors.
            return None

    def refuse(self, length: int) -> InputError:
        """Return an error that says what all runs together need with pieces of a length."""
        most, count = self._find_most(length), -(-self.steps // length)
        sizes = {name: len(self.costs) * most[name] for name in ("state_bytes", "tape_bytes")}
        together = replace(self.costs[0].at(length), **{**most, **sizes})
        try:
            plan_within(together, steps=count, limit=self.limit, kept=self.kept)
        except InputError as error:
            return error
        # Rounded shares.
        return InputError("is too little", field="memory", value=self.limit, accepted="a little more")

    def _find_most(self, length: int) -> dict[str, int]:
        """Return the most bytes that a piece of any run takes."""
        all_ = [costs.at(length) for costs in self.costs]
        return {name: max(getattr(one, name) for one in all_) for name in _BYTES}


def choose_pieces(runs: Sequence[PieceRun], *, limit: int, kept: int, piece: int | None) -> list[PiecePlan]:
    """Return the quickest plans within a limit of memory, with the length of their pieces.

    Arguments:
        runs: sequences of the same length that run one after another, and are reversed in the end.
        limit: the bytes that all may take.
        kept: bytes that are there all the time: outputs, their gradients, those of the inputs.
        piece: the length of the pieces, None for the quickest.

    Raises InputError if nothing fits.
    """
    steps = runs[0].kind.steps
    costs = [PieceCosts(run.cell, run.kind, run.state) for run in runs]
    room = Room(costs=costs, steps=steps, limit=limit, kept=kept)
    lengths = [min(piece, steps)] if piece is not None else _list_lengths(steps)
    chosen: list[PiecePlan] = []
    for one in costs:
        best = _choose_length(one, lengths, room)
        if best is None:
            for other in costs:
                other.measure(lengths[0])
            raise room.refuse(lengths[0])
        chosen.append(PiecePlan(plan=best.plan, piece=best.piece))
        _log.info("pieces of %d time steps, %s", best.piece, describe_choice(best.plan, limit))
    return chosen


def _choose_length(costs: PieceCosts, lengths: list[int], room: Room) -> _Candidate | None:
    """Return the best length with its plan, None if none fits."""
    while True:
        plans = {length: room.plan(costs, length) for length in lengths}
        found = [_Candidate(plan=plan, piece=length) for length, plan in plans.items() if plan is not None]
        if not found:
            # The shortest pieces need least.
            if costs.is_measured(lengths[0]):
                return None
            costs.measure(lengths[0])
            continue
        best = _choose_least(found)
        if costs.is_measured(best.piece):
            return best
        # Its sizes were estimated; kernels allocate in blocks.
        costs.measure(best.piece)


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
