"""Measures what a plan needs to know of a call: sizes and times of its steps, and the memory beside them.

The first steps of the call run under small schedules, each time from the same surroundings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.ambient import Generators
from ckptplan.torch.call import Call, check_losses
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.chunk_engine import find_working
from ckptplan.torch.entry import as_entry
from ckptplan.torch.executor import Executor
from ckptplan.torch.graphs import compute_gradients, find_graph_leaves
from ckptplan.torch.inputs import detach_inputs, make_sequence
from ckptplan.torch.losses import RUN
from ckptplan.torch.meters import AllocatedBytes, LiveBytes
from ckptplan.torch.probe import Probed, run_eagerly
from ckptplan.torch.rehearsal import make_single_record
from ckptplan.torch.run import bptt_call, execute, make_executor, rehearse
from ckptplan.torch.surroundings.snapshot import aside
from ckptplan.torch.surroundings.walk import walk
from ckptplan.torch.survey import Measurement, Sizes
from ckptplan.torch.trees import Leaves, byte_size, flatten

#: The longest piece that cells that run chunks are timed with.
_PIECE = 64
#: Steps whose tapes ``measured_sizes`` counts.
_STEPS = 16
#: Steps whose bytes are counted: the fewest of which all kinds of actions run after others.
_COUNTED = 4
#: The same where a limit has room for so few tapes: those of single steps. Of the largest ones there are few.
_COUNTED_TIGHT, _COUNTED_LARGEST, _TIGHT = 5, 2, 7


class FirstRuns:
    """Runs the first steps of a call under small schedules, forward and backward, each time aside.

    Before the first run, steps are rehearsed, unless equal ones were.

    Arguments:
        call: the call.
        probed: what is known of its steps.
        limit: bytes that a rehearsal may take.
    """

    def __init__(self, call: Call, probed: Probed, *, limit: int) -> None:
        leaves, structure = flatten(call.state)
        # The graph of a state that is carried on belongs to the caller. What is copied is not measured.
        self._call = replace(call, state=structure.fill(detach_inputs(leaves)), room=0)
        if probed.wants_gradients and not (call.is_closed or probed.found.rehearsed):
            with torch.enable_grad():
                probed = rehearse(self._call, probed, limit=limit)
        self._probed, self._limit = probed, limit
        #: Of the latest run the bytes of the gradients of parameters, one of the largest besides, of those of
        #: inputs, and of an output that is kept.
        self.parameter_bytes = self.input_bytes = self.output_bytes = 0
        #: The parameters that it did not use.
        self.later: list[torch.Tensor] = []
        #: The bytes of the state after it, and those that are kept of each step to be compared.
        self.state_bytes = self.compared_bytes = 0

    def run(
        self,
        count: int,
        actions: Iterable[Action],
        observer: Callable[[Action, Executor], None] | None = None,
        *,
        meter: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Any:
        """Run actions of so many steps within a meter, and return that."""
        call, known = self._cut(count, actions, observer), self._probed
        # What a readout makes of a single output is counted; more at a time are for plans that have room.
        at_once = 1 if call.compile is None else RUN
        generators = known.generators
        with torch.enable_grad(), aside(known.situation.reached, generators, room=0, spares_parameters=True):
            probed = Probed.of(call, known.found, known.situation, generators, recalled=False)
            with meter() as found:
                self._execute(make_executor(call, probed, at_once=at_once), count)
            return found

    def _cut(
        self, count: int, actions: Iterable[Action], observer: Callable[[Action, Executor], None] | None
    ) -> Call:
        """Return the call of the first steps alone."""
        inputs = self._call.inputs
        if not callable(inputs):
            pieces, nest = self._call.sequence.piece(0, count)
            inputs = nest.fill(detach_inputs(pieces))
        # Cells that run chunks work on as many steps at a time as in a plan that has room for most states.
        states = max(1, self._limit // max(1, byte_size(flatten(self._call.state)[0])))
        plan = Schedule(steps=count, actions=tuple(actions), local_states=states, chunk_size=count)
        return replace(self._call, inputs=inputs, plan=plan, observer=observer)

    def _execute(self, run: Executor, count: int) -> None:
        results = execute(run)
        ends = [one for one in results if one.requires_grad]
        named, pieces = run.call.parameters, run.call.leaves
        # What named tensors were computed from belongs to the caller.
        leaves = [*find_graph_leaves(ends, until=named), *(one for one in named if one.grad_fn is not None)]
        others = [one for one in leaves if all(one is not piece for piece in pieces)]
        if not leaves:
            raise _make_no_tape()
        self.parameter_bytes = byte_size(others) + max((one.nbytes for one in others), default=0)
        self.input_bytes = byte_size([one for one in run.call.sequence.leaves if one.requires_grad])
        place = len(results) - sum(run.end.is_tensor)
        self.output_bytes = 0 if run.call.losses else byte_size(results[:place]) // count
        self.state_bytes = byte_size(results[place:])
        self.compared_bytes = run.engine.outputs.compared_bytes
        wanted = [one for one in results[:place] if one.requires_grad] or ends
        found = compute_gradients([(one, torch.ones_like(one)) for one in wanted], leaves)
        # Those that only later steps use get gradients, too.
        self.later = [leaf for leaf, one in zip(leaves, found, strict=True) if one is None]


def measure_call(call: Call, probed: Probed, *, limit: int, rounds: int = 1) -> Measurement:
    """Run the first steps of a call, forward and backward, and leave everything as it was. Raises InputError.

    Bytes are counted in a few steps, whose number ``choose_count`` returns, so that they do not depend on the
    ``limit`` of bytes. The same are timed, in so many ``rounds``; of cells that run chunks more, if half of
    it has room for them.
    """
    cell, steps, losses = call.cell, call.plan.steps, call.losses
    count = choose_count(call, probed, limit=limit)
    live, tried = _make_meter(call.device), _make_meter(call.device)
    # Elsewhere a rehearsal has room, and takes several times as long while it is metered.
    tight = _is_tight(probed, limit=limit)
    # A meter of tensors cannot look into compiled functions.
    with run_eagerly() if tight else nullcontext(), tried if tight else nullcontext():
        runs = FirstRuns(call, probed, limit=limit)
    # What is still there then is kept for later calls, as weights of digests: no part of this one.
    taken = tried.peak - tried.now
    seen = Recordings(live)
    chunks = isinstance(cell, ChunkCell)
    with run_eagerly():
        # What is kept for later calls is made before anything is counted.
        runs.run(min(2, steps), _reverse_halves(min(2, steps)))
        if chunks or count < _COUNTED:
            actions = tuple(_reverse_halves(count))
        else:
            actions = _REVERSE_COUNTED if count == _COUNTED else tuple(_reverse_singly(count))
        runs.run(count, actions, seen, meter=lambda: live)
    _refuse_empty(call.sequence.leaves, seen)
    sizes = seen.find_sizes(runs.state_bytes, count, ends="final_loss" in losses)
    # Those of the inputs are kept for the whole sequence, and so are outputs with their gradients.
    kept = runs.input_bytes + 2 * count * runs.output_bytes
    workspace, first_bytes = seen.find_workspace(sizes, kept=kept)
    later = [one.nbytes for one in runs.later]
    # One gradient is added to the sums; of chunks, all are, and sums of these are missing.
    workspace += 2 * sum(later) if chunks else max(later, default=0)
    seconds = ActionSeconds(call.device)
    # Of a cell that runs chunks, the tensors that it works with are as many as the steps at a time.
    half = max(1, count // 2)
    room = limit * half // (workspace + 2 * half * sizes.tape_bytes)
    timed = max(count, min(_PIECE, steps, room)) if chunks else count
    at_once = count == 1 or (chunks and room >= count)
    for _ in range(rounds):
        runs.run(timed, run_twice(timed) if at_once else actions, seconds)
    return Measurement(
        **vars(sizes),
        output_bytes=runs.output_bytes,
        workspace_bytes=workspace,
        first_bytes=first_bytes,
        parameter_bytes=runs.parameter_bytes,
        # A recorded step does all that one without a tape does; the first one that is timed may be slow.
        forward_seconds=min(seconds.a_step(Advance), seconds.a_step(Record)),
        record_seconds=seconds.a_step(Record),
        backward_seconds=seconds.a_step(Backward),
        chunk_seconds=seconds.a_run(Record) + seconds.a_run(Backward),
        save_seconds=seconds.a_move(Save),
        load_seconds=seconds.a_move(Load),
        once_bytes=seen.find_once(sizes),
        compared_bytes=runs.compared_bytes,
        counted=count,
        taken_bytes=max(seen.most, live.peak, taken),
        steps=timed,
        grows=max(seen.states) > min(seen.states),
    )


#: A state is looked for that is larger for so many steps more than it has grown.
_PATIENCE = 16


def measure_grown(call: Call, probed: Probed, *, limit: int) -> Measurement:
    """Return what the steps take that have the largest state, as ``measure_call``. Raises InputError.

    They begin with the last one that makes it larger: its tape has what it made, and later ones may make none.
    """
    sequence = call.sequence
    # A limit that has room for one step may have none for several of the largest ones, whatever it is.
    count = min(_COUNTED_LARGEST, call.plan.steps)
    state = begin = call.state
    size, first = byte_size(flatten(state)[0]), 0
    with torch.no_grad(), aside(probed.situation.reached, probed.generators, spares_parameters=True):
        for step in range(call.plan.steps - count + 1):
            if step > 2 * first + _PATIENCE:
                break
            pieces, nest = sequence.piece(step, step + 1)
            before, (state, _) = state, call.cell(state, next(sequence.iterate(pieces, nest, step, step + 1)))
            if (found := byte_size(flatten(state)[0])) > size:
                size, begin, first = found, before, step
    del state, before
    pieces, nest = sequence.piece(first, first + count)
    twice = Schedule(steps=count, actions=run_twice(count), local_states=2, chunk_size=count)
    # A loss is told the steps by their numbers in the sequence.
    losses = {
        name: loss if name == "final_loss" else partial(_call_later, loss, first)
        for name, loss in call.losses.items()
    }
    inputs = nest.fill(detach_inputs(pieces))
    grown = replace(call, state=begin, inputs=inputs, plan=twice, losses=losses)
    result = measure_call(grown, replace(probed, found=replace(probed.found, rehearsed=True)), limit=limit)
    # The first of these states was made for that.
    return replace(result, taken_bytes=result.taken_bytes + size)


def _call_later(loss: Callable[[int, Any], Any], steps: int, step: int, output: Any) -> Any:
    return loss(steps + step, output)


@as_entry
def measured_sizes(cell: Any, inputs: Any, state: Any, loss: Any = None, **more: Any) -> Sizes:
    """Run the first steps under autograd and count the storages they keep. Arguments are those of ``bptt``.

    ``Workload(**vars(measured_sizes(...)), name=..., steps=..., units=1, ...)`` also needs times; for plans
    that move nothing, only their ratios matter. Spikes are counted as they fire in the first steps; they take
    at most one bit per neuron and step. Raises InputError.
    """
    leaves = () if callable(inputs) else flatten(inputs)[0]
    length = len(leaves[0]) if leaves and leaves[0].dim() else 2
    steps = min(_STEPS, length)
    pieces, nest = make_sequence(inputs, steps=length).piece(0, steps)
    seen = Recordings()
    first = nest.fill(detach_inputs(pieces))
    if loss is None and not any(name.endswith("loss") for name in more):
        loss = _sum
    at_once = make_single_record(steps)
    losses = check_losses(loss=loss, **{name: more.pop(name, None) for name in ("chunk_loss", "final_loss")})
    call = Call(cell=cell, inputs=first, state=state, plan=at_once, losses=losses, observer=seen, **more)
    reached = walk(call.things)
    generators = Generators(call.device, wanted=True, held=reached.generators)
    with torch.enable_grad(), aside(reached, generators):
        result = bptt_call(call)
    if not seen.tapes:
        raise _make_no_tape()
    _refuse_empty(pieces, seen)
    return seen.find_sizes(byte_size(flatten(result.state)[0]), steps)


def _make_no_tape() -> InputError:
    return InputError(
        "has nothing that requires a gradient, so that no tape is kept",
        field="cell",
        accepted="a cell with parameters, parameters=[...], inputs or a state that require a gradient",
    )


def _refuse_empty(pieces: Leaves, seen: Recordings) -> None:
    if not seen.tapes[0][1] and not any(piece.numel() for piece in pieces):
        raise InputError(
            f"have no elements: the shape of a step is {tuple(pieces[0].shape[1:])}",
            field="inputs",
            accepted="a batch of at least one",
        )


def _sum(_: int, output: Any) -> torch.Tensor:
    leaves = [
        torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf for leaf in flatten(output)[0]
    ]
    return torch.stack([leaf.float().sum() for leaf in leaves]).sum()


class Recordings:
    """An observer that notes the bytes of each tape, and of outputs that are saved for the whole sequence.

    With a meter, it notes what was alive at most during each action, too, beside what a plan counts.
    """

    def __init__(self, live: LiveBytes | AllocatedBytes | None = None) -> None:
        #: For each recording its steps and bytes.
        self.tapes: list[tuple[int, int]] = []
        self._live, self._saved, self._first = live, 0, 0
        #: The most bytes that were alive in any action.
        self.most = 0
        #: After each action: the most bytes that were alive, those of checkpoints, those of the first one up to
        #: the first Backward, and the recorded steps.
        self._noted: list[tuple[int, int, int, int]] = []
        #: The bytes of the state after each action that has one.
        self.states: list[int] = []

    def __call__(self, action: Action, executor: Executor) -> None:
        self._saved = max(self._saved, executor.engine.saved_bytes)
        if isinstance(action, Advance | Record):
            self.states.append(byte_size(flatten(executor.state)[0]))
        if isinstance(action, Record):
            self.tapes.append((action.stop - action.start, executor.tapes[-1].bytes))
        if self._live is not None:
            recorded = sum(tape.stop - tape.start for tape in executor.tapes)
            held = executor.stores[Tier.LOCAL].bytes
            if isinstance(action, Save):
                self._first = held
            self._noted.append((self._live.peak, held, self._first, recorded))
            if isinstance(action, Backward):
                self._first = 0
            self.most = max(self.most, self._live.peak)
            self._live.forget()

    def find_sizes(self, state: int, steps: int, *, ends: bool = False) -> Sizes:
        """Return sizes for a state of so many bytes.

        What each recording holds once, such as weights in another type, is no part of the tape of a step, if
        there are recordings of two lengths: of one step, and at last of several, beside one of the step before.
        The first recording has the last step, and what a loss of the final state keeps, if the sequence
        ``ends`` in one: then the step before the others is compared with them.
        """
        (few, least), (many, most) = self.tapes[1 if ends and len(self.tapes) > 1 else 0], self.tapes[-1]
        each = -(-least // few) if many == few else -(-(most - least) // (many - few))
        return Sizes(
            state_bytes=state, tape_bytes=max(1, each), resident_bytes_per_step=-(-self._saved // steps)
        )

    def find_workspace(self, sizes: Sizes, *, kept: int) -> tuple[int, int]:
        """Return what actions took besides what a plan counts, and what more if the first state moves away.

        The first checkpoint is the caller's state, which takes nothing. A plan counts it until the first
        Backward, unless it has moved away by then; later, a state that steps begin with takes its place.
        ``kept`` are bytes that a plan counts all the time, besides those that the outputs of steps save.
        """
        assert self._live is not None  # noqa: S101 - as needed
        # At the end there are the gradients alone.
        most = moved = self._live.peak
        planned = without = 0
        for peak, states, first, recorded in self._noted:
            before, planned = planned, states + recorded * sizes.tape_bytes
            before_without, without = without, planned - first
            most = max(most, peak - max(before, planned))
            moved = max(moved, peak - max(before_without, without))
        workspace = max(most - kept - self._saved, 0)
        return workspace, max(moved - kept - self._saved, 0) - workspace

    def find_once(self, sizes: Sizes) -> int:
        """Return what a recording holds besides the tapes of its steps: the most that the shortest ones do."""
        shortest = min(steps for steps, _ in self.tapes)
        most = max(size for steps, size in self.tapes if steps == shortest)
        return max(0, most - shortest * sizes.tape_bytes)


def _make_meter(device: torch.device) -> LiveBytes | AllocatedBytes:
    return AllocatedBytes(device) if device.type == "cuda" else LiveBytes()


def choose_count(call: Call, probed: Probed, *, limit: int) -> int:
    """Return how many of T steps have their bytes counted.

    It depends on the ``limit`` for cells that run chunks, as the number of steps that they work on does, and
    where it is tight.
    """
    steps = call.plan.steps
    if isinstance(call.cell, ChunkCell):
        # Each half is as many as it works on at a time.
        return min(2 * find_working(limit // max(1, byte_size(flatten(call.state)[0]))), steps)
    return min(_COUNTED_TIGHT if _is_tight(probed, limit=limit) else _COUNTED, steps)


def _is_tight(probed: Probed, *, limit: int) -> bool:
    """Return whether there is hardly room for several tapes beside the gradients of parameters."""
    return limit < byte_size(probed.parameters) + _TIGHT * probed.found.tape_bytes


#: Steps of which one is recorded by itself, and two after another one, when gradients are there.
_REVERSE_COUNTED: tuple[Action, ...] = (
    *(Save(0, Tier.LOCAL), Advance(0, 3), Record(3, 4), Backward(3, 4), Load(0, Tier.LOCAL)),
    *(Free(0, Tier.LOCAL), Record(0, 1), Record(1, 3), Backward(1, 3), Backward(0, 1)),
)


def _reverse_singly(count: int) -> Iterator[Action]:
    """Yield the actions that reverse so many steps one at a time, from one checkpoint.

    Between two of them, several advance, beside the gradient of a state.
    """
    yield Save(0, Tier.LOCAL)
    for step in reversed(range(count)):
        if step < count - 1:
            yield Load(0, Tier.LOCAL)
        yield Advance(0, step) if step else Free(0, Tier.LOCAL)
        yield from (Record(step, step + 1), Backward(step, step + 1))


def _reverse_halves(count: int) -> Iterator[Action]:
    """Yield the actions that reverse so many steps in two halves, from one checkpoint."""
    half = count // 2
    if half:
        yield from (Save(0, Tier.LOCAL), Advance(0, half))
    yield from (Record(half, count), Backward(half, count))
    if half:
        yield from (Load(0, Tier.LOCAL), Free(0, Tier.LOCAL), Record(0, half), Backward(0, half))


def run_twice(count: int) -> tuple[Action, ...]:
    """Return the actions of so many steps that run once without a tape, and once with one."""
    return (
        *(Save(0, Tier.LOCAL), Advance(0, count), Load(0, Tier.LOCAL), Free(0, Tier.LOCAL)),
        *(Record(0, count), Backward(0, count)),
    )


class ActionSeconds:
    """An observer that adds up the time of each kind of action on a device.

    If the device is the CPU, as of a cell that moves its inputs by itself, the present CUDA device is
    waited for.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        #: Of each kind of action and each number of steps, 0 for a move, the least seconds.
        self._of: dict[type[Action], dict[int, float]] = {}

    def __call__(self, action: Action, executor: Executor) -> None:
        # A process that uses no GPU must not begin to: that takes memory there, and fails if it was forked.
        if torch.cuda.is_initialized():
            torch.cuda.synchronize(self._device)
        spent = max(executor.clock() - executor.began, 1e-9)
        steps = getattr(action, "stop", 0) - getattr(action, "start", 0)
        known = self._of.setdefault(type(action), {})
        known[steps] = min(spent, known.get(steps, spent))

    def a_step(self, kind: type[Action]) -> float:
        """Return the seconds of a step: of runs of two lengths, what a longer one has more for each."""
        known = self._of[kind]
        few, many = min(known), max(known)
        whole = known[many] / many
        if few == many:
            return whole
        # No run is free, and none takes less for being shorter, whatever other programs did meanwhile.
        return min(max((known[many] - known[few]) / (many - few), whole / 2), whole)

    def a_move(self, kind: type[Action]) -> float:
        """Return the seconds of saving a state, or of loading one."""
        return self._of[kind][0]

    def a_run(self, kind: type[Action]) -> float:
        """Return the seconds that a run takes besides its steps."""
        known = self._of[kind]
        return max(0.0, known[max(known)] - max(known) * self.a_step(kind))
