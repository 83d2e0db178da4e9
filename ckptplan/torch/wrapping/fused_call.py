"""Reads a call of PyTorch's recurrent layers as rows and a state, and answers in the shapes of the call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ckptplan.errors import InputError, quote_value
from ckptplan.torch.wrapping.fused_cell import Hidden
from ckptplan.torch.wrapping.pieces import SequenceRows


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
    """Return the state that PyTorch begins with if none is given."""
    count = net.num_layers * (2 if net.bidirectional else 1)
    sizes = [net.proj_size or net.hidden_size, *([net.hidden_size] if net.mode == "LSTM" else [])]
    return tuple(rows.data.new_zeros(count, rows.batch, size) for size in sizes)
