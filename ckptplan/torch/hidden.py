"""Refuses state that a cell or a loss keeps to itself, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from ckptplan.errors import InputError
from ckptplan.torch.surroundings.holders import IteratorHolder
from ckptplan.torch.surroundings.iterators import TapHolder
from ckptplan.torch.surroundings.number_holders import GradientHolder, TensorHolder
from ckptplan.torch.surroundings.snapshot import Place, Snapshot, Surroundings
from ckptplan.torch.trial import Slopes, StepResult, are_equal, find_read_places, try_slopes

#: Relative difference of results that rounding may cause.
_ROUNDING = 1e-5
#: Names in one message.
_MOST_NAMES = 4
ACCEPTED = (
    "a cell and a loss that depend on their arguments alone: make it part of the state (return it from the "
    "cell, and take it as an argument), as ckptplan.torch.adapters do for other packages"
)


class HiddenState(InputError):  # noqa: N818 - what it is, not what it says
    """Steps read what earlier steps left in some places of the surroundings."""

    surroundings: Surroundings
    places: list[Place]


def refuse_lost_changes(surroundings: Surroundings, changed: Iterable[Place]) -> None:
    """Raise InputError for places that change and cannot be put back."""
    refuse_changed_parameters(surroundings, changed)
    for place in changed:
        holder = surroundings.holders[place.holder]
        if isinstance(holder, IteratorHolder | TapHolder):
            raise InputError(
                f"a step takes values from {place.name}, an iterator, which cannot be set back",
                field="cell or loss",
                accepted="what it gives as inputs, or computed from a number of the step in the state",
            )
        if not surroundings.can_put_back(place):
            raise InputError(
                f"a step changes {place.name} in place, which is too large to be put back, and steps run again",
                field="cell or loss",
                accepted=ACCEPTED,
            )


def refuse_changed_parameters(surroundings: Surroundings, changed: Iterable[Place]) -> None:
    """Raise InputError for parameters, and gradients of these, among the places that change."""
    for place in changed:
        holder = surroundings.holders[place.holder]
        if isinstance(holder, GradientHolder):
            raise InputError(
                f"a step writes {place.name}, and would do so again when steps run again",
                field="cell or loss",
                accepted="gradients that result.loss.backward() computes",
            )
        if isinstance(holder, TensorHolder) and isinstance(holder.thing, torch.nn.Parameter):
            raise InputError(
                f"a step changes the parameter {place.name} in place, and steps run again with what it was",
                field="cell or loss",
                accepted="parameters that change between sequences only; fast weights as a part of the state",
            )


def refuse_hidden_state(
    take: Callable[[], StepResult],
    surroundings: Surroundings,
    world: Snapshot,
    places: list[Place],
    usual: StepResult,
    *,
    when: str = "",
    forgives_noise: bool = False,
) -> None:
    """Raise InputError if steps read what earlier steps left in some places.

    Arguments:
        take: runs a step.
        surroundings: what the step can reach.
        world: what it finds there at the end of the trial, or of the sequence; all is as in it afterwards.
        places: those that steps change.
        usual: what the step returned when it ran first.
        when: said of the change, e.g. " during the sequence".
        forgives_noise: whether a step that differs when nothing was changed may differ when places were.
    """
    if not places:
        return
    surroundings.put_back(world)
    present, slopes = _take_with_slopes(take)
    surroundings.put_back(world)
    is_noisy = not are_equal(usual.tensors, present.tensors, rounding=_ROUNDING)
    if is_noisy and forgives_noise:
        return
    read = find_read_places(take, surroundings, world, places, present, slopes=slopes)
    if not (read or is_noisy):
        return
    read = read or places
    names = list_names(read)
    changes, them = ("change", "them") if len({place.name for place in read}) > 1 else ("changes", "it")
    error = HiddenState(
        f"{names} {changes} in a step{when}, and later steps read {them}: steps that run again would find what "
        "later steps left there",
        field=_find_field(take, surroundings, world, read, present),
        accepted=ACCEPTED,
    )
    error.surroundings, error.places = surroundings, read
    raise error


def _take_with_slopes(take: Callable[[], StepResult]) -> tuple[StepResult, Slopes | None]:
    """Run a step; return its result outside of its graph, which is gone before another step runs."""
    result = take()
    slopes = try_slopes(result)
    return result.detach(), slopes


def list_names(places: Iterable[Place]) -> str:
    """Return the names of places, as text; of many only the first."""
    names = list(dict.fromkeys(place.name for place in places))
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _find_field(
    take: Callable[[], StepResult],
    surroundings: Surroundings,
    world: Snapshot,
    places: list[Place],
    usual: StepResult,
) -> str:
    """Return the argument to blame: the loss if the cell returns the same whatever the places hold."""
    if not usual.terms:
        return "cell"
    try:
        surroundings.write_disturbed(places)
        found = take()
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception:
        return "cell or loss"
    finally:
        surroundings.put_back(world)
    if not are_equal(usual.leaves, found.leaves, rounding=_ROUNDING):
        return "cell"
    # Texts and other values have no number that could be changed, so that nothing tells.
    return "cell or loss" if are_equal(usual.tensors, found.tensors, rounding=_ROUNDING) else "loss"
