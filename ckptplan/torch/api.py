"""The entry points ``bptt``, ``unroll``, ``scan``, ``plan_for`` and ``check``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Never, TypeAlias

import torch

from ckptplan.errors import InputError, refuse_arguments
from ckptplan.execution.online import OnlineSchedule
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Action
from ckptplan.schedule.schedule import Schedule, check_count
from ckptplan.storage.place import OffloadTo
from ckptplan.torch.checking.checks import check_gradients
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.compile_options import Compile
from ckptplan.torch.entry import as_entry
from ckptplan.torch.fit.limited import plan_within, run_within
from ckptplan.torch.fit.measure import Sizes, measure_sizes
from ckptplan.torch.online import run_online
from ckptplan.torch.pieces.compiled import count_pieces, run_compiled
from ckptplan.torch.run.call import Call, check_plan, read_losses, read_options
from ckptplan.torch.run.chunk_steps import ChunkSteps, refuse_hooks
from ckptplan.torch.run.executor import Observer
from ckptplan.torch.run.inputs import Inputs
from ckptplan.torch.run.steps import Cell, Steps
from ckptplan.torch.run_call import Results, run_plain_loop, run_plan, try_call
from ckptplan.torch.state.nests import fill, map_leaves

#: Whether replayed steps are compared with their first run. ``"always"`` also tries the first steps in each
#: call.
Verify: TypeAlias = bool | Literal["always"]


#: ``measured_sizes`` takes the mean of this many steps.
_MEASURED_STEPS = 16


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of ``bptt``: the loss, which can be differentiated, and the final state, which cannot."""

    loss: torch.Tensor
    state: Any
    #: The plan that was executed: the given plan or schedule, or the plan that was made for ``memory``.
    plan: Plan | Schedule
    #: The steps of the compiled pieces that ran, None if steps ran as they are written.
    piece: int | None = None


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
            Values that steps keep in attributes, variables and containers become parts of the state.
        inputs: tensors of shape (T, ...), a nest of these, or a callable (start, stop) -> chunk, which is
            called again if steps run again.
        state: the initial state.
        plan: a plan, or a ``ckptplan.Schedule`` if nothing was planned.
        memory: the memory that the call may take, in place of a plan: bytes, text as "2 GiB", or "auto" for
            most of the free memory of the device. Calls of the same shapes share one plan. The limit includes
            the outputs of all steps, their gradients and the gradients of parameters. If any plan has room for
            it, the limit also includes the tensors that a mean of squares computes from the outputs.
        offload: with ``memory``, a second place for checkpoints: "host" for host memory, a folder, or
            ``Offload(folder, limit="50 GB")``. The first call times the place, and the result holds for a day.
            The plan offloads only if that is quicker. Buffers of transfers count in ``memory``.
        parameters: tensors that need gradients but that only later steps use. The inputs, the initial state,
            the parameters of ``cell`` and all tensors that its first steps use need not be named.
        remote_dir: a folder for remote checkpoints of ``plan``; without it, they are kept in host memory.
        replay_randomness: whether steps that run again draw the same random numbers again.
        verify: whether states, outputs and losses of replayed steps are compared with their first run, and
            the gradients of the first steps with those of a plain loop: once for calls of the same kind, or
            in each call with ``"always"``. Nothing is compared if randomness is not replayed.
        schedule: actions to execute instead of those of ``plan``, e.g. from ``ckptplan.load_schedule``;
            ``ckptplan.simulate`` checks whether they are legal.
        observer: called as ``observer(action, executor)`` after each action.
        strict: whether a plan for other sizes than those of the cell raises an error. Otherwise it causes the
            warning PlanMismatch.
        compile: True to compile several steps at a time, and to choose the quickest number of steps; that
            number; or ``Compile(...)``. Steps that cannot be compiled run as they are written, and the warning
            ``CompileFallback`` says why.

    The outputs of all steps are kept in memory; if only a loss is needed, ``bptt`` needs far less.
    Raises InputError, also if no plan fits ``memory``.
    """
    options = read_options(
        parameters=parameters,
        replay_randomness=replay_randomness,
        verify=verify,
        plan=plan,
        memory=memory,
        offload=offload,
        remote_dir=remote_dir,
        strict=strict,
        compile_=compile,
        schedule=schedule,
        observer=observer,
    )
    results, _ = run_call(make_call(cell, inputs, state, **options))
    return read_outputs(results), results.state


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
        cell, inputs, state: as for ``unroll``.
        loss: ``loss(t, output)`` for each step.
        plan: as for ``unroll``; or ``ckptplan.online(...)`` for a sequence of unknown length, which ends with
            its inputs or by ``until``. They may then be an iterator with one input a step.
        memory, offload: as for ``unroll``; outputs are not kept.
        until: ``until(state)`` says after each step whether the sequence ends. It depends on the state alone.
        chunk_loss: ``chunk_loss(start, outputs)`` for runs of steps, with outputs stacked over time; the sum
            must not depend on how the sequence is cut.
        final_loss: ``final_loss(state)`` for the final state.
        parameters, remote_dir, replay_randomness, verify, schedule, observer, strict, compile: as for
            ``unroll``.

    Raises InputError, also if no plan fits ``memory``.
    """
    losses = read_losses(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss)
    options = read_options(
        parameters=parameters,
        replay_randomness=replay_randomness,
        verify=verify,
        plan=plan,
        memory=memory,
        offload=offload,
        remote_dir=remote_dir,
        strict=strict,
        compile_=compile,
        schedule=schedule,
        observer=observer,
    )
    if until is not None or isinstance(plan, OnlineSchedule):
        for name, is_given in (("schedule", schedule is not None), ("compile", bool(compile))):
            if is_given:
                raise InputError(
                    "needs a number of steps that is known beforehand",
                    field=name,
                    accepted="a plan, without until",
                )
        executed: Plan | Schedule
        results, executed = run_online(cell, inputs, state, until=until, losses=losses, **options)
    else:
        results, executed = run_call(make_call(cell, inputs, state, losses=losses, **options))
    final = map_leaves(torch.Tensor.detach, results.state)
    return Result(loss=results.tensors[0], state=final, plan=executed, piece=results.piece)


@as_entry
def scan(
    cell: Cell,
    state: Any,
    inputs: Any,
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
    **unknown: Never,
) -> tuple[Any, Any]:
    """Return the final state and the outputs of all steps: ``unroll`` in the order of PyTorch's and JAX's scan.

    All arguments are those of ``unroll``. Raises InputError.
    """
    refuse_arguments(unknown, scan)
    outputs, final = unroll(
        cell,
        inputs,
        state,
        plan=plan,
        memory=memory,
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
    return final, outputs


def check(
    cell: Cell,
    inputs: Any,
    state: Any,
    loss: Callable[[int, Any], torch.Tensor] | None = None,
    *,
    plan: Plan | Schedule | None = None,
    memory: int | str | None = None,
    chunk_loss: Callable[[int, Any], torch.Tensor] | None = None,
    final_loss: Callable[[Any], torch.Tensor] | None = None,
    parameters: Iterable[torch.Tensor] = (),
    tolerance: float | None = None,
) -> bool:
    """Compare the gradients of a sequence under a plan with those of a plain loop, and print the differences.

    Use it like ``torch.autograd.gradcheck``: with a short sequence, and in fp64 if possible. Modules and random
    generators are left as they were.

    Arguments:
        cell, inputs, state, plan, memory, parameters: as for ``unroll``.
        loss, chunk_loss, final_loss: as for ``bptt``; without a loss, weighted sums of all outputs.
        tolerance: the share of its norm by which a gradient may differ; None to derive it from the data type.

    Returns True. Raises InputError for the first gradient that differs.
    """
    losses = read_losses(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss, is_needed=False)
    options = read_options(parameters=parameters, plan=plan, memory=memory)
    return check_call(make_call(cell, inputs, state, losses=losses, **options), tolerance=tolerance)


def check_call(call: Call, *, tolerance: float | None = None) -> bool:
    """Compare the gradients of a call under its plan with those of a plain loop, as ``check``."""
    call = replace(call, observer=None)
    with torch.enable_grad():
        scope = try_call(call).scope
    return check_gradients(call, scope, run_plain_loop, lambda copied: run_call(copied)[0], tolerance=tolerance)


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
    """Return the plan that ``bptt`` makes for ``memory``, or the plan of ``unroll`` if there is no loss.

    The first steps run to count bytes and to measure times; modules and generators are left as they were.

    Arguments:
        cell, inputs, state, memory, offload, parameters, replay_randomness: as for ``unroll``.
        loss, chunk_loss, final_loss: as for ``bptt``.
        steps: T, if ``inputs`` is a callable. Tensors have T time steps along their first axis.

    Raises InputError, also if no plan fits.
    """
    losses = read_losses(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss, is_needed=False)
    options = read_options(
        parameters=parameters,
        replay_randomness=replay_randomness,
        memory=memory,
        offload=offload,
    )
    if steps is not None:
        check_count("steps", steps)
    given = Inputs(inputs, steps, asked_by="call")
    call = Call(cell=cell, inputs=given, state=state, losses=losses, steps_type=find_steps(cell), **options)
    return plan_within(call, memory)


@as_entry
def measured_sizes(
    cell: Cell,
    inputs: Any,
    state: Any,
    loss: Callable[[int, Any], torch.Tensor] | None = None,
    *,
    chunk_loss: Callable[[int, Any], torch.Tensor] | None = None,
    final_loss: Callable[[Any], torch.Tensor] | None = None,
    parameters: Iterable[torch.Tensor] = (),
) -> Sizes:
    """Record the first steps, and count the bytes that they keep. Arguments are those of ``bptt``.

    ``Workload(**vars(measured_sizes(...)), name=..., steps=..., units=1, ...)`` also needs times; for plans
    that offload nothing, only their ratios matter. Spikes are counted as they fire in the first steps. They
    take at most one bit per neuron and step. Raises InputError.
    """
    losses = read_losses(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss, is_needed=False)
    given = Inputs(inputs, _MEASURED_STEPS if callable(inputs) else None)
    call = Call(
        cell=cell,
        inputs=given,
        state=state,
        losses=losses,
        steps_type=find_steps(cell),
        **read_options(parameters=parameters),
    )
    return measure_sizes(call, min(_MEASURED_STEPS, given.steps))


def make_call(cell: Cell, inputs: Any, state: Any, **options: Any) -> Call:
    """Return a call for a plan or for a limit of memory; ``options`` are fields of it. Raises InputError."""
    check_goal(options["plan"], options["memory"])
    given = make_inputs(inputs, options["plan"], options["compile"])
    return Call(cell=cell, inputs=given, state=state, steps_type=find_steps(cell), **options)


def make_inputs(inputs: Any, plan: Plan | Schedule | None, compile_: Compile | None) -> Inputs:
    """Return the inputs of the time steps of a call. Raises InputError if a plan has another number of them."""
    if plan is None:
        return Inputs(inputs)
    steps = None if callable(inputs) else Inputs(inputs).steps
    length = count_pieces(plan, compile_, steps)
    if length is not None:
        return Inputs(inputs, steps or length * plan.steps)
    return Inputs(inputs, plan.steps, asked_by="plan" if isinstance(plan, Plan) else "schedule")


def find_steps(cell: Cell) -> type[Steps]:
    """Return the class that runs the steps of a cell. Raises InputError for a hook that chunks do not call."""
    if not isinstance(cell, ChunkCell):
        return Steps
    refuse_hooks(cell)
    return ChunkSteps


def check_goal(plan: object, memory: object) -> None:
    """Raise InputError unless there is either a plan or a limit of memory."""
    if plan is None and memory is None:
        raise InputError("is missing, and so is memory", field="plan", accepted="a plan, or memory='2 GiB'")
    if plan is not None:
        if memory is not None:
            raise InputError("is given together with plan", field="memory", accepted="one of the two")
        check_plan(plan)


def run_call(call: Call) -> tuple[Results, Plan | Schedule]:
    """Run a call under its plan, or within its limit of memory; return its results and the plan that ran.

    Raises InputError.
    """
    if call.schedule is not None and call.plan is None:
        raise InputError(
            "is given together with memory: other actions than those that are planned need not keep the limit",
            field="schedule",
            accepted="plan=... with schedule, or memory",
        )
    if call.compile is not None:
        return run_compiled(call)
    if call.plan is not None:
        return run_plan(call, call.plan, schedule=call.schedule, observer=call.observer), call.plan
    assert call.memory is not None  # noqa: S101 - it was checked
    return run_within(call, call.memory, observer=call.observer)


def read_outputs(results: Results) -> Any:
    """Return the outputs of all steps in the containers in which a step returns its output."""
    return fill(results.nest, results.tensors)
