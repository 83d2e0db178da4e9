"""Measures what a plan needs to know of a call: sizes and times of its steps, and the memory beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.executor import Executor
from ckptplan.torch.gradients import suspend_hooks
from ckptplan.torch.graphs import find_graph_leaves
from ckptplan.torch.inputs import make_sequence
from ckptplan.torch.meters import LiveBytes
from ckptplan.torch.parameters import list_parameters
from ckptplan.torch.planned import Result, bptt_planned
from ckptplan.torch.sequence_watch import leave_as_found
from ckptplan.torch.sizes import Sizes, copy_roots, measured_sizes
from ckptplan.torch.trees import Leaves, byte_size, flatten

#: Steps that are timed, at most; of cells that run chunks, the longest piece that they run at a time.
_STEPS, _PIECE = 16, 64
#: Steps whose bytes are counted: the fewest of which all kinds of actions run after others.
_COUNTED = 4
#: The same for cells that run chunks, which work on as many steps at a time as a plan has room for.
_COUNTED_NARROW, _COUNTED_WIDE = 16, 32
#: Room for so many states: cells that run chunks use as much working memory as they ever do.
_AMPLE = 100_000


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Bytes and seconds of a call, for any number of steps."""

    state_bytes: int
    tape_bytes: int
    #: Outputs that a cell saves for the whole sequence, such as spikes.
    resident_bytes_per_step: int
    #: The output of one step.
    output_bytes: int
    #: What a run takes besides checkpoints, tapes and outputs: gradients of parameters, the tensors of a step.
    workspace_bytes: int
    #: The gradients of the parameters: the part of the workspace that does not grow with the batch.
    parameter_bytes: int
    forward_seconds: float
    record_seconds: float
    backward_seconds: float
    #: Steps whose bytes were counted, and steps that were timed.
    counted: int
    steps: int


class OutputSize:
    """A loss of a step that notes the bytes of its output."""

    def __init__(self, loss: Callable[[int, Any], torch.Tensor] | None) -> None:
        self.loss, self.bytes = loss, 0

    def __call__(self, step: int, output: Any) -> torch.Tensor:
        leaves = flatten(output)[0]
        self.bytes = byte_size(leaves)
        if self.loss is not None:
            return self.loss(step, output)
        floats = [leaf.float().sum() for leaf in leaves if leaf.is_floating_point()]
        return torch.stack(floats).sum() if floats else torch.zeros(())


def measure_call(
    cell: Any, inputs: Any, state: Any, *, losses: Mapping[str, Any], steps: int, limit: int, **options: Any
) -> Measurement:
    """Run the first steps of a call, forward and backward, and leave everything as it was. Raises InputError.

    Bytes are counted in a few steps, whose number ``choose_count`` returns, so that they do not depend on the
    limit. More steps are timed, if their tapes take at most half of the limit.

    Arguments:
        cell: as for ``bptt``.
        inputs: as for ``bptt``.
        state: the initial state.
        losses: by the names of their arguments; none for ``unroll``.
        steps: T.
        limit: bytes that the call may take.
        options: other arguments of ``bptt``.
    """
    count = choose_count(cell, state, steps=steps, limit=limit)
    given, structure = flatten(state)
    # The graph of a state that is carried on belongs to the caller.
    state = structure.fill(copy_roots(given))
    named = list_parameters(options.get("parameters", ()))
    output = OutputSize(losses.get("loss"))
    parameters = 0
    used = dict(losses) if "chunk_loss" in losses else {**losses, "loss": output}
    sequence = make_sequence(inputs, steps=steps)

    def begin(number: int) -> tuple[Leaves, Any]:
        pieces, nest = sequence.piece(0, number)
        leaves = tuple(copy_roots(pieces))
        return leaves, nest.fill(leaves)

    def run(number: int, actions: tuple[Action, ...], observer: Any = None) -> Result:
        pieces, first = begin(number)
        plan = Schedule(steps=number, actions=actions, local_states=_AMPLE, chunk_size=number)
        result = bptt_planned(cell, first, state, plan=plan, observer=observer, **used, **options)
        # What named tensors were computed from belongs to the caller.
        leaves = list(find_graph_leaves([result.loss], until=named))
        leaves += [one for one in named if one.grad_fn is not None]
        nonlocal parameters
        parameters = byte_size([one for one in leaves if all(one is not piece for piece in pieces)])
        with suspend_hooks(leaves):
            torch.autograd.grad(result.loss, leaves, allow_unused=True)
        return result

    pieces, first = begin(count)
    device = find_device((*flatten(state)[0], *pieces))
    with torch.enable_grad(), leave_as_found({"cell": cell, **losses}, device=device):
        sizes = _measure_sizes(cell, first, state, count=count, begin=begin, **used, **options)
        most = min(_PIECE if isinstance(cell, ChunkCell) else _STEPS, steps)
        timed = max(count, min(most, limit // (2 * sizes.tape_bytes)))
        seconds = ActionSeconds(device)
        run(
            timed,
            (
                *(Save(0, Tier.LOCAL), Advance(0, timed), Load(0, Tier.LOCAL), Free(0, Tier.LOCAL)),
                *(Record(0, timed), Backward(0, timed)),
            ),
            seconds,
        )
        half = max(1, count // 2)
        with _eager(), LiveBytes() as live:
            run(count, tuple(_reverse_by(half, count)))
    known = half * sizes.tape_bytes + count * sizes.resident_bytes_per_step
    known += (2 if count > half else 1) * sizes.state_bytes
    # Those of the inputs are kept for the whole sequence.
    known += byte_size([one for one in pieces if one.requires_grad])
    return Measurement(
        **vars(sizes),
        output_bytes=output.bytes,
        # Gradients are handed over as copies, if others hold them, too.
        workspace_bytes=max(0, live.peak - known) + parameters,
        parameter_bytes=2 * parameters,
        forward_seconds=seconds.of[Advance] / timed,
        record_seconds=seconds.of[Record] / timed,
        backward_seconds=seconds.of[Backward] / timed,
        counted=count,
        steps=timed,
    )


def choose_count(cell: Any, state: Any, *, steps: int, limit: int) -> int:
    """Return how many of T ``steps`` have their bytes counted.

    Only for cells that run chunks it depends on the ``limit``, as the number of steps that they work on does.
    """
    if not isinstance(cell, ChunkCell):
        return min(_COUNTED, steps)
    wide = limit >= 2 * _COUNTED_WIDE * byte_size(flatten(state)[0])
    return min(_COUNTED_WIDE if wide else _COUNTED_NARROW, steps)


def _measure_sizes(
    cell: Any, first: Any, state: Any, *, count: int, begin: Callable[[int], tuple[Leaves, Any]], **more: Any
) -> Sizes:
    """Return the sizes of a step; what a recording holds once is no part of its tape."""
    sizes = measured_sizes(cell, first, state, **more)
    few = count // 2
    if isinstance(cell, ChunkCell) or few < 1:
        return sizes
    fewer = measured_sizes(cell, begin(few)[1], state, **more)
    added = -(-(count * sizes.tape_bytes - few * fewer.tape_bytes) // (count - few))
    return replace(sizes, tape_bytes=max(1, added))


def _reverse_by(length: int, count: int) -> Iterator[Action]:
    """Yield the actions that reverse so many steps at a time, from one checkpoint."""
    yield Save(0, Tier.LOCAL)
    for stop in range(count, 0, -length):
        start = max(0, stop - length)
        if stop < count:
            yield Load(0, Tier.LOCAL)
        if start:
            yield Advance(0, start)
        else:
            yield Free(0, Tier.LOCAL)
        yield from (Record(start, stop), Backward(start, stop))


def find_device(leaves: Sequence[torch.Tensor]) -> torch.device:
    """Return the device of tensors: the first that is not the CPU, if there is one."""
    return next((leaf.device for leaf in leaves if leaf.device.type != "cpu"), torch.device("cpu"))


class ActionSeconds:
    """An observer that adds up the time of each kind of action on a device.

    If the device is the CPU, as of a cell that moves its inputs by itself, the present CUDA device is
    waited for.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self.of: dict[type[Action], float] = {}

    def __call__(self, action: Action, executor: Executor) -> None:
        # A process that uses no GPU must not begin to: that takes memory there, and fails if it was forked.
        if torch.cuda.is_initialized():
            torch.cuda.synchronize(self._device)
        spent = max(executor.clock() - executor.began, 1e-9)
        self.of[type(action)] = self.of.get(type(action), 0.0) + spent


@contextmanager
def _eager() -> Iterator[None]:
    """Run compiled functions as they are written: a meter of tensors cannot look into them."""
    set_stance = getattr(torch.compiler, "set_stance", None)
    if set_stance is None:
        yield
        return
    with set_stance("force_eager"):
        yield
