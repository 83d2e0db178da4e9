"""Explains errors of PyTorch's compiler: which kind it is, and where in the user's code."""

from __future__ import annotations

import re

from torch._dynamo.exc import BackendCompilerFailed, Unsupported, UserError
from torch._inductor.exc import InvalidCxxCompiler

from ckptplan.torch.compiled.steps import NotCompiled, Reason

#: What PyTorch says of code whose shapes or branches depend on numbers in tensors.
_DATA = re.compile(
    r"data.dependent|dynamic (shape|output)|Tensor\.item|_local_scalar_dense|unbacked|Dynamic shape operator",
    re.IGNORECASE,
)
_WHAT: dict[Reason, str] = {
    "data-dependent": "shapes or branches depend on numbers in tensors",
    "graph-break": "graph break",
}
_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')


class TooManyGraphsError(RuntimeError):
    """A piece is compiled again and again."""


def explain_error(error: BaseException) -> NotCompiled:
    """Return what an error of the compiler means."""
    chain = list(_list_causes(error))
    text = str(error)
    place = _find_place(text)
    where = f" at {place}" if place else ""
    if any(isinstance(one, TooManyGraphsError) for one in chain):
        return NotCompiled(
            reason="recompiles",
            text="pieces were compiled again and again, since something that steps read differs"
            f"{where}: a number that changes is to be a tensor",
        )
    if any(isinstance(one, InvalidCxxCompiler) for one in chain) or "InvalidCxxCompiler" in text:
        return NotCompiled(
            reason="no-compiler",
            text="there is no C++ compiler on this machine, which PyTorch's compiler needs (install g++ or "
            "clang, or name one in the environment variable CXX)",
        )
    if isinstance(error, Unsupported | UserError):
        kind: Reason = "data-dependent" if _DATA.search(text) else "graph-break"
        return NotCompiled(reason=kind, text=f"{_WHAT[kind]}{where} ({_first_line(text)})")
    if isinstance(error, BackendCompilerFailed) and chain[-1] is not error:
        text = str(chain[-1])
    return NotCompiled(
        reason="compilation-failed", text=f"PyTorch's compiler failed{where} ({_first_line(text)})"
    )


def _list_causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return found


def _find_place(text: str) -> str:
    """Return the innermost place of the user's code that a message names."""
    part = text.rpartition("from user code:")[2] if "from user code:" in text else ""
    places = [one for one in _PLACE.findall(part) if "/ckptplan/torch/" not in one[0]]
    if not places:
        return ""
    file, line, function = places[-1]
    return f"{file.replace(chr(92), '/').rpartition('/')[2]}:{line} ({function})"


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0].rstrip(".:")[:200] if lines else "no message"
