"""Runs a sequence under a given plan: with its outputs, or with its loss only."""

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
from ckptplan.torch.parameters import list_parameters


@dataclass(frozen=True, kw_only=True)
class Result:
    """What ``bptt`` returns: the loss, which can be differentiated, and the final state, which cannot."""

    loss: torch.Tensor
    state: Any
    #: What was executed: the given plan or schedule, or the plan that was made for ``memory``.
    plan: Plan | Schedule


def unroll_planned(
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
    """Return the outputs of all steps and the final state, as ``ckptplan.torch.unroll`` under a plan."""
    job = Job(
        cell=cell,
        inputs=inputs,
        state=state,
        plan=plan,
        losses={},
        parameters=list_parameters(parameters),
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


def bptt_planned(
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
    """Return the loss of a sequence, as ``ckptplan.torch.bptt`` under a plan. Raises InputError."""
    losses = check_losses(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss)
    job = Job(
        cell=cell,
        inputs=inputs,
        state=state,
        plan=plan,
        losses=losses,
        parameters=list_parameters(parameters),
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
    return Result(loss=value, state=end.fill([leaf.detach() for leaf in final]), plan=plan)


def check_losses(*, loss: object, chunk_loss: object, final_loss: object) -> dict[str, Any]:
    """Return the losses that are given, by the names of their arguments. Raises InputError."""
    if loss is not None and chunk_loss is not None:
        raise InputError("is given together with loss", field="chunk_loss", accepted="one of the two")
    if loss is None and chunk_loss is None and final_loss is None:
        raise InputError("is missing", field="loss", accepted="loss, chunk_loss or final_loss")
    given = {"loss": loss, "chunk_loss": chunk_loss, "final_loss": final_loss}
    losses = {name: one for name, one in given.items() if one is not None}
    for field, function in losses.items():
        if not callable(function):
            raise InputError(f"{quote_value(function)} cannot be called", field=field, accepted="a function")
    return losses
