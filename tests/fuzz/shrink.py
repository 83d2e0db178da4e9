"""Finds a shorter case that fails for the same reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.case import Case

#: Runs that a reduction may take.
_MOST_RUNS = 60


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Return the shortest case found that still fails."""
    runs = 0
    found = True
    while found:
        found = False
        for shorter in _shorter(case):
            runs += 1
            if runs > _MOST_RUNS:
                return case
            if fails(shorter):
                case, found = shorter, True
                break
    return case


def _shorter(case: Case) -> Iterator[Case]:
    """Yield cases that lack a part of this one: variables, arguments, then parts of files, large ones first.

    A case that needs no process of its own is tried in a fork before all, which is quicker.
    """
    if case.process:
        yield replace(case, process=False)
    for name in case.environment:
        yield replace(case, environment={key: value for key, value in case.environment.items() if key != name})
    for count in (2, 1):
        for place in range(1, len(case.arguments) - count + 1):
            yield replace(case, arguments=case.arguments[:place] + case.arguments[place + count :])
    for name, content in case.files.items():
        for part in _parts(content):
            files = {**case.files, name: part}
            yield replace(case, files=files, stdin=part if case.stdin == content else case.stdin)


def _parts(content: bytes) -> Iterator[bytes]:
    """Yield a file without some of its lines, or one long line without some of its bytes."""
    lines = content.splitlines(keepends=True)
    whole: list[bytes] = (
        lines if len(lines) > 1 else [content[place : place + 1] for place in range(len(content))]
    )
    size = len(whole) // 2
    while size >= 1:
        for place in range(0, len(whole), size):
            yield b"".join(whole[:place] + whole[place + size :])
        size //= 2
