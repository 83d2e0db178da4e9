"""Text that mentions arguments: Python users read keywords, command-line users read options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Argument:
    """A parameter of a call and an optional value for it; ``str`` gives the Python form."""

    name: str
    value: object = None

    def __str__(self) -> str:
        return f"{self.name}={'' if self.value is None else repr(self.value)}"


#: Puts an argument into words: as a Python keyword, or as a command-line option.
Wording: TypeAlias = Callable[[Argument], str]


class Phrase(str):
    """Text that keeps its arguments as data. As a string, it is the text for Python users."""

    __slots__ = ("parts",)
    parts: tuple[str | Argument, ...]

    def __new__(cls, *parts: str | Argument) -> Phrase:
        """Concatenate texts, phrases and arguments."""
        flat = [inner for part in parts for inner in (part.parts if isinstance(part, Phrase) else (part,))]
        phrase = super().__new__(cls, "".join(map(str, flat)))
        phrase.parts = tuple(flat)
        return phrase

    def __reduce__(self) -> tuple[type[Phrase], tuple[str | Argument, ...]]:
        return (Phrase, self.parts)


def put_into_words(text: str, wording: Wording) -> str:
    """Return a text with each of its arguments put into words by ``wording``."""
    if not isinstance(text, Phrase):
        return text
    return "".join(wording(part) if isinstance(part, Argument) else part for part in text.parts)
