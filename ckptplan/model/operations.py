"""Defines what a time step computes and moves, from which step times are estimated (``cost/roofline.py``)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ckptplan.model.checked import CheckedModel
from ckptplan.model.quantities import Text

#: The types of numbers that networks compute in, and the bytes of each.
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
#: The most operations, and bytes, of a step.
MOST_OPERATIONS = 1e24
_Amount = Annotated[float, Field(ge=0, le=MOST_OPERATIONS, strict=True)]


class Operations(CheckedModel):
    """The work of one time step, for the whole batch and all units of a machine together.

    Raises InputError.
    """

    noun: ClassVar[str] = "table of operations"

    dtype: Annotated[
        Literal["float64", "float32", "float16", "bfloat16"],
        Field(description="the type of numbers that it computes in"),
    ] = "float32"
    forward_flops: Annotated[_Amount, Field(description="floating-point operations of a forward step")]
    backward_flops: Annotated[_Amount, Field(description="floating-point operations of a backward step")]
    forward_bytes: Annotated[_Amount, Field(description="bytes a forward step reads and writes locally")]
    backward_bytes: Annotated[_Amount, Field(description="bytes a backward step reads and writes locally")]
    forward_kernels: Annotated[_Amount, Field(description="kernels that a forward step starts")] = 1.0
    backward_kernels: Annotated[_Amount, Field(description="kernels that a backward step starts")] = 2.0
    efficiency: Annotated[
        float | None,
        Field(gt=0, le=1, description="share of the roofline reached, as a calibration found; none: not known"),
    ] = None
    measured_on: Annotated[Text | None, Field(description="the profile on which the efficiency was found")] = (
        None
    )
