"""Measures what a plan needs to know of a call: sizes and times of its steps, and the memory beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.backward import suspend_hooks
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.executor import Executor
from ckptplan.torch.graphs import find_graph_leaves
from ckptplan.torch.inputs import make_sequence
from ckptplan.torch.meters import LiveBytes
from ckptplan.torch.parameters import list_parameters
from ckptplan.torch.planned import Result, bptt_planned
from ckptplan.torch.sequence_watch import leave_as_found
from ckptplan.torch.sizes import copy_roots, measured_sizes
from ckptplan.torch.trees import byte_size, flatten

#: Steps that are measured, at most; of cells that run chunks, the longest piece that they run at a time.
_STEPS, _PIECE = 16, 64
#: Steps that are recorded together whatever the limit.
_FEW = 2
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
    #: Steps that were measured.
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

    They are recorded together, so that few are taken where the tapes of more would not fit the limit.

    Arguments:
        cell: as for ``bptt``.
        inputs: as for ``bptt``.
        state: the initial state.
        losses: by the names of their arguments; none for ``unroll``.
        steps: T.
        limit: bytes that the call may take.
        options: other arguments of ``bptt``.
    """
    most = min(_PIECE if isinstance(cell, ChunkCell) else _STEPS, steps)
    count = _choose_count(cell, inputs, state, losses=losses, steps=steps, most=most, limit=limit, **options)
    pieces, nest = make_sequence(inputs, steps=steps).piece(0, count)
    first = nest.fill(copy_roots(pieces))
    given, structure = flatten(state)
    # The graph of a state that is carried on belongs to the caller.
    state = structure.fill(copy_roots(given))
    named = list_parameters(options.get("parameters", ()))
    output = OutputSize(losses.get("loss"))
    parameters = 0
    used = dict(losses) if "chunk_loss" in losses else {**losses, "loss": output}

    def run(actions: tuple[Action, ...], observer: Any = None) -> Result:
        plan = Schedule(steps=count, actions=actions, local_states=_AMPLE, chunk_size=count)
        result = bptt_planned(cell, first, state, plan=plan, observer=observer, **used, **options)
        # What named tensors were computed from belongs to the caller.
        leaves = list(find_graph_leaves([result.loss], until=named))
        leaves += [one for one in named if one.grad_fn is not None]
        nonlocal parameters
        parameters = byte_size(leaves)
        with suspend_hooks(leaves):
            torch.autograd.grad(result.loss, leaves, allow_unused=True)
        return result

    device = find_device((*flatten(state)[0], *pieces))
    with torch.enable_grad(), leave_as_found({"cell": cell, **losses}, device=device):
        sizes = measured_sizes(cell, first, state, **used, **options)
        seconds = ActionSeconds(device)
        run(
            (
                *(Save(0, Tier.LOCAL), Advance(0, count), Load(0, Tier.LOCAL), Free(0, Tier.LOCAL)),
                *(Record(0, count), Backward(0, count)),
            ),
            seconds,
        )
        # Two recordings: what the first sweep changed is looked at while a tape is there.
        half = count // 2
        with _eager(), LiveBytes() as live:
            run(
                (
                    *(Save(0, Tier.LOCAL), *((Advance(0, half),) if half else ())),
                    *(Record(half, count), Backward(half, count), Load(0, Tier.LOCAL), Free(0, Tier.LOCAL)),
                    *((Record(0, half), Backward(0, half)) if half else ()),
                )
            )
    tapes = (count - half) * sizes.tape_bytes
    known = tapes + count * sizes.resident_bytes_per_step + (2 if half else 1) * sizes.state_bytes
    return Measurement(
        **vars(sizes),
        output_bytes=output.bytes,
        # Gradients are handed over as copies, if others hold them, too.
        workspace_bytes=max(0, live.peak - known) + parameters,
        parameter_bytes=2 * parameters,
        forward_seconds=seconds.of[Advance] / count,
        record_seconds=seconds.of[Record] / count,
        backward_seconds=seconds.of[Backward] / count,
        steps=count,
    )


def _choose_count(
    cell: Any,
    inputs: Any,
    state: Any,
    *,
    losses: Mapping[str, Any],
    steps: int,
    most: int,
    limit: int,
    **options: Any,
) -> int:
    """Return how many steps to measure: those whose tapes take at most half the limit, but two.

    Arguments:
        cell: as for ``bptt``.
        inputs: as for ``bptt``.
        state: the initial state.
        losses: by the names of their arguments.
        steps: T.
        most: the most steps.
        limit: bytes that the call may take.
        options: other arguments of ``bptt``.
    """
    if most <= _FEW:
        return most
    pieces, nest = make_sequence(inputs, steps=steps).piece(0, _FEW)
    given, structure = flatten(state)
    sizes = measured_sizes(
        cell, nest.fill(copy_roots(pieces)), structure.fill(copy_roots(given)), **losses, **options
    )
    return max(_FEW, min(most, limit // (2 * max(1, sizes.tape_bytes))))


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
