"""Calls a cell, and explains what is wrong if it cannot be called or returns something else than accepted.

Some kinds of cells of this package are treated in a special way; users' cells are none of them.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ckptplan.errors import InputError, quote_value
from ckptplan.torch.inputs import is_list_of_steps
from ckptplan.torch.trees import flatten, name_layout


class ClosedCell:
    """A cell that reaches nothing but the state, the input and the parameters that are named for it.

    It needs no trial, and graphs of its steps need no search for other parameters. Where a step that runs again
    differs, the state after it does.
    """

    @property
    def draws(self) -> bool:
        """Whether its steps draw random numbers."""
        return True


class SlotCell:
    """A cell that works on places of a module, and gives them back after each step."""

    @property
    @abstractmethod
    def places(self) -> frozenset[tuple[int, Any]]:
        """What may change between steps: the ids of dicts, with keys."""


_ACCEPTED = (
    "cell(state, x) -> (state, output); ckptplan.torch.adapters has those of torch.nn, snnTorch, Norse and "
    "SpikingJelly"
)
_KEEPING = "a module that keeps its state from step to step; scan and bptt take a cell(state, x)"


def call_cell(cell: Callable[..., Any], state: Any, x: Any) -> Any:
    """Return what a cell returns; its own errors get a note. Raises InputError if it takes other arguments."""
    try:
        return cell(state, x)
    except (AttributeError, TypeError) as error:
        _refuse_list_of_steps(error, x)
        if isinstance(error, AttributeError) or "argument" not in str(error) or not _is_of_the_call(error):
            _explain(error, state, x)
            raise
        if isinstance(cell, SlotCell):
            raise InputError(
                f"cannot be called with the input of a step alone: {error}", field="module", accepted=_KEEPING
            ) from error
        raise InputError(
            f"cannot be called as cell(state, x): {error}", field="cell", accepted=_ACCEPTED
        ) from error
    except Exception as error:
        _explain(error, state, x)
        raise


@contextmanager
def doubt_order(inputs: Any, state: Any) -> Iterator[None]:
    """Add a note to an error if inputs and state look as if each were in the place of the other."""
    try:
        yield
    except Exception as error:
        if _look_exchanged(inputs, state):
            error.add_note(
                f"ckptplan: inputs are {_describe(inputs)}, and state is {_describe(state)}: are the two "
                "exchanged? bptt, unroll and plan_for take (cell, inputs, state), scan (cell, state, inputs)"
            )
        raise


def _look_exchanged(inputs: Any, state: Any) -> bool:
    """Return whether the state has an axis before those of the inputs, as inputs have time before the batch."""
    given, kept = flatten(inputs)[0][:1], flatten(state)[0][:1]
    if inputs is None or not given or not kept or any(map(name_layout, given + kept)):
        return inputs is None and bool(kept)
    return kept[0].dim() > given[0].dim() > 0 and kept[0].shape[1] == given[0].shape[0]


def _refuse_list_of_steps(error: Exception, x: Any) -> None:
    """Raise InputError if a cell fails on a list of tensors: the inputs may be a list of time steps."""
    kind = type(x).__name__
    if is_list_of_steps(x) and re.search(rf"\b{kind}\b", str(error)):
        raise InputError(
            f"are a {kind} of {len(x):,} tensors, which is a nest of {len(x):,} inputs: each step gets a "
            f"{kind} of {len(x):,}, on which the cell fails ({error})",
            field="inputs",
            accepted="one tensor with time as the first axis, as torch.stack(inputs) makes it; or a cell that "
            f"takes such a {kind}",
        ) from error


def check_result(result: object) -> tuple[Any, Any]:
    """Return what a cell returned. Raises InputError if it is not (state, output)."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise InputError(
            f"returned {quote_value(type(result).__name__)}"
            + (f" of {len(result)}" if isinstance(result, tuple) else ""),
            field="cell",
            accepted=_ACCEPTED,
        )
    return result


def _explain(error: Exception, state: Any, x: Any) -> None:
    """Add a note to a cell's own error: what the cell was called with."""
    error.add_note(
        f"ckptplan: raised by the first step, cell(state, x) with state {_describe(state)} and x "
        f"{_describe(x)}. Accepted: {_ACCEPTED}"
    )


def _describe(tree: Any) -> str:
    leaves = flatten(tree)[0]
    if not leaves:
        return quote_value(tree)
    return ", ".join(f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}" for leaf in leaves)


def _is_of_the_call(error: TypeError) -> bool:
    """Return whether the call itself raised an error, and not the body of the cell."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = "" if trace is None else trace.tb_frame.f_code.co_filename
    return file == __file__ or Path(file).parts[-3:] == ("nn", "modules", "module.py")
