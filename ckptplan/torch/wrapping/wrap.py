"""The entry point ``wrap``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.wrapping.explicit import ExplicitSequence, takes_state
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
        memory: the memory that a call may take: bytes, text as "2 GiB", or "auto" (the default) for most of
            what the device has free.
        plan: a plan in its place, for sequences of one length.
        reset: called with ``net`` before each call, as ``snntorch.utils.reset``, or a method of ``net``;
            without it, the state is carried on from call to call.
        detach: whether a call begins without the graph of the last one: truncated backpropagation through time.
        piece: for ``torch.nn.LSTM``, ``GRU`` and ``RNN``, the time steps of a piece; the quickest by itself.
        options: other arguments of ``unroll``. ``compile`` compiles the steps of modules that return their
            state, as cells; fused layers have kernels of their own.

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
