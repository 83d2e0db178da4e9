"""Refuses networks over sequences that compute something over several time steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Generators
from ckptplan.torch.surroundings.snapshot import Surroundings
from ckptplan.torch.surroundings.walk import walk
from ckptplan.torch.trees import flatten
from ckptplan.torch.wrapping.slots import Slot, are_equal_values, copy_tensors
from ckptplan.torch.wrapping.stateful_cell import ModuleStep


def refuse_mixed_steps(step: ModuleStep, inputs: Sequence[Any], slots: Sequence[Slot]) -> None:
    """Raise InputError if some steps at once are not what single ones are, in any module.

    The outputs of inner modules count, too: those of the network may be silent at the start.

    Arguments:
        step: takes a step of a network that takes sequences.
        inputs: those of the first steps.
        slots: what steps change.
    """
    pieces = [flatten(one) for one in inputs]
    stacked = [torch.stack(parts) for parts in zip(*(leaves for leaves, _ in pieces), strict=True)]
    whole = pieces[0][1].fill(stacked)

    def run_single() -> None:
        for one in inputs:
            step.net(*_unsqueeze(one), **step.constants)

    with torch.no_grad(), _without_dropout(step.net):
        single, left, _ = _run(step.net, run_single, slots)
        together, left_together, drawn = _run(step.net, lambda: step.net(*whole, **step.constants), slots)
    if drawn:
        # Other random numbers in another order.
        return
    _refuse_mixed_outputs(single, together)
    for slot, one, other in zip(slots, left, left_together, strict=True):
        # A network may count its calls.
        if not isinstance(one, int) and not are_equal_values(one, other):
            raise InputError(
                f"leaves something else in {slot.name} after a sequence than after its steps, as nodes in "
                "multi-step mode with store_v_seq=True and monitors do",
                field="net",
                accepted='single-step mode: functional.set_step_mode(net, "s"), with what is looked at '
                "returned as an output; or a net that does not keep it",
            )


def _refuse_mixed_outputs(
    single: dict[str, list[torch.Tensor]], together: dict[str, list[torch.Tensor]]
) -> None:
    for name, outputs in together.items():
        ones, others = (_join(one.get(name, [])) for one in (single, {name: outputs}))
        if ones is not None and others is not None and not are_equal_values(ones, others):
            raise InputError(
                f"computes something over several time steps{f' in {name}' if name else ''}, as batch "
                "normalization in multi-step mode does, so that it cannot run step by step",
                field="net",
                accepted='single-step mode: functional.set_step_mode(net, "s"); or a net without such layers',
            )


def _unsqueeze(x: Any) -> Any:
    leaves, nest = flatten(x)
    return nest.fill([leaf[None] for leaf in leaves])


def _run(
    net: torch.nn.Module, take: Callable[[], object], slots: Sequence[Slot]
) -> tuple[dict[str, list[torch.Tensor]], list[Any], bool]:
    """Return what modules return, what is left in slots, and whether random numbers were drawn.

    What modules return is by name, in the order of their calls.
    """
    found: dict[str, list[torch.Tensor]] = {}
    reached = walk({"net": net})
    surroundings = Surroundings(reached.holders)
    world = surroundings.take(copies=True)
    leaf = next(iter(net.parameters()), torch.empty(0))
    generators = Generators(leaf.device, wanted=True, held=reached.generators)
    drawn = generators.state()
    handles = []
    for name, module in net.named_modules():

        def note(_: Any, __: Any, output: Any, name: str = name) -> None:
            found.setdefault(name, []).extend(leaf.clone() for leaf in flatten(output)[0] if leaf.dim())

        handles.append(module.register_forward_hook(note))
    try:
        take()
        return found, [copy_tensors(slot.read()) for slot in slots], generators.moved_since(drawn)
    finally:
        for handle in handles:
            handle.remove()
        surroundings.put_back(world)
        generators.restore(drawn)


def _join(outputs: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the numbers of all calls in a row: time, or time and batch, is the first axis."""
    if not outputs or len({one.shape[1:] for one in outputs}) > 1:
        return None
    return torch.cat([one.reshape(-1) for one in outputs])


@contextmanager
def _without_dropout(net: torch.nn.Module) -> Iterator[None]:
    """Let dropout pass all on, so that it hides nothing."""
    drops = [one for one in net.modules() if one.training and "Drop" in type(one).__name__]
    try:
        for one in drops:
            one.training = False
        yield
    finally:
        for one in drops:
            one.training = True
