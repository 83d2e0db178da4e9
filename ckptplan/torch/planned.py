"""Runs a sequence under a given plan: with its outputs, or with its loss only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Action
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.compiled.piece import CompiledPiece
from ckptplan.torch.compiling.options import Compile
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
    #: The steps of the compiled pieces that ran, None if steps ran as they are written.
    piece: int | None = None


class RunOptions(TypedDict, total=False):
    """The arguments of ``unroll`` and ``bptt`` that say how a plan is executed."""

    parameters: Iterable[torch.Tensor]
    remote_dir: str | os.PathLike[str] | None
    replay_randomness: bool
    verify: bool
    schedule: Iterable[Action] | None
    observer: Observer | None
    strict: bool
    compile: Compile | CompiledPiece | None


def unroll_planned(
    cell: Cell, inputs: Any, state: Any, *, plan: Plan | Schedule, **options: Unpack[RunOptions]
) -> tuple[Any, Any]:
    """Return the outputs of all steps and the final state, as ``ckptplan.torch.unroll`` under a plan."""
    job = Job(cell=cell, inputs=inputs, state=state, plan=plan, losses={}, **_read_once(options))
    outputs, tensors, end = job.run(lambda: StackedOutputs(steps=plan.steps))
    structure = outputs.structure
    assert structure is not None  # noqa: S101 - a plan has a step
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
    **options: Unpack[RunOptions],
) -> Result:
    """Return the loss of a sequence, as ``ckptplan.torch.bptt`` under a plan. Raises InputError."""
    losses = check_losses(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss)
    job = Job(cell=cell, inputs=inputs, state=state, plan=plan, losses=losses, **_read_once(options))
    outputs, (value, *final), end = job.run(
        lambda: SummedLoss(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss)
    )
    piece = outputs.piece
    return Result(
        loss=value,
        state=end.fill([leaf.detach() for leaf in final]),
        plan=plan,
        piece=None if piece is None or piece.broken is not None else piece.steps,
    )


def _read_once(options: RunOptions) -> dict[str, Any]:
    """Return the options, with the parameters as a tuple. Raises InputError."""
    return {**options, "parameters": list_parameters(options.get("parameters", ()))}


def refuse_ignored(plan: object, memory: object, options: Mapping[str, Any]) -> None:
    """Raise InputError for arguments that contradict each other, or that would have no effect.

    ``options`` are arguments of ``unroll`` by their names; others than those that are looked at may be missing.
    """
    if memory is not None and plan is not None:
        raise InputError("is given together with plan", field="memory", accepted="one of the two")
    for field, why in (
        (
            "remote_dir",
            "plans for a limit of memory keep nothing remote, so that nothing would be written there",
        ),
        ("schedule", "other actions than those that are planned need not keep the limit"),
    ):
        if memory is not None and options.get(field) is not None:
            raise InputError(
                f"is given together with memory: {why}",
                field=field,
                accepted=f"plan=... with {field}, or memory",
            )
    if isinstance(plan, Schedule) and options.get("strict"):
        raise InputError(
            "has no effect: a Schedule has no sizes to compare with those of the cell",
            field="strict",
            accepted="strict=False, or a Plan",
        )


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
