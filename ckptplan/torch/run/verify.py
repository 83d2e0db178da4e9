"""Checks that steps that run again reach the states, outputs and losses that they reached the first time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ckptplan.errors import InputError
from ckptplan.torch.state.digests import digest, find_rounding
from ckptplan.torch.state.lifted import Checkpoint
from ckptplan.torch.state.nests import are_alike, is_differentiable

#: The tolerance of sums, in rounding errors of one number: sums over other runs round differently.
_SUM_ROUNDING = 10
_CAUSE = (
    "It depends on something outside of attributes, variables and containers, such as a file, a clock or an "
    "iterator, "
    "or on whether gradients are enabled"
)
_REMEDY = (
    "a cell that keeps what it needs from step to step in its state or in attributes, or a plan that runs "
    "each step "
    "once (base); verify=False if only rounding differs"
)


class Verifier:
    """Keeps a digest of each state, and compares it when steps reach the state again.

    Arguments:
        dtypes: the types in which steps may compute. The least precise one sets the tolerance.
    """

    def __init__(self, dtypes: Iterable[torch.dtype]) -> None:
        self._rounding = find_rounding(dtypes)
        #: By the number of a state: a digest of each tensor, and a description of everything else.
        self._states: dict[int, tuple[list[tuple[float, float]], Any]] = {}

    def allow(self, dtypes: Iterable[torch.dtype]) -> None:
        """Allow for the rounding of other types, too."""
        self._rounding = max(self._rounding, find_rounding(dtypes))

    def reach(self, number: int, state: Checkpoint) -> None:
        """Compare state ``number`` with its digest, or keep its digest if this is the first time."""
        digests = [digest(leaf) for leaf in state.leaves]
        # Plain values in places are not compared: they may be clock times that no step reads.
        description = state.nests[0].describe()
        if number not in self._states:
            self._states[number] = digests, description
            return
        first_digests, first_description = self._states[number]
        if len(first_digests) != len(digests):
            raise _refuse(number, f"{len(digests)} tensors instead of {len(first_digests)}")
        for (old, scale), (new, _), (leaf, part) in zip(first_digests, digests, state.pair(), strict=True):
            rounding = max(self._rounding, find_rounding((leaf.dtype,))) if is_differentiable(leaf) else 0.0
            if not (old == new or abs(old - new) <= rounding * scale):
                share = f", by about {abs(old - new) / scale:.1g} of its norm" if scale else ""
                raise _refuse(number, f"{part.name}{share}")
        if not are_alike(first_description, description, self._rounding):
            raise _refuse(number, "its values that are no tensors")

    def forget(self, start: int, stop: int) -> None:
        """Forget the states after steps that were reversed, which do not run again."""
        for number in range(start + 1, stop + 1):
            self._states.pop(number, None)

    def compare_numbers(self, start: int, first: Tensor, again: Tensor, mean_size: float) -> None:
        """Compare the numbers of steps with their first run; ``mean_size`` is the mean of their sizes."""
        if torch.equal(first, again):
            return
        scale = torch.maximum(first.abs(), again.abs()).clamp(min=mean_size)
        is_close = (first - again).abs() <= _SUM_ROUNDING * self._rounding * scale
        is_wrong = ~(is_close | (first.isnan() & again.isnan()) | (first == again))
        if bool(is_wrong.any()):
            step = int(is_wrong.nonzero()[0])
            share = float((first - again).abs()[step] / scale[step])
            raise InputError(
                f"the loss or the output of step {start + step} differs by {share:.1g} when the step runs "
                "again. "
                f"{_CAUSE}",
                field="cell or loss",
                accepted=_REMEDY,
            )

    def compare_total(self, first: float, again: float, scale: float) -> None:
        """Compare the sum of all recorded losses with the sum of the sweep."""
        if math.isfinite(first) and abs(first - again) > _SUM_ROUNDING * self._rounding * max(
            scale, abs(first)
        ):
            raise InputError(
                f"the sum of the losses is {again:.6g} when they are computed again, and was {first:.6g}. "
                f"{_CAUSE}; "
                "or the value of a chunk_loss depends on how the sequence is cut",
                field="loss",
                accepted=_REMEDY,
            )


def _refuse(number: int, difference: str) -> InputError:
    return InputError(
        f"the state after step {number - 1} differs when its steps run again ({difference}). {_CAUSE}",
        field="cell",
        accepted=_REMEDY,
    )
