"""Why steps run as they are written although ``compile`` was asked for."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: The kinds of reasons.
Reason: TypeAlias = Literal[
    "graph-break",
    "data-dependent",
    "no-compiler",
    "compilation-failed",
    "recompiles",
    "differs",
    "refused",
    "state",
    "cell",
    "short",
    "slower",
    "memory",
]


class CompileFallback(UserWarning):
    """Steps run as they are written, though ``compile`` was asked for; the message says why."""


@dataclass(frozen=True, kw_only=True)
class NotCompiled:
    """Why a call is not compiled."""

    reason: Reason
    #: The whole story, for people.
    text: str

    def warn(self, *, what: str = "steps", stacklevel: int) -> None:
        """Say what runs uncompiled, and why."""
        text = f"the {what} run uncompiled: {self.text}"
        warnings.warn(text, CompileFallback, stacklevel=stacklevel + 1)


#: Of a piece in a sequence that was refused: it never runs compiled again.
REFUSED = NotCompiled(reason="refused", text="a sequence that ran in compiled pieces was refused")


class PieceError(RuntimeError):
    """A compiled piece cannot run; nothing has changed, so that its steps can run uncompiled."""

    def __init__(self, why: NotCompiled) -> None:
        self.why = why
        super().__init__(why.text)
