"""Field types of the models: SI numbers inside, text with a unit also taken at the edge."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from ckptplan.units import MAX_BYTES, MAX_STEPS, parse_bytes, parse_fraction, parse_rate, parse_seconds

#: Bytes, zero allowed.
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, le=MAX_BYTES)]
#: Bytes of something that exists.
PositiveBytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0, le=MAX_BYTES)]
Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(ge=0, le=1e12)]
PositiveSeconds = Annotated[float, BeforeValidator(parse_seconds), Field(gt=0, le=1e12)]
Rate = Annotated[float, BeforeValidator(parse_rate), Field(gt=0)]
Share = Annotated[float, BeforeValidator(parse_fraction), Field(ge=0)]
Watts = Annotated[float, Field(gt=0, strict=False)]
Steps = Annotated[int, Field(strict=True, ge=1, le=MAX_STEPS)]
#: A count of things (units, neurons, layers, samples).
Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
