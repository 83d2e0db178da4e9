"""Defines the errors that ckptplan raises, and the exit code of each on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from ckptplan.wording import put_on_one_line

#: A limit on a plan: a budget, the largest overhead, or the longest sequence that a strategy can solve.
Limit: TypeAlias = Literal["local_bytes", "remote_bytes", "max_overhead", "steps"]
#: What a suggestion changes: a limit, or another input of the job.
Change: TypeAlias = Literal[Limit, "headroom", "batch", "neurons", "strategies", "cache", "profile"]


class CkptplanError(Exception):
    """The root of all errors of this package."""

    exit_code: ClassVar[int] = 1
    kind: ClassVar[str] = "internal"

    def details(self) -> dict[str, Any]:
        """Return the error's data for programs, in addition to its message."""
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message and the attributes; values that cannot be pickled become text."""
        state = {name: _make_picklable(value) for name, value in vars(self).items()}
        return _restore, (type(self), self.args), state


Kind = TypeVar("Kind", bound=CkptplanError)


def _restore(kind: type[Kind], args: tuple[Any, ...]) -> Kind:
    """Return an error with its message; pickle sets the other attributes afterwards."""
    # The constructors take the parts of a message, but here the message is complete. So ``__new__`` of the
    # first built-in exception among the bases makes the object, without a constructor.
    base: type[BaseException] = kind
    while base.__module__ != "builtins":
        base = base.__base__  # type: ignore[assignment]
    error = base.__new__(kind)
    error.args = args
    return error


def _make_picklable(value: object) -> object:
    import pickle

    try:
        pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError):
        return quote_value(value)
    return value


#: The most characters of a field in a message; paths of real fields are shorter.
_LONGEST_FIELD = 200


def _shorten(field: str | None) -> str | None:
    """Return the name of a field, cut to 200 characters: a misspelled name in a file may take megabytes."""
    return field if field is None or len(field) <= _LONGEST_FIELD else f"{field[:_LONGEST_FIELD]}..."


class InputError(CkptplanError, ValueError):
    """An input is not accepted: an argument, a field or a file.

    Arguments:
        message: what is wrong, without the place.
        field: the argument or the path of the field in the document.
        value: the value that is refused.
        accepted: what would be accepted instead.
        source: the file that the value comes from.
    """

    exit_code = 2
    kind = "input"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: object = None,
        accepted: str | None = None,
        source: str | None = None,
    ) -> None:
        self.message = message
        self.field = _shorten(field)
        self.value = value
        self.accepted = accepted
        self.source = source
        super().__init__(self._text())

    def _text(self) -> str:
        where = ": ".join(put_on_one_line(part) for part in (self.source, self.field) if part)
        accepted = f" (accepted: {self.accepted})" if self.accepted else ""
        return f"{f'{where}: ' if where else ''}{self.message}{accepted}"

    def inside(
        self, *, source: str | None = None, prefix: str | None = None, field: str | None = None
    ) -> InputError:
        """Return the same error with its context: the file, the path into a document, or another field."""
        path = field or ".".join(part for part in (prefix, self.field) if part) or None
        # Subclasses have other constructors and more attributes, so copy all attributes.
        restored: InputError = _restore(type(self), ())
        vars(restored).update(vars(self), field=_shorten(path), source=source or self.source)
        restored.args = (restored._text(),)
        return restored

    def details(self) -> dict[str, Any]:
        """Return source, field, value and the accepted values."""
        return {
            "source": self.source,
            "field": self.field,
            "value": None if self.value is None else _to_json(self.value),
            "accepted": self.accepted,
        }


def refuse(value: object, fault: str, **context: str | None) -> InputError:
    """Return an InputError whose message quotes the value: "'x' is not a step".

    ``context`` is ``field``, ``accepted`` and ``source``, as in ``InputError``.
    """
    return InputError(f"{quote_value(value)} {fault}", value=value, **context)


class MissingExtra(CkptplanError, ImportError):  # noqa: N818 - the name is part of the interface
    """A required package is missing; one of ckptplan's extras installs it."""

    exit_code = 2
    kind = "missing"

    def __init__(self, extra: str, *, package: str) -> None:
        self.extra = extra
        self.package = package
        super().__init__(f"{package} is not installed; in ckptplan's folder, run: pip install '.[{extra}]'")

    def details(self) -> dict[str, Any]:
        """Return the extra and the package."""
        return {"extra": self.extra, "package": self.package}


class Infeasible(CkptplanError):  # noqa: N818 - the name is part of the interface
    """No plan fits. States what is needed, what is available, and what would help.

    ``binding`` is the limit that cannot be met. ``need`` and ``have`` are in its unit: bytes, or a fraction
    of base's time. If ``binding`` is ``steps``, the strategy can be solved for at most ``need`` steps, and
    the sequence has ``have``. ``headroom`` is the share of local memory that the local budget leaves free; if
    that budget is the limit, ``have`` is what remains. ``suggestions`` holds single changes; each was planned
    and fits. ``stays`` are the bytes of ``need`` that every schedule keeps in local memory, by the name of the
    part, as "weights"; empty if another limit binds.
    """

    exit_code = 3
    kind = "infeasible"

    def __init__(
        self,
        *,
        binding: Limit,
        need: float,
        have: float,
        subject: str,
        headroom: float = 0.0,
        suggestions: Iterable[Mapping[str, Any]] = (),
        stays: Mapping[str, int] | None = None,
    ) -> None:
        self.binding = binding
        self.need = need
        self.have = have
        self.subject = subject
        self.headroom = headroom
        self.suggestions = tuple(dict(suggestion) for suggestion in suggestions)
        self.stays = dict(stays or {})
        super().__init__(f"{subject}: needs {binding} = {need:.12g}, has {have:.12g}")

    def details(self) -> dict[str, Any]:
        """Return binding limit, need, have, headroom and suggestions."""
        return {
            "binding": self.binding,
            "need": self.need,
            "have": self.have,
            "headroom": self.headroom,
            "suggestions": list(self.suggestions),
        }


class PlanMismatch(UserWarning):
    """The cell that a plan runs has states or tapes of other sizes than the plan was made for."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ' Did you mean ...?' if ``word`` looks like a misspelling of a known word, else ''."""
    import difflib  # only errors need it

    words = list(known)
    sought = word[:100].casefold()
    same = [name for name in words if name.casefold() == sought]
    longer = [name for name in words if len(word) > 2 and name.casefold().startswith(sought)]
    # Names have parts, as 'nvidia-h100-sxm', and a user may type only one part.
    inside = [name for name in words if len(word) > 2 and sought in name.casefold()]
    close = same or longer or inside or difflib.get_close_matches(word[:100], words, n=1, cutoff=0.5)
    if not close:
        # The user may have misspelled one part, as 'h10'.
        parts = {part: name for name in words for part in name.casefold().split("-") if len(part) > 2}
        close = [parts[part] for part in difflib.get_close_matches(sought, parts, n=1, cutoff=0.7)]
    return f" Did you mean {' or '.join(map(repr, close[:3]))}?" if close else ""


def refuse_arguments(unknown: Iterable[str], function: Callable[..., object]) -> None:
    """Raise InputError for the first name in ``unknown``, none of which is an argument of ``function``.

    The message suggests the keyword-only argument with the closest spelling, and lists all arguments.
    """
    for name in unknown:
        from inspect import Parameter, signature  # start-up does not need it

        parameters = signature(function).parameters.values()
        known = sorted(parameter.name for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY)
        problem = f"is not an argument of {getattr(function, '__name__', function)}.{did_you_mean(name, known)}"
        raise InputError(problem, field=name, accepted=", ".join(known))


def quote_value(value: object, *, limit: int = 60) -> str:
    """Return any value in quotable form for a message: on one line, at most ``limit`` characters."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        # str() of such an integer is slow; beyond 4,300 digits Python refuses it.
        return f"an integer of about {int(value.bit_length() * 0.30103):,} digits"
    try:
        text = repr(value)
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _to_json(value: object) -> object:
    """Return a value for JSON: short text and moderate integers unchanged, anything else quoted."""
    if isinstance(value, str) and len(value) <= 60:
        return value
    if isinstance(value, int) and value.bit_length() <= 64:
        return value
    return quote_value(value)
