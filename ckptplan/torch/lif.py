"""Implements leaky integrate-and-fire neurons that are replayed from their spikes.

With decay d, threshold h, spikes z(t) = [v(t) > h]:

    v(t) = d v(t-1) + W x(t) + R z(t-1) + b - h z(t-1)

The tape holds membranes only. The spike has the surrogate derivative 1 / (1 + s |v - h|)^2 (Zenke and Ganguli
2018); the reset, which is the last term, has none. The smaller the slope s, the larger the derivative: over
hundreds of steps gradients may explode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ckptplan.errors import InputError
from ckptplan.torch.chunk_cell import ChunkCell, ChunkGradients
from ckptplan.torch.spikes import Spikes
from ckptplan.torch.surrogates import FastSigmoid, Spike

#: Runs of fewer steps also keep spikes as booleans, since unpacking spikes takes longer than such steps.
_FEW_STEPS = 16


class LIFBefore(NamedTuple):
    """The spikes of a step, as booleans and as they are stored."""

    fired: torch.Tensor
    spikes: Spikes


@dataclass(frozen=True)
class LIFOutputs:
    """Spikes of some steps and of the step before, and the inputs of these steps if they are spikes."""

    #: The spikes of the step before, in the memory of the outputs of that step if these are kept.
    first: Spikes
    spikes: Spikes
    inputs: Spikes | None
    #: The spikes as booleans after a short run, since losses need them next. They are never saved.
    fired: torch.Tensor | None = None

    @property
    def bytes(self) -> int:
        """The bytes of the tensors."""
        return self.spikes.bytes + (0 if self.inputs is None else self.inputs.bytes)

    def part(self, start: int, stop: int) -> LIFOutputs:
        """Return the outputs of steps start..stop-1, counted from the first step here."""
        first = self.spikes.part(start - 1, start) if start else self.first
        inputs = None if self.inputs is None else self.inputs.part(start, stop)
        fired = None if self.fired is None else self.fired[start:stop]
        return LIFOutputs(first, self.spikes.part(start, stop), inputs, fired)

    def moved(self, keep: Callable[[torch.Tensor], torch.Tensor]) -> LIFOutputs:
        """Return the same outputs with each of their own tensors replaced by ``keep(tensor)``."""
        inputs = None if self.inputs is None else self.inputs.moved(keep)
        return LIFOutputs(self.first, self.spikes.moved(keep), inputs)

    def carried(self, keep: Callable[[torch.Tensor], torch.Tensor]) -> LIFOutputs:
        """Return the same outputs with each tensor replaced, including the spikes of the step before."""
        return replace(self.moved(keep), first=self.first.moved(keep))

    def read(self) -> Spikes:
        """Return the spikes that each step reads: the spikes of the step before."""
        steps = self.spikes.steps
        return self.first if steps == 1 else self.first.join(self.spikes.part(0, steps - 1))


def add_weights(
    cell: torch.nn.Module,
    inputs: int,
    neurons: int,
    *,
    recurrent: bool,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> None:
    """Give a layer its weights W and R and its bias b, drawn uniformly. Raises InputError for wrong sizes."""
    for name, value in (("inputs", inputs), ("neurons", neurons)):
        if value < 1:
            raise InputError(f"is {value}", field=name, value=value, accepted="a whole number from 1")
    factory: dict[str, Any] = {"device": device, "dtype": dtype}
    cell.weight = torch.nn.Parameter(torch.empty(neurons, inputs, **factory))
    cell.bias = torch.nn.Parameter(torch.zeros(neurons, **factory))
    torch.nn.init.uniform_(cell.weight, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))
    weight = torch.nn.Parameter(torch.empty(neurons, neurons, **factory)) if recurrent else None
    cell.register_parameter("recurrent_weight", weight)
    if weight is not None:
        torch.nn.init.uniform_(weight, -1 / math.sqrt(neurons), 1 / math.sqrt(neurons))


def check_weights(cell: torch.nn.Module, *names: str) -> None:
    """Raise InputError for a weight that is no parameter: tensors that it is computed from get no gradient."""
    for name in names:
        value = getattr(cell, name)
        if isinstance(value, torch.Tensor) and value is not cell._parameters.get(name):
            raise InputError(
                f"{name} is computed from other tensors (a parametrization, pruning), or is a buffer: a "
                "backward pass of its own does not reach their gradients",
                field="cell",
                accepted="plain parameters; or cell=lambda state, x: layer(state, x), step by step",
            )


def take_last(outputs: LIFOutputs) -> LIFBefore:
    """Return the spikes of the last step."""
    steps = outputs.spikes.steps
    spikes = outputs.spikes.part(steps - 1, steps)
    fired = spikes.dense(torch.bool)[0] if outputs.fired is None else outputs.fired[-1].clone()
    return LIFBefore(fired, spikes)


class LIF(ChunkCell):
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

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter
    recurrent_weight: torch.nn.Parameter | None
    #: The state determines the spikes of the step before.
    runs_from_state = True
    #: The result of ``_feedback``, in the copy that runs a sequence.
    _kept_feedback: torch.Tensor | None = None

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
        super().__init__()
        if not slope > 0:
            raise InputError(f"is {slope}", field="slope", value=slope, accepted="a number above 0")
        if not 0 <= decay <= 1:
            raise InputError(f"is {decay}", field="decay", value=decay, accepted="from 0 to 1")
        self.inputs, self.neurons, self.decay = inputs, neurons, decay
        self.threshold, self.slope, self.spiking_inputs = threshold, slope, spiking_inputs
        add_weights(self, inputs, neurons, recurrent=recurrent, device=device, dtype=dtype)

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"{self.inputs}, {self.neurons}, recurrent={self.recurrent_weight is not None}"

    def initial_state(self, *batch: int) -> torch.Tensor:
        """Return membranes at rest, shape (*batch, neurons)."""
        return self.weight.new_zeros(*batch, self.neurons)

    def for_sequence(self) -> LIF:
        """Return a copy that computes the feedback of spikes only once, and that shares the parameters."""
        if type(self) is not LIF:
            # A subclass may set attributes in its methods, which would set them on the copy.
            return self
        copy = LIF.__new__(LIF)
        vars(copy).update(vars(self))
        with torch.no_grad(), torch.autocast(device_type=self.weight.device.type, enabled=False):
            copy._kept_feedback = self._feedback()
        return copy

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a step under autograd, as any cell does."""
        surrogate = FastSigmoid(self.slope)
        spikes = Spike.apply(state - self.threshold, surrogate)  # type: ignore[no-untyped-call]
        current = torch.nn.functional.linear(x, self.weight, self.bias)
        if self.recurrent_weight is not None:
            current = current + torch.nn.functional.linear(spikes, self.recurrent_weight)
        state = self.decay * state + current - self.threshold * spikes.detach()
        return state, Spike.apply(state - self.threshold, surrogate)  # type: ignore[no-untyped-call]

    def run(
        self, state: torch.Tensor, inputs: torch.Tensor, before: LIFBefore | None
    ) -> tuple[torch.Tensor, LIFOutputs]:
        """Run steps for the first time, with dense products, and pack the spikes."""
        check_weights(self, "weight", "bias", "recurrent_weight")
        if self.spiking_inputs and not bool(((inputs == 0) | (inputs == 1)).all()):
            raise InputError(
                "are not all zeros and ones", field="inputs", accepted="spikes, or spiking_inputs=False"
            )
        feedback = self._feedback()
        states = torch.nn.functional.linear(inputs, self.weight, self.bias)
        fired = torch.empty(len(inputs), *state.shape, dtype=torch.bool, device=state.device)
        start = state > self.threshold if before is None else before.fired
        spikes, membranes = self._rows(start.to(state.dtype)), self._rows(state)
        for current, fires in zip(self._steps(states), self._steps(fired), strict=True):
            membranes = current.addmm_(spikes, feedback).add_(membranes, alpha=self.decay)
            torch.gt(membranes, self.threshold, out=fires)
            spikes.copy_(fires)
        saved = Spikes.pack(inputs) if self.spiking_inputs else None
        first = Spikes.pack(start.unsqueeze(0)) if before is None else before.spikes
        return states, LIFOutputs(first, Spikes.pack(fired), saved, fired if len(inputs) < _FEW_STEPS else None)

    def replay(self, state: torch.Tensor, inputs: torch.Tensor, outputs: LIFOutputs) -> torch.Tensor:
        """Return the membranes, from one sparse product for the feedback of all steps, and the leak."""
        states = outputs.read().product(self._feedback())
        if outputs.inputs is None:
            self._rows(states).addmm_(inputs.reshape(-1, self.inputs), self.weight.t())
        else:
            states += outputs.inputs.product(self.weight.t().contiguous())
        if self.bias is not None:
            states += self.bias
        membranes = self._rows(state)
        for current in self._steps(states):
            membranes = current.add_(membranes, alpha=self.decay)
        return states

    def last(self, outputs: LIFOutputs) -> LIFBefore:
        """Return the spikes of the last step."""
        return take_last(outputs)

    def dense(self, outputs: LIFOutputs) -> torch.Tensor:
        """Return the spikes as zeros and ones."""
        if outputs.fired is not None:
            return outputs.fired.to(self.weight.dtype)
        return outputs.spikes.dense(self.weight.dtype)

    def reverse(
        self,
        state: torch.Tensor,
        states: torch.Tensor,
        inputs: torch.Tensor,
        outputs: LIFOutputs,
        *,
        output_gradients: torch.Tensor | None,
        state_gradients: torch.Tensor | None,
        wants_inputs: bool,
    ) -> ChunkGradients:
        """Run the recurrence backwards, then compute the gradient of each weight in one product."""
        begin = self._adjoint(state, states, output_gradients, state_gradients)
        currents = states
        flat = self._rows(currents)
        parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        if self.weight.requires_grad:
            parts.append((self.weight, flat.t() @ inputs.reshape(-1, self.inputs)))
        bias = self._parameters["bias"]
        if bias is not None and bias.requires_grad:
            parts.append((bias, flat.sum(0)))
        if self.recurrent_weight is not None and self.recurrent_weight.requires_grad:
            read = outputs.read().dense(states.dtype)
            parts.append((self.recurrent_weight, flat.t() @ self._rows(read)))
        gradients: dict[int, torch.Tensor] = {}
        for parameter, part in parts:
            # One parameter may have several roles.
            gradients[id(parameter)] = gradients[id(parameter)] + part if id(parameter) in gradients else part
        return ChunkGradients(
            state=begin,
            inputs=currents @ self.weight if wants_inputs else None,
            parameters=tuple(gradients.get(id(parameter)) for parameter in self.parameters()),
        )

    def _adjoint(
        self,
        state: torch.Tensor,
        states: torch.Tensor,
        output_gradients: torch.Tensor | None,
        state_gradients: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the gradient of the membranes before a chunk, and overwrite ``states`` by later gradients."""
        begin = state.detach().clone()
        incoming = None if output_gradients is None else self._steps(output_gradients)
        carried = None if state_gradients is None else self._rows(state_gradients)
        following: torch.Tensor | None = None
        self._write_slopes(states)
        self._write_slopes(begin)
        for step, slope in reversed(list(enumerate((self._rows(begin), *self._steps(states))))):
            through = incoming[step - 1] if step and incoming is not None else None
            if following is not None:
                carried = following * self.decay
                if self.recurrent_weight is not None:
                    back = following @ self.recurrent_weight
                    through = back if through is None else back.add_(through)
            if through is None:
                slope.zero_()
            else:
                slope.mul_(through)
            following = slope if carried is None else slope.add_(carried)
        return begin

    def _write_slopes(self, states: torch.Tensor) -> None:
        """Replace states by the surrogate derivative of the spikes."""
        states.sub_(self.threshold).abs_().mul_(self.slope).add_(1).pow_(-2)

    def _rows(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states with one row per sample, whatever the shape of a batch."""
        return states.reshape(-1, self.neurons)

    def _steps(self, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the rows of each step; memory is shared."""
        return states.view(len(states), -1, self.neurons).unbind(0)

    def _feedback(self) -> torch.Tensor:
        """Return the change of each membrane by each spike one step later, including the reset."""
        if self._kept_feedback is not None:
            return self._kept_feedback
        feedback = self.weight.new_zeros(self.neurons, self.neurons)
        if self.recurrent_weight is not None:
            feedback.copy_(self.recurrent_weight.t())
        feedback.diagonal().sub_(self.threshold)
        return feedback
