"""Runs ``torch.nn.LSTM``, ``GRU`` and ``RNN`` over whole sequences, piece by piece.

The kernel of the layers runs each piece. Unidirectional layers run together. Bidirectional layers run one after
another, each as two sequences, since a layer needs both directions of all time steps below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.utils.parametrize
from torch import _VF, Tensor
from torch.nn.utils.rnn import PackedSequence

from ckptplan.errors import InputError, quote_value
from ckptplan.torch.entry import as_entry
from ckptplan.torch.fit.choose import ALONE, OtherSequences
from ckptplan.torch.pieces.inputs import PieceInputs, reverse_each
from ckptplan.torch.run.call import Call
from ckptplan.torch.wrapping.axes import lead_into_graphs
from ckptplan.torch.wrapping.wrapped import WrappedPieces

#: The hidden state of all layers, (layers, B, H) each: two tensors of an LSTM, one of other layers.
Hidden: TypeAlias = tuple[Tensor, ...]
_LAYERS = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)


def is_layer(module: torch.nn.Module) -> bool:
    """Return whether a module is a ``torch.nn.LSTM``, ``GRU`` or ``RNN`` without a forward of its own."""
    return type(module).forward in [layers.forward for layers in _LAYERS]


@dataclass(frozen=True, eq=False)
class LayerCell:
    """A cell whose step is a piece of a sequence: ``cell(state, rows) -> (state, outputs)``.

    Rows are of shape (K, B, F); for packed sequences, they are pairs of rows (N, F) and batch sizes. States
    keep all B sequences, also those that have ended, or have not begun.

    Arguments:
        kernel: the name of the kernel in PyTorch: LSTM, GRU, RNN_TANH or RNN_RELU.
        weights: the weights of each layer, in the order of PyTorch.
        bias: whether there are biases.
        dropout: the dropout between layers, 0 if it is not in force.
        training: the mode of the layers.
        backwards: whether time runs from the end to the beginning.
        has_outputs: whether it returns outputs besides the state.
    """

    kernel: str
    weights: list[list[Tensor]]
    bias: bool
    dropout: float
    training: bool
    backwards: bool = False
    has_outputs: bool = True

    def __call__(self, state: Hidden, rows: Any) -> tuple[Hidden, Any]:
        """Run a piece; return the state after it, and the outputs of the last layer, if it has outputs."""
        after, outputs = self._run_piece(state, rows)
        return after, outputs if self.has_outputs else ()

    def _run_piece(self, state: Hidden, rows: Any) -> tuple[Hidden, Tensor]:
        if isinstance(rows, Tensor):
            outputs, after = self._run_layers(rows.flip(0) if self.backwards else rows, None, state)
            return after, outputs.flip(0) if self.backwards else outputs
        data, sizes = rows
        batch, active = state[0].shape[1], int(sizes[0])
        order = reverse_each(sizes).to(data.device) if self.backwards else None
        active_state = tuple(part[:, :active] for part in state)
        outputs, after = self._run_layers(data if order is None else data[order], sizes, active_state)
        if active < batch:
            pairs = zip(after, state, strict=True)
            after = tuple(torch.cat((new.to(old.dtype), old[:, active:]), 1) for new, old in pairs)
        return after, outputs if order is None else outputs[order]

    def _run_layers(self, data: Tensor, sizes: Tensor | None, state: Hidden) -> tuple[Tensor, Hidden]:
        if not self.dropout:
            return self._call_kernel(data, sizes, state, self.weights)
        # Kernels of some devices draw from a generator of their own, which cannot be set back. Masks that are
        # drawn here are drawn again when steps run again.
        ends: list[Hidden] = []
        for number, weights in enumerate(self.weights):
            if number:
                data = torch.nn.functional.dropout(data, self.dropout, training=True)
            layer_state = tuple(part[number : number + 1] for part in state)
            data, end = self._call_kernel(data, sizes, layer_state, [weights])
            ends.append(end)
        return data, tuple(torch.cat(parts) for parts in zip(*ends, strict=True))

    def _call_kernel(
        self, data: Tensor, sizes: Tensor | None, state: Hidden, weights: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, Hidden]:
        kernel = getattr(_VF, self.kernel.lower())
        # Kernels of some devices take no views, as of the first sequences of a batch.
        state = tuple(part.contiguous() for part in state)
        hidden = state if self.kernel == "LSTM" else state[0]
        flat = [weight for layer in weights for weight in layer]
        settings = (flat, self.bias, len(weights), 0.0, self.training, False)
        # The last argument of a sequence that is not packed is batch_first.
        arguments = (data, hidden, *settings, False) if sizes is None else (data, sizes, hidden, *settings)
        outputs, *end = kernel(*arguments)
        return outputs, tuple(end)


class LayerSequence(WrappedPieces):
    """``torch.nn.LSTM``, ``GRU`` or ``RNN`` with the same call and results, trained within a limit of memory.

    A step of the plan is a piece of the sequence. Without gradients, the wrapped layers run as they are.

    Dropout between layers draws its masks piece by piece. The masks differ from those that the wrapped layers
    draw from the same seed, but they are the same when a piece runs again.

    Arguments:
        net: the layers.
        outputs: "all", or "last" for the last output of each sequence, (B, H), in place of all outputs.
        options: other arguments of ``wrap``.

    Raises InputError.
    """

    _outputs: str

    def __init__(self, net: torch.nn.RNNBase, *, outputs: str = "all", **options: Any) -> None:
        if not is_layer(net):
            raise InputError(
                f"{quote_value(type(net).__name__)} has a forward of its own, which pieces would leave out",
                field="net",
                accepted="torch.nn.LSTM, GRU or RNN; move the code of a subclass into a module around it",
            )
        if outputs not in ("all", "last"):
            raise InputError(f"is {quote_value(outputs)}", field="outputs", accepted="'all' or 'last'")
        super().__init__(net, **options)
        # Not an attribute of the layers.
        vars(self)["_outputs"] = outputs

    @as_entry
    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:  # noqa: A002 - PyTorch's name
        """Return the outputs, or the last ones, and the final hidden state, as the wrapped layers do.

        Hooks of the layers run once.

        Raises InputError, and the errors of PyTorch for wrong shapes.
        """
        if not isinstance(input, Tensor | PackedSequence):
            raise InputError(
                f"is {quote_value(type(input).__name__)}",
                field="input",
                accepted="a tensor or a PackedSequence",
            )
        net, data = self.net, input if isinstance(input, Tensor) else input.data
        if not torch.is_grad_enabled() or not data.numel():
            outputs, final = net(input, hx)
            return outputs if self._outputs == "all" else take_last(outputs, net.batch_first), final
        # The call of the layers runs hooks, and computes parametrized weights, once.
        with torch.nn.utils.parametrize.cached():
            net.forward = self._forward_pieces
            try:
                return net(input, hx)  # type: ignore[no-any-return]
            finally:
                del net.forward

    def _forward_pieces(self, input: Any, hx: Any = None) -> tuple[Any, Any]:  # noqa: A002 - PyTorch's name
        if isinstance(input, PackedSequence):
            state = self._begin(input.data, int(input.batch_sizes[0]), hx, input.sorted_indices)
            self.net.check_forward_args(input.data, self._pack(state), input.batch_sizes)
            outputs, final = self._run_layers(input.data, state, input.batch_sizes)
            hidden = self.net.permute_hidden(self._pack(final), input.unsorted_indices)
            order = input.unsorted_indices
            if self._outputs == "last":
                return outputs if order is None else outputs[order], hidden
            return PackedSequence(outputs, input.batch_sizes, input.sorted_indices, order), hidden
        parts = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
        if input.dim() not in (2, 3) or any(part.dim() != input.dim() for part in parts):
            # This raises the error of PyTorch.
            return type(self.net).forward(self.net, input, hx)  # type: ignore[no-any-return]
        net, has_batch = self.net, input.dim() == 3
        is_batch_first = net.batch_first and has_batch
        data = input if has_batch else input.unsqueeze(1)
        data = data.transpose(0, 1) if is_batch_first else data
        if not has_batch and hx is not None:
            hx = self._pack(tuple(part.unsqueeze(1) for part in parts))
        if has_batch:
            self._axes.watch([input], lambda: lead_into_graphs(parts), batch_first=is_batch_first)
        state = self._begin(data, data.shape[1], hx, None)
        net.check_forward_args(data.transpose(0, 1) if net.batch_first else data, self._pack(state), None)
        outputs, final = self._run_layers(data, state, None)
        if not has_batch:
            return outputs.squeeze(-2), self._pack(tuple(part.squeeze(1) for part in final))
        is_transposed = is_batch_first and self._outputs == "all"
        return outputs.transpose(0, 1) if is_transposed else outputs, self._pack(final)

    def _begin(self, data: Tensor, batch: int, hx: Any, order: Tensor | None) -> Hidden:
        """Return the hidden state with which a call begins."""
        net = self.net
        if hx is not None:
            hx = net.permute_hidden(hx, order)
            return tuple(hx) if isinstance(hx, tuple) else (hx,)
        count = net.num_layers * (2 if net.bidirectional else 1)
        sizes = [net.proj_size or net.hidden_size, *([net.hidden_size] if net.mode == "LSTM" else [])]
        return tuple(data.new_zeros(1).expand(count, batch, size) for size in sizes)

    def _pack(self, state: Hidden) -> Any:
        return state if self.net.mode == "LSTM" else state[0]

    def _run_layers(self, data: Tensor, state: Hidden, sizes: Tensor | None) -> tuple[Tensor, Hidden]:
        """Run all layers; return all outputs or the last output of the last layer, and all final states."""
        net = self.net
        vars(self)["latest"] = ()
        weights = self._read_weights()
        dropout = net.dropout if net.training and net.num_layers > 1 else 0.0
        is_last = self._outputs == "last"
        if not net.bidirectional:
            cell = LayerCell(net.mode, weights, net.bias, dropout, net.training, has_outputs=not is_last)
            outputs, end = self._run_cell(cell, data, state, sizes, weights)
            return end[0][-1] if is_last else outputs, end
        ends: list[Hidden] = []
        for layer in range(net.num_layers):
            if layer and dropout:
                data = torch.nn.functional.dropout(data, dropout, training=True)
            results = []
            keeps = not is_last or layer + 1 < net.num_layers
            for number in (2 * layer, 2 * layer + 1):
                shared = net.mode, [weights[number]], net.bias, 0.0, net.training
                hidden = tuple(part[number : number + 1] for part in state)
                cell = LayerCell(*shared, number % 2 == 1, keeps)
                outputs, end = self._run_cell(cell, data, hidden, sizes, weights)
                if not keeps:
                    # The last output of the layer that runs backwards is the output of its first step.
                    end_rows = data[-1:] if sizes is None else _select_last(data, sizes).unsqueeze(0)
                    outputs = LayerCell(*shared)(hidden, end_rows)[1][0] if number % 2 else end[0][0]
                results.append((outputs, end))
            ends += [end for _, end in results]
            data = torch.cat([outputs for outputs, _ in results], -1)
        return data, tuple(torch.cat(parts) for parts in zip(*ends, strict=True))

    def _read_weights(self) -> list[list[Tensor]]:
        """Return the weights of each layer.

        Raises InputError if reading a weight changes the next one: PyTorch's layer reads each several times.
        """
        net = self.net
        before = [(buffer, buffer.clone()) for buffer in net.buffers()]
        weights = [[getattr(net, name) for name in names] for names in net._all_weights]
        moved = [(buffer, old) for buffer, old in before if not torch.equal(buffer, old)]
        # This call has entered one context itself.
        if moved and torch.nn.utils.parametrize._cache_enabled < 2:
            for buffer, old in moved:
                buffer.copy_(old)
            raise InputError(
                "has weights that change whenever they are read, as those of spectral_norm in train(), and "
                "PyTorch reads them several times a call",
                field="net",
                accepted="a call within torch.nn.utils.parametrize.cached(), or net.eval()",
            )
        return weights

    def _run_cell(
        self,
        cell: LayerCell,
        data: Tensor,
        state: Hidden,
        sizes: Tensor | None,
        weights: Sequence[Sequence[Tensor]],
    ) -> tuple[Any, Hidden]:
        steps = len(data if sizes is None else sizes)

        def make_call(length: int) -> Call:
            inputs = PieceInputs(data, length, batch_sizes=sizes, backwards=cell.backwards)
            return Call(cell=cell, inputs=inputs, state=state, is_closed=True, **self._options)

        results = self._run_pieces(make_call, steps, others=self._count_other_sequences(cell, data, weights))
        return results.tensors[0] if cell.has_outputs else None, results.state

    def _count_other_sequences(
        self, cell: LayerCell, data: Tensor, weights: Sequence[Sequence[Tensor]]
    ) -> OtherSequences:
        """Return the memory that the other sequences of a call take; none if layers run together.

        ``weights`` are those of all layers.
        """
        net = self.net
        if not net.bidirectional:
            return ALONE
        output = 2 * data.numel() // data.shape[-1] * (net.proj_size or net.hidden_size) * data.itemsize
        dropped = output + output // data.itemsize if net.dropout and net.training else 0
        # A gradient from each direction, and their sum.
        inner = 3 * output if net.num_layers > 1 else 0
        outer = 3 * data.nbytes if data.requires_grad else 0
        # The gradients of this sequence's inputs are counted with the sequence.
        own = data.nbytes if data.requires_grad else 0
        cell_bytes = sum(weight.nbytes for weight in cell.weights[0])
        # A later sequence may have larger weights, and it counts their gradients twice. If it does not fit, the
        # first sequence is refused.
        largest = max(sum(weight.nbytes for weight in layer) for layer in weights)
        return OtherSequences(
            sequences=2 * net.num_layers,
            kept_bytes=(net.num_layers - 1) * (output + dropped),
            grad_bytes=sum(weight.nbytes for weight in net.parameters())
            + 2 * largest
            - 3 * cell_bytes
            + max(inner, outer)
            - own,
            output_bytes=0 if self._outputs == "last" else output,
        )


def _select_last(rows: Tensor, sizes: Tensor) -> Tensor:
    """Return the rows of the last time step of each packed sequence, given the batch sizes."""
    # In reverse, the last time steps are first.
    return rows[reverse_each(sizes)[: int(sizes[0])].to(rows.device)]


def take_last(outputs: Any, batch_first: bool) -> Tensor:
    """Return the last output of each sequence of the outputs of layers."""
    if isinstance(outputs, PackedSequence):
        last = _select_last(outputs.data, outputs.batch_sizes)
        return last if outputs.unsorted_indices is None else last[outputs.unsorted_indices]
    tensor: Tensor = outputs
    return tensor.select(-2 if batch_first or tensor.dim() == 2 else 0, -1)
