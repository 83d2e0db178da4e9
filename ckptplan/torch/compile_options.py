"""The argument ``compile`` of ``bptt``, ``unroll``, ``scan`` and ``wrap``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ckptplan.errors import InputError, quote_value

#: Called with a name and None when a compilation begins, and with the name and its seconds when it ends.
CompileProgress: TypeAlias = Callable[[str, float | None], None]
_ACCEPTED = "True, False, the steps of a piece as a whole number from 1, or ckptplan.torch.Compile(...)"
#: The mode that records the kernels of uncompiled steps as CUDA graphs.
CUDA_GRAPHS = "cudagraphs"
#: The modes of PyTorch's compiler that make sense for pieces, and the mode that compiles nothing.
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", CUDA_GRAPHS)


class CompileFallback(UserWarning):
    """Steps run as they are written, although ``compile`` was requested; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Compile:
    """The options with which pieces of a sequence are compiled.

    Arguments:
        steps: K, the steps of a piece; None for the quickest of a few.
        mode: the mode of ``torch.compile``: ``"reduce-overhead"`` for CUDA graphs of new kernels. Or
            ``"cudagraphs"`` for CUDA graphs of the kernels that steps run as written. They are ready within
            seconds, and need neither a C++ compiler nor Triton.
        progress: called with a name and None when a compilation begins, and with the name and its seconds when
            it ends. None to write a line on standard error, if that is a terminal.

    Raises InputError.
    """

    steps: int | None = None
    mode: str = "default"
    progress: CompileProgress | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and not _is_count(self.steps):
            raise InputError(
                f"is {quote_value(self.steps)}",
                field="compile.steps",
                value=self.steps,
                accepted="a whole number from 1",
            )
        if self.mode not in _MODES:
            raise InputError(
                f"is {quote_value(self.mode)}",
                field="compile.mode",
                value=self.mode,
                accepted=", ".join(_MODES),
            )


def read_compile(value: object) -> Compile | None:
    """Return the options of the argument ``compile``, None to compile nothing. Raises InputError."""
    if value is None or value is False:
        return None
    if value is True:
        return Compile()
    if isinstance(value, Compile):
        return value
    if _is_count(value):
        return Compile(steps=value)  # type: ignore[arg-type]
    raise InputError(f"is {quote_value(value)}", field="compile", value=value, accepted=_ACCEPTED)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
