"""Checks that steps that run again do what they did the first time.

A digest is kept of each state that is reached again, and a number of each loss term or output that is computed
again. On a CPU they are compared at once. Elsewhere they stay on the device, and comparisons share
synchronisations.

The number of a leaf is its product with a fixed random direction, so a difference in any element and another
order of the elements show. NaN and infinities equal themselves. Numbers are compared in runs of steps that
begin and end at the same steps, and may be cut elsewhere the second time: each by itself, or their sum where
there is one for several steps, as of ``chunk_loss``. Their scale is the largest of their size, the mean of all
and, on a CPU, how far a term moves if each element of the output changes by its own size; ``loss`` is called
once more for that, for a step in doubt.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from ckptplan.errors import InputError
from ckptplan.torch.digests import (
    can_project,
    find_rounding,
    make_finite,
    measure_norm,
    project,
)
from ckptplan.torch.trees import (
    Leaves,
    Structure,
    are_equal_constants,
    compact,
    find_place,
    flatten,
    is_differentiable,
)

#: A number of Python, or a scalar that stays on its device.
Number: TypeAlias = float | torch.Tensor
#: Makes an error, given the difference as a share of the scale.
MakeError: TypeAlias = Callable[[float], InputError]
#: Comparisons that share a synchronisation, and scalars on a device that are moved into one tensor at a time.
_AT_ONCE = 64


class Comparisons:
    """Refuses differences beyond rounding, now or later.

    ``waits`` makes numbers stay on their device, and comparisons wait for others.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        self._waiting: list[tuple[torch.Tensor, float, MakeError]] = []

    def fetch(self, scalar: torch.Tensor) -> Number:
        """Return a scalar as a number, without a synchronisation if comparisons wait."""
        return scalar.detach() if self.waits else scalar.item()

    def compare(self, share: Number, *, rounding: float, error: MakeError) -> None:
        """Raise an error for a difference, as a share of its scale, that is more than rounding may cause."""
        if isinstance(share, torch.Tensor):
            self._waiting.append((share, rounding, error))
            if len(self._waiting) == _AT_ONCE:
                self.settle()
        elif not share <= rounding:
            raise error(share)

    def settle(self) -> None:
        """Make the comparisons that wait, with a synchronisation for each device."""
        waiting, self._waiting = self._waiting, []
        for device in {share.device for share, _, _ in waiting}:
            some = [one for one in waiting if one[0].device == device]
            shares = torch.stack([share.double() for share, _, _ in some]).tolist()
            for share, (_, rounding, error) in zip(shares, some, strict=True):
                self.compare(share, rounding=rounding, error=error)


def _find_share(first: Number, again: Number, scale: Number) -> Number:
    """Return the difference of two numbers as a share of a scale; large integers are told apart exactly."""
    if isinstance(first, torch.Tensor) and isinstance(again, torch.Tensor):
        return torch.where(first == again, 0.0, (first - again).double().abs() / scale)
    # Integers may be too large for a float.
    difference: Any = abs(first - again)
    return float(difference) / float(scale) if scale and math.isfinite(difference) else math.inf


#: Numbers of steps that are compared at a time.
_PART = 256
#: What the numbers of a step take: that of its first run, and that of the present one.
NUMBER_BYTES = 16
#: Makes an error for steps start..stop-1, given the difference as a share of their scale.
MakeStepsError: TypeAlias = Callable[[int, int, float], InputError]
#: Returns the size of what the number of a step was computed from.
MeasureScale: TypeAlias = Callable[[], Number]


class _Joined:
    """The numbers of steps that follow each other, in the wider type of each; given in pieces, in any order."""

    def __init__(self) -> None:
        #: The first step of each piece, the step after its last one, and its numbers.
        self._pieces: list[tuple[int, int, torch.Tensor]] = []

    def add(self, start: int, stop: int, numbers: torch.Tensor) -> None:
        """Add the numbers of further steps."""
        # A view of an output would keep all of it alive.
        self._pieces.append((start, stop, compact(numbers.detach())))
        if len(self._pieces) > _AT_ONCE:
            self._pieces = [self.join()]

    def join(self) -> tuple[int, int, torch.Tensor]:
        """Return all as one piece, in the order of steps."""
        pieces = sorted(self._pieces, key=itemgetter(0))
        numbers = torch.hstack([one for _, _, one in pieces])
        # Integers wrap around in the same way, however they are cut.
        wide = make_finite(numbers.double()) if is_differentiable(numbers) else numbers.long()
        return pieces[0][0], pieces[-1][1], wide


class RunNumbers:
    """A number of each step, or of several, in runs of steps that may be cut otherwise when they run again.

    Each step is recorded once in a run that runs again, from the last to the first. So what was recorded joins,
    until it begins and ends where runs did the first time. What rounding may change is a share of the size of a
    number, at least of their usual size.
    """

    def __init__(self, comparisons: Comparisons, *, rounding: float, error: MakeStepsError) -> None:
        self._comparisons, self._rounding, self._error = comparisons, rounding, error
        #: By the first step of each run, its end and its numbers; the first steps and ends of all runs.
        self._first: dict[int, tuple[int, torch.Tensor]] = {}
        self._starts: list[int] = []
        self._ends: set[int] = set()
        #: The first step of the run looked at last, and its numbers.
        self._begin, self._values = 0, list[float]()
        #: The sum of the sizes of all numbers, and their steps.
        self._sizes: torch.Tensor | None = None
        self._steps = 0
        #: What ran for the first time, and again, in the present action.
        self._kept: _Joined | None = None
        self._again: _Joined | None = None
        #: What ran again before, the last steps first.
        self._earlier: tuple[int, int, list[torch.Tensor]] | None = None
        #: The scales of steps in doubt, and that of one of several.
        self._scales: dict[int, float] = {}
        self._scale: MeasureScale | None = None

    def keep(self, start: int, stop: int, numbers: torch.Tensor) -> None:
        """Keep the numbers of steps that run for the first time, or a number for all of them."""
        self._kept = self._kept or _Joined()
        self._kept.add(start, stop, numbers)

    def check(self, start: int, stop: int, numbers: torch.Tensor, *, scale: MeasureScale | None = None) -> None:
        """Take the numbers of steps that run again.

        ``scale`` is that of one of them. It is asked only in doubt, and never where comparisons wait.
        """
        self._again = self._again or _Joined()
        self._again.add(start, stop, numbers)
        if scale is None or self._comparisons.waits or not self._rounding:
            return
        if stop > start + 1:
            self._scale = scale
        elif self._is_doubtful(start, numbers):
            self._scales[start] = float(scale())

    def _is_doubtful(self, step: int, number: torch.Tensor) -> bool:
        """Return whether a number differs by more than a share of itself; of NaN and infinities, none tells."""
        if not 0 <= step - self._begin < len(self._values) and self._starts:
            self._begin = self._starts[max(bisect_right(self._starts, step) - 1, 0)]
            _, values = self._first.get(self._begin, (0, torch.empty(0)))
            self._values = values.tolist()
        place = step - self._begin
        if not 0 <= place < len(self._values):
            return False
        again = number.item()
        return math.isfinite(again) and abs(self._values[place] - again) > self._rounding * abs(again)

    def end_action(self) -> None:
        """Join what ran in an action to what follows it, and compare if possible. Raises InputError."""
        kept, self._kept = self._kept, None
        if kept is not None:
            self._keep_run(*kept.join())
        found, self._again = self._again, None
        if found is None:
            return
        start, stop, numbers = found.join()
        again = [numbers]
        if self._earlier is not None and self._earlier[0] == stop:
            stop, again = self._earlier[1], [*self._earlier[2], *again]
            if len(again) == _AT_ONCE:
                again = [torch.cat(again[::-1])]
        self._earlier = start, stop, again
        if start in self._first and stop in self._ends:
            self._earlier = None
            self._compare(start, stop, torch.cat(again[::-1]) if len(again) > 1 else again[0])
            self._scales.clear()
        self._scale = None

    def _keep_run(self, start: int, stop: int, numbers: torch.Tensor) -> None:
        # Numbers of single steps are compared in parts, so that only those of a part exist several times.
        parts = numbers.split(_PART) if len(numbers) == stop - start else (numbers,)
        for number, part in enumerate(parts):
            first = start + number * _PART
            end = min(first + _PART, stop) if len(parts) > 1 else stop
            self._first[first] = end, part
            self._starts.append(first)
            self._ends.add(end)
        sizes = numbers.double().abs().sum()
        self._sizes = sizes if self._sizes is None else self._sizes + sizes
        self._steps += stop - start

    def _compare(self, start: int, stop: int, again: torch.Tensor) -> None:
        found: list[tuple[int, torch.Tensor]] = []
        step = start
        while step < stop and step in self._first:
            end, numbers = self._first.pop(step)
            self._ends.discard(end)
            found.append((step, numbers))
            step = end
        if step != stop:
            return
        if len(again) == sum(len(numbers) for _, numbers in found) == stop - start:
            for first, numbers in found:
                self._compare_run(first, first + len(numbers), numbers, again[first - start :][: len(numbers)])
        else:
            self._compare_run(start, stop, torch.cat([numbers for _, numbers in found]), again)

    def _compare_run(self, start: int, stop: int, first: torch.Tensor, again: torch.Tensor) -> None:
        count = stop - start
        if not self._comparisons.waits and torch.equal(first, again):
            return
        assert self._sizes is not None  # noqa: S101 - something was kept
        usual = self._sizes / self._steps
        if len(first) == len(again) == count:
            scale = torch.maximum(torch.maximum(first.double().abs(), again.double().abs()), usual)
        else:
            scale = torch.maximum(first.double().abs().sum(), count * usual).view(1)
            first, again = first.sum().view(1), again.sum().view(1)
        difference = (again - first).double().abs()
        self._compare_shares(start, stop, difference, scale)

    def _compare_shares(self, start: int, stop: int, difference: torch.Tensor, scale: torch.Tensor) -> None:
        """Compare differences of each step, or of the sum of all, with their scale; the worst one is named."""
        comparisons, each = self._comparisons, len(difference) == stop - start
        if not comparisons.waits and bool((difference > self._rounding * scale).any()):
            if self._scale is not None:
                scale = scale.clamp(min=float(self._scale()) * (1 if each else stop - start))
            if each:
                for step in self._scales.keys() & range(start, stop):
                    size = self._scales[step]
                    scale[step - start] = scale[step - start].clamp(min=size)
        share = torch.where(difference == 0, 0.0, difference / scale)
        if each and not comparisons.waits:
            start += int(share.argmax())
            stop = start + 1
        error = partial(self._error, start, stop)
        comparisons.compare(comparisons.fetch(share.amax()), rounding=self._rounding, error=error)


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
        scalar = project(leaf, waits=self._waits)
        return scalar if scalar is None or self._waits else scalar.item()

    def _compare_states(
        self, number: int, before: _Digest, leaves: Leaves, numbers: list[Number | None], structure: Structure
    ) -> None:
        digest, nest = before
        if len(digest) != len(leaves) or not are_equal_constants(nest.plain, structure.plain, self._rounding):
            raise _make_state_error(number, structure, None, math.inf)
        for place, (first, again, leaf) in enumerate(zip(digest, numbers, leaves, strict=True)):
            if first is None or again is None or (not self._waits and first == again):
                continue
            self._comparisons.compare(
                _find_share(first, again, self.measure_norm(leaf)),
                rounding=self._find_rounding((leaf,)) if is_differentiable(leaf) else 0.0,
                error=partial(_make_state_error, number, structure, place),
            )

    def measure_norm(self, leaf: torch.Tensor) -> Number:
        """Return the norm of a leaf, of which rounding may change a share."""
        return self._comparisons.fetch(measure_norm(leaf))

    # Loss terms and outputs

    def make_loss_numbers(self, term: torch.Tensor, output: Leaves, *, cuts: float = 1) -> RunNumbers:
        """Return an empty collection of loss terms, for terms and outputs like these.

        ``cuts`` is how many times the rounding a term may have that is cut otherwise.
        """
        return self._make_numbers((term, *output), _make_loss_error, cuts)

    def make_output_numbers(self, leaf: torch.Tensor) -> RunNumbers | None:
        """Return an empty collection of the projections of outputs like a leaf, None if it has none."""
        return self._make_numbers((leaf,), _make_output_error) if can_project(leaf) else None

    def _make_numbers(self, leaves: Leaves, error: MakeStepsError, cuts: float = 1) -> RunNumbers:
        rounding = cuts * self._find_rounding(leaves) if is_differentiable(leaves[0]) else 0.0
        return RunNumbers(self._comparisons, rounding=rounding, error=error)

    def _find_rounding(self, leaves: Leaves) -> float:
        return max(self._rounding, find_rounding(leaf.dtype for leaf in leaves))

    def project(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return the projection of an output that can be projected."""
        scalar = project(leaf, waits=self._waits)
        assert scalar is not None  # noqa: S101 - make_output_numbers asked whether it can be
        return scalar

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
    leaves = [torch.empty(0) for _ in structure.is_tensor]
    return find_place(structure.fill(leaves), leaves[place])


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
