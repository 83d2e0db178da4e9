"""What one layer of each kind of network keeps, computes and moves in a step; each number with its derivation.

H is the neurons (ConvLSTM: channels) of a layer, I its inputs, B the batch; a value is one number of the dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of recurrent layer, per neuron (and place of an image) and sample.

    Arguments:
        gates: matrices from inputs and from the state, each to H neurons.
        biases: bias values a neuron.
        state_values: what is carried from step to step.
        tape_values: what autograd keeps of a step besides the inputs of the layer.
        kernels: kernels that PyTorch starts for a forward step of a layer on a GPU.
    """

    gates: int
    biases: int
    state_values: int
    tape_values: int
    kernels: int


KINDS: Mapping[str, Kind] = {
    # State: h. Tape: the gates r, z and n, the earlier h (it multiplies the weights, and z), and the storage
    # of 3 H values with the recurrent part of n (r multiplies it). Biases: two of 3 H. Kernels: two matrix
    # products and one fused cell.
    "gru": Kind(gates=3, biases=6, state_values=1, tape_values=7, kernels=3),
    # State: h and c. Tape: the gates i, f, g and o, the earlier c and h, and tanh(c). Biases: two of 4 H.
    "lstm": Kind(gates=4, biases=8, state_values=2, tape_values=7, kernels=3),
    # State: membrane and spike. Tape: the membrane (for the surrogate gradient) and the earlier spike (it
    # multiplies the recurrent weights). Kernels: two matrix products with their biases, and six elementwise:
    # decay, two additions, threshold, comparison, reset.
    "snn": Kind(gates=1, biases=2, state_values=2, tape_values=2, kernels=8),
    # As an LSTM, with a convolution in place of the matrix products, and one bias a gate. Kernels: the
    # concatenation, the convolution, four activations, and the six elementwise operations on c and h.
    "convlstm": Kind(gates=4, biases=4, state_values=2, tape_values=7, kernels=12),
}
#: Values that training keeps for each weight: itself, its gradient, and the two moments of Adam.
VALUES_PER_WEIGHT = 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a network: equal layers, of which the first has the inputs of the network.

    ``places`` is height times width of an image, and ``taps`` the size of a filter; both 1 without convolution.
    """

    layers: int
    #: May be a fraction, as neurons need not divide evenly.
    width: float
    inputs: int
    places: int = 1
    taps: int = 1

    def weights(self, kind: Kind) -> float:
        """Return the weights that multiply: of each gate, from the inputs and from the state of its layer."""
        from_inputs = self.inputs + (self.layers - 1) * self.width
        return kind.gates * self.taps * self.width * (from_inputs + self.layers * self.width)

    def parameters(self, kind: Kind) -> float:
        """Return all trained values: weights and biases."""
        return self.weights(kind) + kind.biases * self.layers * self.width
