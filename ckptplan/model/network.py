"""Describes a network, and derives the byte sizes of a workload and the work of a step from it.

``KINDS`` lists the values that one layer of each kind keeps, computes and moves in a step, with derivations.
H is the neurons (ConvLSTM: channels) of a layer, I its inputs, B the batch; a value is one number of the dtype.
Step times are estimated from the work (``cost/roofline.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ckptplan.errors import InputError
from ckptplan.model.checked import IF_GIVEN, Bytes, CheckedModel, Count, Share, Text

#: The types of numbers that networks compute in, and the bytes of each.
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
#: The most operations, and bytes, of a step.
MOST_OPERATIONS = 1e24
Bits = Annotated[int, Field(ge=1, le=64, strict=True)]
_Amount = Annotated[float, Field(ge=0, le=MOST_OPERATIONS, strict=True)]


class Operations(CheckedModel):
    """The work of one time step, for the whole batch and all units of a machine together.

    Raises InputError.
    """

    noun: ClassVar[str] = "table of operations"

    dtype: Literal["float64", "float32", "float16", "bfloat16"] = Field(
        default="float32", description="the type of numbers that it computes in"
    )
    forward_flops: _Amount = Field(description="floating-point operations of a forward step")
    backward_flops: _Amount = Field(description="floating-point operations of a backward step")
    forward_bytes: _Amount = Field(description="bytes a forward step reads and writes locally")
    backward_bytes: _Amount = Field(description="bytes a backward step reads and writes locally")
    recompute_flops: Annotated[_Amount | None, IF_GIVEN] = Field(
        default=None, description="of a step that runs again with its cache; none: those of a forward step"
    )
    recompute_bytes: Annotated[_Amount | None, IF_GIVEN] = Field(
        default=None, description="of a step that runs again with its cache; none: those of a forward step"
    )
    forward_kernels: _Amount = Field(default=1.0, description="kernels that a forward step starts")
    backward_kernels: _Amount = Field(default=2.0, description="kernels that a backward step starts")
    efficiency: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="share of the roofline reached, as a calibration found; none: not known",
    )
    measured_on: Text | None = Field(default=None, description="the profile on which the efficiency was found")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of recurrent layer, per neuron (and place of an image) and sample.

    Arguments:
        gates: matrices from inputs and from the state, each to H neurons.
        biases: bias values a neuron.
        state_values: values that are carried from step to step.
        tape_values: values that autograd saves in a step, without the inputs of the layer.
        kernels: kernels that PyTorch starts for a forward step of a layer on a GPU.
    """

    gates: int
    biases: int
    state_values: int
    tape_values: int
    kernels: int
    #: Values that training keeps for each weight: itself, its gradient, and the two moments of Adam.
    values_per_weight: int = 4


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
#: The paper's network. Kernels of a layer: product, membrane, threshold.
_PAPER = Kind(gates=1, biases=0, state_values=1, tape_values=1, kernels=3, values_per_weight=1)
#: Bytes of one spike index (the sparse representation of Finkbeiner et al. 2024 uses uint32).
INDEX_BYTES = 4
#: A backward step does each product of a forward step twice: for the state's gradient, and for the weights'.
_BACKWARD = 2
#: Fields that only networks with a kind have, and fields that only images need.
_WITH_KIND, _OF_IMAGES = ("inputs", "height", "width", "kernel"), ("height", "width", "kernel")
_OF_DATA = ("input_bits", "input_storage", "outputs", "output_bits", "output_storage")
#: The number of steps whose inputs, or outputs, fit in the buffers for streaming.
_BUFFERED = 2


class Network(CheckedModel):
    """A recurrent network spread evenly over the units of a machine.

    Without a ``kind`` the sizes follow the paper's setting: the state is one membrane value per neuron and
    sample, eq. (3); the cache of a step is its spikes, stored as indices; each layer has one dense recurrent
    weight matrix. With a kind they follow from the layers of that kind (``KINDS``). A network of the kind 'snn'
    with an ``activity`` has the same cache, and needs no spikes in its tape.
    Raises InputError.
    """

    noun: ClassVar[str] = "network"

    neurons: Count = Field(description="neurons of all layers and units together; of a ConvLSTM, its channels")
    layers: Count = Field(default=1, description="layers of equal size")
    batch: Count = Field(description="samples trained at once")
    dtype: Literal["float64", "float32", "float16", "bfloat16"] = "float32"
    activity: Share = Field(default=0.0, le=1, description="largest share of neurons that spike in one step")
    spikes: Annotated[Literal["resident"] | None, IF_GIVEN] = Field(
        default=None,
        description="'resident': the spikes of all steps stay stored, as in files of version 1; none: a cache",
    )
    state_values: Count = Field(default=1, description="state values per neuron and sample")
    tape_values: Count = Field(
        default=1,
        description="tape values per neuron, sample and step; one less of an snn whose spikes are the cache",
    )
    other_resident_bytes: Bytes = Field(
        default=0, description="resident bytes per unit besides weights: code, buffers, optimiser"
    )
    kind: Annotated[Literal["gru", "lstm", "snn", "convlstm"] | None, IF_GIVEN] = Field(
        default=None, description="what the layers are; none: the paper's"
    )
    inputs: Annotated[Count | None, IF_GIVEN] = Field(
        default=None, description="input values per sample and step; of a ConvLSTM, its channels"
    )
    input_bits: Annotated[Bits | None, IF_GIVEN] = Field(
        default=None, description="bits of an input value, 1 for spikes; none: those of dtype"
    )
    input_storage: Annotated[Literal["streamed", "generated"] | None, IF_GIVEN] = Field(
        default=None,
        description="'streamed': read from remote memory beside compute; 'generated': made for each step; "
        "none: those of all steps are resident",
    )
    outputs: Annotated[Count | None, IF_GIVEN] = Field(
        default=None, description="output values per sample and step that are kept; none: no output is"
    )
    output_bits: Annotated[Bits | None, IF_GIVEN] = Field(
        default=None, description="bits of an output value; none: those of dtype"
    )
    output_storage: Annotated[Literal["streamed"] | None, IF_GIVEN] = Field(
        default=None, description="'streamed': written to remote memory; none: those of all steps are resident"
    )
    height: Annotated[Count | None, IF_GIVEN] = Field(
        default=None, description="rows of the images of a ConvLSTM"
    )
    width: Annotated[Count | None, IF_GIVEN] = Field(
        default=None, description="columns of the images of a ConvLSTM"
    )
    kernel: Annotated[Count | None, IF_GIVEN] = Field(
        default=None, description="rows, and columns, of the filters of a ConvLSTM"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_kind(cls, data: Any) -> Any:
        """Fill in the fields that the kind determines."""
        kind = KINDS.get(str(data.get("kind"))) if isinstance(data, dict) else None
        if kind is None:
            return data
        filters = {"kernel": 3} if data["kind"] == "convlstm" else {}
        given = {name: value for name, value in data.items() if value is not None}
        return {"state_values": kind.state_values, "tape_values": kind.tape_values, **filters, **given}

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        images = self.kind == "convlstm"
        needed = ("inputs", *(_OF_IMAGES if images else ())) if self.kind else ()
        for field in _WITH_KIND:
            given = getattr(self, field) is not None
            if given and field not in needed:
                only = "a ConvLSTM" if field in _OF_IMAGES else "a network with a kind"
                raise InputError(
                    f"is a number of {only}; leave it out", field=field, value=getattr(self, field)
                )
            if not given and field in needed:
                accepted = type(self).model_fields[field].description
                raise InputError(f"is missing: kind is {self.kind!r}", field=field, accepted=accepted)
        for field in _OF_DATA:
            source = "outputs" if field in ("output_bits", "output_storage") else "kind"
            if getattr(self, field) is not None and getattr(self, source) is None:
                raise InputError(f"needs the field {source}", field=field, value=getattr(self, field))
        if self.activity and self.kind not in (None, "snn"):
            raise InputError(
                f"is a number of spiking networks; a {self.kind} has no spikes",
                field="activity",
                value=self.activity,
                accepted="none, or the kind 'snn'",
            )
        if self.neurons < self.least_neurons:
            raise InputError(
                f"{self.neurons} is less than one for each of {self.layers} layers",
                field="neurons",
                value=self.neurons,
                accepted=f"a whole number from {self.layers}",
            )
        return self

    def sizes(self, *, units: int) -> dict[str, int]:
        """Return the byte sizes per unit by field name, each rounded up to whole bytes."""
        item = ITEM_BYTES[self.dtype]
        values = self.batch * (self.neurons / units) * self._places
        spikes = values * self.activity * INDEX_BYTES
        resident, cache = (spikes, 0.0) if self.spikes == "resident" else (0.0, spikes)
        return {
            "state_bytes": _round_up(values * self.state_values * item),
            "tape_bytes": _round_up(values * self._taped_values * item),
            "cache_bytes": _round_up(cache),
            "resident_bytes_per_step": sum(self.count_data_bytes(units=units)) + _round_up(resident),
            "resident_bytes": self.count_weight_bytes(units=units)
            + self.other_resident_bytes
            + _round_up(_BUFFERED * sum(self.streamed_bytes) / units),
        }

    def count_weight_bytes(self, *, units: int) -> int:
        """Return the bytes on one unit of the weights and of the values that training keeps for each weight."""
        trained = self._count_weights() + self._kind.biases * self.layers * self._layer_neurons
        return _round_up(self._kind.values_per_weight * trained / units * ITEM_BYTES[self.dtype])

    @property
    def streamed_bytes(self) -> tuple[float, float]:
        """The bytes of streamed inputs, and of streamed outputs, in each step, all units together."""
        inputs = self._input_bytes if self.input_storage == "streamed" else 0.0
        return inputs, self._output_bytes if self.output_storage == "streamed" else 0.0

    def count_data_bytes(self, *, units: int) -> tuple[int, int]:
        """Return the bytes of resident inputs, and of resident outputs, of one step on one unit."""
        inputs = 0.0 if self.input_storage else self._input_bytes
        outputs = 0.0 if self.output_storage else self._output_bytes
        return _round_up(inputs / units), _round_up(outputs / units)

    @property
    def trains_with_adam(self) -> bool:
        """Whether the bytes of weights include gradients and the two moments of Adam."""
        return self._kind.values_per_weight > 1

    def operations(self) -> Operations:
        """Return the work of a step: products count two operations, elementwise work only as bytes.

        The paper's network multiplies only the weights of neurons that spike; the other kinds multiply all.
        With its cache, a step of a spiking network runs again without the product of its spikes with all
        weights: it adds the weights of neurons that spike. Raises InputError if that is more than can be
        counted.
        """
        item = ITEM_BYTES[self.dtype]
        weights = self._count_weights() * (1.0 if self.kind else self.activity or 1.0)
        values = self.batch * self.neurons * self._places
        flops = 2 * self.batch * self._places * weights
        if _BACKWARD * flops > MOST_OPERATIONS:
            raise InputError(
                f"{self.neurons:,} neurons and batch {self.batch:,} compute {_BACKWARD * flops:.4g} operations "
                f"in a backward step, more than {MOST_OPERATIONS:g}",
                field="network",
                accepted="a smaller network or batch",
            )
        data = self._input_bytes + self._output_bytes
        other_bytes = item * values * (2 * self.state_values + self._taped_values) + data
        moved_bytes = item * weights + other_bytes
        recompute_work: dict[str, Any] = {}
        if self.kind == "snn" and self.activity:
            from_inputs = self._kind.gates * self._layer_neurons * (self.inputs or 0)
            used_weights = from_inputs + self.activity * (weights - from_inputs)
            recompute_work = {
                "recompute_flops": float(2 * self.batch * used_weights),
                "recompute_bytes": float(item * used_weights + other_bytes),
            }
        return Operations(
            dtype=self.dtype,
            forward_flops=float(flops),
            backward_flops=float(_BACKWARD * flops),
            forward_bytes=float(moved_bytes),
            backward_bytes=float(_BACKWARD * moved_bytes),
            forward_kernels=float(self.layers * self._kind.kernels),
            backward_kernels=float(_BACKWARD * self.layers * self._kind.kernels),
            **recompute_work,
        )

    @property
    def _taped_values(self) -> int:
        """The tape values per neuron: the cache of a spiking network holds its spikes, so the tape need not."""
        caches_spikes = self.kind == "snn" and self.activity > 0 and self.spikes is None
        return max(1, self.tape_values - 1) if caches_spikes else self.tape_values

    @property
    def least_neurons(self) -> int:
        """The least number of neurons: one for each layer of a network with a kind."""
        return self.layers if self.kind else 1

    @property
    def _kind(self) -> Kind:
        return _PAPER if self.kind is None else KINDS[self.kind]

    def _count_weights(self) -> float:
        """Return the number of weights of all gates: from the inputs and from the state of each layer.

        The paper's network does not count the weights from its inputs.
        """
        layer, taps = self._layer_neurons, (self.kernel or 1) ** 2
        from_inputs = (self.inputs or 0) + (self.layers - 1) * layer if self.kind else 0
        return self._kind.gates * taps * layer * (from_inputs + self.layers * layer)

    @property
    def _layer_neurons(self) -> float:
        """The neurons of a layer; may be a fraction, as they need not divide evenly."""
        return self.neurons / self.layers

    @property
    def _places(self) -> int:
        """The height times the width of an image; 1 without images."""
        return (self.height or 1) * (self.width or 1)

    @property
    def _input_bytes(self) -> float:
        """The bytes of the inputs of one step, on all units together."""
        return self._count_bytes(self.inputs, self.input_bits)

    @property
    def _output_bytes(self) -> float:
        return self._count_bytes(self.outputs, self.output_bits)

    def _count_bytes(self, values: int | None, bits: int | None) -> float:
        """Return the bytes of ``values`` numbers of ``bits`` bits for each sample and place."""
        return self.batch * (values or 0) * self._places * (bits or 8 * ITEM_BYTES[self.dtype]) / 8


def _round_up(size: float) -> int:
    """Round up, but ignore floating-point noise (240 * 0.1 * 4 is 96, not 97)."""
    return math.ceil(size - 1e-9 * max(1.0, size))
