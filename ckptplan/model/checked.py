"""What all models share: frozen, no unknown fields, and errors that a person can act on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ckptplan.errors import InputError, did_you_mean, quote_value

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


#: What pydantic calls a field that a model, or a dataclass within one, does not have.
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


class CheckedModel(BaseModel):
    """A frozen model whose constructor raises InputError (naming field, value and what is accepted)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    #: What the model is called in messages.
    noun: ClassVar[str] = "value"

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            # A misspelled name also makes the right one missing: the misspelling is the thing to tell.
            findings = sorted(error.errors(include_url=False), key=lambda one: one["type"] not in _UNKNOWN)
            raise self._readable(findings[0]) from None

    @classmethod
    def _readable(cls, error: ErrorDetails) -> InputError:
        """Turn pydantic's first finding into one sentence."""
        path = error["loc"]
        field = ".".join(str(part) for part in path)
        value = error["input"]
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            inner = ".".join(part for part in (field, cause.field) if part)
            return InputError(cause.message, field=inner or None, value=cause.value, accepted=cause.accepted)
        if error["type"] in _UNKNOWN:
            # Only the innermost name is misspelled; the outer ones were found.
            known = list(cls.model_fields) if len(path) == 1 else []
            hint = did_you_mean(str(path[-1]), known)
            return InputError(
                f"is not a field of a {cls.noun}.{hint}",
                field=field,
                value=value,
                accepted=", ".join(known) or None,
            )
        if error["type"] == "missing":
            return InputError("is missing", field=field, accepted=_meaning(cls, path))
        reason = error["msg"]
        return InputError(
            f"{quote_value(value)} is not accepted: {reason[:1].lower()}{reason[1:]}",
            field=field,
            value=value,
            accepted=_meaning(cls, path),
        )


def _meaning(model: type[BaseModel], path: tuple[Any, ...]) -> str | None:
    """Return the description of a top-level field, which says its unit."""
    field = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    return field.description if field else None


def digest(numbers: Mapping[str, object]) -> str:
    """Return a hash of canonical numbers, the same on every machine: 'sha256:...'."""
    import hashlib  # loads OpenSSL, which a table on the screen does without
    import json

    text = json.dumps(numbers, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
