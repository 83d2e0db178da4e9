"""The two entry points."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Action
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.engine import Cell
from ckptplan.torch.executor import Observer
from ckptplan.torch.job import Job
from ckptplan.torch.losses import StackedOutputs, SummedLoss


@dataclass(frozen=True, kw_only=True)
class Result:
    """What ``bptt`` returns: the loss, which can be differentiated, and the final state, which cannot."""

    loss: torch.Tensor
    state: Any


def unroll(
    cell: Cell,
    inputs: Any,
    state: Any,
    *,
    plan: Plan | Schedule,
    parameters: Iterable[torch.Tensor] = (),
    remote_dir: str | os.PathLike[str] | None = None,
    replay_randomness: bool = True,
    schedule: Iterable[Action] | None = None,
    observer: Observer | None = None,
) -> tuple[Any, Any]:
    """Return the outputs of all steps, stacked over time, and the final state; both can be differentiated.

    ``cell(state, x)`` returns (state, output); states and outputs are tensors or nests of them. ``inputs`` are
    tensors of shape (T, ...), a nest of such, or a callable (start, stop) -> chunk, called again where steps
    are run again. Gradients reach the inputs, the initial state, the parameters of ``cell``, and what else its
    first step is seen to use; name in ``parameters`` what only later steps use. Checkpoints that the plan
    keeps in remote memory wait in host memory, or in files under ``remote_dir``. Random numbers are drawn again
    where steps are run again, unless ``replay_randomness`` is False. ``plan`` may also be a
    ``ckptplan.Schedule``, where nothing was planned. ``schedule`` is carried out instead of the plan's own, as
    ``ckptplan.load_schedule`` returns one (``ckptplan.simulate`` says whether it is legal). ``observer`` is
    told each action when it is done.

    Outputs of all steps are kept: where only a loss is wanted, ``bptt`` needs far less memory.
    Raises InputError.
    """
    job = Job(
        cell=cell,
        inputs=inputs,
        state=state,
        plan=plan,
        losses=(),
        parameters=_check_parameters(parameters),
        remote_dir=remote_dir,
        replay_randomness=replay_randomness,
        schedule=schedule,
        observer=observer,
    )
    probed = job.probe(None)
    tensors, end = job.run(StackedOutputs(steps=plan.steps), probed)
    structure = probed.output
    count = sum(structure.is_tensor)
    return structure.fill(tensors[:count]), end.fill(tensors[count:])


def bptt(
    cell: Cell,
    inputs: Any,
    state: Any,
    loss: Callable[[int, Any], torch.Tensor] | None = None,
    *,
    plan: Plan | Schedule,
    chunk_loss: Callable[[int, Any], torch.Tensor] | None = None,
    final_loss: Callable[[Any], torch.Tensor] | None = None,
    parameters: Iterable[torch.Tensor] = (),
    remote_dir: str | os.PathLike[str] | None = None,
    replay_randomness: bool = True,
    schedule: Iterable[Action] | None = None,
    observer: Observer | None = None,
) -> Result:
    """Return the loss of a sequence, taken inside the schedule: outputs are never kept.

    The loss is the sum of ``loss(t, output)`` over all steps, or of ``chunk_loss(start, outputs)`` over runs of
    steps (outputs stacked over time; any cut of the sequence must give the same sum), and of
    ``final_loss(state)``. Each returns a single float. ``result.loss.backward()`` works as people know it,
    with scaling, clipping and accumulation. Other arguments are those of ``unroll``.

    Raises InputError.
    """
    if loss is not None and chunk_loss is not None:
        raise InputError("is given beside loss", field="chunk_loss", accepted="one of both")
    if loss is None and chunk_loss is None and final_loss is None:
        raise InputError("is missing", field="loss", accepted="loss, chunk_loss or final_loss")
    losses = {"loss": loss, "chunk_loss": chunk_loss, "final_loss": final_loss}
    for field, one in losses.items():
        if one is not None and not callable(one):
            raise InputError(f"{quote_value(one)} cannot be called", field=field, accepted="a function")
    job = Job(
        cell=cell,
        inputs=inputs,
        state=state,
        plan=plan,
        losses=tuple(losses.values()),
        parameters=_check_parameters(parameters),
        remote_dir=remote_dir,
        replay_randomness=replay_randomness,
        schedule=schedule,
        observer=observer,
    )
    outputs = SummedLoss(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss)
    probed = job.probe(outputs)
    (value, *final), end = job.run(outputs, probed)
    return Result(loss=value, state=end.fill([leaf.detach() for leaf in final]))


def _check_parameters(parameters: object) -> tuple[torch.Tensor, ...]:
    """Return tensors whose gradient is wanted. Raises InputError."""
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    if not isinstance(parameters, Iterable) or isinstance(parameters, torch.Tensor | str):
        raise InputError(
            f"is {quote_value(type(parameters).__name__)}",
            field="parameters",
            accepted="tensors, as module.parameters() gives them",
        )
    return tuple(one for one in parameters if not isinstance(one, torch.Tensor) or one.requires_grad)
