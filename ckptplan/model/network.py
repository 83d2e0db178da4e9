"""Describes a network and derives the byte sizes of a workload from it."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ckptplan.model.checked import CheckedModel
from ckptplan.model.quantities import Bytes, Count, Share

_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
#: Bytes of one spike index (the sparse representation of Finkbeiner et al. 2024 uses uint32).
_INDEX_BYTES = 4


class Network(CheckedModel):
    """A recurrent network spread evenly over the units of a machine.

    The sizes follow the paper's setting: the state is one membrane value per neuron and sample, eq. (3);
    the spikes of all steps stay stored as indices; each layer has one dense recurrent weight matrix.
    Raises InputError.
    """

    noun: ClassVar[str] = "network"

    neurons: Annotated[Count, Field(description="neurons of all layers and units together")]
    layers: Annotated[Count, Field(description="layers of equal size")] = 1
    batch: Annotated[Count, Field(description="samples trained at once")]
    dtype: Literal["float64", "float32", "float16", "bfloat16"] = "float32"
    activity: Annotated[Share, Field(le=1, description="largest share of neurons that spike in one step")] = 0.0
    state_values: Annotated[Count, Field(description="state values per neuron and sample")] = 1
    tape_values: Annotated[Count, Field(description="tape values per neuron, sample and step")] = 1
    other_resident_bytes: Annotated[
        Bytes, Field(description="resident bytes per unit besides weights: code, buffers, optimiser")
    ] = 0

    def sizes(self, *, units: int) -> dict[str, int]:
        """Return the byte sizes per unit by field name, each rounded up to whole bytes."""
        neurons_per_unit = self.neurons / units
        values = self.batch * neurons_per_unit
        item = _ITEM_BYTES[self.dtype]
        weights = neurons_per_unit * (self.neurons / self.layers) * item
        return {
            "state_bytes": _round_up(values * self.state_values * item),
            "tape_bytes": _round_up(values * self.tape_values * item),
            "resident_bytes_per_step": _round_up(values * self.activity * _INDEX_BYTES),
            "resident_bytes": _round_up(weights) + self.other_resident_bytes,
        }


def _round_up(size: float) -> int:
    """Round up, but ignore floating-point noise (240 * 0.1 * 4 is 96, not 97)."""
    return math.ceil(size - 1e-9 * max(1.0, size))
