"""Shows results in notebooks: IPython asks an object for its HTML and its picture."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Displayed:
    """A result that notebooks show as a table, and as a picture if it has one.

    What draws it, and what that imports, is found when a notebook asks, not before.
    """

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        shown: str | None = _show("show_as_html", self)
        return shown

    def _repr_png_(self) -> bytes | None:
        drawn: bytes | None = _show("draw_as_png", self)
        return drawn


def _show(how: str, result: object) -> Any:
    return getattr(import_module("ckptplan.report.notebook"), how)(result)
