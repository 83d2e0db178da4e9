"""Watches the shapes of calls, and warns once if time seems to be on another axis than the first."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ckptplan.torch.entry import count_frames

#: Calls in a row after which a warning is given.
_CALLS = 4


class AxisWatch:
    """The shapes of the latest calls of one wrapped module."""

    def __init__(self) -> None:
        #: How many calls in a row had one time step and, except for the first, carried the state on.
        self._single, self._has_warned = 0, False
        self._sizes: deque[tuple[int, int]] = deque(maxlen=_CALLS)

    def watch(
        self, inputs: Sequence[Tensor], carries: Callable[[], bool], *, batch_first: bool = False
    ) -> None:
        """Store the shape of a call with gradients, and warn once if shapes repeat a pattern of wrong axes.

        Arguments:
            inputs: the inputs, of which only the first is checked.
            carries: returns whether the call begins with a state that leads into the graph of an earlier call.
            batch_first: whether the second axis is time.
        """
        if self._has_warned or not inputs or inputs[0].dim() < 2 or not torch.is_grad_enabled():
            return
        first, second = inputs[0].shape[:2]
        if (second if batch_first else first) != 1:
            self._single = 0
        elif not carries():
            self._single = 1
        elif self._single:
            # A learned first state has a graph in the first call, too.
            self._single += 1
        self._sizes.append((first, second))
        if self._single >= _CALLS:
            self._warn(
                f"the last {_CALLS} calls had one time step each, and carried the state on. Is there a loop "
                "over time around the call? A wrapped module takes all time steps in one call: (T, B, ...)"
            )
        elif not batch_first and len(self._sizes) == _CALLS and self._looks_batch_first():
            self._warn(
                f"the first axis of the inputs had the size {first} in {_CALLS} calls, and the second one was "
                "longer and had another size each time, as if the first axis were the batch. Time is the first "
                "axis: pass x.transpose(0, 1), or wrap torch.nn layers that have batch_first=True"
            )

    def _looks_batch_first(self) -> bool:
        firsts, seconds = ({sizes[axis] for sizes in self._sizes} for axis in (0, 1))
        return len(firsts) == 1 and len(seconds) == _CALLS and min(seconds) > max(firsts)

    def _warn(self, message: str) -> None:
        self._has_warned = True
        warnings.warn(message, UserWarning, stacklevel=count_frames())


def lead_into_graphs(tensors: Sequence[Tensor]) -> bool:
    """Return whether some tensors were computed with gradients, as in an earlier call."""
    return any(tensor.grad_fn is not None for tensor in tensors)
