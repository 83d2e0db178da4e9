"""Runs single steps aside, compares them, and refuses hidden state by name."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Generators
from ckptplan.torch.call import Call
from ckptplan.torch.cell_calls import call_cell, check_result
from ckptplan.torch.digests import cut, measure_norm, project
from ckptplan.torch.graphs import as_graph_roots
from ckptplan.torch.losses import SummedLoss
from ckptplan.torch.surroundings.holders import GradientHolder, IteratorHolder, TensorHolder, VariableHolder
from ckptplan.torch.surroundings.snapshot import Place, Surroundings
from ckptplan.torch.trees import Leaves, flatten, read_versions, refuse_other_leaves


def make_direction(tensor: torch.Tensor, place: int) -> torch.Tensor:
    """Return fixed numbers from 0.5 to 1.5, of the shape and the type of a tensor."""
    numbers = torch.arange(tensor.numel(), device=tensor.device, dtype=torch.float32)
    # In place, beside a plan that may have taken all its memory.
    return numbers.add_(place).cos_().mul_(0.5).add_(1).reshape(tensor.shape).to(tensor.dtype)


def gather(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor, whole if it is spread over several processes."""
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


#: The norm of a tensor, and its projection on a random direction.
Reduced: TypeAlias = tuple[float, float]


def reduce_tensor(tensor: torch.Tensor) -> Reduced:
    """Return two numbers by which a tensor is compared."""
    tensor = gather(tensor)
    number = project(tensor)
    assert number is not None  # noqa: S101 - it is dense
    return float(measure_norm(tensor)), float(number)


#: A share of the largest tensor, in its rounding, that rounding alone may leave of one which is zero.
_NOTHING = 0.1


def list_differences(
    pairs: SequenceOf[tuple[Reduced, Reduced]], *, roundings: Iterable[float], least: float = 0.0
) -> list[tuple[int, float]]:
    """Return which tensors differ, and by which share of their norm, where rounding cannot be all.

    Arguments:
        pairs: gradients, or others, of two runs.
        roundings: for each of them, the share that rounding may change.
        least: a share of its own norm that one may differ by, however precise it is.
    """
    largest = max((norm for pair in pairs for norm, _ in pair), default=0.0)
    found = []
    for place, (((norm, value), (other_norm, other_value)), rounding) in enumerate(
        zip(pairs, roundings, strict=True)
    ):
        size = max(norm, other_norm)
        difference = max(abs(value - other_value), abs(norm - other_norm))
        if difference > max(rounding, least) * size + _NOTHING * rounding * largest:
            found.append((place, difference / size))
    return found


#: Relative difference that rounding may cause between calls, or for a chunk; hidden state causes more.
ROUNDING = 1e-3


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step and its loss returned, and where its graph begins."""

    after: Any
    output: Any
    terms: list[torch.Tensor]
    #: The given state and inputs.
    roots: Leaves
    #: Autograd's sequence number when the step began.
    begun: int
    #: Whether the loss drew random numbers.
    loss_draws: bool

    @property
    def leaves(self) -> Leaves:
        """The tensors of the new state and the output."""
        return (*flatten(self.after)[0], *flatten(self.output)[0])

    @property
    def tensors(self) -> Leaves:
        """All tensors that it returned."""
        return (*self.leaves, *self.terms)


def take_step(call: Call, state: Any, step: int, generators: Generators) -> StepResult:
    """Take a step of a call, with its losses, from copies of a state and of its input.

    Raises InputError if it changes its arguments.
    """
    leaves, structure = flatten(state)
    pieces, nest = call.sequence.piece(step, step + 1)
    begun: int = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    first, inputs = copy_leaves(leaves), copy_leaves(pieces)
    # As when steps are recorded: a cell may ask whether its state requires a gradient.
    roots = (*(as_graph_roots(first) if torch.is_grad_enabled() else first), *inputs)
    versions = read_versions(roots)
    try:
        x = next(call.sequence.iterate(inputs, nest, step, step + 1))
        after, output = check_result(call_cell(call.cell, structure.fill(roots[: len(first)]), x))
        refuse_other_leaves(after, field="cell")
    except RuntimeError as error:
        if "leaf Variable that requires grad" not in str(error):
            raise
        with torch.no_grad():
            # If it is the state that it changes, this names it.
            take_step(call, state, step, generators)
        raise
    if versions != read_versions(roots):
        which = "state" if versions[: len(first)] != read_versions(roots[: len(first)]) else "input"
        raise InputError(
            f"changes its {which} in place, so that steps cannot run again from a checkpoint",
            field="cell",
            accepted="a cell that returns a new state, and leaves its input alone",
        )
    drawn = generators.state()
    terms = _take_losses(call, step, after, output)
    return StepResult(
        after=after,
        output=output,
        terms=terms,
        roots=roots,
        begun=begun,
        loss_draws=bool(generators.moved_since(drawn)),
    )


def _take_losses(call: Call, step: int, state: Any, output: Any) -> list[torch.Tensor]:
    """Return the losses of a step, and of a state if it were the last one. Raises InputError."""
    if not call.losses:
        return []
    leaves = flatten(output)[0]
    versions = read_versions(leaves)
    fresh = SummedLoss(**call.losses)
    terms = fresh.take(step, [output], first_time=True)
    if versions != read_versions(leaves):
        raise InputError(
            "changes an output in place, which may be part of the next state",
            field=name_loss(call),
            accepted="a loss that leaves outputs alone",
        )
    return [*terms, *fresh.finish(state)]


def name_loss(call: Call) -> str:
    """Return the argument that losses of steps are given as."""
    return "chunk_loss" if "chunk_loss" in call.losses else "loss"


def copy_leaves(leaves: Leaves) -> Leaves:
    """Return copies outside of any graph."""
    return tuple(leaf.detach().clone() for leaf in leaves)


def are_equal(
    ones: SequenceOf[torch.Tensor], others: SequenceOf[torch.Tensor], *, rounding: float = ROUNDING
) -> bool:
    """Return whether tensors are equal except for rounding, element by element."""
    if len(ones) != len(others):
        return False
    for one, other in zip(ones, others, strict=True):
        if one.shape != other.shape:
            return False
        share = max(rounding, 4 * torch.finfo(one.dtype).eps) if one.is_floating_point() else rounding
        pairs = [*zip(cut(gather(one)), cut(gather(other)), strict=True)]
        difference = max((_largest(_widen(some) - _widen(others)) for some, others in pairs), default=0.0)
        if difference > share * max((_largest(_widen(some)) for some, _ in pairs), default=0.0):
            return False
    return True


def _largest(tensor: torch.Tensor) -> float:
    """Return the largest absolute value of the finite numbers."""
    return float(tensor.abs().nan_to_num_(0.0, posinf=0.0).max())


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers in the widest type; those of complex ones keep both parts."""
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


ACCEPTED = (
    "a cell and a loss that depend on their arguments alone: make it part of the state (return it from the "
    "cell, and take it as an argument), as ckptplan.torch.adapters do for other packages"
)


class HiddenState(InputError):  # noqa: N818 - what it is, not what it says
    """Steps read what earlier steps left in some places of the surroundings."""

    surroundings: Surroundings
    places: list[Place]


def make_hidden_state(
    surroundings: Surroundings, places: list[Place], *, field: str, message: str = ""
) -> HiddenState:
    """Return the error for places that steps change and read, or for what else a ``message`` says of them."""
    names = {place.name: None for place in places}
    change, them = ("change", "them") if len(names) > 1 else ("changes", "it")
    usual = (
        f"{list_names(names)} {change} in a step, and later steps read {them}: steps that run again would "
        "find what later steps left there"
    )
    error = HiddenState(message or usual, field=field, accepted=ACCEPTED)
    error.surroundings, error.places = surroundings, places
    return error


def make_unfound(call: Call, which: str, what: str) -> InputError:
    """Return the error for steps of which something differs, though all that was found was put back."""
    return InputError(
        f"returned another result when its {which} ran again ({what}): it depends on something that could not "
        "be found and put back (a file, a clock, a cache, an extension, a random generator of its own)",
        field="cell or loss" if call.losses else "cell",
        accepted="a result that depends on the arguments and on random generators that can be found: "
        "PyTorch's, Python's and numpy's, and those in attributes, closures and globals",
    )


def refuse_lost_changes(surroundings: Surroundings, changed: Iterable[Place]) -> None:
    """Raise InputError for places that change and cannot be put back."""
    refuse_changed_parameters(changed)
    for place in changed:
        if isinstance(place.holder, IteratorHolder):
            raise InputError(
                f"a step takes values from {place.name}, an iterator, which cannot be set back",
                field="cell or loss",
                accepted="what it gives as inputs, or computed from a number of the step in the state",
            )
        if isinstance(place.holder, VariableHolder) and place.holder.keeps_value:
            raise InputError(
                f"a step gives {place.name}, a context variable, its first value, which cannot be taken away",
                field="cell or loss",
                accepted="a context variable with a default, or one that is set before the call",
            )
        if not place.holder.can_put_back:
            raise make_hidden_state(
                surroundings,
                [place],
                field="cell or loss",
                message=f"a step changes {place.name} in place, which is too large to be put back, and steps "
                "run again",
            )


_AGAIN = "and would do so again when steps run again"


def refuse_changed_parameters(changed: Iterable[Place], *, hooks: bool = False) -> None:
    """Raise InputError for parameters among the places that change, and for what belongs to their gradients.

    ``hooks`` says whether one may not even register a hook: more than the first step does.
    """
    for place in changed:
        holder = place.holder
        refusal: tuple[str, str] | None = None
        if isinstance(holder, GradientHolder):
            if place.key == holder.GRADIENT:
                refusal = f"writes {place.name}, {_AGAIN}", "gradients that result.loss.backward() computes"
            elif hooks:
                refusal = (
                    f"registers a hook on the parameter {place.name}, {_AGAIN}",
                    "hooks that are registered once, before the sequence",
                )
        elif isinstance(holder, TensorHolder) and isinstance(holder.thing, torch.nn.Parameter):
            refusal = (
                f"changes the parameter {place.name} in place, and steps run again with what it was",
                "parameters that change between sequences only; fast weights as a part of the state",
            )
        if refusal is not None:
            how, accepted = refusal
            raise InputError(f"a step {how}", field="cell or loss", accepted=accepted)


def list_names(names: Iterable[str], *, most: int = 4) -> str:
    """Return names as text; of many only the first."""
    found = list(dict.fromkeys(names))
    more = len(found) - most
    return ", ".join(found[:most]) + (f" and {more} more" if more > 0 else "")
