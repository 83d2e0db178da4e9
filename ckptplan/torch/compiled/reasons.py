"""Why steps run as they are written although ``compile`` was asked for."""

from __future__ import annotations

import sys
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

    def warn(self, *, what: str = "steps") -> None:
        """Say what runs uncompiled, and why, where code outside of ckptplan and PyTorch called."""
        text = f"the {what} run uncompiled: {self.text}"
        warnings.warn(text, CompileFallback, stacklevel=_count_frames())


def _count_frames() -> int:
    """Return the stack level of the caller's caller that is neither of ckptplan nor of PyTorch."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] in ("ckptplan", "torch"):
        frame, level = frame.f_back, level + 1
    return level


#: Of a piece in a sequence that was refused: it never runs compiled again.
REFUSED = NotCompiled(reason="refused", text="a sequence that ran in compiled pieces was refused")


class PieceError(RuntimeError):
    """A compiled piece cannot run; nothing has changed, so that its steps can run uncompiled."""

    def __init__(self, why: NotCompiled) -> None:
        self.why = why
        super().__init__(why.text)
