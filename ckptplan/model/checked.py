"""The base class of all models: frozen, without unknown fields, with readable errors; and their hash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ckptplan.errors import InputError, did_you_mean, quote_value

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


#: pydantic's error types for an unknown field of a model, or of a dataclass inside one.
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


class CheckedModel(BaseModel):
    """A frozen model whose constructor raises InputError with field, value and accepted values."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    #: The name of the model in messages.
    noun: ClassVar[str] = "value"

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            # A misspelled name also leaves the correct one missing: report the misspelling first.
            details = sorted(error.errors(include_url=False), key=lambda item: item["type"] not in _UNKNOWN)
            raise self._make_readable(details[0]) from None

    @classmethod
    def _make_readable(cls, error: ErrorDetails) -> InputError:
        """Turn one of pydantic's error details into a sentence."""
        path = error["loc"]
        field = ".".join(str(part) for part in path)
        value = error["input"]
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            inner = ".".join(part for part in (field, cause.field) if part)
            return InputError(cause.message, field=inner or None, value=cause.value, accepted=cause.accepted)
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
        return InputError(
            f"{quote_value(value)} is not accepted: {reason[:1].lower()}{reason[1:]}",
            field=field,
            value=value,
            accepted=_describe_field(cls, path),
        )


def _describe_field(model: type[BaseModel], path: tuple[Any, ...]) -> str | None:
    """Return the description of a top-level field, which contains its unit."""
    field = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    return field.description if field else None


def digest(numbers: Mapping[str, object]) -> str:
    """Return a hash of canonical numbers that is equal on every machine: 'sha256:...'."""
    import hashlib  # loads OpenSSL, which printing a table does not need
    import json

    text = json.dumps(numbers, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
