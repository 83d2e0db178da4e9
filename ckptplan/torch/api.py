"""The entry points ``unroll`` and ``bptt``."""

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
    verify: bool = True,
    schedule: Iterable[Action] | None = None,
    observer: Observer | None = None,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return the outputs of all steps, stacked over time, and the final state; both can be differentiated.

    Arguments:
        cell: ``cell(state, x)`` returns (state, output); states and outputs are tensors or nests of tensors.
        inputs: tensors of shape (T, ...), a nest of these, or a callable (start, stop) -> chunk, which is
            called again if steps run again.
        state: the initial state.
        plan: a plan, or a ``ckptplan.Schedule`` if nothing was planned.
        parameters: tensors that need gradients but that only later steps use. Gradients reach the inputs, the
            initial state, the parameters of ``cell``, and whatever its first step uses, without being named.
        remote_dir: a folder for remote checkpoints; without it, they are kept in host memory.
        replay_randomness: whether steps that run again draw the same random numbers again.
        verify: whether states, outputs and loss terms of steps that run again are compared with what they
            were; a difference beyond rounding raises InputError. Nothing is compared if randomness is not
            replayed.
        schedule: actions to execute instead of the plan's, e.g. from ``ckptplan.load_schedule``;
            ``ckptplan.simulate`` checks whether they are legal.
        observer: called with each action when it is done.
        strict: whether a plan that was made for other sizes than the cell's is an error, instead of the warning
            PlanMismatch.

    The outputs of all steps are kept in memory; if only a loss is needed, ``bptt`` needs far less.
    Raises InputError.
    """
    job = Job(
        cell=cell,
        inputs=inputs,
        state=state,
        plan=plan,
        losses={},
        parameters=_check_parameters(parameters),
        remote_dir=remote_dir,
        replay_randomness=replay_randomness,
        verify=verify,
        schedule=schedule,
        observer=observer,
        strict=strict,
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
    verify: bool = True,
    schedule: Iterable[Action] | None = None,
    observer: Observer | None = None,
    strict: bool = False,
) -> Result:
    """Return the loss of a sequence, computed during the schedule, so that outputs are not kept.

    The loss is the sum of ``loss`` or ``chunk_loss`` over the sequence, and of ``final_loss``. Each function
    returns a single float. ``result.loss.backward()`` works as usual, with scaling, clipping and accumulation.

    Arguments:
        cell: as for ``unroll``.
        inputs: as for ``unroll``.
        state: the initial state.
        loss: ``loss(t, output)`` for each step.
        plan: as for ``unroll``.
        chunk_loss: ``chunk_loss(start, outputs)`` for runs of steps, with outputs stacked over time; the sum
            must not depend on how the sequence is cut.
        final_loss: ``final_loss(state)`` for the final state.
        parameters: as for ``unroll``.
        remote_dir: as for ``unroll``.
        replay_randomness: as for ``unroll``.
        verify: as for ``unroll``.
        schedule: as for ``unroll``.
        observer: as for ``unroll``.
        strict: as for ``unroll``.

    Raises InputError.
    """
    if loss is not None and chunk_loss is not None:
        raise InputError("is given together with loss", field="chunk_loss", accepted="one of the two")
    if loss is None and chunk_loss is None and final_loss is None:
        raise InputError("is missing", field="loss", accepted="loss, chunk_loss or final_loss")
    losses = {"loss": loss, "chunk_loss": chunk_loss, "final_loss": final_loss}
    for field, function in losses.items():
        if function is not None and not callable(function):
            raise InputError(f"{quote_value(function)} cannot be called", field=field, accepted="a function")
    job = Job(
        cell=cell,
        inputs=inputs,
        state=state,
        plan=plan,
        losses={name: one for name, one in losses.items() if one is not None},
        parameters=_check_parameters(parameters),
        remote_dir=remote_dir,
        replay_randomness=replay_randomness,
        verify=verify,
        schedule=schedule,
        observer=observer,
        strict=strict,
    )
    outputs = SummedLoss(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss)
    probed = job.probe(outputs)
    (value, *final), end = job.run(outputs, probed)
    return Result(loss=value, state=end.fill([leaf.detach() for leaf in final]))


def _check_parameters(parameters: object) -> tuple[torch.Tensor, ...]:
    """Return the tensors that require a gradient. Raises InputError."""
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    if not isinstance(parameters, Iterable) or isinstance(parameters, torch.Tensor | str):
        raise InputError(
            f"is {quote_value(type(parameters).__name__)}",
            field="parameters",
            accepted="tensors, as module.parameters() gives them",
        )
    return tuple(one for one in parameters if not isinstance(one, torch.Tensor) or one.requires_grad)
