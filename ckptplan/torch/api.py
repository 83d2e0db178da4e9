"""The entry points ``bptt``, ``unroll``, ``scan`` and ``plan_for``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from inspect import Parameter, signature
from typing import Any

import torch

from ckptplan.errors import check_arguments
from ckptplan.execution.online import OnlineSchedule
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Action
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.place import OffloadTo
from ckptplan.torch.budget import ask, choose_plan, settle_plan
from ckptplan.torch.call import Cell, Observer, Verify, check_losses, read_options
from ckptplan.torch.cell_calls import doubt_order
from ckptplan.torch.compile_options import Compile
from ckptplan.torch.entry import as_entry
from ckptplan.torch.online import bptt_online
from ckptplan.torch.run import Result, bptt_call, unroll_call


@as_entry
def unroll(
    cell: Cell,
    inputs: Any,
    state: Any,
    *,
    plan: Plan | Schedule | None = None,
    memory: int | str | None = None,
    offload: OffloadTo = None,
    parameters: Iterable[torch.Tensor] = (),
    remote_dir: str | os.PathLike[str] | None = None,
    replay_randomness: bool = True,
    verify: Verify = True,
    schedule: Iterable[Action] | None = None,
    observer: Observer | None = None,
    strict: bool = False,
    compile: bool | int | Compile | None = None,  # noqa: A002 - PyTorch's name
) -> tuple[Any, Any]:
    """Return the outputs of all steps, stacked over time, and the final state; both can be differentiated.

    Arguments:
        cell: ``cell(state, x)`` returns (state, output); states and outputs are tensors or nests of tensors.
        inputs: tensors of shape (T, ...), a nest of these, or a callable (start, stop) -> chunk, which is
            called again if steps run again.
        state: the initial state.
        plan: a plan, or a ``ckptplan.Schedule`` if nothing was planned.
        memory: in place of a plan, the memory that the call may take: bytes, text as "2 GiB", or "auto" for
            most of what the device has free. A plan is made for it, and kept for calls of the same shapes. The
            outputs of all steps and their gradients are part of it, those of parameters, too. Where any plan
            has it, there is room for what a mean of squares makes of the outputs before they are reversed.
        offload: with ``memory``, where checkpoints may go beside it: "host" for host memory, a folder, or
            ``Offload(folder, limit="50 GB")``. The first call times the place, for a day; the plan is the
            quickest of those that use it and those that do not. Buffers of transfers count in ``memory``.
        parameters: tensors that need gradients but that only later steps use. Gradients reach the inputs, the
            initial state, the parameters of ``cell``, and whatever its first step uses, without being named.
        remote_dir: a folder for remote checkpoints of ``plan``; without it, they are kept in host memory.
        replay_randomness: whether steps that run again draw the same random numbers again.
        verify: whether states, outputs and loss terms of steps that run again are compared with what they
            were, and the gradients of a few steps with plain backpropagation, once for calls of the same kind,
            with ``"always"`` in each call; a difference beyond rounding raises InputError. Nothing that runs
            again is compared if randomness is not replayed. Hidden state is refused in either case.
        schedule: actions to execute instead of those of ``plan``, e.g. from ``ckptplan.load_schedule``;
            ``ckptplan.simulate`` checks whether they are legal.
        observer: called with each action when it is done.
        strict: whether a plan that was made for other sizes than the cell's is an error, instead of the warning
            PlanMismatch.
        compile: whether pieces of K steps are compiled by ``torch.compile``: True for the quickest K of a few,
            K itself, or ``Compile``. What cannot be compiled runs as it is written, and CompileFallback warns
            once why.

    The outputs of all steps are kept in memory; if only a loss is needed, ``bptt`` needs far less.
    Raises InputError, also if no plan fits ``memory``.
    """
    options = read_options(
        plan,
        memory,
        offload=offload,
        parameters=parameters,
        remote_dir=remote_dir,
        replay_randomness=replay_randomness,
        verify=verify,
        schedule=schedule,
        observer=observer,
        strict=strict,
        compile=compile,
    )
    with doubt_order(inputs, state):
        return unroll_call(settle_plan(plan, memory, cell=cell, inputs=inputs, state=state, **options))


@as_entry
def bptt(
    cell: Cell,
    inputs: Any,
    state: Any,
    loss: Callable[[int, Any], torch.Tensor] | None = None,
    *,
    plan: Plan | Schedule | OnlineSchedule | None = None,
    memory: int | str | None = None,
    offload: OffloadTo = None,
    until: Callable[[Any], object] | None = None,
    chunk_loss: Callable[[int, Any], torch.Tensor] | None = None,
    final_loss: Callable[[Any], torch.Tensor] | None = None,
    parameters: Iterable[torch.Tensor] = (),
    remote_dir: str | os.PathLike[str] | None = None,
    replay_randomness: bool = True,
    verify: Verify = True,
    schedule: Iterable[Action] | None = None,
    observer: Observer | None = None,
    strict: bool = False,
    compile: bool | int | Compile | None = None,  # noqa: A002 - PyTorch's name
) -> Result:
    """Return the loss of a sequence, computed during the schedule, so that outputs are not kept.

    The loss is the sum of ``loss`` or ``chunk_loss`` over the sequence, and of ``final_loss``. Each function
    returns a single float. ``result.loss.backward()`` works as usual, with scaling, clipping and accumulation.

    Arguments:
        cell, inputs, state, offload, parameters: as for ``unroll``.
        loss: ``loss(t, output)`` for each step.
        plan: as for ``unroll``; or ``ckptplan.online(...)`` for a sequence of unknown length, which ends with
            its inputs or by ``until``. They may then be an iterator with one input a step.
        memory: as for ``unroll``; outputs are not kept.
        until: ``until(state)`` says after each step whether the sequence ends. It depends on the state alone;
            the first steps run once more to find how many there are at least.
        chunk_loss: ``chunk_loss(start, outputs)`` for runs of steps, with outputs stacked over time; the sum
            must not depend on how the sequence is cut.
        final_loss: ``final_loss(state)`` for the final state.
        remote_dir, replay_randomness, verify, schedule, observer, strict: as for ``unroll``.
        compile: as for ``unroll``; the losses of steps are compiled, too.

    Raises InputError, also if no plan fits ``memory``.
    """
    options: dict[str, Any] = {
        "losses": check_losses(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss),
        "offload": offload,
        "parameters": parameters,
        "remote_dir": remote_dir,
        "replay_randomness": replay_randomness,
        "verify": verify,
        "schedule": schedule,
        "observer": observer,
        "strict": strict,
        "compile": compile,
    }
    if until is not None or isinstance(plan, OnlineSchedule):
        return bptt_online(cell, inputs, state, until=until, plan=plan, memory=memory, **options)
    options = read_options(plan, memory, **options)
    with doubt_order(inputs, state):
        return bptt_call(settle_plan(plan, memory, cell=cell, inputs=inputs, state=state, **options))


@as_entry
def scan(
    cell: Cell,
    state: Any,
    inputs: Any,
    *,
    plan: Plan | Schedule | None = None,
    memory: int | str | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Return the final state and the outputs of all steps: ``unroll`` in the order of PyTorch's and JAX's scan.

    ``options`` are the other arguments of ``unroll``. Raises InputError, also if no plan fits.
    """
    check_arguments(options, _list_options(unroll), of="scan")
    outputs, final = unroll(cell, inputs, state, plan=plan, memory=memory, **options)
    return final, outputs


def _list_options(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that are given by name alone."""
    parameters = signature(function).parameters.items()
    return [name for name, one in parameters if one.kind is Parameter.KEYWORD_ONLY]


@as_entry
def plan_for(
    cell: Cell,
    inputs: Any,
    state: Any,
    loss: Callable[[int, Any], torch.Tensor] | None = None,
    *,
    memory: int | str,
    offload: OffloadTo = None,
    steps: int | None = None,
    chunk_loss: Callable[[int, Any], torch.Tensor] | None = None,
    final_loss: Callable[[Any], torch.Tensor] | None = None,
    parameters: Iterable[torch.Tensor] = (),
    replay_randomness: bool = True,
) -> Plan:
    """Return the plan that ``bptt`` makes for ``memory``; without a loss, the one of ``unroll``.

    The first steps run to count bytes and to measure times; modules and generators are left as they were.

    Arguments:
        cell, inputs, state, memory, offload, parameters, replay_randomness: as for ``unroll``.
        loss, chunk_loss, final_loss: as for ``bptt``.
        steps: T, if ``inputs`` is a callable; tensors say it themselves.

    Raises InputError, also if no plan fits.
    """
    none = loss is None and chunk_loss is None and final_loss is None
    losses = {} if none else check_losses(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss)
    options = read_options(
        None, memory, offload=offload, parameters=parameters, replay_randomness=replay_randomness
    )
    with doubt_order(inputs, state):
        call = ask(cell=cell, inputs=inputs, state=state, steps=steps, losses=losses, **options)
        found = choose_plan(call, memory).told
    assert isinstance(found, Plan)  # noqa: S101 - made for a limit
    return found
