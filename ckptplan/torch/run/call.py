"""A call of ``bptt`` or ``unroll``: its arguments, checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ckptplan.errors import InputError, quote_value
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Action
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.place import OffloadPlace, read_offload
from ckptplan.torch.compile_options import Compile, read_compile
from ckptplan.torch.run.inputs import Inputs
from ckptplan.torch.run.outputs import RUN_STEPS, Outputs, StackedOutputs, SummedLoss
from ckptplan.torch.run.steps import Cell, Steps
from ckptplan.torch.state.nests import fill, flatten, list_opaque

LOSSES = ("loss", "chunk_loss", "final_loss")


@dataclass(frozen=True, kw_only=True)
class Call:
    """The arguments of a call; without losses, those of ``unroll``.

    Arguments:
        cell: ``cell(state, x)`` returns (state, output).
        inputs: provides the inputs of the steps.
        state: the first state.
        losses: the losses by the names of their arguments.
        parameters: tensors that the user names, in addition to those that the cell reaches.
        verify: whether replayed steps are compared; ``"always"`` to try the first steps in each call.
        replay_randomness: whether random generators are parts of the state.
        run_steps: the outputs that a ``chunk_loss`` gets at a time.
        steps_type: makes the ``Steps`` that run the call.
        needs_state: whether to refuse a cell that keeps nothing from step to step.
        strict: whether a plan for other sizes than those of the cell is an error instead of a warning.
        place: where remote checkpoints are kept; None for host memory.
        compile: how its steps are compiled (``ckptplan.torch.Compile``), None to run them as they are written.
        plan: the plan, None for a limit of memory.
        memory: the limit of memory, None for a plan.
        schedule: actions in place of those of the plan, or None.
        observer: called as ``observer(action, executor)`` after each action, or None.
        is_closed: whether the cell is known to keep nothing from step to step except random generators, so that
            its first steps need no trial.
    """

    cell: Cell
    inputs: Inputs
    state: Any
    losses: Mapping[str, Any] = field(default_factory=dict)
    parameters: tuple[Tensor, ...] = ()
    verify: bool | str = True
    replay_randomness: bool = True
    run_steps: int = RUN_STEPS
    steps_type: Callable[..., Steps] = Steps
    needs_state: bool = False
    is_closed: bool = False
    place: OffloadPlace | None = None
    strict: bool = False
    compile: Compile | None = None
    plan: Any = None
    memory: int | str | None = None
    schedule: Iterable[Action] | None = None
    observer: Any = None

    def __post_init__(self) -> None:
        if not callable(self.cell):
            raise InputError(
                f"{quote_value(self.cell)} cannot be called", field="cell", accepted="cell(state, x)"
            )
        if any(leaf.is_nested for leaf in self.leaves):
            raise InputError(
                "has a nested tensor, whose shape is unknown",
                field="state",
                accepted="dense tensors: torch.nested.to_padded_tensor",
            )

    @property
    def has_own_backward(self) -> bool:
        """Whether its steps have a backward pass of their own."""
        return self._steps_class.has_own_backward

    @property
    def is_compiled(self) -> bool:
        """Whether some of its steps run compiled."""
        return self._steps_class.is_compiled

    @property
    def runs_plainly(self) -> bool:
        """Whether its steps run one by one, as they are written, so that a plain loop may run them."""
        return self.steps_type is Steps

    @property
    def _steps_class(self) -> type[Steps]:
        steps_type: Any = self.steps_type
        steps_class: type[Steps] = getattr(steps_type, "func", steps_type)
        return steps_class

    @property
    def compares(self) -> bool:
        """Whether replayed steps are compared with their first run."""
        return bool(self.verify) and self.replay_randomness

    @property
    def roots(self) -> dict[str, Any]:
        """The objects to search for values that steps may keep, by their names."""
        input_functions = {"inputs": self.inputs.make} if self.inputs.is_made else {}
        return {"cell": self.cell, **self.losses, **input_functions, **self._opaque}

    @cached_property
    def _opaque(self) -> dict[str, Any]:
        """The objects in the first state that checkpoints keep by reference."""
        return {f"object {number} of the state": value for number, value in enumerate(list_opaque(self.state))}

    @cached_property
    def leaves(self) -> list[Tensor]:
        """The tensors of the first state."""
        return flatten(self.state, parameters=True)[0]

    @property
    def device(self) -> torch.device:
        """The device on which its steps probably run."""
        modules = [
            function for function in (self.cell, *self.losses.values()) if isinstance(function, torch.nn.Module)
        ]
        weights = (parameter for module in modules for parameter in torch.nn.Module.parameters(module))
        devices = {tensor.device for tensor in (*self.leaves, *self.inputs.leaves, *self.parameters, *weights)}
        return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))

    def copy_state(self) -> Any:
        """Return the first state in new containers, since steps may change the containers that they get."""
        leaves, nest = flatten(self.state, parameters=True)
        return fill(nest, leaves)

    def make_outputs(self) -> Outputs:
        """Return the object that takes the outputs of the steps."""
        if not self.losses:
            return StackedOutputs(self.inputs)
        loss, chunk_loss = self.losses.get("loss"), self.losses.get("chunk_loss")
        return SummedLoss(self.inputs.steps, loss, chunk_loss, run_steps=self.run_steps)

    def describe_kind(self) -> Any:
        """Return a key of code, options and shapes, which is equal for calls of the same kind."""
        leaves = (*self.leaves, *self.inputs.list_first(), *self.parameters)
        shapes = tuple((tuple(leaf.shape), leaf.dtype, leaf.requires_grad, leaf.device.type) for leaf in leaves)
        casts = [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        code = tuple((name, _find_code(function)) for name, function in self.roots.items())
        options = (
            self._steps_class,
            self.is_closed,
            tuple(casts),
            torch.get_default_dtype(),
            self.verify,
            self.replay_randomness,
        )
        return code, options, shapes


def read_losses(*, loss: Any, chunk_loss: Any, final_loss: Any, is_needed: bool = True) -> dict[str, Any]:
    """Return the losses that are given, by the names of their arguments. Raises InputError."""
    if loss is not None and chunk_loss is not None:
        raise InputError("is given together with loss", field="chunk_loss", accepted="one of the two")
    given = zip(LOSSES, (loss, chunk_loss, final_loss), strict=True)
    losses = {name: function for name, function in given if function is not None}
    if is_needed and not losses:
        raise InputError("is missing", field="loss", accepted="loss, chunk_loss or final_loss")
    for name, function in losses.items():
        if not callable(function):
            raise InputError(f"{quote_value(function)} cannot be called", field=name, accepted="a function")
    return losses


def read_parameters(parameters: Any) -> tuple[Tensor, ...]:
    """Return the tensors among ``parameters`` that require a gradient. Raises InputError."""
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    accepted = "tensors that need gradients, as module.parameters() returns"
    if isinstance(parameters, Tensor) or not isinstance(parameters, Iterable):
        raise InputError(
            f"{quote_value(type(parameters).__name__)} is no list of tensors",
            field="parameters",
            accepted=accepted,
        )
    tensors = tuple(parameters.values() if isinstance(parameters, Mapping) else parameters)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise InputError(f"{quote_value(tensor)} is no tensor", field="parameters", accepted=accepted)
    return tuple(tensor for tensor in tensors if tensor.requires_grad)


def read_options(
    *,
    parameters: Any,
    replay_randomness: bool = True,
    verify: Any = True,
    plan: Any = None,
    memory: Any = None,
    offload: Any = None,
    remote_dir: Any = None,
    strict: bool = False,
    compile_: Any = None,
    schedule: Iterable[Action] | None = None,
    observer: Any = None,
) -> dict[str, Any]:
    """Return arguments of ``unroll`` as fields of ``Call``. Raises InputError."""
    if not (isinstance(verify, bool) or verify == "always"):
        raise InputError(f"is {quote_value(verify)}", field="verify", accepted="True, False or 'always'")
    if isinstance(plan, Schedule) and strict:
        raise InputError(
            "has no effect: a Schedule has no sizes to compare with those of the cell",
            field="strict",
            accepted="strict=False, or a Plan",
        )
    return {
        "parameters": read_parameters(parameters),
        "replay_randomness": bool(replay_randomness),
        "verify": verify,
        "place": _read_place(plan, memory, offload, remote_dir),
        "strict": bool(strict),
        "compile": read_compile(compile_),
        "plan": plan,
        "memory": memory,
        "schedule": schedule,
        "observer": observer,
    }


def _read_place(plan: Any, memory: Any, offload: Any, remote_dir: Any) -> OffloadPlace | None:
    if remote_dir is None:
        return read_offload(offload, plan=plan, memory=memory)
    if memory is not None:
        raise InputError(
            "is given together with memory: a plan for a limit of memory keeps nothing remote, unless offload "
            "names the place",
            field="remote_dir",
            accepted="plan=... with remote_dir, or memory with offload",
        )
    if not isinstance(remote_dir, str | os.PathLike):
        raise InputError(f"is {quote_value(remote_dir)}", field="remote_dir", accepted="a folder")
    return OffloadPlace(folder=Path(remote_dir), field="remote_dir")


def check_plan(plan: object) -> None:
    """Raise InputError unless ``plan`` is a Plan or a legal Schedule."""
    if not isinstance(plan, Plan | Schedule):
        raise InputError(
            "is missing" if plan is None else f"{quote_value(plan)} is not a plan",
            field="plan",
            value=plan,
            accepted="a Plan, as from ckptplan.optimize(...) or ckptplan.load_plan(path); a ckptplan.Schedule",
        )
    if isinstance(plan, Schedule):
        # A Plan has legal actions by construction. Illegal ones could give wrong gradients.
        plan.check()


def _find_code(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", type(function))
