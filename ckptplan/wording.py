"""Writes arguments as Python keywords or command-line options, and escapes control characters in text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

#: Characters that act on a terminal or on the order of other characters, that cannot be seen, or that no
#: encoding has: control characters but for tabs and ends of lines, invisible format characters, letters without
#: a shape (fillers of Hangul, Khmer and Braille), variation selectors, tags, and lone surrogates. Joiners
#: (U+200C, U+200D) and the selectors of emoji (U+FE0E, U+FE0F) belong to what people write, and stay.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff"
    "\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e01ef]"
)


def find_control(text: str) -> str | None:
    """Return the first character of a text that ``escape_controls`` replaces, None if there is none."""
    control = _CONTROLS.search(text)
    return None if control is None else control[0]


def escape_controls(text: str) -> str:
    r"""Return a text with each control character replaced by its escape, as "\x1b" for ESC."""
    return _CONTROLS.sub(lambda control: ascii(control[0])[1:-1], text)


def put_on_one_line(text: str) -> str:
    """Return a text with control characters, ends of lines and tabs replaced by their escapes."""
    return escape_controls(text).replace("\n", "\\n").replace("\t", "\\t")


@dataclass(frozen=True)
class Argument:
    """A parameter of a call and an optional value for it; ``str`` puts it into words (``arguments_as``)."""

    name: str
    value: object = None

    def __str__(self) -> str:
        return _put_into_words(self)


#: Puts an argument into words: as a Python keyword, or as a command-line option.
Wording: TypeAlias = Callable[[Argument], str]


def _as_keyword(argument: Argument) -> str:
    return f"{argument.name}={'' if argument.value is None else repr(argument.value)}"


#: How this process writes arguments: as Python keywords, unless a command line runs.
_put_into_words: Wording = _as_keyword


@contextmanager
def arguments_as(wording: Wording) -> Iterator[None]:
    """Within the block, let ``wording`` write each ``Argument`` that becomes text in this process."""
    global _put_into_words  # noqa: PLW0603 - one user reads all messages of a process
    previous, _put_into_words = _put_into_words, wording
    try:
        yield
    finally:
        _put_into_words = previous
