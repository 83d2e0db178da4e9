"""Compares numbers that were computed twice: at once on the CPU, many with one synchronisation elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ckptplan.errors import InputError
from ckptplan.torch.digests import is_close

#: A number of Python, or a scalar that stays on its device.
Number: TypeAlias = float | torch.Tensor
#: Makes an error, given the difference as a share of the scale.
MakeError: TypeAlias = Callable[[float], InputError]
#: Comparisons that share a synchronisation.
_AT_ONCE = 64


@dataclass(frozen=True)
class _Waiting:
    numbers: tuple[Number, Number, Number]
    rounding: float
    error: MakeError


class Comparisons:
    """Compares numbers, now or later; raises InputError for a difference beyond rounding.

    ``waits`` makes numbers stay on their device, and comparisons wait for others.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        self._waiting: list[_Waiting] = []

    def fetch(self, scalar: torch.Tensor) -> Number:
        """Return a scalar as a number, without a synchronisation if comparisons wait."""
        return scalar.detach() if self.waits else scalar.item()

    def compare(
        self,
        first: Number,
        again: Number,
        *,
        scale: Callable[[], Number],
        rounding: float,
        error: MakeError,
    ) -> None:
        """Compare two numbers, which rounding may change by a share of ``scale``."""
        if isinstance(first, torch.Tensor) or isinstance(again, torch.Tensor):
            self._waiting.append(_Waiting((first, again, scale()), rounding, error))
            if len(self._waiting) == _AT_ONCE:
                self.settle()
        elif first != again:
            _check(first, again, float(scale()), rounding, error)

    def settle(self) -> None:
        """Make the comparisons that wait."""
        waiting, self._waiting = self._waiting, []
        fetched = _fetch_all([number for one in waiting for number in one.numbers])
        for place, one in enumerate(waiting):
            first, again, scale = fetched[3 * place : 3 * place + 3]
            _check(first, again, scale, one.rounding, one.error)


def _check(first: float, again: float, scale: float, rounding: float, error: MakeError) -> None:
    if not is_close(first, again, rounding * scale):
        # Integers may be too large for a float.
        difference = abs(first - again)
        raise error(float(difference) / scale if scale and math.isfinite(difference) else math.inf)


def _fetch_all(numbers: Sequence[Number]) -> list[float]:
    """Return numbers of several devices, with a synchronisation for each device."""
    found = [0.0 if isinstance(one, torch.Tensor) else one for one in numbers]
    tensors = {place: one for place, one in enumerate(numbers) if isinstance(one, torch.Tensor)}
    for device in {one.device for one in tensors.values()}:
        places = [place for place, one in tensors.items() if one.device == device]
        values = torch.stack([tensors[place].double() for place in places]).tolist()
        for place, value in zip(places, values, strict=True):
            found[place] = value
    return found
