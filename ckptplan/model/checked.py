"""The base class of all models, the types of their fields, and their hash.

Models are frozen, have no unknown fields, and raise readable errors. Their numbers are in SI base units, and
are also accepted as text with a unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import index
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from ckptplan import units
from ckptplan.errors import InputError, did_you_mean, quote_value, refuse
from ckptplan.wording import escape_controls, find_control

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

#: The longest time, 30,000 years.
MAX_SECONDS = 1e12
#: The most characters of a text, and of a text that the program joins from several.
MOST_TEXT, MOST_JOINED = 4_000, 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def check_name(value: object) -> object:
    """Return a valid name unchanged. Raises InputError."""
    if isinstance(value, str) and not _NAME.fullmatch(value):
        raise refuse(
            value, "is not a name", accepted="up to 100 letters, digits, '.', '_', '+' and '-', without spaces"
        )
    return value


class FirstFault(FailFast):
    """Ends the validation of a list at its first wrong member: millions of errors would fill the memory."""

    def __hash__(self) -> int:
        """Return a hash, which members of unions need."""
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


def _to_int(value: object) -> object:
    """Convert numpy integers to int; floats and booleans are refused later."""
    return value if isinstance(value, (bool, str)) or not hasattr(value, "__index__") else index(value)


def _to_limit(value: object) -> int | None:
    return None if value is None else units.parse_optional_bytes(value)


#: For fields that documents omit if None (IF_GIVEN), or if falsy (IF_ANY), as documents of older versions do.
IF_GIVEN: Any = Field(exclude_if=lambda value: value is None)
IF_ANY: Any = Field(exclude_if=lambda value: not value)
#: The ends of a number's interval, as factors of the number, so that the interval follows an edited number.
Low = Annotated[float, Field(ge=0, le=1)]
High = Annotated[float, Field(ge=1, le=1e9)]
#: Bytes, zero allowed.
Bytes = Annotated[int, BeforeValidator(units.parse_bytes), Field(ge=0, le=units.MAX_BYTES)]
#: Bytes, zero not allowed.
PositiveBytes = Annotated[int, BeforeValidator(units.parse_bytes), Field(gt=0, le=units.MAX_BYTES)]
Seconds = Annotated[float, BeforeValidator(units.parse_seconds), Field(ge=0, le=MAX_SECONDS)]
#: An attosecond at least, so that ratios of times are finite.
PositiveSeconds = Annotated[float, BeforeValidator(units.parse_seconds), Field(ge=1e-18, le=MAX_SECONDS)]
#: Bytes; None, or 'unbounded' as text, means no limit.
Limit = Annotated[Annotated[int, Field(ge=0, le=units.MAX_BYTES)] | None, BeforeValidator(_to_limit)]
#: From one byte to an exabyte per second: no machine is faster, so a larger number is a typing error.
Rate = Annotated[float, BeforeValidator(units.parse_rate), Field(ge=1, le=1e18)]
#: At least one operation per second, and at most 10^24.
FlopRate = Annotated[float, BeforeValidator(units.parse_flop_rate), Field(ge=1, le=1e24)]
#: In a currency of the reader's choice; zero for a machine that is there anyway.
Price = Annotated[float, Field(ge=0, le=1e12, strict=True)]
Share = Annotated[float, BeforeValidator(units.parse_fraction), Field(ge=0)]
#: A share of local memory that is left free.
Headroom = Annotated[float, BeforeValidator(units.parse_headroom), Field(ge=0, lt=1)]
Watts = Annotated[float, Field(gt=0, le=1e12, strict=True)]
Steps = Annotated[Annotated[int, Field(strict=True, ge=1, le=units.MAX_STEPS)], BeforeValidator(_to_int)]
#: A count of units, neurons, layers or samples.
Count = Annotated[Annotated[int, Field(strict=True, ge=1, le=10**9)], BeforeValidator(_to_int)]
Name = Annotated[str, BeforeValidator(check_name)]
#: Text that people write about a number or a job.
Text = Annotated[str, Field(max_length=MOST_TEXT), AfterValidator(_check_text)]
#: Text that the program puts together: from several texts, or from a command line.
JoinedText = Annotated[str, Field(max_length=MOST_JOINED), AfterValidator(_check_text)]


#: pydantic's error types for an unknown field of a model, or of a dataclass inside one.
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


class ModelPart(BaseModel):
    """A part of a model: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class CheckedModel(ModelPart):
    """A frozen model whose constructor raises InputError with field, value and accepted values."""

    #: The name of the model in messages.
    noun: ClassVar[str] = "value"

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            # A misspelled name also leaves the correct one missing: report the misspelling first.
            details = sorted(error.errors(include_url=False), key=lambda item: item["type"] not in _UNKNOWN)
            raise self._make_readable(details[0]) from None

    def replace(self, **changes: Any) -> Self:
        """Return a changed model, validated like a new one. Raises InputError."""
        return type(self)(**{**self._unchanged_fields(changes), **changes})

    def _unchanged_fields(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that ``replace`` keeps; models that derive fields from others override it."""
        return dict(self)

    @classmethod
    def _make_readable(cls, error: ErrorDetails) -> InputError:
        """Turn one of pydantic's error details into a sentence."""
        path = error["loc"]
        field = ".".join(str(part) for part in path)
        value = error["input"]
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            return cause.inside(prefix=field)
        if error["type"] in _UNKNOWN:
            # Only the innermost name is misspelled: the outer ones exist.
            known = list(cls.model_fields) if len(path) == 1 else []
            hint = did_you_mean(str(path[-1]), known)
            return InputError(
                f"is not a field of a {cls.noun}.{hint}",
                field=field,
                value=value,
                accepted=", ".join(known) or None,
            )
        if error["type"] == "missing":
            return InputError("is missing", field=field, accepted=_describe_field(cls, path))
        reason = error["msg"]
        return refuse(
            value,
            f"is not accepted: {reason[:1].lower()}{reason[1:]}",
            field=field,
            accepted=_describe_values(cls, path),
        )


#: The end of a field's name -> an example of its value as text with a unit.
_WITH_UNITS = {
    "flops_per_second": "19.5 TFLOP/s",
    "bytes_per_second": "40 GB/s",
    "seconds": "1.5 us",
    "bytes": "64 MiB",
}
#: Words for the types of fields, and for the bounds of numbers.
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_BOUNDS = {"ge": "from", "gt": "above", "le": "to", "lt": "to below"}


def _describe_values(model: type[BaseModel], path: tuple[Any, ...]) -> str | None:
    """Describe the values that a top-level field accepts; its description for tables and lists."""
    field = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    accepted_type = "" if field is None else _describe_type(field.annotation, field.metadata)
    if not accepted_type:
        return _describe_field(model, path)
    example = next((text for end, text in _WITH_UNITS.items() if str(path[0]).endswith(end)), None)
    return f"{accepted_type}, or text as {example!r}" if example else accepted_type


def _describe_type(kind: Any, conditions: Sequence[Any]) -> str:
    """Return the values of a type in words, '' for tables and lists."""
    if get_origin(kind) is Annotated:
        return _describe_type(kind.__origin__, [*kind.__metadata__, *conditions])
    if get_origin(kind) in (Union, UnionType):
        kinds = [_describe_type(member, conditions) for member in get_args(kind) if member is not type(None)]
        return " or ".join(kinds) if all(kinds) else ""
    if get_origin(kind) is Literal:
        return ", ".join(map(str, get_args(kind)))
    if kind not in _KINDS:
        return ""
    parts = [
        part
        for condition in conditions
        for part in (condition.metadata if isinstance(condition, FieldInfo) else [condition])
    ]
    bounds = [
        f"{word} {number:{',' if number < 1e6 else '.3g'}}"
        for name, word in _BOUNDS.items()
        for part in parts
        if (number := getattr(part, name, None)) is not None
    ]
    return " ".join([_KINDS[kind], *bounds])


def _describe_field(model: type[BaseModel], path: tuple[Any, ...]) -> str | None:
    """Return the description of a top-level field, which contains its unit."""
    field = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    return field.description if field else None


class Described(CheckedModel):
    """A model whose numbers have origins, and whose hash depends on its numbers alone."""

    #: The field that has the origin of each number.
    _origins: ClassVar[str]

    name: Name = Field(description="a name without spaces")
    description: Text = ""

    def __str__(self) -> str:
        """Return the name and the description, in one line."""
        return f"{self.name}: {self.description}" if self.description else self.name

    def __repr__(self) -> str:
        """Return the class, the name and the description, without the fields, which ``model_dump`` returns."""
        return f"<{type(self).__name__} {self}>"

    @model_validator(mode="after")
    def _origins_name_fields(self) -> Self:
        known = self._fields_with_origin()
        for field in getattr(self, self._origins):
            if field not in known:
                raise InputError(
                    f"{self._origins} names {field!r}, which is not a number of a {self.noun}."
                    f"{did_you_mean(field, known)}"
                )
        return self

    @classmethod
    def _fields_with_origin(cls) -> tuple[str, ...]:
        """Return the fields that can have an origin."""
        return tuple(cls.model_fields)

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that plans depend on, without texts and origins."""
        raise NotImplementedError

    def replace_numbers(self, **changes: Any) -> Self:
        """Return a model with other numbers, without the origins of the old ones. Raises InputError."""
        origins = {name: origin for name, origin in getattr(self, self._origins).items() if name not in changes}
        return self.replace(**{self._origins: origins, **changes})

    def identify(self) -> dict[str, str]:
        """Return the name and the hash, by which documents refer to the model."""
        return {"name": self.name, "hash": self.hash}

    def document(self) -> dict[str, Any]:
        """Return the model as JSON data in SI base units, with its hash."""
        return {"hash": self.hash, **self.model_dump(mode="json")}

    def __hash__(self) -> int:
        return hash(self.hash)

    @property
    def hash(self) -> str:
        """A hash of the numbers alone, equal on every machine: models with equal hashes give equal plans."""
        return digest(self.numbers())


def digest(numbers: Mapping[str, object]) -> str:
    """Return a hash of canonical numbers that is equal on every machine: 'sha256:...'."""
    import hashlib  # loads OpenSSL, which printing a table does not need
    import json

    text = json.dumps(numbers, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
