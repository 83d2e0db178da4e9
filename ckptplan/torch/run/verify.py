"""Checks that steps that run again reach the states, outputs and losses that they reached the first time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ckptplan.errors import InputError
from ckptplan.torch.run.outputs import RUN_STEPS
from ckptplan.torch.state.digests import digest, find_rounding, measure_rows, project, project_rows
from ckptplan.torch.state.lifted import Checkpoint
from ckptplan.torch.state.nests import are_alike, is_differentiable

#: How many steps have room for their numbers at first.
_FIRST_NUMBERS = 1024
#: The tolerance of sums, in rounding errors of one number: sums over other runs round differently.
_SUM_ROUNDING = 10
#: What an error says about a difference between two runs of the same steps.
CAUSE = (
    "The steps depend on something outside of attributes, variables and containers, such as a file, a clock or "
    "an iterator, or on whether gradients are enabled"
)
REMEDY = (
    "a cell that keeps what it needs from step to step in its state or in attributes, or a plan that runs "
    "each step once (base); verify=False if only rounding differs"
)


class Verifier:
    """Keeps digests of states, and one number of each step, and compares them when steps run again.

    Arguments:
        dtypes: the types in which steps may compute. The least precise one sets the tolerance.
        steps: how many steps there may be.
    """

    def __init__(self, dtypes: Iterable[torch.dtype], steps: int) -> None:
        self._rounding = find_rounding(dtypes)
        #: By the number of a state: a digest of each tensor, and a description of everything else.
        self._states: dict[int, tuple[list[tuple[float, float]], Any]] = {}
        #: A number of the losses or the outputs of each step, and room for more steps, at first for so many.
        self._numbers = torch.zeros(0, dtype=torch.float64)
        self._first_room = min(steps, _FIRST_NUMBERS)
        #: How many steps have a number, and the sum of the sizes of their losses or outputs.
        self._count, self._scale = 0, 0.0

    def allow(self, dtypes: Iterable[torch.dtype]) -> None:
        """Allow for the rounding of other types, too."""
        self._rounding = max(self._rounding, find_rounding(dtypes))

    def reach(self, number: int, state: Checkpoint) -> None:
        """Compare state ``number`` with its digest, or keep its digest if this is the first time."""
        # Plain values in places are not compared: they may be clock times that no step reads.
        description = state.nests[0].describe()
        if number not in self._states:
            self._states[number] = [digest(leaf) for leaf in state.leaves], description
            return
        first_digests, first_description = self._states[number]
        if len(first_digests) != len(state.leaves):
            raise _refuse(number, f"{len(state.leaves)} tensors instead of {len(first_digests)}")
        for (old, scale), (leaf, part) in zip(first_digests, state.pair(), strict=True):
            new = project(leaf)
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

    def compare_terms(self, start: int, stop: int, terms: Sequence[Tensor]) -> None:
        """Compare the losses or the outputs of steps with those of their first run, or keep a number of each.

        Arguments:
            start, stop: the steps.
            terms: the tensors, as many for each step; those of the first step come first.
        """
        count = len(terms) // (stop - start)
        again: Any = 0.0
        is_new = start >= self._count
        for place in range(count):
            again = again + _reduce_terms(terms[place::count], project_rows)
            if is_new:
                self._scale += float(_reduce_terms(terms[place::count], measure_rows).abs().sum())
        if is_new:
            if not len(self._numbers):
                self._numbers = torch.zeros(self._first_room, dtype=torch.float64)
            while stop > len(self._numbers):
                room = max(len(self._numbers), self._first_room)
                self._numbers = torch.cat([self._numbers, self._numbers.new_zeros(room)])
            self._numbers[start:stop], self._count = again, stop
            return
        first = self._numbers[start:stop]
        if not count or torch.equal(first, again):
            return
        scale = torch.maximum(first.abs(), again.abs()).clamp(min=self._scale / self._count)
        is_close = (first - again).abs() <= _SUM_ROUNDING * self._rounding * scale
        is_wrong = ~(is_close | (first.isnan() & again.isnan()) | (first == again))
        if bool(is_wrong.any()):
            step = int(is_wrong.nonzero()[0])
            share = float((first - again).abs()[step] / scale[step])
            raise InputError(
                f"the loss or the output of step {start + step} differs by {share:.1g} when the step runs "
                f"again. {CAUSE}",
                field="cell or loss",
                accepted=REMEDY,
            )

    def compare_total(self, first: float, again: float, scale: float) -> None:
        """Compare the sum of all recorded losses with that of the sweep; ``scale`` is a size of the losses."""
        scale = max(scale, self._scale, abs(first))
        if math.isfinite(first) and abs(first - again) > _SUM_ROUNDING * self._rounding * scale:
            raise InputError(
                f"the sum of the losses is {again:.6g} when they are computed again, and was {first:.6g}. "
                f"{CAUSE}; or the value of a chunk_loss depends on how the sequence is cut",
                field="loss",
                accepted=REMEDY,
            )


def _reduce_terms(terms: Sequence[Tensor], reduce_rows: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a number of each tensor: its value, or what ``reduce_rows`` returns for it.

    Only a few tensors are copied at a time.
    """
    if terms[0].numel() == 1:
        return torch.stack([term.detach().reshape(()) for term in terms]).double().cpu()
    has_one_shape = len({term.shape for term in terms}) == 1
    size = RUN_STEPS if has_one_shape else 1
    groups = [terms[first : first + size] for first in range(0, len(terms), size)]
    return torch.cat([reduce_rows(torch.stack([term.detach() for term in group])) for group in groups])


def _refuse(number: int, difference: str) -> InputError:
    return InputError(
        f"the state after step {number - 1} differs when its steps run again ({difference}). {CAUSE}",
        field="cell",
        accepted=REMEDY,
    )
