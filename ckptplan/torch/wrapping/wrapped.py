"""A module over sequences that stands for the module inside: the same parameters, buffers and children."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor

from ckptplan.errors import CkptplanError, InputError
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule, check_count
from ckptplan.torch.api import check_goal, make_inputs, run_call
from ckptplan.torch.fit.choose import ALONE, OtherSequences, read_limit
from ckptplan.torch.pieces.length import PieceRun, run_pieces
from ckptplan.torch.run.call import Call, read_options
from ckptplan.torch.run_call import Results
from ckptplan.torch.wrapping.axes import AxisWatch
from ckptplan.units import format_limit

#: The note that is added to errors of the module inside.
_NOTE = (
    "ckptplan: the wrapped module was called once for each time step of inputs of shape {shapes}, whose first "
    "axis is time. For inputs that are the same in each step, say how many steps there are: "
    "net(x, steps=100). For a module that takes (state, x), use ckptplan.torch.scan or bptt."
)


def spell_path(path: str) -> str:
    """Return the expression for a submodule of ``model``: 'model.encoder[0]' for 'encoder.0'."""
    return "model" + "".join(f"[{name}]" if name.isdigit() else f".{name}" for name in path.split("."))


def _refuse_layers(net: torch.nn.Module, paths: list[str], memory: Any, error: Exception) -> InputError:
    """Return the error for a module that raised ``error`` because its layers take whole sequences."""
    layer, given = spell_path(paths[0]), f"memory={memory!r}" if memory is not None else "plan=..."
    count_text = f" (one of {len(paths)} such layers)" if len(paths) > 1 else ""
    kind = type(net.get_submodule(paths[0])).__name__
    is_own = isinstance(error, CkptplanError)
    raised = "" if is_own else f". It raised {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
    return InputError(
        f"wrap calls {type(net).__name__} once for each time step, but its layer {layer}, {kind}, takes a "
        f"whole sequence{count_text}{raised}",
        field="net",
        accepted=f"{layer} = wrap({layer}, {given}), or wrap_layers(model, memory=...) for all such layers",
    )


class Wrapped(torch.nn.Module):
    """A module over sequences that has the parameters, buffers and children of the module ``net`` inside.

    They are the same objects under the same names. Each of the two modules loads a ``state_dict`` of the other.
    Optimizers, ``.to()`` and functions that look for neurons among the children work as with ``net``. All other
    attributes are those of ``net``, too. ``modules()`` and ``apply()`` reach ``net`` itself.

    Arguments:
        net: the module.
        memory: the memory that a call may take, as for ``unroll``; "auto" if there is no plan either.
        plan: a plan in place of a limit of memory, for sequences of one length.
        options: other arguments of ``unroll``.
    """

    net: Any
    #: The plan that the last call executed.
    plan: Plan | Schedule | None

    def __init__(
        self,
        net: torch.nn.Module,
        *,
        memory: int | str | None = None,
        plan: Plan | Schedule | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        memory = "auto" if memory is None and plan is None else memory
        check_goal(plan, memory)
        if memory is not None and memory != "auto":
            read_limit(memory, torch.device("cpu"))
        compile_ = options.pop("compile", None)
        call_options = {"parameters": (), "replay_randomness": True, "verify": True, **options}
        given = read_options(plan=plan, memory=memory, compile_=compile_, **call_options)
        vars(self).update(_options=given, plan=plan, _axes=AxisWatch())
        self._parameters, self._buffers, self._modules = net._parameters, net._buffers, net._modules
        self._non_persistent_buffers_set = net._non_persistent_buffers_set
        # Not registered as a child, which would put its name before all other names.
        object.__setattr__(self, "net", net)

    def _make_call(self, cell: Any, inputs: Any, state: Any, **overrides: Any) -> Call:
        call_inputs = make_inputs(inputs, self._options["plan"], self._options["compile"])
        return Call(cell=cell, inputs=call_inputs, state=state, **{**self._options, **overrides})

    def _run(self, call: Call) -> Results:
        """Run a call under the plan, or within the limit of memory."""
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in call.inputs.leaves)
        with self._explain_errors(_NOTE.format(shapes=shapes)):
            results, executed = run_call(call)
        if torch.is_grad_enabled():
            vars(self)["plan"] = executed
        return results

    @contextmanager
    def _explain_errors(self, note: str = "") -> Iterator[None]:
        """Name a layer inside that takes whole sequences; add notes to other errors.

        Arguments:
            note: added to errors of the module inside.
        """
        try:
            yield
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            is_own = isinstance(error, CkptplanError)
            field = error.field if isinstance(error, InputError) else None
            inner = [name for name, module in self.net.named_modules() if isinstance(module, torch.nn.RNNBase)]
            if inner and inner[0] and (not is_own or field == "net"):
                raise _refuse_layers(self.net, inner, self._options["memory"], error) from error
            if note and not is_own:
                error.add_note(note)
            path, share, shared = vars(self).get("_share", ("", 1.0, 0))
            least = re.search(r"\(([\d,]+) bytes\)", str(error))
            if path and isinstance(error, InputError) and field == "memory" and least is not None:
                enough = math.ceil(int(least[1].replace(",", "")) / share * 1.01)
                raise InputError(
                    f"{path} has {share:.0%} of the limit of wrap_layers: {error.message}",
                    field=field,
                    value=shared,
                    accepted=f'at least memory="{format_limit(enough, like=shared)}" for wrap_layers',
                ) from None
            raise

    def __getattr__(self, name: str) -> Any:
        net = self.__dict__.get("net")
        if net is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(net, name)

    def __setattr__(self, name: str, value: Any) -> None:
        net = self.__dict__.get("net")
        if net is None or name in self.__dict__ or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(net, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self.net[key]

    def __len__(self) -> int:
        return len(self.net)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.net)

    def __bool__(self) -> bool:
        # A module without a length is true.
        return True

    @property
    def training(self) -> bool:
        """The mode of the module inside."""
        net = self.__dict__.get("net")
        return True if net is None else bool(net.training)

    @training.setter
    def training(self, mode: bool) -> None:
        net = self.__dict__.get("net")
        if net is not None:
            net.training = mode

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the module inside, too."""
        self.net.train(mode)
        return self

    def named_modules(self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True) -> Iterator[Any]:
        """Yield this module, the module inside and its children."""
        memo = set() if memo is None else memo
        if self not in memo or not remove_duplicate:
            memo.add(self)
            yield prefix, self
            yield from self.net.named_modules(memo, prefix, remove_duplicate)

    def apply(self, fn: Callable[[torch.nn.Module], None]) -> Self:
        """Apply a function to the module inside with its children, and to this module."""
        self.net.apply(fn)
        fn(self)
        return self

    def state_dict(self, *args: Any, **options: Any) -> Any:
        """Return the ``state_dict`` of the module inside."""
        return self.net.state_dict(*args, **options)

    def _load_from_state_dict(self, *args: Any) -> None:
        self.net._load_from_state_dict(*args)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Some modules also update other data, as an LSTM does with its flat weights.
        self.net._apply(fn, recurse)
        return self

    def extra_repr(self) -> str:
        """Return the limit or the plan as text."""
        memory = self._options["memory"]
        return f"memory={memory!r}" if memory is not None else "plan=..."


class WrappedPieces(Wrapped):
    """A module over sequences whose module inside takes many time steps a call. A step of a plan is a piece.

    Arguments:
        net: the module.
        piece: the time steps of a piece; None for the quickest length, or, with a plan, for pieces of equal
            length.
        options: other arguments of ``Wrapped``.
    """

    piece: int | None
    #: The pieces of the last call, for each of the sequences that it ran.
    latest: tuple[PieceRun, ...]

    def __init__(self, net: torch.nn.Module, *, piece: int | None = None, **options: Any) -> None:
        if piece is not None:
            check_count("piece", piece)
        super().__init__(net, **options)
        vars(self).update(piece=piece, latest=())

    def _run_pieces(
        self, make_call: Callable[[int], Call], steps: int, *, others: OtherSequences = ALONE
    ) -> Results:
        """Run a sequence of ``steps`` time steps; ``make_call`` returns the call with pieces of a length."""
        with self._explain_errors():
            piece_run, results = run_pieces(make_call, steps, piece=self.piece, others=others)
        if torch.is_grad_enabled():
            vars(self).update(latest=(*self.latest, piece_run), plan=piece_run.plan)
        return results
