"""Implements layers of spiking neurons that are replayed from their spikes: synapses, adaptation and resets.

With decays d, c and r, threshold h, adaptation s, spikes z(t) = [v(t) - s a(t) > h], and k(t) the share of
the membrane that a spike leaves (1 - z(t) if it resets to zero, else 1):

    i(t) = c i(t-1) + W x(t) + R z(t-1) + b                 (without a synapse the first term is missing)
    v(t) = d k(t-1) v(t-1) + i(t) - h z(t-1)                (the last term if a spike subtracts the threshold)
    a(t) = r a(t-1) + z(t-1)                                (Bellec et al. 2018)

Resets have no derivative. A replay takes the spikes that were saved: one sparse product gives R z for all
steps, and all other operations are elementwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from ckptplan.errors import InputError, did_you_mean, quote_value
from ckptplan.torch.chunk_cell import ChunkCell, ChunkGradients, sum_gradients
from ckptplan.torch.spikes import Spikes
from ckptplan.torch.surrogates import Spike, Surrogate, fast_sigmoid

#: What a spike does to its membrane.
ResetName: TypeAlias = Literal["subtract", "zero", "none"]
State: TypeAlias = dict[str, Tensor]
MEMBRANE, _SYNAPSE, _ADAPTATION = "membrane", "synapse", "adaptation"
#: Runs of fewer steps also keep spikes as booleans, since unpacking spikes takes longer than such steps.
_FEW_STEPS = 16


class SpikesBefore(NamedTuple):
    """The spikes of a step, as booleans and as they are stored."""

    fired: Tensor
    spikes: Spikes


@dataclass(frozen=True)
class SpikingOutputs:
    """Spikes of some steps and of the step before, and the inputs of these steps if they are spikes."""

    #: The spikes of the step before, in the memory of the outputs of that step if these are kept.
    first: Spikes
    spikes: Spikes
    inputs: Spikes | None
    #: The spikes as booleans after a short run, since losses need them next. They are never saved.
    fired: Tensor | None = None

    @property
    def bytes(self) -> int:
        """The bytes of the tensors."""
        return self.spikes.bytes + (0 if self.inputs is None else self.inputs.bytes)

    def part(self, start: int, stop: int) -> SpikingOutputs:
        """Return the outputs of steps start..stop-1, counted from the first step here."""
        first = self.spikes.part(start - 1, start) if start else self.first
        inputs = None if self.inputs is None else self.inputs.part(start, stop)
        fired = None if self.fired is None else self.fired[start:stop]
        return SpikingOutputs(first, self.spikes.part(start, stop), inputs, fired)

    def moved(self, keep: Callable[[Tensor], Tensor]) -> SpikingOutputs:
        """Return the same outputs with each of their own tensors replaced by ``keep(tensor)``."""
        inputs = None if self.inputs is None else self.inputs.moved(keep)
        return SpikingOutputs(self.first, self.spikes.moved(keep), inputs)

    def carried(self, keep: Callable[[Tensor], Tensor]) -> SpikingOutputs:
        """Return the same outputs with each tensor replaced, including the spikes of the step before."""
        return replace(self.moved(keep), first=self.first.moved(keep))

    def read(self) -> Spikes:
        """Return the spikes that each step reads: the spikes of the step before."""
        steps = self.spikes.steps
        return self.first if steps == 1 else self.first.join(self.spikes.part(0, steps - 1))


class SpikingLayer(ChunkCell):
    """A layer of spiking neurons with synapses and adaptation.

    The state is a dict with ``membrane``, and with ``synapse`` and ``adaptation`` if these are asked for.
    Inputs have shape (..., inputs). Each tensor of the state, and the spikes that are the output, have shape
    (..., neurons). The state of ``LIF``, whose neurons have membranes only, is a tensor. Under autocast, chunks
    run in the precision of the parameters.

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
    #: Whether a sequence runs with a copy of the cell. A subclass may set attributes in its methods, which
    #: would set them on the copy, so that it has to say this again.
    _is_copied: ClassVar[bool] = True
    #: The result of ``_feedback``, in the copy that runs a sequence.
    _kept_feedback: Tensor | None = None

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
        for name, count in (("inputs", inputs), ("neurons", neurons)):
            if count < 1:
                raise InputError(f"is {count}", field=name, value=count, accepted="a whole number from 1")
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
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = torch.nn.Parameter(torch.empty(neurons, inputs, **factory))
        self.bias = torch.nn.Parameter(torch.zeros(neurons, **factory))
        torch.nn.init.uniform_(self.weight, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))
        weight = torch.nn.Parameter(torch.empty(neurons, neurons, **factory)) if recurrent else None
        self.register_parameter("recurrent_weight", weight)
        if weight is not None:
            torch.nn.init.uniform_(weight, -1 / math.sqrt(neurons), 1 / math.sqrt(neurons))
        self.inputs, self.neurons, self.synapse_decay = inputs, neurons, synapse_decay
        self.adaptation, self.adaptation_decay = adaptation, adaptation_decay
        self.threshold, self.reset, self.spiking_inputs = threshold, reset, spiking_inputs
        self.surrogate: Surrogate = fast_sigmoid() if surrogate is None else surrogate
        self.decay: torch.nn.Parameter | float = decay
        if learn_decay:
            self.decay = torch.nn.Parameter(torch.full((neurons,), decay, **factory))

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        kinds = [name for name in self.state_names if name != MEMBRANE]
        return f"{self.inputs}, {self.neurons}, {', '.join([*kinds, f'reset={self.reset!r}'])}"

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the tensors of the state."""
        has_synapse = (_SYNAPSE,) * (self.synapse_decay is not None)
        return (MEMBRANE, *has_synapse, *((_ADAPTATION,) * bool(self.adaptation)))

    def _name(self, state: Any) -> State:
        """Return the tensors of a state, or their gradients, by their names."""
        named: State = state
        return named

    def _join(self, tensors: State) -> Any:
        """Return the state, or the gradient of a state, with some tensors."""
        return tensors

    def initial_state(self, *batch: int) -> Any:
        """Return neurons at rest, each tensor of shape (*batch, neurons)."""
        return self._join({name: self.weight.new_zeros(*batch, self.neurons) for name in self.state_names})

    def for_sequence(self) -> SpikingLayer:
        """Return a copy that computes the feedback of spikes only once, and that shares the parameters."""
        if "_is_copied" not in vars(type(self)) or self.recurrent_weight is None:
            return self
        copy = type(self).__new__(type(self))
        vars(copy).update(vars(self))
        copy._kept_feedback = self._feedback()
        return copy

    def forward(self, state: Any, x: Tensor) -> tuple[Any, Tensor]:
        """Take a step under autograd, as any cell does."""
        before = self._name(state)
        spikes = Spike.apply(self._measure(before), self.surrogate)  # type: ignore[no-untyped-call]
        current = torch.nn.functional.linear(x, self.weight, self.bias)
        if self.recurrent_weight is not None:
            current = current + torch.nn.functional.linear(spikes, self.recurrent_weight)
        after = self._update(before, current, spikes)
        return self._join(after), Spike.apply(self._measure(after), self.surrogate)  # type: ignore[no-untyped-call]

    def run(self, state: Any, inputs: Tensor, before: SpikesBefore | None) -> tuple[Any, SpikingOutputs]:
        """Run steps for the first time, with dense products, and pack the spikes."""
        self._check_weights()
        if self.spiking_inputs and not bool(((inputs == 0) | (inputs == 1)).all()):
            raise InputError(
                "are not all zeros and ones", field="inputs", accepted="spikes, or spiking_inputs=False"
            )
        named, feedback = self._name(state), self._feedback()
        currents = torch.nn.functional.linear(inputs, self.weight, self.bias)
        fired = torch.empty(len(inputs), *named[MEMBRANE].shape, dtype=torch.bool, device=currents.device)
        start = self._measure(named) > 0 if before is None else before.fired
        states, rows, after = self._make_states(currents, named)
        read, spikes, resets = self._rows(start), self._rows(start.to(currents.dtype)), self._resets_alone
        for step, fires in enumerate(self._steps(fired)):
            if feedback is not None:
                rows[MEMBRANE][step].addmm_(spikes, feedback)
            after = self._write(rows, step, after, read, resets=resets)
            torch.gt(self._lower(after), self.threshold, out=fires)
            read = fires
            if feedback is not None:
                spikes.copy_(fires)
        saved = Spikes.pack(inputs) if self.spiking_inputs else None
        first = Spikes.pack(start.unsqueeze(0)) if before is None else before.spikes
        few = fired if len(inputs) < _FEW_STEPS else None
        return self._join(states), SpikingOutputs(first, Spikes.pack(fired), saved, few)

    def replay(self, state: Any, inputs: Tensor, outputs: SpikingOutputs) -> Any:
        """Return the state after each step, from one sparse product for the feedback of all steps."""
        read, resets = outputs.read(), self._resets_alone
        states, rows, after = self._make_states(self._replay_currents(inputs, outputs, read), self._name(state))
        reads: Sequence[Tensor | None] = [None] * read.steps
        if resets or self.reset == "zero" or self.adaptation:
            reads = self._steps(read.dense(torch.bool))
        for step, spikes in enumerate(reads):
            after = self._write(rows, step, after, spikes, resets=resets)
        return self._join(states)

    def _replay_currents(self, inputs: Tensor, outputs: SpikingOutputs, read: Spikes) -> Tensor:
        """Return the currents of all steps, in one tensor, with the feedback of the spikes that they read."""
        feedback = self._feedback()
        if outputs.inputs is not None:
            currents = outputs.inputs.product(self.weight.t().contiguous())
            if feedback is not None:
                currents += read.product(feedback)
        elif feedback is not None:
            currents = read.product(feedback)
            self._rows(currents).addmm_(inputs.reshape(-1, self.inputs), self.weight.t())
        else:
            return torch.nn.functional.linear(inputs, self.weight, self.bias)
        if self.bias is not None:
            currents += self.bias
        return currents

    def last(self, outputs: SpikingOutputs) -> SpikesBefore:
        """Return the spikes of the last step."""
        steps = outputs.spikes.steps
        spikes = outputs.spikes.part(steps - 1, steps)
        fired = spikes.dense(torch.bool)[0] if outputs.fired is None else outputs.fired[-1].clone()
        return SpikesBefore(fired, spikes)

    def dense(self, outputs: SpikingOutputs) -> Tensor:
        """Return the spikes as zeros and ones."""
        if outputs.fired is not None:
            return outputs.fired.to(self.weight.dtype)
        return outputs.spikes.dense(self.weight.dtype)

    def reverse(
        self,
        state: Any,
        states: Any,
        inputs: Tensor,
        outputs: SpikingOutputs,
        *,
        output_gradients: Tensor | None,
        state_gradients: Any,
        wants_inputs: bool,
    ) -> ChunkGradients:
        """Run the recurrence backwards, then compute the gradient of each weight in one product."""
        recurrent = self.recurrent_weight
        reads = self.reset == "zero" or (recurrent is not None and recurrent.requires_grad)
        read = outputs.read().dense(self.weight.dtype) if reads else None
        begin, currents, decay = self._adjoint(
            self._name(state), self._name(states), read, output_gradients, self._name(state_gradients)
        )
        flat, x = self._rows(currents), inputs.reshape(-1, self.inputs)
        roles: list[tuple[Any, Callable[[], Tensor]]] = [
            (self.weight, lambda: flat.t() @ x),
            (self.bias, lambda: flat.sum(0)),
            (recurrent, lambda: flat.t() @ self._rows(read)),  # type: ignore[arg-type]
            (self.decay, lambda: decay),
        ]
        trained = (role for role in roles if isinstance(role[0], Tensor) and role[0].requires_grad)
        return ChunkGradients(
            state=self._join(begin),
            inputs=currents @ self.weight if wants_inputs else None,
            parameters=sum_gradients(self, ((parameter, compute()) for parameter, compute in trained)),
        )

    def _adjoint(
        self,
        state: State,
        states: State,
        read: Tensor | None,
        output_gradients: Tensor | None,
        state_gradients: State,
    ) -> tuple[State, Tensor, Tensor]:
        """Return the gradients of the state before a chunk, of the current of each step, and of the decays.

        ``read`` are the spikes that each step reads, if they have feedback or reset membranes to zero.
        """
        before = [self._rows(state[MEMBRANE]), *self._steps(states[MEMBRANE])]
        # The derivatives of spikes, which are overwritten by the gradients of the currents.
        begin = self._find_slopes(state, overwrites=False).contiguous()
        currents = self._find_slopes(states, overwrites=True)
        slopes = [self._rows(begin), *self._steps(currents)]
        incoming = None if output_gradients is None else self._steps(output_gradients)
        reads = None if read is None else self._steps(read)
        membrane, synapse, adaptation = (
            None if gradient is None else self._rows(gradient)
            for gradient in map(state_gradients.get, (MEMBRANE, _SYNAPSE, _ADAPTATION))
        )
        decay, recurrent, learned = begin.new_zeros(self.neurons), self.recurrent_weight, self.decay
        spikes: Tensor | None = None
        for step in range(len(slopes) - 1, -1, -1):
            slope = slopes[step]
            if step and incoming is not None:
                spikes = incoming[step - 1] if spikes is None else spikes.add_(incoming[step - 1])
            if spikes is None:
                slope.zero_()
            else:
                slope.mul_(spikes)
            if self.adaptation:
                fixed = slope * -self.adaptation
                adaptation = fixed if adaptation is None else adaptation + fixed
            if membrane is not None:
                slope.add_(membrane)
            if not step:
                break
            # Now it is the gradient of the membrane after the step, and then that of the current.
            unreset = slope
            if self.reset == "zero" and reads is not None:
                unreset = slope * (1 - reads[step - 1])
            if isinstance(learned, Tensor):
                decay += (unreset * before[step - 1]).sum(0)
            membrane = unreset * learned
            if self.synapse_decay is not None:
                if synapse is not None:
                    slope.add_(synapse)
                synapse = slope * self.synapse_decay
            spikes = None if recurrent is None else slope @ recurrent
            if adaptation is not None:
                spikes = adaptation if spikes is None else spikes.add_(adaptation)
                adaptation = adaptation * self.adaptation_decay
        gradients: dict[str, Any] = {MEMBRANE: begin, _SYNAPSE: synapse, _ADAPTATION: adaptation}
        return {name: gradients[name].reshape(begin.shape) for name in self.state_names}, currents, decay

    def _find_slopes(self, state: State, *, overwrites: bool) -> Tensor:
        """Return the derivative of the spikes in some states, whose membranes may be overwritten."""
        return self.surrogate.derivative(self._measure(state))

    def _lower(self, state: State) -> Tensor:
        """Return the membranes, less what adaptation adds to their thresholds."""
        membrane = state[MEMBRANE]
        return membrane - self.adaptation * state[_ADAPTATION] if self.adaptation else membrane

    def _measure(self, state: State) -> Tensor:
        """Return the distance of each membrane to its threshold."""
        return self._lower(state) - self.threshold

    def _update(
        self, state: State, current: Tensor, spikes: Any, *, resets: bool = True, out: Tensor | None = None
    ) -> State:
        """Return the state after a step.

        Arguments:
            state: the state before the step.
            current: the currents of the step.
            spikes: the spikes before the step, as numbers or as booleans; None if the step does not need them.
            resets: whether to subtract the threshold here, if the layer does so.
            out: the tensor of the membranes, which may be ``current``; None for a new one.
        """
        membrane = state[MEMBRANE]
        if self.synapse_decay is not None:
            current = torch.add(current, state[_SYNAPSE], alpha=self.synapse_decay)
        if self.reset == "zero":
            membrane = membrane.masked_fill(spikes.bool(), 0)
        if isinstance(self.decay, Tensor):
            membrane = torch.addcmul(current, membrane, self.decay, out=out)
        else:
            membrane = torch.add(current, membrane, alpha=self.decay, out=out)
        if resets and self.reset == "subtract":
            membrane = torch.add(membrane, spikes.detach(), alpha=-self.threshold, out=out)
        after = {MEMBRANE: membrane}
        if self.synapse_decay is not None:
            after[_SYNAPSE] = current
        if self.adaptation:
            after[_ADAPTATION] = self.adaptation_decay * state[_ADAPTATION] + spikes
        return after

    def _make_states(
        self, currents: Tensor, begin: State
    ) -> tuple[State, dict[str, tuple[Tensor, ...]], State]:
        """Return tensors for the states after all steps, the rows of each step, and those of the first state.

        Membranes overwrite the currents of their steps.
        """
        states = {
            name: currents if name == MEMBRANE else torch.empty_like(currents) for name in self.state_names
        }
        rows = {name: self._steps(tensor) for name, tensor in states.items()}
        return states, rows, {name: self._rows(begin[name]) for name in states}

    def _write(
        self,
        rows: Mapping[str, Sequence[Tensor]],
        step: int,
        before: State,
        spikes: Tensor | None,
        *,
        resets: bool,
    ) -> State:
        """Write the state after a step into its rows, where the membranes are the currents so far."""
        current = rows[MEMBRANE][step]
        after = self._update(before, current, spikes, resets=resets, out=current)
        for name in after.keys() - {MEMBRANE}:
            rows[name][step].copy_(after[name])
        return after

    def _rows(self, states: Tensor) -> Tensor:
        """Return the states with one row per sample, whatever the shape of a batch."""
        return states.reshape(-1, self.neurons)

    def _steps(self, states: Tensor) -> tuple[Tensor, ...]:
        """Return the rows of each step; memory is shared."""
        return states.view(len(states), -1, self.neurons).unbind(0)

    @property
    def _resets_alone(self) -> bool:
        """Whether chunks subtract the threshold in an operation of its own, and not with the feedback."""
        return self.reset == "subtract" and (self.synapse_decay is not None or self.recurrent_weight is None)

    def _feedback(self) -> Tensor | None:
        """Return the change of each current by each spike one step later, which may include the reset."""
        if self._kept_feedback is not None or self.recurrent_weight is None:
            return self._kept_feedback
        feedback = self.recurrent_weight.detach().t().clone(memory_format=torch.contiguous_format)
        if self.reset == "subtract" and not self._resets_alone:
            feedback.diagonal().sub_(self.threshold)
        return feedback

    def _check_weights(self) -> None:
        """Raise InputError for a weight that is no parameter: tensors it is computed from get no gradient."""
        for name in ("weight", "bias", "recurrent_weight", "decay"):
            value = getattr(self, name)
            if isinstance(value, Tensor) and value is not self._parameters.get(name):
                raise InputError(
                    f"{name} is computed from other tensors (a parametrization, pruning), or is a buffer: a "
                    "backward pass of its own does not reach their gradients",
                    field="cell",
                    accepted="plain parameters; or cell=lambda state, x: layer(state, x), step by step",
                )
