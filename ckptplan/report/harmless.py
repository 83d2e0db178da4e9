"""Keeps what other people wrote from acting on a terminal: characters that are no text are shown as escapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.measure import Measurement
from rich.segment import Segment

from ckptplan.wording import escape_controls


class HarmlessText(RenderHook):
    """Makes a console show every text as ``escape_controls`` returns it; its own colours remain."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return what a console prints instead."""
        return [_Harmless(one) for one in renderables]


@dataclass(frozen=True)
class _Harmless:
    inner: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments: Iterable[Segment] = console.render(self.inner, options)
        for text, style, control in segments:
            yield Segment(text if control else escape_controls(text), style, control)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.inner)
