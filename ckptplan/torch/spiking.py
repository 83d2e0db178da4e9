"""Implements layers of spiking neurons that are replayed from their spikes: synapses, adaptation and resets.

With decays d, c and r, threshold h, adaptation s, spikes z(t) = [v(t) > h + s a(t)], and k(t) the share of
the membrane that a spike leaves (1 - z(t) if it resets to zero, else 1):

    i(t) = c i(t-1) + W x(t) + R z(t-1) + b                 (without a synapse the first term is missing)
    v(t) = d k(t-1) v(t-1) + i(t) - h z(t-1)                (the last term if a spike subtracts the threshold)
    a(t) = r a(t-1) + z(t-1)                                (Bellec et al. 2018)

Resets have no derivative. A replay takes the spikes that were saved: one sparse product gives R z for all
steps, and all other operations are elementwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import torch

from ckptplan.errors import InputError, did_you_mean, quote_value
from ckptplan.torch.chunk_cell import ChunkCell, ChunkGradients
from ckptplan.torch.lif import LIFBefore, LIFOutputs, add_weights, check_weights, take_last
from ckptplan.torch.spikes import Spikes
from ckptplan.torch.surrogates import Spike, Surrogate, fast_sigmoid

#: What a spike does to its membrane.
ResetName: TypeAlias = Literal["subtract", "zero", "none"]
State: TypeAlias = dict[str, torch.Tensor]
_MEMBRANE, _SYNAPSE, _ADAPTATION = "membrane", "synapse", "adaptation"


class SpikingLayer(ChunkCell):
    """A layer of spiking neurons with synapses and adaptation.

    The state is a dict with ``membrane``, and with ``synapse`` and ``adaptation`` if these are asked for.
    Inputs have shape (..., inputs). Each tensor of the state, and the spikes that are the output, have shape
    (..., neurons). ``LIF`` computes the same, and is quicker, if only the membrane has memory and a spike
    subtracts the threshold.

    Arguments:
        inputs: the number of inputs.
        neurons: the number of neurons.
        decay: d, from 0 to 1.
        synapse_decay: c, from 0 to 1; None for currents without memory.
        adaptation: s, by how much each spike raises the threshold; 0 for a fixed threshold.
        adaptation_decay: r, from 0 to 1.
        threshold: h.
        reset: what a spike does to the membrane: 'subtract' the threshold, set it to 'zero', or 'none'.
        surrogate: the derivative of spikes (``ckptplan.torch.surrogates``); None for ``fast_sigmoid()``.
        learn_decay: whether ``decay`` is a parameter, one number for each neuron.
        recurrent: whether neurons feed back on each other, with the weights R.
        spiking_inputs: whether the inputs are zeros and ones, which are then saved sparse, too.
        device: the device of the parameters.
        dtype: the type of the parameters.

    Raises InputError for arguments that are not accepted.
    """

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter
    recurrent_weight: torch.nn.Parameter | None
    #: The state determines the spikes of the step before.
    runs_from_state = True
    #: The transpose of R, in the copy that runs a sequence.
    _kept_feedback: torch.Tensor | None = None

    def __init__(
        self,
        inputs: int,
        neurons: int,
        *,
        decay: float = 0.9,
        synapse_decay: float | None = None,
        adaptation: float = 0.0,
        adaptation_decay: float = 0.97,
        threshold: float = 1.0,
        reset: ResetName = "subtract",
        surrogate: Surrogate | None = None,
        learn_decay: bool = False,
        recurrent: bool = True,
        spiking_inputs: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        shares = {"decay": decay, "synapse_decay": synapse_decay, "adaptation_decay": adaptation_decay}
        for name, share in shares.items():
            if share is not None and not 0 <= share <= 1:
                raise InputError(f"is {share}", field=name, value=share, accepted="from 0 to 1")
        if reset not in get_args(ResetName):
            raise InputError(
                f"is {reset!r}.{did_you_mean(str(reset), get_args(ResetName))}",
                field="reset",
                value=reset,
                accepted=", ".join(map(repr, get_args(ResetName))),
            )
        if surrogate is not None and (isinstance(surrogate, type) or not hasattr(surrogate, "derivative")):
            raise InputError(
                f"{quote_value(surrogate)} has no derivative",
                field="surrogate",
                accepted="for example ckptplan.torch.surrogates.atan()",
            )
        add_weights(self, inputs, neurons, recurrent=recurrent, device=device, dtype=dtype)
        self.inputs, self.neurons, self.synapse_decay = inputs, neurons, synapse_decay
        self.adaptation, self.adaptation_decay = adaptation, adaptation_decay
        self.threshold, self.reset, self.spiking_inputs = threshold, reset, spiking_inputs
        self.surrogate = fast_sigmoid() if surrogate is None else surrogate
        self.decay: torch.nn.Parameter | float = decay
        if learn_decay:
            self.decay = torch.nn.Parameter(torch.full((neurons,), decay, device=device, dtype=dtype))

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        kinds = [name for name in self.state_names if name != _MEMBRANE]
        return f"{self.inputs}, {self.neurons}, {', '.join([*kinds, f'reset={self.reset!r}'])}"

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the tensors of the state."""
        has_synapse = (_SYNAPSE,) * (self.synapse_decay is not None)
        return (_MEMBRANE, *has_synapse, *((_ADAPTATION,) * bool(self.adaptation)))

    def initial_state(self, *batch: int) -> State:
        """Return neurons at rest, each tensor of shape (*batch, neurons)."""
        return {name: self.weight.new_zeros(*batch, self.neurons) for name in self.state_names}

    def for_sequence(self) -> SpikingLayer:
        """Return a copy that transposes the feedback weights once; parameters are shared."""
        if type(self) is not SpikingLayer or self.recurrent_weight is None:
            # A subclass may set attributes in its methods, which would set them on the copy.
            return self
        copy = SpikingLayer.__new__(SpikingLayer)
        vars(copy).update(vars(self))
        copy._kept_feedback = self.recurrent_weight.detach().t().contiguous()
        return copy

    def forward(self, state: State, x: torch.Tensor) -> tuple[State, torch.Tensor]:
        """Take a step under autograd, as any cell does."""
        spikes = Spike.apply(self._measure(state), self.surrogate)  # type: ignore[no-untyped-call]
        current = torch.nn.functional.linear(x, self.weight, self.bias)
        if self.recurrent_weight is not None:
            current = current + torch.nn.functional.linear(spikes, self.recurrent_weight)
        state = self._update(state, current, spikes)
        return state, Spike.apply(self._measure(state), self.surrogate)  # type: ignore[no-untyped-call]

    def run(self, state: State, inputs: torch.Tensor, before: LIFBefore | None) -> tuple[State, LIFOutputs]:
        """Run steps for the first time, with dense products, and pack the spikes."""
        check_weights(self, "weight", "bias", "recurrent_weight", "decay")
        if self.spiking_inputs and not bool(((inputs == 0) | (inputs == 1)).all()):
            raise InputError(
                "are not all zeros and ones", field="inputs", accepted="spikes, or spiking_inputs=False"
            )
        currents = torch.nn.functional.linear(inputs, self.weight, self.bias)
        start = self._measure(state) > 0 if before is None else before.fired
        fired = torch.empty_like(currents, dtype=torch.bool)
        states, spikes = self._make_states(currents), start.to(currents.dtype)
        for step, input_current in enumerate(currents):
            current = input_current
            if self.recurrent_weight is not None:
                current = input_current + torch.nn.functional.linear(spikes, self.recurrent_weight)
            state = self._write(states, step, self._update(state, current, spikes))
            fired[step] = self._measure(state) > 0
            spikes = fired[step].to(currents.dtype)
        packed_inputs = Spikes.pack(inputs) if self.spiking_inputs else None
        first = Spikes.pack(start.unsqueeze(0)) if before is None else before.spikes
        return states, LIFOutputs(first, Spikes.pack(fired), packed_inputs)

    def replay(self, state: State, inputs: torch.Tensor, outputs: LIFOutputs) -> State:
        """Return the state after each step, from one sparse product for the feedback of all steps."""
        read_spikes = outputs.read()
        if outputs.inputs is None:
            currents = torch.nn.functional.linear(inputs, self.weight, self.bias)
        else:
            currents = outputs.inputs.product(self.weight.t().contiguous())
            if self.bias is not None:
                currents += self.bias
        if self.recurrent_weight is not None:
            currents += read_spikes.product(self._feedback(self.recurrent_weight))
        states = self._make_states(currents)
        for step, (current, spikes) in enumerate(zip(currents, read_spikes.dense(currents.dtype), strict=True)):
            state = self._write(states, step, self._update(state, current, spikes))
        return states

    def last(self, outputs: LIFOutputs) -> LIFBefore:
        """Return the spikes of the last step."""
        return take_last(outputs)

    def dense(self, outputs: LIFOutputs) -> torch.Tensor:
        """Return the spikes as zeros and ones."""
        return outputs.spikes.dense(self.weight.dtype)

    def reverse(
        self,
        state: State,
        states: State,
        inputs: torch.Tensor,
        outputs: LIFOutputs,
        *,
        output_gradients: torch.Tensor | None,
        state_gradients: Mapping[str, torch.Tensor | None],
        wants_inputs: bool,
    ) -> ChunkGradients:
        """Run the recurrence backwards, then compute the gradient of each weight in one product."""
        read_spikes = outputs.read().dense(states[_MEMBRANE].dtype)
        begin, currents, decay = self._adjoint(state, states, read_spikes, output_gradients, state_gradients)
        flat = currents.reshape(-1, self.neurons)
        gradients: dict[int, torch.Tensor] = {}

        def add(parameter: torch.Tensor | float | None, compute: Any) -> None:
            # One parameter may have several roles.
            if isinstance(parameter, torch.Tensor) and parameter.requires_grad:
                gradient, key = compute(), id(parameter)
                gradients[key] = gradients[key] + gradient if key in gradients else gradient

        add(self.weight, lambda: flat.t() @ inputs.reshape(-1, self.inputs))
        add(self.bias, lambda: flat.sum(0))
        add(self.recurrent_weight, lambda: flat.t() @ read_spikes.reshape(-1, self.neurons))
        add(self.decay, lambda: decay)
        return ChunkGradients(
            state=begin,
            inputs=currents @ self.weight if wants_inputs else None,
            parameters=tuple(gradients.get(id(parameter)) for parameter in self.parameters()),
        )

    def _adjoint(
        self,
        state: State,
        states: State,
        read_spikes: torch.Tensor,
        output_gradients: torch.Tensor | None,
        state_gradients: Mapping[str, torch.Tensor | None],
    ) -> tuple[State, torch.Tensor, torch.Tensor]:
        """Return the gradients of the state before a chunk, of the current of each step, and of the decays.

        ``read_spikes`` are the spikes that each step reads: the spikes of the step before.
        """
        zeros = torch.zeros_like(state[_MEMBRANE])
        membrane, synapse, adaptation = (
            zeros if (gradient := state_gradients.get(name)) is None else gradient
            for name in (_MEMBRANE, _SYNAPSE, _ADAPTATION)
        )
        decay, currents = zeros.new_zeros(self.neurons), torch.empty_like(states[_MEMBRANE])
        steps, spikes = len(read_spikes), zeros
        for step in range(steps, -1, -1):
            after = {name: (states[name][step - 1] if step else state[name]) for name in self.state_names}
            if step and output_gradients is not None:
                spikes = spikes + output_gradients[step - 1]
            slope = self.surrogate.derivative(self._measure(after)) * spikes
            membrane = membrane + slope
            if self.adaptation:
                adaptation = adaptation - self.adaptation * slope
            if not step:
                break
            before = states[_MEMBRANE][step - 2] if step > 1 else state[_MEMBRANE]
            synapse = synapse + membrane
            currents[step - 1] = synapse
            unreset = membrane * (1 - read_spikes[step - 1]) if self.reset == "zero" else membrane
            if isinstance(self.decay, torch.Tensor):
                decay += (unreset * before).reshape(-1, self.neurons).sum(0)
            spikes = adaptation
            if self.recurrent_weight is not None:
                spikes = spikes + synapse @ self.recurrent_weight
            membrane = unreset * self.decay
            synapse = zeros if self.synapse_decay is None else synapse * self.synapse_decay
            adaptation = adaptation * self.adaptation_decay
        carried = {_MEMBRANE: membrane, _SYNAPSE: synapse, _ADAPTATION: adaptation}
        return {name: carried[name] for name in self.state_names}, currents, decay

    def _measure(self, state: State) -> torch.Tensor:
        """Return the distance of each membrane to its threshold."""
        distance = state[_MEMBRANE] - self.threshold
        return distance - self.adaptation * state[_ADAPTATION] if self.adaptation else distance

    def _update(self, state: State, current: torch.Tensor, spikes: torch.Tensor) -> State:
        """Return the state after a step that reads ``spikes``."""
        if self.synapse_decay is not None:
            current = self.synapse_decay * state[_SYNAPSE] + current
        membrane = state[_MEMBRANE]
        if self.reset == "zero":
            membrane = membrane * (1 - spikes.detach())
        if isinstance(self.decay, torch.Tensor):
            membrane = torch.addcmul(current, membrane, self.decay)
        else:
            membrane = torch.add(current, membrane, alpha=self.decay)
        if self.reset == "subtract":
            membrane = torch.sub(membrane, spikes.detach(), alpha=self.threshold)
        after = {_MEMBRANE: membrane}
        if self.synapse_decay is not None:
            after[_SYNAPSE] = current
        if self.adaptation:
            after[_ADAPTATION] = self.adaptation_decay * state[_ADAPTATION] + spikes
        return after

    def _make_states(self, currents: torch.Tensor) -> State:
        """Return tensors for the states after all steps. Membranes overwrite the currents of their steps."""
        return {
            name: currents if name == _MEMBRANE else torch.empty_like(currents) for name in self.state_names
        }

    def _write(self, states: State, step: int, state: State) -> State:
        """Write the state after a step among all states, and return it."""
        for name, tensor in state.items():
            states[name][step] = tensor
        return state

    def _feedback(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.detach().t().contiguous() if self._kept_feedback is None else self._kept_feedback
