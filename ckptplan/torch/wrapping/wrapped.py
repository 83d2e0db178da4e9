"""The base of wrapped modules: it looks like the module inside, and runs whole sequences under a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

import torch

from ckptplan.errors import check_arguments
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.budget import read_limit, settle_plan
from ckptplan.torch.call import Call, check_plan, read_options
from ckptplan.torch.run import unroll_call

#: Arguments of ``unroll`` that say how a plan is executed.
_OPTIONS = {
    *("parameters", "offload", "remote_dir", "replay_randomness", "verify"),
    *("schedule", "observer", "strict", "compile"),
}


class Wrapped(torch.nn.Module):
    """A module over sequences that has the parameters, buffers and children of the module ``net`` inside.

    They are the same objects under the same names: a ``state_dict`` of one is one of the other, optimizers,
    ``.to()`` and functions that look for neurons among the children find what they would find in ``net``. All
    other attributes are those of ``net``, too.

    Arguments:
        net: the module.
        memory: the memory that a call may take, as for ``unroll``; "auto" if there is no plan either.
        plan: a plan in place of a limit of memory, for sequences of one length.
        options: other arguments of ``unroll``.
    """

    net: Any
    #: What the last call executed.
    plan: Plan | Schedule | None
    #: Copies of the state that are alive besides those of the plan.
    _held_states = 0
    #: Arguments of ``wrap`` for modules of this kind.
    _accepted = frozenset({"memory", "plan", *_OPTIONS})

    def __init__(
        self,
        net: torch.nn.Module,
        *,
        memory: int | str | None = None,
        plan: Plan | Schedule | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if memory is not None and memory != "auto":
            read_limit(memory, torch.device("cpu"))
        if plan is not None:
            check_plan(plan)
        check_arguments(options, self._accepted, of="wrap")
        self._memory = "auto" if memory is None and plan is None else memory
        self._given, self._options = plan, read_options(plan, self._memory, **options)
        self.plan = plan
        self._parameters, self._buffers, self._modules = net._parameters, net._buffers, net._modules
        self._non_persistent_buffers_set = net._non_persistent_buffers_set
        # Not as a child, which would put its name before all others.
        object.__setattr__(self, "net", net)

    def _unroll(self, cell: Any, inputs: Any, state: Any, **more: Any) -> tuple[Any, Any]:
        """Return the outputs and the final state of a sequence; options given here win."""
        call = self._settle_plan(cell, inputs, state, **more)
        found = unroll_call(call)
        self._note(call.told)
        return found

    def _settle_plan(self, cell: Any, inputs: Any, state: Any, **more: Any) -> Call:
        """Return the call that executes a plan for a sequence."""
        fields = {**self._options, **more, "cell": cell, "inputs": inputs, "state": state}
        call = settle_plan(self._given, self._memory, held_states=self._held_states, **fields)
        self._note(call.told)
        return call

    def _note(self, plan: Plan | Schedule) -> None:
        """Take note of what is executed; without gradients, nothing needs a plan."""
        if torch.is_grad_enabled():
            self.plan = plan

    def __getattr__(self, name: str) -> Any:
        net = self.__dict__.get("net")
        if net is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(net, name)

    def __setattr__(self, name: str, value: Any) -> None:
        net = self.__dict__.get("net")
        if net is None or name in self.__dict__ or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(net, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self.net[key]

    def __len__(self) -> int:
        return len(self.net)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.net)

    def __bool__(self) -> bool:
        # A module without a length is true.
        return True

    @property
    def training(self) -> bool:
        """The mode of the module inside."""
        net = self.__dict__.get("net")
        return True if net is None else bool(net.training)

    @training.setter
    def training(self, mode: bool) -> None:
        net = self.__dict__.get("net")
        if net is not None:
            net.training = mode

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the module inside, too."""
        self.net.train(mode)
        return super().train(mode)

    def state_dict(self, *args: Any, **options: Any) -> Any:
        """Return the one of the module inside."""
        return self.net.state_dict(*args, **options)

    def _load_from_state_dict(self, *args: Any) -> None:
        self.net._load_from_state_dict(*args)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        # Some modules keep more than parameters and buffers in step, as the flat weights of an LSTM.
        self.net._apply(fn, recurse)
        return self

    def extra_repr(self) -> str:
        """Return the limit, or the plan."""
        return f"memory={self._memory!r}" if self._memory is not None else "plan=..."
