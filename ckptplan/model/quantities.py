"""Field types of the models: numbers in SI base units that also accept text with a unit."""

import re
from operator import index
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, FailFast, Field

from ckptplan.errors import InputError, quote_value
from ckptplan.units import (
    MAX_BYTES,
    MAX_STEPS,
    parse_bytes,
    parse_flop_rate,
    parse_fraction,
    parse_headroom,
    parse_optional_bytes,
    parse_rate,
    parse_seconds,
)
from ckptplan.wording import escape_controls, find_control

#: The longest time, 30,000 years.
MAX_SECONDS = 1e12
#: Characters of a text, and of one that is put together from several.
MOST_TEXT, MOST_JOINED = 4_000, 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def check_name(value: object) -> object:
    """Return a valid name unchanged. Raises InputError."""
    if isinstance(value, str) and not _NAME.fullmatch(value):
        raise InputError(
            f"{quote_value(value)} is not a name",
            value=value,
            accepted="up to 100 letters, digits, '.', '_', '+' and '-', without spaces",
        )
    return value


class FirstFault(FailFast):
    """Makes a list stop at its first wrong member: the errors of millions would fill the memory."""

    def __hash__(self) -> int:
        """Allow for it in unions."""
        return hash(self.fail_fast)


def _check_text(value: str) -> str:
    control = find_control(value)
    if control is not None:
        raise InputError(
            f"{escape_controls(quote_value(value))} holds the control character {control!a}",
            value=value,
            accepted="characters that can be seen, tabs and ends of lines",
        )
    return value


def _whole(value: object) -> object:
    """Convert numpy integers to int; floats and booleans are refused later."""
    return value if isinstance(value, (bool, str)) or not hasattr(value, "__index__") else index(value)


def _limit(value: object) -> int | None:
    return None if value is None else parse_optional_bytes(value)


#: Bytes, zero allowed.
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, le=MAX_BYTES)]
#: Bytes of something that exists.
PositiveBytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0, le=MAX_BYTES)]
Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(ge=0, le=MAX_SECONDS)]
#: An attosecond at least, so that ratios of times are finite.
PositiveSeconds = Annotated[float, BeforeValidator(parse_seconds), Field(ge=1e-18, le=MAX_SECONDS)]
#: Bytes; None, or 'unbounded' as text, means no limit.
Limit = Annotated[Annotated[int, Field(ge=0, le=MAX_BYTES)] | None, BeforeValidator(_limit)]
#: At least one byte per second.
Rate = Annotated[float, BeforeValidator(parse_rate), Field(ge=1)]
#: At least one operation per second.
FlopRate = Annotated[float, BeforeValidator(parse_flop_rate), Field(ge=1)]
#: In a currency of the reader's choice; zero for a machine that is there anyway.
Price = Annotated[float, Field(ge=0, le=1e12, strict=True)]
Share = Annotated[float, BeforeValidator(parse_fraction), Field(ge=0)]
#: A share of local memory that is left free.
Headroom = Annotated[float, BeforeValidator(parse_headroom), Field(ge=0, lt=1)]
Watts = Annotated[float, Field(gt=0, strict=True)]
Steps = Annotated[Annotated[int, Field(strict=True, ge=1, le=MAX_STEPS)], BeforeValidator(_whole)]
#: A count of things (units, neurons, layers, samples).
Count = Annotated[Annotated[int, Field(strict=True, ge=1, le=10**9)], BeforeValidator(_whole)]
Name = Annotated[str, BeforeValidator(check_name)]
#: What people write about a number or a job.
Text = Annotated[str, Field(max_length=MOST_TEXT), AfterValidator(_check_text)]
#: Text that the program puts together: from several texts, or from a command line.
JoinedText = Annotated[str, Field(max_length=MOST_JOINED), AfterValidator(_check_text)]
