"""The entry point ``wrap``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.adapters import NorseCell, TorchCell
from ckptplan.torch.adapters.adapter import find_class
from ckptplan.torch.entry import as_entry
from ckptplan.torch.wrapping.fused import FusedSequence
from ckptplan.torch.wrapping.stateful import StatefulSequence
from ckptplan.torch.wrapping.wrapped import Wrapped


def wrap(
    net: torch.nn.Module,
    *,
    memory: int | str | None = None,
    plan: Plan | Schedule | None = None,
    reset: Callable[..., object] | None = None,
    detach: bool = False,
    piece: int | None = None,
    **options: Any,
) -> Wrapped:
    """Return a module over sequences that trains within a limit of memory, with the gradients of a plain loop.

    - A module that keeps its state, called once for each time step (networks of snnTorch with
      ``init_hidden=True``, of SpikingJelly, your own with ``self.mem``): ``wrapped(data)`` takes data of shape
      (T, B, ...) and returns the outputs stacked over time. The state is found by running the first steps.
    - ``torch.nn.LSTM``, ``GRU`` and ``RNN``: the same call and results; the layers' own kernel runs pieces of
      the sequence.
    - ``torch.nn.RNNCell``, ``GRUCell``, ``LSTMCell`` and modules of Norse, which take their state and return
      it: ``outputs, state = wrapped(data, state)``.

    Parameters, buffers and children are those of ``net``, under their names; ``state_dict``, ``.to()``,
    optimizers, DistributedDataParallel and Lightning work as with ``net``.

    Arguments:
        net: the module.
        memory: the memory that a call may take: bytes, text as "2 GiB", or "auto" for 70 % of what the device
            has free. With neither this nor a plan, it is "auto".
        plan: a plan in its place, for sequences of one length.
        reset: called with ``net`` before each call, as ``snntorch.utils.reset``, or a method of ``net``;
            without it, the state is carried on from call to call.
        detach: whether a call begins without the graph of the last one: truncated backpropagation through time.
        piece: for ``torch.nn.LSTM``, ``GRU`` and ``RNN``, the time steps of a piece; the quickest by itself.
        options: other arguments of ``unroll``, such as ``offload``. ``compile`` compiles the steps of modules
            that return their state, as cells; fused layers have kernels of their own.

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
    shared: dict[str, Any] = {"memory": memory, "plan": plan, **options}
    if isinstance(net, torch.nn.RNNBase) or takes_state(net):
        for name, given in (("reset", reset is not None), ("detach", detach)):
            if given:
                raise InputError(
                    "has no meaning for a module that takes its state as an argument",
                    field=name,
                    accepted="wrapped(data, state) with the state that the next call is to begin with",
                )
    if isinstance(net, torch.nn.RNNBase):
        return FusedSequence(net, piece=piece, **shared)
    if piece is not None:
        raise InputError(
            f"has no meaning for {type(net).__name__}, which takes one time step a call",
            field="piece",
            accepted="torch.nn.LSTM, GRU or RNN",
        )
    if takes_state(net):
        return ExplicitSequence(net, **shared)
    return StatefulSequence(net, reset=reset, detach=detach, **shared)


class ExplicitSequence(Wrapped):
    """A module ``net(x, state) -> (output, state)`` over sequences: (outputs, state) for (T, B, ...).

    ``torch.nn.RNNCell``, ``GRUCell`` and ``LSTMCell`` count, too, and ``Lift`` of Norse, which already takes a
    sequence.
    """

    def __init__(self, net: torch.nn.Module, **options: Any) -> None:
        super().__init__(net, **options)
        inner: Any = net.lifted_module if find_class(net, "norse", frozenset({"Lift"})) else net
        cell = TorchCell if isinstance(inner, torch.nn.RNNCellBase) else NorseCell
        # Not as a child: it is one already, under its own name.
        self.__dict__["_cell"] = cell(inner)

    @as_entry
    def forward(self, inputs: Any, state: Any = None) -> tuple[Any, Any]:
        """Return the outputs of all time steps, stacked, and the final state.

        Arguments:
            inputs: a tensor of shape (T, B, ...).
            state: the initial state; None for the one that the module makes.

        Raises InputError, also if no plan fits the limit.
        """
        return self._unroll(self._cell, inputs, state)


def takes_state(net: torch.nn.Module) -> bool:
    """Return whether a module takes its state and returns it, as far as its class tells."""
    if isinstance(net, torch.nn.RNNCellBase):
        return True
    return any(one.__module__.partition(".")[0] == "norse" for one in type(net).__mro__)
