"""Runs PyTorch's recurrent layers over whole sequences within a limit of memory, piece by piece.

The layers' own ``forward`` reads the arguments, checks them and answers in their shapes. Only the call of the
kernel in which it ends is another one: a planned sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from ckptplan.errors import InputError, quote_value
from ckptplan.schedule.schedule import check_count
from ckptplan.torch.budget import Space, read_limit
from ckptplan.torch.call import Call
from ckptplan.torch.entry import as_entry
from ckptplan.torch.offload import find_links
from ckptplan.torch.run import run_call
from ckptplan.torch.trees import byte_size
from ckptplan.torch.wrapping.piece_plan import PiecePlan, PieceRun, Room, fit_pieces
from ckptplan.torch.wrapping.pieces import FusedCell, Hidden, PieceInputs, SequenceRows
from ckptplan.torch.wrapping.wrapped import Wrapped

_ACCEPTED = "torch.nn.LSTM, GRU or RNN; for other networks, a cell and ckptplan.torch.unroll"
_KERNELS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@dataclass(frozen=True, kw_only=True)
class KernelCall(PieceRun):
    """A call of a kernel: longest sequence first, with weights and a state for each layer and direction."""

    bidirectional: bool
    #: Whether the outputs have the batch first.
    batch_first: bool

    @classmethod
    def read(cls, kernel: str, args: Sequence[Any]) -> Self:
        """Return what the arguments mean, in the orders that PyTorch has for packed sequences and others."""
        packed = not isinstance(args[3], bool)
        data, *sizes, hidden, flat, bias, layers, dropout, training, both = args[: 8 + packed]
        batch_first = not packed and args[8]
        each = len(flat) // (2 * layers if both else layers)
        cell = FusedCell(
            kernel=kernel,
            weights=tuple(tuple(flat[place : place + each]) for place in range(0, len(flat), each)),
            bias=bias,
            dropout=dropout,
            training=training,
        )
        return cls(
            cell=cell,
            rows=SequenceRows(
                data=data.transpose(0, 1) if batch_first else data, batch_sizes=sizes[0] if sizes else None
            ),
            state=tuple(hidden) if kernel == "lstm" else (hidden,),
            bidirectional=both,
            batch_first=batch_first,
        )

    @property
    def is_planned(self) -> bool:
        """Whether a gradient is wanted of anything."""
        tensors = (self.rows.data, *self.state, *self.cell.flat_weights)
        wants = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
        return wants and self.rows.data.numel() > 0

    def list_runs(self) -> Sequence[Sequence[PieceRun]]:
        """Return the sequences that run one after another: one of all layers, or two for each layer.

        A layer needs both directions of all time steps below.
        """
        rows, cell = self.rows, self.cell
        if not self.bidirectional:
            return [[self]]
        # Of the inputs of upper layers, there is the shape.
        upper = rows.data.new_zeros(1).expand(*rows.data.shape[:-1], 2 * self.state[0].shape[-1])
        above = rows.with_data(upper.requires_grad_())
        runs = [
            PieceRun(
                cell=replace(cell, weights=(weights,), dropout=0.0, backwards=number % 2 == 1),
                rows=rows if number < 2 else above,
                state=tuple(part[number : number + 1] for part in self.state),
            )
            for number, weights in enumerate(cell.weights)
        ]
        return [runs[first : first + 2] for first in range(0, len(runs), 2)]


class _Kernels(TorchFunctionMode):
    """Lets ``run`` answer the calls of kernels with the weights of ``net``, if it wants to."""

    def __init__(self, net: Any, run: Callable[[KernelCall], tuple[Tensor, ...] | None]) -> None:
        super().__init__()
        self._net, self._run = net, run

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function of PyTorch, or what takes its place."""
        name = getattr(func, "__name__", "")
        if name in _KERNELS and any(one is self._net._flat_weights for one in args):
            found = self._run(KernelCall.read(name, args))
            if found is not None:
                return found
        return func(*args, **(kwargs or {}))


class FusedSequence(Wrapped):
    """``torch.nn.LSTM``, ``GRU`` or ``RNN`` with the same call and results, trained within a limit of memory.

    A step of the plan is a piece of the sequence, which the layers' own kernel runs in one call. Unidirectional
    layers run together. Bidirectional ones run layer by layer, each as two sequences. Without gradients, the
    wrapped network runs as it is.

    Arguments are those of ``wrap``. The steps of a ``plan`` are pieces; without ``piece``, of equal length.

    Dropout between layers draws its masks piece by piece: other numbers than the wrapped network draws from the
    same seed, and the same ones when a piece runs again.

    Raises InputError.
    """

    piece: int | None
    #: What the latest planned call executed, once for each layer and direction if there are two; empty before.
    latest: tuple[PiecePlan, ...]
    _accepted = Wrapped._accepted - {"schedule"} | {"piece"}

    def __init__(self, net: torch.nn.RNNBase, *, piece: int | None = None, **options: Any) -> None:
        _check_net(net)
        if piece is not None:
            check_count("piece", piece)
        if "schedule" in options:
            raise InputError(
                "is not taken: a call may run several sequences",
                field="schedule",
                accepted="plan=Schedule(...)",
            )
        super().__init__(net, **options)
        # Not attributes of the layers.
        vars(self).update(piece=piece, latest=())

    def extra_repr(self) -> str:
        """Return what limits it, as text."""
        return super().extra_repr() + (f", piece={self.piece}" if self.piece is not None else "")

    @as_entry
    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:  # noqa: A002 - PyTorch's name
        """Return the outputs and the final hidden state, as the wrapped network does.

        Raises InputError, and PyTorch's errors for wrong shapes.
        """
        if not isinstance(input, Tensor | PackedSequence):
            raise InputError(
                f"is {quote_value(type(input).__name__)}",
                field="input",
                accepted="a tensor or a PackedSequence",
            )
        before = [(name, one, one.clone()) for name, one in self.net.named_buffers()]

        def run(call: KernelCall) -> tuple[Tensor, ...] | None:
            if not call.is_planned:
                return None
            # Weights that are computed, as by parametrizations, were just computed.
            _refuse_changes(before)
            if hx is None:
                # Views of a single zero.
                zeros = tuple(part.new_zeros(1).expand(part.shape) for part in call.state)
                call = replace(call, state=zeros)
            outputs, end = self._run_layers(call)
            return outputs.transpose(0, 1) if call.batch_first else outputs, *end

        with _Kernels(self.net, run):
            # Hooks run once, around the whole sequence.
            answer: tuple[Any, Any] = self.net(input, hx)
            return answer

    def _run_layers(self, call: KernelCall) -> tuple[Tensor, Hidden]:
        """Run the sequences of a call; return the outputs of the last layer, and the final states of all."""
        rows, cell, runs = call.rows, call.cell, call.list_runs()
        output = rows.size * len(runs[0]) * call.state[0].shape[-1] * rows.data.itemsize
        kept, later = _count_inner(call, output=output)
        each = [run for both in runs for run in both]
        chosen = self._choose(each, outputs=output, kept=kept, later=later)
        ends: list[Hidden] = []
        for layer, both in enumerate(runs):
            if layer and cell.dropout:
                rows = rows.with_data(torch.nn.functional.dropout(rows.data, cell.dropout, cell.training))
            done = [self._run_cell(replace(run, rows=rows), chosen) for run in both]
            ends += [end for _, end in done]
            rows = rows.with_data(_join([outputs for outputs, _ in done], -1))
        return rows.data, tuple(_join(parts, 0) for parts in zip(*ends, strict=True))

    def _choose(self, runs: Sequence[PieceRun], **beside: Any) -> PiecePlan:
        """Return the plan of each sequence of a call, given fields of its ``Space``. Raises InputError."""
        rows = runs[0].rows
        if self._given is not None:
            chosen = fit_pieces(self._given, rows.steps, piece=self.piece)
        else:
            limit = read_limit(self._memory, rows.data.device)
            links = find_links(
                self._options.get("remote_dir"),
                state_bytes=max(byte_size(run.state) for run in runs),
                steps=len(runs) * rows.steps,
                device=rows.data.device,
                local_bytes=limit,
            )
            chosen = Room(runs=runs, space=Space(limit=limit, links=links, **beside)).choose(self.piece)
        self.latest, self.plan = (chosen,) * len(runs), chosen.plan
        return chosen

    def _run_cell(self, run: PieceRun, chosen: PiecePlan) -> tuple[Tensor, Hidden]:
        cell, rows = run.cell, run.rows
        call = Call(
            cell=cell,
            inputs=PieceInputs(rows, piece=chosen.piece, backwards=cell.backwards),
            state=run.state,
            plan=chosen.plan,
            # A plan for a limit is made of the sizes of this cell; those of packed pieces differ.
            compares_sizes=self._given is not None and rows.batch_sizes is None,
            **{**self._options, "parameters": (*cell.parameters, *self._options["parameters"])},
        )
        done, (outputs, *final) = run_call(call)
        return outputs, done.end.fill(final)


def _join(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Return tensors as one, without a copy of a single one."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), axis)


def _count_inner(call: KernelCall, *, output: int) -> tuple[int, int]:
    """Return the bytes that inner layers of a bidirectional network keep, and those of gradients besides."""
    layers, cell, x = len(call.cell.weights) // 2, call.cell, call.rows.data
    if not call.bidirectional:
        return 0, x.nbytes if x.requires_grad else 0
    # A gradient from each direction, and their sum.
    inner = 3 * output if layers > 1 else 0
    outer = 3 * x.nbytes if x.requires_grad else 0
    dropped = (output + output // x.itemsize) if cell.dropout and cell.training else 0
    return (layers - 1) * (output + dropped), byte_size(cell.parameters) + max(inner, outer)


def _refuse_changes(before: list[tuple[str, Tensor, Tensor]]) -> None:
    """Raise InputError if buffers, with copies of what they were, have changed, and put them back."""
    changed = [(name, one, copy) for name, one, copy in before if not torch.equal(one, copy)]
    with torch.no_grad():
        for _, one, copy in changed:
            one.copy_(copy)
    if changed:
        raise InputError(
            f"changes {changed[0][0]} whenever a weight is read (as spectral_norm does in training), and "
            "PyTorch reads its weights a number of times in each call",
            field="net",
            accepted="net.eval(), weights that are normalized once before a sequence, or cells of your own",
        )


def _check_net(net: torch.nn.Module) -> None:
    if type(net).forward not in [one.forward for one in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)]:
        raise InputError(
            f"{quote_value(type(net).__name__)} has a forward of its own, which pieces would leave out",
            field="net",
            accepted=f"{_ACCEPTED}; what else a subclass does, in a module around it",
        )
