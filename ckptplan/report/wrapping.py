"""Wraps texts between words: numbers keep their names and units, and a word that is too long stays whole."""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.text import Text

#: A word with the space that follows it.
_WORD = re.compile(r"\S+\s*|\s+")
#: What stays on one line with a number after it: the name of a parameter, and a sign of equality.
_NAME = re.compile(r"[a-z_]+|=")
_NUMBER = re.compile(r"\d[\d,]*")


def measure_width(text: Text) -> int:
    """Return the width of the longest line of a text, in columns of a terminal."""
    return max((cell_len(line) for line in text.plain.split("\n")), default=0)


def measure_pieces(text: Text) -> int:
    """Return the width of the longest part of a text that is never broken."""
    lines = text.plain.split("\n")
    return max((cell_len(piece.rstrip()) for line in lines for piece in split_pieces(line)), default=0)


def split_pieces(line: str) -> list[str]:
    """Return the parts of a line that are never broken, each with the space that follows it.

    They are words, but a number stays with its unit or with what it counts, and 'chunk_size 16' and 'T = 5'
    stay whole.
    """
    pieces: list[str] = []
    last = ""
    for word in _WORD.findall(line):
        if pieces and _belong_together(last, word.rstrip()):
            pieces[-1] += word
        else:
            pieces.append(word)
        last = word.rstrip()
    return pieces


def _belong_together(before: str, word: str) -> bool:
    if not before or not word:
        return False
    named = word == "=" or (_NAME.fullmatch(before) and _NUMBER.fullmatch(word))
    return before[-1].isdigit() or bool(named)


def wrap_text(text: Text, *, width: int) -> list[Text]:
    """Return the lines of a text; a part longer than ``width`` is a line of its own."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        breaks = _find_breaks(line.plain, width=width)
        if not breaks:
            # Space at the end of a number stands in place of a unit.
            lines.append(line)
            continue
        for part in line.divide(breaks):
            part.rstrip()
            lines.append(part)
    return lines or [Text()]


def _find_breaks(line: str, *, width: int) -> list[int]:
    """Return where lines begin, but for the first one."""
    if cell_len(line) <= width:
        return []
    breaks: list[int] = []
    place = used = 0
    for piece in split_pieces(line):
        size = cell_len(piece)
        if used and used + cell_len(piece.rstrip()) > width:
            breaks.append(place)
            used = 0
        place += len(piece)
        used += size
    return breaks
