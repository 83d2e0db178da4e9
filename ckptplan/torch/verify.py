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
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree

from ckptplan.errors import InputError
from ckptplan.torch.digests import Projections, can_project, find_rounding, is_close, measure_norm
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
#: Returns the size of what a number was computed from.
MeasureScale: TypeAlias = Callable[[], Number]


def _no_scale() -> float:
    return 0.0


class StepNumbers(ABC):
    """A number for each step. What rounding may change is a share of its usual size, the mean of all steps."""

    @abstractmethod
    def keep(self, step: int, number: torch.Tensor) -> None:
        """Keep a scalar of a step that runs for the first time."""

    @abstractmethod
    def keep_all(self, start: int, numbers: torch.Tensor) -> None:
        """Keep the numbers of several steps."""

    @abstractmethod
    def check(self, step: int, number: torch.Tensor, *, scale: MeasureScale = _no_scale) -> None:
        """Compare a scalar of a step that runs again.

        ``scale`` is asked only if it may decide: rounding may also change a share of what it returns.
        """

    def check_all(self, start: int, numbers: torch.Tensor, *, scale: Callable[[int], Number]) -> None:
        """Compare the numbers of several steps that run again; ``scale`` is asked for a step in doubt."""
        for step, number in enumerate(numbers.unbind(0), start=start):
            self.check(step, number, scale=partial(scale, step))

    @abstractmethod
    def end_action(self) -> None:
        """End an action of the schedule. Raises InputError, now or when comparisons settle."""


def make_step_numbers(
    like: torch.Tensor, *, steps: int, comparisons: Comparisons, rounding: float, error: MakeStepsError
) -> StepNumbers:
    """Return an empty collection of numbers; ``like`` has their device, and is of integers if they are."""
    if comparisons.waits:
        return DeviceNumbers(like, steps=steps, comparisons=comparisons, rounding=rounding, error=error)
    return HostNumbers(like, steps=steps, comparisons=comparisons, rounding=rounding, error=error)


class HostNumbers(StepNumbers):
    """Numbers of Python, compared at once."""

    def __init__(
        self,
        like: torch.Tensor,
        *,
        steps: int,
        comparisons: Comparisons,
        rounding: float,
        error: MakeStepsError,
    ) -> None:
        self._first: array[float] = array("d" if is_differentiable(like) else "q", bytes(8 * steps))
        self._comparisons, self._rounding, self._error = comparisons, rounding, error
        self._mean: float | None = None
        self._refusal: InputError | None = None

    def keep(self, step: int, number: torch.Tensor) -> None:
        self._make_room(step + 1)
        self._first[step] = number.item()

    def keep_all(self, start: int, numbers: torch.Tensor) -> None:
        self._make_room(start + len(numbers))
        self._first[start : start + len(numbers)] = array(self._first.typecode, numbers.tolist())

    def _make_room(self, steps: int) -> None:
        if steps > len(self._first):
            self._first.frombytes(bytes(8 * (steps - len(self._first))))

    def check(self, step: int, number: torch.Tensor, *, scale: MeasureScale = _no_scale) -> None:
        self._check_number(step, number.item(), scale)

    def check_all(self, start: int, numbers: torch.Tensor, *, scale: Callable[[int], Number]) -> None:
        for step, number in enumerate(numbers.tolist(), start=start):
            self._check_number(step, number, partial(scale, step))

    def _check_number(self, step: int, again: float, scale: MeasureScale) -> None:
        first = self._first[step]
        # The usual case, without the mean; NaN and infinities go on.
        if not abs(first - again) <= self._rounding * abs(again) and self._refusal is None:
            self._look_closely(step, first, again, scale)

    def _look_closely(self, step: int, first: float, again: float, scale: MeasureScale) -> None:
        try:
            self._comparisons.compare(
                first,
                again,
                scale=lambda: max(abs(first), abs(again), self._measure_mean(), float(scale())),
                rounding=self._rounding,
                error=partial(self._error, step, step + 1),
            )
        except InputError as refusal:
            # If the state at the end of the action differs, too, that is the cause.
            self._refusal = refusal

    def _measure_mean(self) -> float:
        if self._mean is None:
            finite = torch.tensor(self._first, dtype=torch.float64).abs().nan_to_num(0.0, posinf=0.0)
            self._mean = finite.mean().item()
        return self._mean

    def end_action(self) -> None:
        if self._refusal is not None:
            raise self._refusal


class DeviceNumbers(StepNumbers):
    """Numbers that stay on a device; the largest difference of an action is compared."""

    def __init__(
        self,
        like: torch.Tensor,
        *,
        steps: int,
        comparisons: Comparisons,
        rounding: float,
        error: MakeStepsError,
    ) -> None:
        dtype = torch.float64 if is_differentiable(like) else torch.int64
        self._first = torch.zeros(steps, dtype=dtype, device=like.device)
        self._comparisons, self._rounding, self._error = comparisons, rounding, error
        self._kept: list[torch.Tensor] = []
        self._checked: list[torch.Tensor] = []
        #: The first steps of those that wait.
        self._kept_from = self._checked_from = 0

    def keep(self, step: int, number: torch.Tensor) -> None:
        if not self._kept or self._kept_from + len(self._kept) != step or len(self._kept) == _AT_ONCE:
            self._put_kept()
            self._kept_from = step
        self._kept.append(_copy_alone(number))

    def keep_all(self, start: int, numbers: torch.Tensor) -> None:
        missing = start + len(numbers) - len(self._first)
        if missing > 0:
            more = max(missing, len(self._first) // 2)
            self._first = torch.cat((self._first, self._first.new_zeros(more)))
        self._first[start : start + len(numbers)] = numbers

    def check(self, step: int, number: torch.Tensor, *, scale: MeasureScale = _no_scale) -> None:
        if (
            not self._checked
            or self._checked_from + len(self._checked) != step
            or len(self._checked) == _AT_ONCE
        ):
            self._compare_checked()
            self._checked_from = step
        self._checked.append(_copy_alone(number))

    def end_action(self) -> None:
        self._put_kept()
        self._compare_checked()

    def _put_kept(self) -> None:
        if self._kept:
            numbers, self._kept = self._kept, []
            self.keep_all(self._kept_from, torch.stack(numbers))

    def _compare_checked(self) -> None:
        if not self._checked:
            return
        numbers, self._checked = self._checked, []
        start, stop = self._checked_from, self._checked_from + len(numbers)
        first, again = self._first[start:stop], torch.stack(numbers).to(self._first)
        same = (first == again) | (torch.isnan(first) & torch.isnan(again))
        usual = self._first.double().abs().nan_to_num(0.0, posinf=0.0).mean()
        scale = torch.maximum(torch.maximum(first.abs(), again.abs()), usual)
        share = ((first - again).abs() / scale).nan_to_num(torch.inf, posinf=torch.inf)
        worst = torch.where(same, torch.zeros_like(share), share).amax()
        self._comparisons.compare(
            0.0, worst, scale=lambda: 1.0, rounding=self._rounding, error=partial(self._error, start, stop)
        )


def _copy_alone(scalar: torch.Tensor) -> torch.Tensor:
    """Return a scalar that keeps nothing else alive, as a view of an output would."""
    scalar = scalar.detach()
    return scalar.clone() if scalar.untyped_storage().nbytes() > scalar.element_size() else scalar


class RunSums:
    """Sums over runs of steps, which may be cut otherwise when they are computed again.

    They are compared as soon as what ran again begins and ends where runs did the first time.
    """

    def __init__(self, comparisons: Comparisons, *, rounding: float, error: MakeStepsError) -> None:
        self._comparisons, self._rounding, self._error = comparisons, rounding, error
        #: By the first step of each run, its end and its value.
        self._first: dict[int, tuple[int, Number]] = {}
        self._ends: set[int] = set()
        #: What ran again and was not compared yet: the latest action, and actions before it.
        self._latest: tuple[int, int, Number] | None = None
        self._earlier: tuple[int, int, Number] | None = None

    def keep(self, start: int, stop: int, value: torch.Tensor) -> None:
        """Keep the value of steps that run for the first time."""
        self._first[start] = stop, self._comparisons.fetch(value.double())
        self._ends.add(stop)

    def check(self, start: int, stop: int, value: torch.Tensor) -> None:
        """Take the value of steps that run again."""
        number = self._comparisons.fetch(value.double())
        if self._latest is None:
            self._latest = start, stop, number
        else:
            first, last, total = self._latest
            self._latest = min(start, first), max(stop, last), total + number

    def end_action(self) -> None:
        """Join what ran again in an action to what follows it, and compare if possible. Raises InputError."""
        if self._latest is None:
            return
        start, stop, again = self._latest
        if self._earlier is not None and self._earlier[0] == stop:
            stop, again = self._earlier[1], again + self._earlier[2]
        self._latest, self._earlier = None, (start, stop, again)
        if start in self._first and stop in self._ends:
            self._earlier = None
            self._compare(start, stop, again)

    def _compare(self, start: int, stop: int, again: Number) -> None:
        values: list[Number] = []
        magnitude: Number = 0.0
        step = start
        while step < stop and step in self._first:
            step, value = self._first.pop(step)
            self._ends.discard(step)
            values.append(value)
            magnitude = magnitude + (value.abs() if isinstance(value, torch.Tensor) else abs(value))
        if step == stop:
            self._comparisons.compare(
                sum(values),
                again,
                scale=lambda: magnitude,
                rounding=self._rounding,
                error=partial(self._error, start, stop),
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
#: A sum over steps that is cut otherwise is added up in another order.
_CUT_OTHERWISE = 10


#: Of a state: a number of each leaf, None if its elements cannot be added up, and how they nest.
_Digest: TypeAlias = tuple[list[Number | None], Structure]


class Verifier:
    """Compares states, outputs and loss terms of steps that run again with what they were.

    Raises InputError for a difference beyond rounding, at once or in ``settle``.

    Arguments:
        steps: T, or those that are known to come: there is room for more.
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
