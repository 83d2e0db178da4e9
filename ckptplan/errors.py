"""Every error that ckptplan raises, and the exit code each one has on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

#: What a plan must keep: a budget, the largest overhead, or the length that a strategy can be solved for.
Limit: TypeAlias = Literal["local_bytes", "remote_bytes", "max_overhead", "steps"]
#: What a suggestion changes: a limit, or another input of the job.
Change: TypeAlias = Literal[Limit, "batch", "neurons", "strategies", "profile"]

from ckptplan.wording import Phrase


class CkptplanError(Exception):
    """The root of all errors of this package."""

    exit_code: ClassVar[int] = 1
    kind: ClassVar[str] = "internal"

    def details(self) -> dict[str, Any]:
        """Return what a program needs to know about the error, besides its message."""
        return {}


class InputError(CkptplanError, ValueError):
    """Something the caller gave is not accepted: an option, a field, a file."""

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
        self.field = field
        self.value = value
        self.accepted = accepted
        self.source = source
        super().__init__(self._text())

    def _text(self) -> str:
        where = ": ".join(part for part in (self.source, self.field) if part)
        parts = (f"{where}: " if where else "", self.message)
        return Phrase(*parts, " (accepted: ", self.accepted, ")") if self.accepted else Phrase(*parts)

    def inside(self, *, source: str | None = None, prefix: str | None = None) -> InputError:
        """Return the same error, told from further out: the file, or the path into a document."""
        path = ".".join(part for part in (prefix, self.field) if part) or None
        return type(self)(
            self.message,
            field=path,
            value=self.value,
            accepted=self.accepted,
            source=source or self.source,
        )

    def details(self) -> dict[str, Any]:
        """Return source, field, value and what is accepted."""
        return {
            "source": self.source,
            "field": self.field,
            "value": None if self.value is None else _plain(self.value),
            "accepted": self.accepted,
        }


class MissingExtra(CkptplanError, ImportError):  # noqa: N818 - what it is, not what it says
    """A package is needed that only comes with an extra."""

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
    """No plan fits. Says what is needed, what there is, and what would help.

    ``binding`` is the limit that cannot be met; ``need`` and ``have`` are in its unit (bytes, or a fraction
    of base's time). It is ``steps`` where the sequence is longer than the strategy can be solved for:
    ``need`` steps at most, and ``have``.
    ``suggestions`` holds single changes, each of which was planned and found to fit.
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
        suggestions: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self.binding = binding
        self.need = need
        self.have = have
        self.subject = subject
        self.suggestions = tuple(dict(suggestion) for suggestion in suggestions)
        super().__init__(f"{subject}: needs {binding} = {need:.12g}, has {have:.12g}")

    def details(self) -> dict[str, Any]:
        """Return binding limit, need, have and suggestions."""
        return {
            "binding": self.binding,
            "need": self.need,
            "have": self.have,
            "suggestions": list(self.suggestions),
        }


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ' Did you mean ...?' for a likely misspelling of a known word, else ''."""
    import difflib  # needed for a mistake only

    words = list(known)
    same = [name for name in words if name.casefold() == word.casefold()]
    longer = [name for name in words if len(word) > 2 and name.startswith(word)]
    close = same or longer or difflib.get_close_matches(word[:100], words, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def quote_value(value: object, *, limit: int = 60) -> str:
    """Return a value as it is quoted in a message: short, on one line, whatever it is."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        # str() of such an integer is slow and, past 4,300 digits, refused by Python itself.
        return f"an integer of about {int(value.bit_length() * 0.30103):,} digits"
    try:
        text = repr(value)
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _plain(value: object) -> object:
    """Return a value for JSON: short text and moderate numbers as they are, the rest as quoted."""
    if isinstance(value, str) and len(value) <= 60:
        return value
    if isinstance(value, int) and value.bit_length() <= 64:
        return value
    return quote_value(value)
