"""Checks that steps that run again do what they did the first time.

A digest is kept of each state that is reached again, and a sum over the loss terms or outputs that are computed
again. On a CPU they are compared at once. Elsewhere they stay on the device, and comparisons share
synchronisations.

The number of a leaf is its product with a fixed random direction, so a difference in any element and another
order of the elements show. NaN and infinities equal themselves. Sums are taken over runs of steps that begin
and end at the same steps, and may be cut elsewhere the second time. Their scale is the largest of the sizes of
their terms, the mean of all terms and, on a CPU, how far a term moves if each element of the output changes by
its own size; ``loss`` is called once more for that, in doubt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree

from ckptplan.errors import InputError
from ckptplan.torch.digests import (
    Projections,
    can_project,
    find_rounding,
    is_close,
    make_finite,
    measure_norm,
)
from ckptplan.torch.trees import Leaves, Structure, are_equal_constants, flatten, is_differentiable

#: A number of Python, or a scalar that stays on its device.
Number: TypeAlias = float | torch.Tensor
#: Makes an error, given the difference as a share of the scale.
MakeError: TypeAlias = Callable[[float], InputError]
#: Comparisons that share a synchronisation, and scalars on a device that are moved into one tensor at a time.
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


#: Makes an error for steps start..stop-1, given the difference as a share of their scale.
MakeStepsError: TypeAlias = Callable[[int, int, float], InputError]
#: Returns the size of what the number of a step was computed from.
MeasureScale: TypeAlias = Callable[[], Number]


class _Sum:
    """The sum of the numbers of steps start..stop-1, and that of their sizes; in the wider type of each."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self._waiting: list[torch.Tensor] = []
        self._total: torch.Tensor | None = None

    def add(self, start: int, stop: int, numbers: torch.Tensor) -> None:
        """Add the numbers of further steps."""
        self.start, self.stop = min(start, self.start), max(stop, self.stop)
        self._waiting.append(_copy_alone(numbers))
        if len(self._waiting) == _AT_ONCE:
            self.total()

    def total(self) -> torch.Tensor:
        """Return the sum and that of the sizes, as a tensor of two elements."""
        if self._waiting:
            numbers = torch.hstack(self._waiting)
            # Integers wrap around in the same way, however they are cut.
            wide = make_finite(numbers.double()) if is_differentiable(numbers) else numbers.long()
            sums = torch.stack((wide.sum(), wide.abs().sum()))
            self._total, self._waiting = sums if self._total is None else self._total + sums, []
        assert self._total is not None  # noqa: S101 - it began with numbers
        return self._total


def _copy_alone(numbers: torch.Tensor) -> torch.Tensor:
    """Return numbers that keep nothing else alive, as a view of an output would."""
    numbers = numbers.detach()
    return numbers.clone() if numbers.untyped_storage().nbytes() > numbers.nbytes else numbers


class RunSums:
    """A number of each step, summed over runs of steps that may be cut otherwise when they run again.

    Each step is recorded once in a run that runs again, from the last to the first. So what was recorded joins,
    until it begins and ends where runs did the first time. What rounding may change is a share of the sizes of
    the numbers, at least of their usual size.
    """

    def __init__(self, comparisons: Comparisons, *, rounding: float, error: MakeStepsError) -> None:
        self._comparisons, self._rounding, self._error = comparisons, rounding, error
        #: By the first step of each run, its end and its sums; all of them, and their steps.
        self._first: dict[int, tuple[int, torch.Tensor]] = {}
        self._ends: set[int] = set()
        self._all: torch.Tensor | None = None
        self._steps = 0
        #: What ran for the first time, and again, in the present action; what ran again before, and its sums.
        self._kept: _Sum | None = None
        self._again: _Sum | None = None
        self._earlier: tuple[int, int, torch.Tensor] | None = None
        self._scale: MeasureScale | None = None

    def keep(self, start: int, stop: int, numbers: torch.Tensor) -> None:
        """Keep the numbers of steps that run for the first time, or a number for all of them."""
        self._kept = self._kept or _Sum(start, stop)
        self._kept.add(start, stop, numbers)

    def check(self, start: int, stop: int, numbers: torch.Tensor, *, scale: MeasureScale | None = None) -> None:
        """Take the numbers of steps that run again.

        ``scale`` is that of one of them. It is asked only in doubt, and never where comparisons wait.
        """
        self._again = self._again or _Sum(start, stop)
        self._again.add(start, stop, numbers)
        self._scale = scale

    def end_action(self) -> None:
        """Join what ran in an action to what follows it, and compare if possible. Raises InputError."""
        kept, self._kept = self._kept, None
        if kept is not None:
            total = kept.total()
            self._first[kept.start] = kept.stop, total
            self._ends.add(kept.stop)
            self._all = total if self._all is None else self._all + total
            self._steps += kept.stop - kept.start
        found, self._again = self._again, None
        if found is None:
            return
        start, stop, again = found.start, found.stop, found.total()
        if self._earlier is not None and self._earlier[0] == stop:
            stop, again = self._earlier[1], again + self._earlier[2]
        self._earlier = start, stop, again
        if start in self._first and stop in self._ends:
            self._earlier = None
            self._compare(start, stop, again)
        self._scale = None

    def _compare(self, start: int, stop: int, again: torch.Tensor) -> None:
        sums: list[torch.Tensor] = []
        step = start
        while step < stop and step in self._first:
            step, total = self._first.pop(step)
            self._ends.discard(step)
            sums.append(total)
        if step != stop:
            return
        first = sum(sums[1:], sums[0])
        comparisons, ask, count = self._comparisons, self._scale, stop - start
        if not comparisons.waits and torch.equal(first[0], again[0]):
            return
        assert self._all is not None  # noqa: S101 - something was kept
        size: Number = comparisons.fetch(
            torch.maximum(first[1].double(), self._all[1].double() * count / self._steps)
        )

        def measure() -> Number:
            if ask is None or comparisons.waits or abs(float(difference)) <= self._rounding * float(size):
                return size
            return max(float(size), count * float(ask()))

        difference = comparisons.fetch(again[0] - first[0])
        comparisons.compare(
            0.0, difference, scale=measure, rounding=self._rounding, error=partial(self._error, start, stop)
        )


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
#: Of a state: a number of each leaf, None if its elements cannot be added up, and how they nest.
_Digest: TypeAlias = tuple[list[Number | None], Structure]


class Verifier:
    """Compares states, outputs and loss terms of steps that run again with what they were.

    Raises InputError for a difference beyond rounding, at once or in ``settle``.

    Arguments:
        dtypes: types in which steps may compute; the least precise one decides what rounding may cause.
        waits: whether numbers stay on their device, and comparisons wait for others.
    """

    def __init__(self, *, dtypes: Iterable[torch.dtype] = (), waits: bool = False) -> None:
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

    def make_loss_sums(self, term: torch.Tensor, output: Leaves, *, cuts: float = 1) -> RunSums:
        """Return an empty collection of loss terms, for terms and outputs like these.

        ``cuts`` is how many times the rounding a term may have that is cut otherwise.
        """
        return self._make_sums((term, *output), _make_loss_error, cuts)

    def make_output_sums(self, leaf: torch.Tensor) -> RunSums | None:
        """Return an empty collection of the projections of outputs like a leaf, None if it has none."""
        return self._make_sums((leaf,), _make_output_error) if can_project(leaf) else None

    def _make_sums(self, leaves: Leaves, error: MakeStepsError, cuts: float = 1) -> RunSums:
        rounding = cuts * self._find_rounding(leaves) if is_differentiable(leaves[0]) else 0.0
        return RunSums(self._comparisons, rounding=rounding, error=error)

    def _find_rounding(self, leaves: Leaves) -> float:
        return max(self._rounding, find_rounding(leaf.dtype for leaf in leaves))

    def project(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return the projection of an output that can be projected."""
        scalar = self._projections.project(leaf)
        assert scalar is not None  # noqa: S101 - make_output_sums asked whether it can be
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
