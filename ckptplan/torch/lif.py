"""Implements leaky integrate-and-fire neurons: spiking layers whose only memory is the membrane.

With decay d, threshold h, spikes z(t) = [v(t) > h]:

    v(t) = d v(t-1) + W x(t) + R z(t-1) + b - h z(t-1)

The tape holds membranes only. The spike has the surrogate derivative 1 / (1 + s |v - h|)^2 (Zenke and Ganguli
2018); the reset, which is the last term, has none. The smaller the slope s, the larger the derivative: over
hundreds of steps gradients may explode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ckptplan.torch.spiking import MEMBRANE, SpikingLayer, State
from ckptplan.torch.surrogates import FastSigmoid


class LIF(SpikingLayer):
    """A layer of leaky integrate-and-fire neurons, recurrent or not; the state is the membranes alone.

    Inputs have shape (..., inputs); the state, and the spikes that are the output, have shape (..., neurons).
    Under autocast, chunks run in the precision of the parameters. Raises InputError.

    Arguments:
        inputs: the number of inputs.
        neurons: the number of neurons.
        decay: d, from 0 to 1.
        threshold: h.
        slope: s, above 0.
        recurrent: whether neurons feed back on each other, with the weights R.
        spiking_inputs: whether the inputs are zeros and ones, which are then saved sparse, too.
        device: the device of the parameters.
        dtype: the type of the parameters.
    """

    surrogate: FastSigmoid
    _is_copied = True

    def __init__(
        self,
        inputs: int,
        neurons: int,
        *,
        decay: float = 0.9,
        threshold: float = 1.0,
        slope: float = 25.0,
        recurrent: bool = True,
        spiking_inputs: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            inputs,
            neurons,
            decay=decay,
            threshold=threshold,
            surrogate=FastSigmoid(slope),
            recurrent=recurrent,
            spiking_inputs=spiking_inputs,
            device=device,
            dtype=dtype,
        )

    @property
    def slope(self) -> float:
        """The slope s of the surrogate derivative."""
        return self.surrogate.slope

    @slope.setter
    def slope(self, slope: float) -> None:
        self.surrogate = FastSigmoid(slope)

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"{self.inputs}, {self.neurons}, recurrent={self.recurrent_weight is not None}"

    def _name(self, state: Any) -> State:
        return {MEMBRANE: state}

    def _join(self, tensors: State) -> Any:
        return tensors[MEMBRANE]

    def _find_slopes(self, state: State, *, overwrites: bool) -> Tensor:
        # In the memory of the membranes, so that a chunk takes no more than its states.
        membranes = state[MEMBRANE] if overwrites else state[MEMBRANE].clone()
        return membranes.sub_(self.threshold).abs_().mul_(self.slope).add_(1).pow_(-2)
