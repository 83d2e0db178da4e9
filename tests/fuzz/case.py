"""A hostile case: what the program is given, and what it may do with it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: Exit codes of docs/plan-format.md that a program may end with if nobody ends it.
DOCUMENTED = frozenset({0, 2, 3, 4})
#: What else is done to the standard streams of a process.
Streams = Literal["", "output closed", "errors closed", "input closed", "output full", "errors full"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of the program.

    Arguments:
        name: SEED:INDEX, from which the case is made again.
        kind: what is hostile.
        arguments: the arguments of the program.
        files: the content of each file in its folder.
        environment: variables that are set beside those of the tests.
        outputs: the files that it may write.
        codes: the exit codes that it may end with.
        loads: a document of the files that the library is asked about first: its kind, its name, and the plan
            of a schedule. What the library refuses, the program must refuse with the same code.
        stdin: what it reads on standard input.
        process: whether it runs as a process of its own from the start, as users run it.
        streams: what is done to its standard streams.
    """

    name: str
    kind: str
    arguments: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    outputs: frozenset[str] = frozenset()
    codes: frozenset[int] = DOCUMENTED
    loads: tuple[str, ...] | None = None
    stdin: bytes = b""
    process: bool = False
    streams: Streams = ""

    @property
    def size(self) -> int:
        """Bytes of everything that it is given."""
        given = [*self.arguments, *self.environment, *self.environment.values()]
        return len(self.stdin) + sum(map(len, [*given, *self.files.values()])) + len(given)

    def describe(self) -> dict[str, Any]:
        """Return what the case is, for a report; the files are kept beside it."""
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.environment.items())
        command = shlex.join(["ckptplan", *self.arguments])
        return {
            "name": self.name,
            "kind": self.kind,
            "command": " ".join(filter(None, [variables, command])),
            "stdin": self.stdin.decode("utf-8", "backslashreplace")[:2000],
            "streams": self.streams,
            "files": sorted(self.files),
        }


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a case did.

    ``code`` is the exit code, negative for a signal; ``loaded`` is the exit code that the library's own loader
    implies, None if it was not asked. Times are in seconds, ``memory`` in bytes above that of a program that
    prints its version. ``written`` are the files that are new or changed.
    """

    code: int
    seconds: float
    cpu_seconds: float
    memory: int
    stdout: bytes
    stderr: bytes
    written: Mapping[str, bytes]
    loaded: int | None
    loader_fault: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A case's outcome in short, and what was wrong with it: a class of problem and its words, or nothing."""

    name: str
    kind: str
    command: str
    code: int
    seconds: float
    cpu_seconds: float
    memory: int
    problems: tuple[tuple[str, str], ...]
