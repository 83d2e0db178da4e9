"""Defines a hardware profile: two memory tiers, the link between them, and the source of each number."""

import datetime
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ckptplan.errors import InputError, refuse
from ckptplan.model.budget import take_headroom
from ckptplan.model.checked import (
    IF_ANY,
    IF_GIVEN,
    Count,
    Described,
    FlopRate,
    Headroom,
    High,
    Limit,
    Low,
    ModelPart,
    PositiveBytes,
    Price,
    Rate,
    Seconds,
    Text,
    Watts,
    digest,
)
from ckptplan.units import parse_optional_bytes

Grade = Literal["A", "B", "C", "D", "M", "X"]
GRADES: dict[str, str] = {
    "A": "vendor",
    "B": "measured by others",
    "C": "secondary source",
    "D": "derived",
    "M": "measured on the machine itself",
    "X": "unknown, assumed",
}


def _format_day(date: object) -> str | None:
    """Return a date of a TOML file, or of a document, as text. Raises InputError."""
    if isinstance(date, (str, datetime.date)):
        return str(date)
    if date is None:
        return None
    raise refuse(date, "is not a date", accepted="as 2026-11-21")


class Source(ModelPart):
    """The source of a number. Grade X marks an assumption: no published value is known."""

    grade: Grade
    source: Text | None = None
    date: Annotated[Text | None, BeforeValidator(_format_day)] = Field(
        default=None, description="the day the number was taken over, ISO 8601"
    )
    note: Text | None = None
    assumption: Text | None = None
    low: Annotated[Low | None, IF_GIVEN] = Field(
        default=None, description="the number is at least this times itself; none: no interval"
    )
    high: Annotated[High | None, IF_GIVEN] = Field(
        default=None, description="the number is at most this times itself; none: no interval"
    )

    @model_validator(mode="after")
    def _has_source_or_assumption(self) -> Self:
        if self.grade == "X" and not self.assumption:
            raise InputError("grade X needs an assumption: what was assumed, and why")
        if self.grade != "X" and not self.source:
            raise InputError(f"grade {self.grade} needs a source")
        return self


#: The fields that only transfers need.
_RATES = ("write_bytes_per_second", "read_bytes_per_second")


class HardwareProfile(Described):
    """One chip and its two memory tiers.

    Sizes are in bytes, times in seconds, rates in bytes per second. ``local_bytes`` is the memory of one
    unit, e.g. of one of ``units`` tiles; plans leave the share ``headroom`` of it free. ``remote_bytes`` is all
    of remote memory, ``None`` if unbounded. Peaks are those of all units together; step times of machines that
    nobody measured are estimated from them (``cost/roofline.py``).
    Raises InputError.
    """

    noun: ClassVar[str] = "hardware profile"
    _origins: ClassVar[str] = "sources"

    units: Count = Field(default=1, description="parts that local memory is divided into: tiles, cores; else 1")
    local_bytes: PositiveBytes = Field(description="local memory of one unit, bytes")
    headroom: Annotated[Headroom, IF_ANY] = Field(
        default=0.0, description="share of local memory that plans leave free, from 0 to below 1"
    )
    remote_bytes: Limit = Field(
        default=None, description="remote memory in all, bytes; none, or 'unbounded': no limit"
    )
    write_bytes_per_second: Rate = Field(
        default=0.0, description="local to remote, bytes per second; not needed if remote_bytes is 0"
    )
    read_bytes_per_second: Rate = Field(
        default=0.0, description="remote to local, bytes per second; not needed if remote_bytes is 0"
    )
    latency_seconds: Seconds = Field(default=0.0, description="start-up time of a message, seconds")
    synchronisation_seconds: Seconds = Field(
        default=0.0, description="T_s of the paper: synchronisation per message, seconds"
    )
    overlaps_compute: bool = Field(
        default=False, strict=True, description="whether transfers can overlap compute"
    )
    transfer_write_seconds: Seconds | None = Field(
        default=None, description="T_c of one state, local to remote, if not derived from bytes"
    )
    transfer_read_seconds: Seconds | None = Field(
        default=None, description="T_c of one state, remote to local, if not derived from bytes"
    )
    power_watts: Watts | None = Field(default=None, description="power under load, watts")
    idle_power_watts: Watts | None = Field(default=None, description="idle power, watts")
    float64_flops_per_second: Annotated[FlopRate | None, IF_GIVEN] = Field(
        default=None, description="peak of all units in float64, operations per second"
    )
    float32_flops_per_second: Annotated[FlopRate | None, IF_GIVEN] = Field(
        default=None, description="peak of all units in float32, operations per second"
    )
    float16_flops_per_second: Annotated[FlopRate | None, IF_GIVEN] = Field(
        default=None, description="peak of all units in float16 and bfloat16, operations per second"
    )
    local_bytes_per_second: Annotated[Rate | None, IF_GIVEN] = Field(
        default=None, description="peak of local memory, all units together, bytes per second"
    )
    launch_seconds: Annotated[Seconds | None, IF_GIVEN] = Field(
        default=None, description="what each kernel of a step takes besides its work, seconds"
    )
    price_per_hour: Annotated[Price | None, IF_GIVEN] = Field(
        default=None, description="price of an hour, in a currency of your choice"
    )
    sources: dict[str, Source] = Field(default_factory=dict, description="field -> where its number comes from")

    @model_validator(mode="before")
    @classmethod
    def _fill_in_unused_rates(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not _is_zero_bytes(data.get("remote_bytes")):
            return data
        missing = [field for field in _RATES if data.get(field) is None]
        unused = Source(grade="D", source="not used: there is no remote memory")
        return {
            **data,
            **dict.fromkeys(missing, 1.0),
            "sources": {**dict.fromkeys(missing, unused), **(data.get("sources") or {})},
        }

    @model_validator(mode="after")
    def _has_rates_and_memory(self) -> Self:
        for field in _RATES:
            if not getattr(self, field):
                raise InputError("is missing", field=field, accepted=type(self).model_fields[field].description)
        take_headroom(self.local_bytes, self.headroom)
        return self

    @property
    def local_budget_bytes(self) -> int:
        """The bytes of one unit's local memory that plans may use: all but the headroom, rounded down."""
        return take_headroom(self.local_bytes, self.headroom)

    @classmethod
    def _fields_with_origin(cls) -> tuple[str, ...]:
        """Return the fields that hold numbers, in the order of the model."""
        return NUMBERS

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that plans depend on, without texts and sources.

        Peaks are not among them: they act through the step times, which are the workload's.
        """
        return {field: getattr(self, field) for field in NUMBERS if field not in PEAKS}

    @property
    def hash(self) -> str:
        """A hash of the numbers alone. A headroom of 0 is left out, so that older profiles keep their hash."""
        return digest({name: value for name, value in self.numbers().items() if value or name != "headroom"})


def _is_zero_bytes(size: object) -> bool:
    """Return whether a size, as a number or as text, is zero bytes."""
    if size is None or isinstance(size, bool):
        return False
    try:
        return parse_optional_bytes(size) == 0
    except InputError:
        # The check of the field reports the error.
        return False


#: The fields that hold numbers, in the order of the model.
NUMBERS: tuple[str, ...] = tuple(
    field for field in HardwareProfile.model_fields if field not in ("name", "description", "sources")
)
#: The fields that step times are estimated from, and the price. Files of earlier versions have none of them.
PEAKS: tuple[str, ...] = (
    "float64_flops_per_second",
    "float32_flops_per_second",
    "float16_flops_per_second",
    "local_bytes_per_second",
    "launch_seconds",
    "price_per_hour",
)
