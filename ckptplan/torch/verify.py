"""Checks that steps that run again do what they did the first time.

A digest is kept of each state that is reached again, and a number of each loss term or output that is computed
again. On a CPU they are compared at once. Elsewhere they stay on the device, and comparisons share
synchronisations.

The number of a leaf is its product with a fixed random direction, so a difference in any element and another
order of the elements show. NaN and infinities equal themselves. Loss terms are compared step by step for
``loss``, and as sums over runs of steps that begin and end at the same steps for ``chunk_loss``, which may be
cut elsewhere the second time. The scale of a loss term is the largest of the term, the mean of all terms and,
on a CPU, how far it moves if each element of the output changes by its own size; ``loss`` is called once more
for a step in doubt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree

from ckptplan.errors import InputError
from ckptplan.torch.constants import are_equal_constants
from ckptplan.torch.digests import Projections, can_project, find_rounding, measure_norm
from ckptplan.torch.repeats import Comparisons, MakeStepsError, Number, RunSums, StepNumbers, make_step_numbers
from ckptplan.torch.trees import Leaves, Structure, flatten, is_differentiable

_CAUSES = (
    "Something else than the state, the input and random generators decides what they return: an attribute, a "
    "buffer, a list or a global that steps change, a random generator that is not known, "
    "torch.is_grad_enabled(), inputs made differently when they were asked for again, or a change of a weight "
    "since the forward pass that PyTorch does not count (by tensor.data)"
)
_ACCEPTED = (
    "a cell that keeps in its state all that goes from step to step; if only rounding differs (kernels that "
    "add in another order, compiled spiking cells), verify=False"
)
#: A sum over steps that is cut otherwise is added up in another order.
_CUT_OTHERWISE = 10


#: Of a state: a number of each leaf, None if its elements cannot be added up, and how they nest.
_Digest: TypeAlias = tuple[list[Number | None], Structure]


class Verifier:
    """Compares states, outputs and loss terms of steps that run again with what they were.

    Raises InputError for a difference beyond rounding, at once or in ``settle``.

    Arguments:
        steps: T.
        dtypes: types in which steps may compute; the least precise one decides what rounding may cause.
        waits: whether numbers stay on their device, and comparisons wait for others.
    """

    def __init__(self, *, steps: int, dtypes: Iterable[torch.dtype] = (), waits: bool = False) -> None:
        self.steps = steps
        self._rounding = find_rounding(dtypes)
        self._comparisons = Comparisons(waits=waits)
        self._projections = Projections(finite=waits)
        self._states: dict[int, _Digest] = {}
        self._waits = waits

    # States

    def reach(self, number: int, state: Any, *, again_later: bool) -> None:
        """Compare a state with what it was when it was reached before, or keep its digest until then."""
        before = self._states.get(number)
        if before is None and not again_later:
            return
        leaves, structure = flatten(state)
        numbers = [self._measure(leaf) for leaf in leaves]
        if before is None:
            self._states[number] = numbers, structure
        elif self._waits or before[0] != numbers or before[1].plain or structure.plain:
            self._compare_states(number, before, leaves, numbers, structure)

    def forget(self, start: int, stop: int) -> None:
        """Forget the states after steps start..stop-1, which are reversed and do not run again."""
        for number in range(start + 1, stop + 1):
            self._states.pop(number, None)

    def _measure(self, leaf: torch.Tensor) -> Number | None:
        """Return the digest of a leaf, None if its elements cannot be added up."""
        scalar = self._projections.project(leaf)
        if scalar is None or self._waits:
            return scalar
        number = scalar.item()
        return number if math.isfinite(number) else self._projections.project_finite(leaf).item()

    def _compare_states(
        self, number: int, before: _Digest, leaves: Leaves, numbers: list[Number | None], structure: Structure
    ) -> None:
        digest, nest = before
        if len(digest) != len(leaves) or not are_equal_constants(nest.plain, structure.plain, self._rounding):
            raise _make_state_error(number, structure, None, math.inf)
        for place, (first, again, leaf) in enumerate(zip(digest, numbers, leaves, strict=True)):
            if first is not None and again is not None:
                self._comparisons.compare(
                    first,
                    again,
                    scale=partial(self.measure_norm, leaf),
                    rounding=self._find_rounding((leaf,)) if is_differentiable(leaf) else 0.0,
                    error=partial(_make_state_error, number, structure, place),
                )

    def measure_norm(self, leaf: torch.Tensor) -> Number:
        """Return the norm of a leaf, of which rounding may change a share."""
        return self._comparisons.fetch(measure_norm(leaf))

    # Loss terms and outputs

    def make_loss_numbers(self, terms: torch.Tensor, output: Leaves) -> StepNumbers:
        """Return an empty collection of the loss terms of steps, for terms and outputs like these."""
        return self._make_numbers(terms, (terms, *output), _make_loss_error)

    def make_loss_sums(self, term: torch.Tensor, output: Leaves) -> RunSums:
        """Return an empty collection of losses of runs of steps, for terms and outputs like these."""
        rounding = self._find_rounding((term, *output))
        return RunSums(self._comparisons, rounding=_CUT_OTHERWISE * rounding, error=_make_loss_error)

    def make_output_numbers(self, leaf: torch.Tensor) -> StepNumbers | None:
        """Return an empty collection of the projections of outputs like a leaf, None if it has none."""
        return self._make_numbers(leaf, (leaf,), _make_output_error) if can_project(leaf) else None

    def _make_numbers(self, like: torch.Tensor, leaves: Leaves, error: MakeStepsError) -> StepNumbers:
        return make_step_numbers(
            like,
            steps=self.steps,
            comparisons=self._comparisons,
            rounding=self._find_rounding(leaves) if is_differentiable(like) else 0.0,
            error=error,
        )

    def _find_rounding(self, leaves: Leaves) -> float:
        return max(self._rounding, find_rounding(leaf.dtype for leaf in leaves))

    def project(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return the projection of an output that can be projected."""
        scalar = self._projections.project(leaf)
        assert scalar is not None  # noqa: S101 - make_output_numbers asked whether it can be
        if not self._waits and not math.isfinite(scalar.item()):
            return self._projections.project_finite(leaf)
        return scalar

    def project_steps(self, stacked: torch.Tensor) -> torch.Tensor:
        """Return the projections of outputs of several steps, time first."""
        return self._projections.project_steps(stacked)

    def settle(self) -> None:
        """Make the comparisons that wait."""
        self._comparisons.settle()


def _make_state_error(number: int, structure: Structure, place: int | None, difference: float) -> InputError:
    where = "its values that are not tensors" if place is None else f"leaf {_name_leaf(structure, place)}"
    return InputError(
        f"the state after step {number - 1} ({where}) differs{_tell(difference)} when its steps run again. "
        f"{_CAUSES}",
        field="cell",
        accepted=_ACCEPTED,
    )


def _name_leaf(structure: Structure, place: int) -> str:
    """Return where a leaf is, as Python would write it."""
    if structure.single:
        return "state"
    tree = structure.fill([torch.tensor(number) for number in range(sum(structure.is_tensor))])
    for path, leaf in _pytree.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, torch.Tensor) and int(leaf) == place:
            return f"state{_pytree.keystr(path)}"
    return str(place)


def _make_output_error(start: int, stop: int, difference: float) -> InputError:
    return InputError(
        f"the output of {_name_steps(start, stop)} differs{_tell(difference)} when it runs again. {_CAUSES}",
        field="cell",
        accepted=_ACCEPTED,
    )


def _make_loss_error(start: int, stop: int, difference: float) -> InputError:
    return InputError(
        f"the loss of {_name_steps(start, stop)} differs{_tell(difference)} when it is computed again. It, "
        "or the output that it is computed from, depends on something that calls change: what it saw before, "
        "an attribute, a list, a random generator that is not known; or a chunk_loss depends on how the "
        "sequence is cut",
        field="loss",
        accepted="a loss of its arguments alone; what it needs of other steps goes through the state; if only "
        "rounding differs, verify=False",
    )


def _tell(difference: float) -> str:
    return f" by {difference:.1g} of its size" if math.isfinite(difference) else ""


def _name_steps(start: int, stop: int) -> str:
    return f"step {start}" if stop == start + 1 else f"steps {start} to {stop - 1}"
