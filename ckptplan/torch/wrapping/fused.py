"""Runs PyTorch's recurrent layers over whole sequences within a limit of memory, piece by piece.

Reads a call of PyTorch's recurrent layers as rows and a state, and answers in the shapes of the call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ckptplan.errors import InputError, quote_value
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.budget import read_limit
from ckptplan.torch.call import Call
from ckptplan.torch.offload import at_place, find_links
from ckptplan.torch.run import run_call
from ckptplan.torch.trees import byte_size
from ckptplan.torch.wrapping.piece_plan import PiecePlan, PieceRun, choose_pieces, fit_pieces
from ckptplan.torch.wrapping.pieces import FusedCell, Hidden, PieceInputs, PieceOutputs, SequenceRows
from ckptplan.torch.wrapping.wrapped import Wrapped

_ACCEPTED = "torch.nn.LSTM, GRU or RNN; for other networks, a cell and ckptplan.torch.unroll"


class FusedSequence(Wrapped):
    """``torch.nn.LSTM``, ``GRU`` or ``RNN`` with the same call and results, trained within a limit of memory.

    A step of the plan is a piece of the sequence, which the layers' own kernel runs in one call. Unidirectional
    layers run together. Bidirectional ones run layer by layer, each as two sequences. Without gradients, the
    wrapped network runs as it is.

    Arguments:
        net: the layers.
        memory: as for ``unroll``: what forward and backward may take, together with the outputs and their
            gradients.
        plan: in place of ``memory``, a plan or a schedule whose steps are pieces.
        piece: the time steps of a piece; the quickest by itself, or, with a plan, as many as make its steps.
        options: other arguments of ``unroll``.

    Dropout between layers draws its masks piece by piece: other numbers than the wrapped network draws from the
    same seed, and the same ones when a piece runs again.

    Raises InputError.
    """

    net: Any
    piece: int | None
    #: What the latest planned call executed: one plan, for a bidirectional network two for each layer.
    latest: tuple[PiecePlan, ...]

    def __init__(
        self,
        net: torch.nn.RNNBase,
        *,
        memory: int | str | None = None,
        plan: Plan | Schedule | None = None,
        piece: int | None = None,
        **options: Any,
    ) -> None:
        _check_net(net)
        _check_piece(piece)
        if "schedule" in options:
            raise InputError(
                "is not taken: a call may run several sequences",
                field="schedule",
                accepted="plan=Schedule(...)",
            )
        super().__init__(net, memory=memory, plan=plan, **options)
        # Not attributes of the layers.
        vars(self).update(piece=piece, latest=())

    def extra_repr(self) -> str:
        """Return what limits it, as text."""
        return super().extra_repr() + (f", piece={self.piece}" if self.piece is not None else "")

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:  # noqa: A002 - PyTorch's name
        """Return the outputs and the final hidden state, as the wrapped network does. Raises InputError."""
        if not self._is_planned(input, hx):
            plain: tuple[Any, Any] = self.net(input, hx)
            return plain
        if not _has_hooks(self.net):
            return self._run(input, hx)
        # Hooks run once, around the whole sequence. If another thread calls the network now, it runs by itself,
        # or as here: the results are the same.
        own = vars(self.net)
        own["forward"] = self._run
        try:
            hooked: tuple[Any, Any] = self.net(input, hx)
            return hooked
        finally:
            own.pop("forward", None)

    def _is_planned(self, given: Any, hx: Any) -> bool:
        data = find_data(given)
        hidden = hx if isinstance(hx, tuple | list) else (hx,)
        tensors = (data, *(one for one in hidden if isinstance(one, Tensor)), *self.net.parameters())
        wants = any(one.requires_grad for one in tensors)
        return torch.is_grad_enabled() and wants and data.numel() > 0

    def _run(self, given: Any, hx: Any = None) -> tuple[Any, Any]:
        call = read_call(self.net, given, hx)
        run = self._run_both_ways if self.net.bidirectional else self._run_together
        return call.answer(*run(call.rows, call.state))

    def _run_together(self, rows: SequenceRows, state: Hidden) -> tuple[Tensor, Hidden]:
        """Run all layers as one cell."""
        cell = self._make_cell(range(self.net.num_layers), dropout=self.net.dropout)
        output = rows.size * cell.width * rows.data.element_size()
        kept = 2 * output + (rows.data.nbytes if rows.data.requires_grad else 0)
        (chosen,) = self._choose([PieceRun(cell=cell, kind=rows.kind, state=state)], kept=kept, outputs=output)
        return self._run_cell(cell, rows, state, chosen)

    def _run_both_ways(self, rows: SequenceRows, state: Hidden) -> tuple[Tensor, Hidden]:
        """Run layer by layer, since a layer needs both directions of all time steps below."""
        net = self.net
        cells = [self._make_cell([number], dropout=0.0) for number in range(2 * net.num_layers)]
        states = [tuple(part[number : number + 1] for part in state) for number in range(len(cells))]
        width = 2 * cells[0].width
        kinds = [rows.kind, replace(rows.kind, width=width, requires_grad=True)]
        runs = [
            PieceRun(cell=cell, kind=kinds[number >= 2], state=own)
            for number, (cell, own) in enumerate(zip(cells, states, strict=True))
        ]
        output = rows.size * width * rows.data.itemsize
        plans = self._choose(runs, kept=self._count_kept(rows, output=output), outputs=output)
        ends: list[Hidden] = []
        for layer in range(net.num_layers):
            if layer and net.dropout:
                rows = rows.with_data(torch.nn.functional.dropout(rows.data, net.dropout, net.training))
            both = []
            for number in (2 * layer, 2 * layer + 1):
                outputs, end = self._run_cell(cells[number], rows, states[number], plans[number])
                both.append(outputs)
                ends.append(end)
            rows = rows.with_data(torch.cat(both, -1))
        return rows.data, tuple(torch.cat(parts) for parts in zip(*ends, strict=True))

    def _count_kept(self, rows: SequenceRows, *, output: int) -> int:
        """Return the bytes of all layers' outputs and gradients in a bidirectional network."""
        net, x = self.net, rows.data
        # A gradient from each direction, and their sum.
        inner = 3 * output if net.num_layers > 1 else 0
        outer = 3 * x.nbytes if x.requires_grad else 0
        dropped = (output + output // x.itemsize) if net.dropout and net.training else 0
        weights = sum(weight.nbytes for weight in net.parameters() if weight.requires_grad)
        kept: int = weights + (net.num_layers + 1) * output + (net.num_layers - 1) * dropped + max(inner, outer)
        return kept

    def _make_cell(self, layers: range | list[int], *, dropout: float) -> FusedCell:
        """Return a cell of some layers, counted with their directions."""
        net = self.net
        before = [(name, one, one.clone()) for name, one in net.named_buffers()]
        # Weights that are computed, as by parametrizations, are computed once.
        weights = tuple(tuple(getattr(net, name) for name in net._all_weights[layer]) for layer in layers)
        _refuse_changes(before)
        return FusedCell(
            mode=net.mode,
            weights=weights,
            width=net.proj_size or net.hidden_size,
            bias=net.bias,
            dropout=dropout,
            training=net.training,
            backwards=net.bidirectional and layers[0] % 2 == 1,
        )

    def _choose(self, runs: list[PieceRun], *, kept: int, outputs: int) -> tuple[PiecePlan, ...]:
        """Return the plans of all sequences that a call runs. Raises InputError."""
        kind = runs[0].kind
        if self._given is not None:
            self.latest = (fit_pieces(self._given, kind.steps, piece=self.piece),) * len(runs)
        else:
            limit = read_limit(self._memory, kind.device)
            links = find_links(
                self._place,
                state_bytes=max(byte_size(run.state) for run in runs),
                steps=len(runs) * kind.steps,
                device=kind.device,
                local_bytes=limit,
            )
            self.latest = tuple(
                choose_pieces(runs, limit=limit, kept=kept, outputs=outputs, piece=self.piece, links=links)
            )
        self.plan = self.latest[0].plan
        return self.latest

    def _run_cell(
        self, cell: FusedCell, rows: SequenceRows, state: Hidden, chosen: PiecePlan
    ) -> tuple[Tensor, Hidden]:
        named = self._options.get("parameters", ())
        cut = rows.cut(chosen.piece, backwards=cell.backwards)
        call = Call(
            cell=cell,
            inputs=PieceInputs(rows, cut, piece=chosen.piece),
            state=state,
            plan=chosen.plan,
            # A plan for a limit is made of the sizes of this cell; those of packed pieces differ.
            compares_sizes=self._given is not None and rows.batch_sizes is None,
            **{**at_place(self._place, self._options), "parameters": (*cell.parameters, *named)},
        )
        run, (outputs, *final) = run_call(call, partial(PieceOutputs, cut))
        return outputs, run.executor.end.fill(final)


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


def _has_hooks(net: torch.nn.Module) -> bool:
    return any((net._forward_hooks, net._forward_pre_hooks, net._backward_hooks, net._backward_pre_hooks))


def _check_net(net: object) -> None:
    stock = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)
    if not isinstance(net, stock):
        raise InputError(f"is {quote_value(type(net).__name__)}", field="net", accepted=_ACCEPTED)
    if type(net).forward not in [one.forward for one in stock]:
        raise InputError(
            f"{quote_value(type(net).__name__)} has a forward of its own, which pieces would leave out",
            field="net",
            accepted=f"{_ACCEPTED}; what else a subclass does, in a module around it",
        )


def _check_piece(piece: object) -> None:
    if piece is not None and (not isinstance(piece, int) or isinstance(piece, bool) or piece < 1):
        raise InputError(
            f"is {quote_value(piece)}",
            field="piece",
            value=piece,
            accepted="a number of time steps, at least 1",
        )


@dataclass(frozen=True, kw_only=True)
class FusedCall:
    """What a call means: time first, longest sequence first, a state for each layer and direction."""

    net: torch.nn.RNNBase
    input: Tensor | PackedSequence
    rows: SequenceRows
    state: Hidden

    def answer(self, outputs: Tensor, end: Hidden) -> tuple[Any, Any]:
        """Return outputs and a final state in the shapes of the call."""
        net, given = self.net, self.input
        if isinstance(given, PackedSequence):
            order = given.sorted_indices, given.unsorted_indices
            packed = PackedSequence(outputs, given.batch_sizes, *order)
            return packed, net.permute_hidden(_close(net, end), given.unsorted_indices)
        if given.dim() == 2:
            return outputs.squeeze(1), _close(net, tuple(part.squeeze(1) for part in end))
        return outputs.transpose(0, 1) if net.batch_first else outputs, _close(net, end)


def read_call(net: torch.nn.RNNBase, given: Any, hx: Any) -> FusedCall:
    """Return what the arguments of a call mean. Raises InputError, and PyTorch's errors for wrong shapes."""
    data = find_data(given)
    hidden = None if hx is None else (tuple(hx) if net.mode == "LSTM" else (hx,))
    if isinstance(given, PackedSequence):
        rows = SequenceRows(data=data, batch_sizes=given.batch_sizes)
        if hidden is not None:
            hidden = _open(net, net.permute_hidden(_close(net, hidden), given.sorted_indices))
        checked = data
    else:
        if data.dim() not in (2, 3):
            raise InputError(
                f"has {data.dim()} axes",
                field="input",
                value=tuple(data.shape),
                accepted="a tensor of 3 axes, of 2 for a single sequence, or a PackedSequence",
            )
        if hidden is not None and any(part.dim() != data.dim() for part in hidden):
            raise InputError(
                f"has {hidden[0].dim()} axes, and the input has {data.dim()}",
                field="hx",
                value=tuple(hidden[0].shape),
                accepted="as many axes as the input",
            )
        if data.dim() == 2:
            data = data.unsqueeze(1)
            hidden = None if hidden is None else tuple(part.unsqueeze(1) for part in hidden)
            checked = data.transpose(0, 1) if net.batch_first else data
        else:
            checked, data = data, data.transpose(0, 1) if net.batch_first else data
        rows = SequenceRows(data=data)
    state = _make_zeros(net, rows) if hidden is None else hidden
    net.check_forward_args(checked, _close(net, state), rows.batch_sizes)
    return FusedCall(net=net, input=given, rows=rows, state=state)


def find_data(given: Any) -> Tensor:
    """Return the numbers of an input. Raises InputError."""
    data = given.data if isinstance(given, PackedSequence) else given
    if not isinstance(data, Tensor):
        raise InputError(
            f"is {quote_value(type(given).__name__)}", field="input", accepted="a tensor or a PackedSequence"
        )
    return data


def _close(net: torch.nn.RNNBase, state: Hidden) -> Any:
    """Return a state as PyTorch has it: a tensor, for LSTM a pair."""
    return state if net.mode == "LSTM" else state[0]


def _open(net: torch.nn.RNNBase, hidden: Any) -> Hidden:
    return tuple(hidden) if net.mode == "LSTM" else (hidden,)


def _make_zeros(net: torch.nn.RNNBase, rows: SequenceRows) -> Hidden:
    """Return the state that PyTorch begins with if none is given, as views of a single zero."""
    count = net.num_layers * (2 if net.bidirectional else 1)
    sizes = [net.proj_size or net.hidden_size, *([net.hidden_size] if net.mode == "LSTM" else [])]
    return tuple(rows.data.new_zeros(1).expand(count, rows.batch, size) for size in sizes)
