"""The entry points ``bptt``, ``unroll``, ``scan`` and ``plan_for``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from ckptplan.execution.online import OnlineSchedule
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Action
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.place import OffloadTo, read_offload
from ckptplan.torch.budget import choose_plan, settle_plan
from ckptplan.torch.call import Verify, check_losses, list_measured, refuse_ignored
from ckptplan.torch.compiling.options import Compile, read_compile
from ckptplan.torch.engine import Cell, Observer
from ckptplan.torch.offload import at_place
from ckptplan.torch.online import bptt_online, refuse_unknown_length
from ckptplan.torch.parameters import list_parameters
from ckptplan.torch.run import Result, bptt_call, unroll_call


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
    options: dict[str, Any] = {
        # Read once: module.parameters() is an iterator.
        "parameters": list_parameters(parameters),
        "replay_randomness": replay_randomness,
        "verify": verify,
        "remote_dir": remote_dir,
        "schedule": schedule,
        "observer": observer,
        "strict": strict,
    }
    measured = list_measured(options)
    refuse_ignored(plan, memory, options)
    wanted, place = read_compile(compile), read_offload(offload, plan=plan, memory=memory)
    chosen = settle_plan(plan, memory, cell, inputs, state, losses={}, place=place, compile_=wanted, **measured)
    return unroll_call(chosen.make_call(cell, inputs, state, **at_place(place, options)))


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
        cell: as for ``unroll``.
        inputs: as for ``unroll``.
        state: the initial state.
        loss: ``loss(t, output)`` for each step.
        plan: as for ``unroll``; or ``ckptplan.online(...)`` for a sequence of unknown length, which ends with
            its inputs or by ``until``. They may then be an iterator with one input a step.
        memory: as for ``unroll``; outputs are not kept.
        offload: as for ``unroll``.
        until: ``until(state)`` says after each step whether the sequence ends. It depends on the state alone;
            the first steps run once more to find how many there are at least.
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
        compile: as for ``unroll``; the losses of steps are compiled, too.

    Raises InputError, also if no plan fits ``memory``.
    """
    losses = check_losses(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss)
    options: dict[str, Any] = {
        # Read once: module.parameters() is an iterator.
        "parameters": list_parameters(parameters),
        "replay_randomness": replay_randomness,
        "verify": verify,
        "remote_dir": remote_dir,
        "schedule": schedule,
        "observer": observer,
        "strict": strict,
    }
    measured = list_measured(options)
    refuse_ignored(plan, memory, options)
    if until is not None or isinstance(plan, OnlineSchedule):
        refuse_unknown_length(
            schedule=schedule, strict=strict or None, compile=compile or None, offload=offload
        )
        return bptt_online(
            cell,
            inputs,
            state,
            until=until,
            plan=plan,
            memory=memory,
            losses=losses,
            remote_dir=remote_dir,
            observer=observer,
            **measured,
        )
    wanted, place = read_compile(compile), read_offload(offload, plan=plan, memory=memory)
    chosen = settle_plan(
        plan, memory, cell, inputs, state, losses=losses, place=place, compile_=wanted, **measured
    )
    result = bptt_call(chosen.make_call(cell, inputs, state, losses=losses, **at_place(place, options)))
    # Of compiled pieces, the plan that counts them.
    return result if chosen.survey is not None else replace(result, plan=chosen.plan)


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
    outputs, final = unroll(cell, inputs, state, plan=plan, memory=memory, **options)
    return final, outputs


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
        cell: as for ``unroll``.
        inputs: as for ``unroll``.
        state: the initial state.
        loss: as for ``bptt``.
        memory: as for ``unroll``.
        offload: as for ``unroll``.
        steps: T, if ``inputs`` is a callable; tensors say it themselves.
        chunk_loss: as for ``bptt``.
        final_loss: as for ``bptt``.
        parameters: as for ``unroll``.
        replay_randomness: as for ``unroll``.

    Raises InputError, also if no plan fits.
    """
    none = loss is None and chunk_loss is None and final_loss is None
    losses = {} if none else check_losses(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss)
    chosen = choose_plan(
        cell,
        inputs,
        state,
        memory=memory,
        place=read_offload(offload, plan=None, memory=memory),
        losses=losses,
        steps=steps,
        parameters=list_parameters(parameters),
        replay_randomness=replay_randomness,
    )
    assert isinstance(chosen.plan, Plan)  # noqa: S101 - made for a limit
    return chosen.plan
