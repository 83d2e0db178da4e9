"""Chooses how a sequence is cut into pieces, and the plan whose steps these pieces are.

Measures pieces of a few lengths, from which the bytes and seconds of pieces of any length are estimated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.actions import Action, Backward, Free, Save, Tier, Transfer
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.place import Link
from ckptplan.torch.ambient import Autocast, Generators
from ckptplan.torch.budget import describe_choice, plan_within
from ckptplan.torch.executor import MADE_OF_OUTPUTS
from ckptplan.torch.graphs import as_graph_roots, compute_gradients, count_saved_bytes
from ckptplan.torch.meters import LiveBytes, choose_clock
from ckptplan.torch.recognise import Recent
from ckptplan.torch.survey import Measurement
from ckptplan.torch.trees import byte_size
from ckptplan.torch.wrapping.pieces import FusedCell, Hidden, RowKind, SequenceRows

#: The longer of the two pieces that are measured first: at most so many time steps, and this share of the
#: sequence. The other one is a quarter of it.
_LONGEST, _SHARE = 32, 16
#: Each piece is timed so often; the least counts.
_ROUNDS = 3
#: What the runtime does for a piece, besides the kernel: checkpoints, comparisons, gradients.
_RUNTIME_SECONDS = 2e-4
#: Kinds of calls whose measurements are kept.
_MOST = 256
_measured: Recent[Any, dict[int, _Observed]] = Recent(_MOST)


@dataclass(frozen=True)
class _Observed:
    """Bytes and seconds of a piece."""

    state_bytes: float
    tape_bytes: float
    workspace_bytes: float
    output_bytes: float
    forward_seconds: float
    record_seconds: float
    backward_seconds: float


class PieceCosts:
    """Bytes and seconds of the pieces of a sequence. What was measured is kept for calls of the same kind.

    The pieces that run are of zeros, and as wide as the widest step of the sequence. Nothing else changes.
    """

    def __init__(self, cell: FusedCell, kind: RowKind, state: Hidden) -> None:
        self._cell, self._kind, self._state = cell, kind, state
        self._parameter_bytes = byte_size(cell.parameters)
        self._known = _find_known(cell, kind, state)
        long = max(1, min(_LONGEST, kind.steps, max(4, kind.steps // _SHARE)))
        for length in (max(1, long // 4), long):
            self.measure(length)

    def is_measured(self, length: int) -> bool:
        """Return whether pieces of so many time steps have run."""
        return length in self._known

    def measure(self, length: int) -> None:
        """Run a piece of so many time steps, if none has run yet."""
        if length in self._known:
            return
        device = self._kind.device
        autocast = Autocast.present(device)
        with torch.enable_grad(), Generators(device, wanted=True).aside(), autocast.cast_anew():
            self._known[length] = _observe(self._cell.detach(), _make_rows(self._kind, length), self._state)

    def at(self, length: int) -> Measurement:
        """Return what a piece of so many time steps takes, as a step of a plan.

        Lengths that have not run are on the line through the two nearest ones.
        """

        def find(name: str) -> float:
            if length in self._known:
                return float(getattr(self._known[length], name))
            few, many = sorted(sorted(self._known, key=lambda one: abs(one - length))[:2])
            low, high = (float(getattr(self._known[one], name)) for one in (few, many))
            slope = max((high - low) / (many - few), 0.0)
            # Times are uncertain, and bytes come in blocks: no part of a piece is free, whatever the line says.
            return max(high + slope * (length - many), high * length / many / 2)

        def time(name: str) -> float:
            # Longer pieces are not slower for their length; if they seem to be, other programs were at work.
            longest = max(self._known)
            return max(find(name), float(getattr(self._known[longest], name)) * min(length / longest, 1.0))

        return Measurement(
            state_bytes=round(find("state_bytes")),
            tape_bytes=round(find("tape_bytes")),
            resident_bytes_per_step=0,
            output_bytes=round(find("output_bytes")),
            # With the sum over pieces.
            workspace_bytes=round(find("workspace_bytes")) + self._parameter_bytes,
            single_workspace_bytes=round(find("workspace_bytes")) + self._parameter_bytes,
            parameter_bytes=self._parameter_bytes,
            forward_seconds=time("forward_seconds"),
            record_seconds=time("record_seconds"),
            backward_seconds=time("backward_seconds"),
            counted=1,
            steps=1,
        )


def _find_known(cell: FusedCell, kind: RowKind, state: Hidden) -> dict[int, _Observed]:
    """Return what is known of calls of the same kind, by the length of the pieces."""
    key = (
        (cell.mode, cell.bias, cell.dropout, cell.training, cell.backwards),
        tuple((weight.shape, weight.dtype, weight.requires_grad) for weight in cell.flat_weights),
        replace(kind, steps=0),
        tuple((part.shape, part.dtype) for part in state),
        (Autocast.present(kind.device), torch.get_num_threads()),
    )
    known = _measured.find(key)
    return _measured.keep(key, {}) if known is None else known


def _make_rows(kind: RowKind, length: int) -> SequenceRows:
    """Return a sequence of so many time steps, all of which all sequences of the batch have."""
    shape = (length * kind.batch, kind.width) if kind.packed else (length, kind.batch, kind.width)
    data = torch.zeros(shape, dtype=kind.dtype, device=kind.device, requires_grad=kind.requires_grad)
    sizes = torch.full((length,), kind.batch, device="cpu") if kind.packed else None
    return SequenceRows(data=data, batch_sizes=sizes)


def _observe(cell: FusedCell, rows: SequenceRows, state: Hidden) -> _Observed:
    x = rows.data if rows.batch_sizes is None else (rows.data, rows.batch_sizes)
    begin = as_graph_roots(state)
    wanted = [*begin, *([rows.data] if rows.data.requires_grad else [])]

    def record() -> tuple[Hidden, torch.Tensor]:
        return cell(begin, x)

    def reverse(end: Hidden, outputs: torch.Tensor) -> None:
        ends = [*end, outputs]
        compute_gradients(ends, [torch.ones_like(one) for one in ends], wanted, parameters=cell.parameters)

    seconds: list[tuple[float, float, float]] = []
    for _ in range(_ROUNDS):
        with torch.no_grad():
            forward, _ = _time(lambda: cell(state, x), rows.data.device)
        recording, result = _time(record, rows.data.device)
        reversal, _ = _time(lambda found=result: reverse(*found), rows.data.device)  # type: ignore[misc]
        seconds.append((forward, recording, reversal))
        del result
    with LiveBytes() as live:
        end, outputs = record()
        tape = count_saved_bytes((*end, outputs), end=(*end, outputs), without=(*begin, rows.data))
        reverse(end, outputs)
    size = max(byte_size(state), byte_size(end))
    least = [min(times) for times in zip(*seconds, strict=True)]
    return _Observed(size, tape, max(0, live.peak - tape), outputs.nbytes, *least)


def _time(action: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Return the seconds that an action takes, and what it returns."""
    on_gpu = device.type == "cuda"
    clock = choose_clock(device)
    if on_gpu:
        torch.cuda.synchronize(device)
    begun = clock()
    found = action()
    if on_gpu:
        torch.cuda.synchronize(device)
    return clock() - begun + _RUNTIME_SECONDS, found


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
class _Candidate(PiecePlan):
    plan: Plan
    #: States that are there after the first sweep.
    states: int


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
        made: bytes of the outputs and of what a loss makes of them, at the turn from one pass to the other.
        links: ways to keep checkpoints off the chip, of which each run has the same share.
    """

    costs: Sequence[PieceCosts]
    steps: int
    limit: int
    kept: int
    made: int
    links: tuple[Link, ...]

    def plan(self, costs: PieceCosts, length: int) -> _Candidate | None:
        """Return the quickest plan of a run with pieces of a length, None if none fits."""
        measurement, count = costs.at(length), -(-self.steps // length)
        limit, kept = self.limit, self.kept
        if len(self.costs) > 1:
            limit = max((limit - kept - self._find_most(length)["workspace_bytes"]) // len(self.costs), 1)
            measurement, kept = replace(measurement, workspace_bytes=0), 0
        links = tuple(replace(one, capacity=one.capacity // len(self.costs)) for one in self.links)
        found = _find_plan(measurement, count, limit, kept, links)
        return None if found is None else _Candidate(plan=found[0], piece=length, states=found[1])

    def has_turn(self, candidate: _Candidate) -> bool:
        """Return whether checkpoints leave room for the loss, which is computed before the last recording."""
        states = candidate.states * candidate.plan.workload.state_bytes
        return len(self.costs) * states + self.made <= self.limit

    def refuse(self, length: int) -> InputError:
        """Return an error that says what all runs together need with pieces of a length."""
        most, count = self._find_most(length), -(-self.steps // length)
        sizes = {name: len(self.costs) * most[name] for name in ("state_bytes", "tape_bytes")}
        together = replace(self.costs[0].at(length), **{**most, **sizes})
        try:
            plan_within(together, steps=count, limit=self.limit, kept=self.kept, links=self.links)
        except InputError as error:
            return error
        # Rounded shares.
        return InputError("is too little", field="memory", value=self.limit, accepted="a little more")

    def _find_most(self, length: int) -> dict[str, int]:
        """Return the most bytes that a piece of any run takes."""
        all_ = [costs.at(length) for costs in self.costs]
        return {name: max(getattr(one, name) for one in all_) for name in _BYTES}


@lru_cache(maxsize=1024)
def _find_plan(
    measurement: Measurement, steps: int, limit: int, kept: int, links: tuple[Link, ...]
) -> tuple[Plan, int] | None:
    """Return the quickest plan with the states that its first sweep leaves, None if none fits.

    Each call asks for all lengths again.
    """
    try:
        plan = plan_within(measurement, steps=steps, limit=limit, kept=kept, links=links)
    except InputError:
        # Not kept: its traceback holds the frames of the call, and their tensors.
        return None
    sweep = takewhile(lambda action: not isinstance(action, Backward), schedule_of(plan))
    # Besides, there are the state before the last recording, and the final one.
    return plan, 2 + sum(_count_kept(action) for action in sweep)


def _count_kept(action: Action) -> int:
    """Return how many more checkpoints local memory holds after an action."""
    match action:
        case Save(_, Tier.LOCAL):
            return 1
        case Free(_, Tier.LOCAL):
            return -1
        case Transfer(states, Tier.LOCAL, _):
            return -len(states)
    return 0


def choose_pieces(
    runs: Sequence[PieceRun],
    *,
    limit: int,
    kept: int,
    outputs: int,
    piece: int | None,
    links: tuple[Link, ...] = (),
) -> list[PiecePlan]:
    """Return the quickest plans within a limit of memory, with the length of their pieces.

    Arguments:
        runs: sequences of the same length that run one after another, and are reversed in the end.
        limit: the bytes that all may take.
        kept: bytes that are there all the time: outputs, their gradients, those of the inputs.
        outputs: bytes of the outputs that the call returns.
        piece: the length of the pieces, None for the quickest.
        links: ways to keep checkpoints off the chip.

    Raises InputError if nothing fits.
    """
    steps = runs[0].kind.steps
    costs = [PieceCosts(run.cell, run.kind, run.state) for run in runs]
    made = MADE_OF_OUTPUTS * outputs
    room = Room(costs=costs, steps=steps, limit=limit, kept=kept, made=made, links=links)
    lengths = [min(piece, steps)] if piece is not None else _list_lengths(steps)
    chosen: list[PiecePlan] = []
    for one in costs:
        best = _choose_length(one, lengths, room)
        if best is None:
            for other in costs:
                other.measure(lengths[0])
            raise room.refuse(lengths[0])
        chosen.append(best)
        _log.info("pieces of %d time steps, %s", best.piece, describe_choice(best.plan, limit))
    return chosen


def _choose_length(costs: PieceCosts, lengths: list[int], room: Room) -> _Candidate | None:
    """Return the best length with its plan, None if none fits."""
    while True:
        found = [one for one in (room.plan(costs, length) for length in lengths) if one is not None]
        if not found:
            # The shortest pieces need least.
            if costs.is_measured(lengths[0]):
                return None
            costs.measure(lengths[0])
            continue
        # A loss that takes more than the limit by itself leaves no choice.
        best = _choose_least([one for one in found if room.has_turn(one)] or found)
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
