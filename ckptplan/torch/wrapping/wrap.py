"""Wraps modules that take one time step as modules over sequences, which train under a plan."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Never, Self

import torch
from torch import Tensor

from ckptplan.errors import InputError, quote_value, refuse_arguments
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule, check_count
from ckptplan.storage.place import OffloadTo
from ckptplan.torch.adapters import NorseCell, TorchCell, describe_place, find_class, list_step_modes
from ckptplan.torch.api import Verify, check_call, read_outputs
from ckptplan.torch.checking.checks import COMPARED_STEPS, check_cuts, weigh_outputs
from ckptplan.torch.compile_options import Compile
from ckptplan.torch.entry import as_entry
from ckptplan.torch.pieces.inputs import cut_call
from ckptplan.torch.pieces.length import fit_length
from ckptplan.torch.run.call import Call, read_losses
from ckptplan.torch.run.executor import Observer
from ckptplan.torch.run.inputs import Inputs
from ckptplan.torch.run_call import Results
from ckptplan.torch.state.nests import fill, flatten, list_leaves
from ckptplan.torch.state.places import has_graph
from ckptplan.torch.state.reach import walk
from ckptplan.torch.wrapping.axes import lead_into_graphs
from ckptplan.torch.wrapping.layer import LayerSequence
from ckptplan.torch.wrapping.wrapped import Wrapped, WrappedPieces


class StatefulSequence(Wrapped):
    """A module that keeps its state, as a module over sequences: (T, B, ...) in, outputs stacked over time.

    The state is carried on from call to call, as it would be in a loop.

    Arguments are those of ``wrap``.
    """

    _reset: Callable[..., object] | None
    _detach: bool

    def __init__(
        self,
        net: torch.nn.Module,
        *,
        reset: Callable[..., object] | None = None,
        detach: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        if reset is not None and not callable(reset):
            raise InputError(
                f"{quote_value(reset)} cannot be called",
                field="reset",
                accepted="a function of the module, as snntorch.utils.reset or SpikingJelly's "
                "functional.reset_net, or its own method, as net.reset",
            )
        vars(self).update(_reset=reset, _detach=detach)

    @as_entry
    def forward(self, *inputs: Any, steps: int | None = None, **constants: Any) -> Any:
        """Return the outputs of all time steps, stacked.

        Arguments:
            inputs: tensors of shape (T, ...), or (B, T, ...) with ``time_dim=1``, or nests of these; the module
                is called with their time steps.
            steps: T, for inputs without a time axis: each step gets the same.
            constants: keyword arguments that the module is called with in each step.

        Raises InputError.
        """
        return self._read(self._execute(inputs, steps, constants, {}))

    @as_entry
    def bptt(
        self,
        *inputs: Any,
        loss: Callable[[int, Any], Tensor] | None = None,
        chunk_loss: Callable[[int, Any], Tensor] | None = None,
        steps: int | None = None,
        **constants: Any,
    ) -> Tensor:
        """Return the sum of a loss over the time steps, without keeping their outputs.

        Arguments:
            inputs: as for the call.
            loss: ``loss(t, output)`` for each step.
            chunk_loss: ``chunk_loss(start, outputs)`` for runs of steps.
            steps: as for the call.
            constants: as for the call.

        Raises InputError.
        """
        losses = read_losses(loss=loss, chunk_loss=chunk_loss, final_loss=None)
        return self._execute(inputs, steps, constants, losses).tensors[0]

    def check(self, *inputs: Any, steps: int | None = None, **constants: Any) -> bool:
        """Compare the gradients of a call with those of a plain loop, as ``ckptplan.torch.check``."""
        return check_call(self._begin(inputs, steps, constants, {}))

    def detach(self) -> None:
        """Detach the state from its graph, so that gradients of the next call do not flow into this call."""
        for place in walk({"net": self.net}).list_graph_places():
            leaves, nest = flatten(place.get())
            place.set(fill(nest, [leaf.detach() for leaf in leaves], fresh=False))

    def _execute(self, inputs: Any, steps: int | None, constants: dict[str, Any], losses: Any) -> Results:
        """Reset the module; run a sequence."""
        return self._run(self._begin(inputs, steps, constants, losses))

    def _read(self, results: Results) -> Any:
        """Return the outputs of all time steps."""
        return read_outputs(results)

    def _begin(self, inputs: Any, steps: int | None, constants: dict[str, Any], losses: Any) -> Call:
        """Reset the module; return the call of a sequence."""
        inputs = self._prepare(inputs, steps)
        cell = StatefulCell(self.net, constants)
        return self._make_call(cell, inputs, (), losses=losses, needs_state=True)

    def _prepare(self, inputs: Any, steps: int | None) -> Any:
        """Reset the module; return the inputs of a sequence."""
        if not inputs:
            raise InputError("are missing", field="inputs", accepted="tensors of shape (T, ...)")
        if self._reset is not None:
            # ``net.reset`` is bound to its module. Functions of libraries take the module as an argument.
            is_method = getattr(self._reset, "__self__", None) is self.net
            self._reset() if is_method else self._reset(self.net)
        if self._detach:
            self.detach()
        if steps is not None:
            check_count("steps", steps)
            leaves, nest = flatten(inputs)
            return fill(nest, [leaf.expand(steps, *leaf.shape) for leaf in leaves])
        is_batch_first = vars(self).get("_time_dim") == 1
        self._axes.watch(list_leaves(inputs), self._has_graph, batch_first=is_batch_first)
        return inputs

    def _has_graph(self) -> bool:
        """Return whether the state leads into the graph of an earlier call."""
        return bool(walk({"net": self.net}).list_graph_places())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy whose state has the same numbers, but no graph, since graphs cannot be copied."""
        graph_tensors = [tensor for tensor in walk({"net": self.net}).tensors if has_graph(tensor)]
        memo |= {id(tensor): tensor.detach().clone() for tensor in graph_tensors}
        duplicate = object.__new__(type(self))
        memo[id(self)] = duplicate
        duplicate.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return duplicate


class MultiStepSequence(WrappedPieces, StatefulSequence):
    """A module that takes many time steps a call and keeps its state, as a module over sequences.

    A step of the plan is a piece of the sequence, which the module takes in one call. Networks of SpikingJelly
    in multi-step mode and of sinabs are such modules.

    Arguments:
        net: the module.
        time_dim: the axis of time in its inputs and outputs, 0 or 1.
        options: other arguments of ``wrap``.
    """

    _time_dim: int
    #: The kinds of calls that passed ``check_cuts``: pieces of any length give the same results.
    _compared_kinds: set[Any]

    def __init__(self, net: torch.nn.Module, *, time_dim: int = 0, **options: Any) -> None:
        if time_dim not in (0, 1) or isinstance(time_dim, bool):
            raise InputError(f"is {quote_value(time_dim)}", field="time_dim", accepted="0 or 1")
        super().__init__(net, **options)
        vars(self).update(_time_dim=time_dim, _compared_kinds=set())

    def check(self, *inputs: Any, steps: int | None = None, **constants: Any) -> bool:
        """Check that one call equals a call for each time step, and its gradients those of a plain loop."""
        call = self._begin(inputs, steps, constants, {})
        count, plan = call.inputs.steps, call.plan
        if count >= COMPARED_STEPS:
            check_cuts(partial(cut_call, replace(call, losses={"loss": weigh_outputs})))
        length = self.piece or (count if plan is None else fit_length(plan, count, None))
        return check_call(cut_call(call, length))

    def _execute(self, inputs: Any, steps: int | None, constants: dict[str, Any], losses: Any) -> Results:
        vars(self)["latest"] = ()
        call = self._begin(inputs, steps, constants, losses)
        count = call.inputs.steps
        if torch.is_grad_enabled() and self._options["verify"] and count >= COMPARED_STEPS:
            modes = [module.training for module in self.net.modules()]
            kind = replace(call, losses={}).describe_kind(), *modes
            if kind not in self._compared_kinds:
                with self._explain_errors():
                    check_cuts(partial(cut_call, replace(call, losses={"loss": weigh_outputs})))
                self._compared_kinds.add(kind)
        return self._run_pieces(partial(cut_call, call), count)

    def _read(self, results: Results) -> Any:
        return _transpose(read_outputs(results), self._time_dim)

    def _begin(self, inputs: Any, steps: int | None, constants: dict[str, Any], losses: Any) -> Call:
        for name, module in self.net.named_modules():
            if getattr(module, "store_v_seq", False):
                raise InputError(
                    f"stores the potentials of all time steps in {f'{name}.' if name else ''}v_seq, where a "
                    "piece of the sequence would replace those of the piece before",
                    field="net",
                    accepted="store_v_seq = False, or potentials that the network returns",
                )
        sequence = Inputs(_transpose(self._prepare(inputs, steps), self._time_dim))
        cell = StatefulCell(self.net, constants, time_dim=self._time_dim)
        return Call(cell=cell, inputs=sequence, state=(), losses=losses, needs_state=True, **self._options)


class StatefulCell:
    """A module that keeps its state, as a cell. The trial finds and lifts everything that the module keeps.

    Arguments:
        net: the module.
        constants: keyword arguments of each call.
        time_dim: the axis of time, if the module takes a piece of several time steps a call; None if it takes
            a time step.
    """

    def __init__(self, net: torch.nn.Module, constants: dict[str, Any], *, time_dim: int | None = None) -> None:
        self.net, self.constants, self.time_dim = net, constants, time_dim

    def __call__(self, state: Any, x: tuple[Any, ...]) -> tuple[Any, Any]:
        """Take a step, or a piece."""
        if self.time_dim is None:
            return state, self.net(*x, **self.constants)
        outputs = self.net(*_transpose(x, self.time_dim), **self.constants)
        return state, _transpose(outputs, self.time_dim)


def _transpose(value: Any, time_dim: int) -> Any:
    """Exchange the axis of time with the first axis."""
    leaves, nest = flatten(value)
    return fill(nest, [leaf.transpose(0, time_dim) for leaf in leaves])


class PassedStateSequence(Wrapped):
    """A module ``net(x, state) -> (output, state)`` over sequences: (outputs, state) for (T, B, ...).

    ``torch.nn.RNNCell``, ``GRUCell`` and ``LSTMCell`` count, too, and ``Lift`` of Norse, which already takes a
    sequence.
    """

    def __init__(self, net: torch.nn.Module, **options: Any) -> None:
        super().__init__(net, **options)
        inner: Any = net.lifted_module if find_class(net, "norse", "Lift") else net
        cell = TorchCell if isinstance(inner, torch.nn.RNNCellBase) else NorseCell
        # Not registered as a child, since the module is a child already, under its own name.
        vars(self)["_cell"] = cell(inner)

    @as_entry
    def forward(self, inputs: Any, state: Any = None) -> tuple[Any, Any]:
        """Return the outputs of all time steps, stacked, and the final state.

        Arguments:
            inputs: a tensor of shape (T, B, ...).
            state: the initial state; None to let the module make it.

        Raises InputError.
        """
        self._axes.watch(list_leaves(inputs), lambda: lead_into_graphs(list_leaves(state)))
        results = self._run(self._make_call(self._cell, inputs, state))
        return read_outputs(results), results.state

    def check(self, inputs: Any, state: Any = None) -> bool:
        """Compare the gradients of a call with those of a plain loop, as ``ckptplan.torch.check``."""
        return check_call(self._make_call(self._cell, inputs, state))


def wrap(
    net: torch.nn.Module,
    *,
    memory: int | str | None = None,
    plan: Plan | Schedule | None = None,
    reset: Callable[..., object] | None = None,
    detach: bool = False,
    multi_step: bool | None = None,
    time_dim: int = 0,
    piece: int | None = None,
    outputs: Literal["all", "last"] = "all",
    offload: OffloadTo = None,
    parameters: Iterable[Tensor] = (),
    remote_dir: str | os.PathLike[str] | None = None,
    replay_randomness: bool = True,
    verify: Verify = True,
    observer: Observer | None = None,
    strict: bool = False,
    compile: bool | int | Compile | None = None,  # noqa: A002 - PyTorch's name
    **unknown: Never,
) -> Wrapped:
    """Return a module over sequences that trains within a limit of memory, with the gradients of a plain loop.

    - A module that keeps its state, called once for each time step (networks of snnTorch with
      ``init_hidden=True``, of SpikingJelly, your own with ``self.mem``): ``wrapped(data)`` takes data of shape
      (T, B, ...) and returns the outputs stacked over time. The state is found by running the first steps.
    - A module that keeps its state and takes many time steps a call (``multi_step=True``; networks of
      SpikingJelly in multi-step mode): the same call and results; pieces of the sequence run in one call.
    - ``torch.nn.LSTM``, ``GRU`` and ``RNN``: the same call and results; the layers' own kernel runs pieces of
      the sequence.
    - ``torch.nn.RNNCell``, ``GRUCell``, ``LSTMCell`` and modules of Norse, which take their state and return
      it: ``outputs, state = wrapped(data, state)``.

    Parameters, buffers and children are those of ``net``, under their names; ``state_dict``, ``.to()``,
    optimizers, DistributedDataParallel and Lightning work as with ``net``.

    Arguments:
        net: the module.
        memory: the memory that a call may take: bytes, text as "2 GiB", or "auto" for 70 % of the memory
            that the device has free. With neither a limit nor a plan, it is "auto".
        plan: a plan in place of a limit, for sequences of one length.
        reset: called with ``net`` before each call, as ``snntorch.utils.reset``, or a method of ``net``;
            without it, the state is carried on from call to call.
        detach: whether a call begins without the graph of the last one: truncated backpropagation through time.
        multi_step: whether the module takes many time steps a call; None for modules of SpikingJelly that are
            in multi-step mode.
        time_dim: the axis of time in inputs and outputs of such a module, 0 or 1.
        piece: for modules and layers that take many time steps a call, the time steps of a piece; None for the
            quickest length.
        outputs: for ``torch.nn.LSTM``, ``GRU`` and ``RNN``, "last" to return the last output of each sequence,
            also of each packed sequence. The other outputs then take no memory.
        offload, parameters, remote_dir, replay_randomness, verify, observer, strict, compile: as for
            ``unroll``. ``compile`` has no effect on modules and layers that take many time steps a call, which
            have kernels of their own.

    Raises InputError, also in calls, if no plan fits the limit.
    """
    if not isinstance(net, torch.nn.Module):
        raise InputError(
            f"{quote_value(type(net).__name__)} is not a module",
            field="net",
            accepted="a torch.nn.Module; for a function, ckptplan.torch.scan or unroll",
        )
    if isinstance(net, Wrapped):
        raise InputError("is wrapped already", field="net", accepted="the module inside, net.net")
    refuse_arguments(unknown, wrap)
    shared: dict[str, Any] = {
        "memory": memory,
        "plan": plan,
        "offload": offload,
        "parameters": parameters,
        "remote_dir": remote_dir,
        "replay_randomness": replay_randomness,
        "verify": verify,
        "observer": observer,
        "strict": strict,
        "compile": compile,
    }
    _refuse_rockpool(net)
    if multi_step is None:
        multi_step = is_in_multi_step_mode(net)
    if isinstance(net, torch.nn.RNNBase) or takes_state(net):
        for name, is_given in (("reset", reset is not None), ("detach", detach), ("multi_step", multi_step)):
            if is_given:
                raise InputError(
                    "has no meaning for a module that takes its state as an argument",
                    field=name,
                    accepted="wrapped(data, state) with the state that the next call is to begin with",
                )
    if time_dim != 0 and not multi_step:
        raise InputError(
            f"has no meaning for {type(net).__name__} unless it takes many time steps a call",
            field="time_dim",
            accepted="0, or multi_step=True; layers of torch.nn have batch_first",
        )
    if isinstance(net, torch.nn.RNNBase):
        return LayerSequence(net, piece=piece, outputs=outputs, **shared)
    if outputs != "all":
        raise InputError(
            f"has no meaning for {type(net).__name__}",
            field="outputs",
            accepted="torch.nn.LSTM, GRU or RNN; wrap(net).bptt keeps no outputs of stateful modules",
        )
    if multi_step:
        return MultiStepSequence(net, reset=reset, detach=detach, time_dim=time_dim, piece=piece, **shared)
    if piece is not None:
        raise InputError(
            f"has no meaning for {type(net).__name__}, which takes one time step a call",
            field="piece",
            accepted="torch.nn.LSTM, GRU or RNN, or multi_step=True",
        )
    if takes_state(net):
        return PassedStateSequence(net, **shared)
    return StatefulSequence(net, reset=reset, detach=detach, **shared)


def is_in_multi_step_mode(net: torch.nn.Module) -> bool:
    """Return whether a layer of SpikingJelly is in multi-step mode, or has no other mode."""
    return any(
        getattr(module, "step_mode", None) == "m" or "s" not in list_step_modes(module)
        for module in net.modules()
    )


def takes_state(net: torch.nn.Module) -> bool:
    """Return whether a module takes its state and returns it, judged by its class."""
    if isinstance(net, torch.nn.RNNCellBase):
        return True
    return any(base.__module__.partition(".")[0] == "norse" for base in type(net).__mro__)


def _refuse_rockpool(net: torch.nn.Module) -> None:
    """Raise InputError for modules of Rockpool, which lose the states of a batch between calls."""
    for _, module in torch.nn.Module.named_modules(net):
        if find_class(module, "rockpool", "TorchModule") and module._buffers:
            raise InputError(
                f"has {describe_place(net, module)} of Rockpool, which keeps the state of the first sequence "
                "of a batch alone between calls, without its graph: a sequence cannot run in parts",
                field="net",
                accepted="the same neurons of snnTorch, Norse, SpikingJelly or sinabs, or a cell of your own",
            )
