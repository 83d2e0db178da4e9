"""Pictures: plots below a title, as PNG, SVG and PDF, which vl-convert draws without a browser or a network."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ckptplan.errors import InputError
from ckptplan.report import charts
from ckptplan.report.charts import Pen, Plot, Spec, layer_plot
from ckptplan.report.style import PAGE, Size
from ckptplan.storage.files import write_bytes
from ckptplan.wording import escape_controls

#: File formats of pictures.
FORMATS = ("png", "svg", "pdf")
#: Of the same widths; the first is a part of vl-convert.
_FONTS = "Liberation Sans, Arial, Helvetica, sans-serif"
#: Points in an inch: lengths of a picture are in points.
_INCH = 72
#: How often a picture is drawn until it has its size.
_TRIES = 4
#: No plot is narrower, in points.
_LEAST = 60.0
_EXTENT = re.compile(r'(<svg[^>]*? width=")([\d.]+)(" height=")([\d.]+)')
_NAMED = re.compile(rb"(?: +/\w+ \d+ 0 R\n){2,}")
_PART = re.compile(r'(id="|url\(#|href="#)((?:clip|gradient_)\d+)')


def picture_format(path: str) -> str:
    """Return the picture format that a file's name implies. Raises InputError for an unknown one."""
    suffix = Path(path).suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise InputError(
            f"{path!r} does not say which kind of picture",
            value=path,
            accepted="a name that ends in " + ", ".join(f".{name}" for name in FORMATS),
        )
    return suffix


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Plots in rows, below a title whose lines are broken to the width."""

    title: Sequence[str]
    rows: Sequence[Sequence[Plot]]
    #: The height of the plots of each row, in inches on a page; a slide has a height of its own.
    heights: Sequence[float]
    size: Size = PAGE

    def save(self, path: str) -> None:
        """Write it as its name asks for, whole or not at all. Raises InputError."""
        import vl_convert

        chosen, drawn = picture_format(path), self.draw()
        if chosen == "svg":
            # Numbers alone would be parts of a 96th of an inch.
            sized = _EXTENT.sub(r"\1\2pt\3\4pt", drawn, count=1)
            write_bytes(path, f'<?xml version="1.0" encoding="utf-8"?>\n{sized}\n'.encode())
        elif chosen == "pdf":
            # Names of resources are in no order; in order, they take the same place in the file.
            write_bytes(path, _NAMED.sub(_sort_lines, vl_convert.svg_to_pdf(drawn)))
        else:
            write_bytes(path, vl_convert.svg_to_png(drawn, ppi=self.size.dots))

    def draw(self) -> str:
        """Return it as SVG, in points."""
        width, stretch = 0.75 * _INCH * self.size.width, 1.0
        # How much titles, axes and legends take is seen when they are drawn, and changes with the rest.
        for _ in range(_TRIES):
            drawn = self._render(width, stretch)
            found = _EXTENT.search(drawn)
            assert found is not None  # noqa: S101 - vl-convert writes both
            more = _INCH * self.size.width - float(found[2])
            higher = 0.0 if self.size.height is None else _INCH * self.size.height - float(found[4])
            if max(abs(more), abs(higher)) < 2:
                break
            width, stretch = width + more, max(0.3, stretch + higher / (_INCH * sum(self.heights)))
        return drawn

    def _render(self, width: float, stretch: float) -> str:
        import vl_convert

        spec = json.dumps(charts.escape(self.make_spec(width, stretch)))
        drawn = vl_convert.vegalite_to_svg(spec, vl_version=charts.VERSION)
        # Numbers of its parts go on from one picture of the process to the next.
        names: dict[str, str] = {}
        return _PART.sub(lambda found: found[1] + names.setdefault(found[2], f"part{len(names)}"), drawn)

    def make_spec(self, width: float, stretch: float) -> Spec:
        """Return the chart in Vega-Lite, all plots of a row ``width`` points wide together."""
        points, scale = self.size.points, self.size.scale
        # Each plot has its own legend.
        own: Spec = {
            "resolve": {"scale": dict.fromkeys(("fill", "shape", "stroke", "strokeDash"), "independent")}
        }
        rows: list[Spec] = []
        for row, height in zip(self.rows, self.heights, strict=True):
            # Names of the axes between plots take some of the width.
            each = max(_LEAST, (width - 7 * points * (len(row) - 1)) / len(row))
            room = 0.8 * _INCH * self.size.width / len(row)
            pen = Pen(width=scale, dash=1.5 * scale, area=1.8 * scale**2, text=points, room=room)
            form = {"width": each, "height": _INCH * height * stretch}
            # Nobody points at what is drawn.
            muted = (replace(one, marks=[replace(marks, told={}) for marks in one.marks]) for one in row)
            plots = [{**layer_plot(one, pen=pen), **form} for one in muted]
            rows.append(plots[0] if len(plots) == 1 else {"spacing": 2 * points, "hconcat": plots, **own})
        lines = self._break_title()
        look = charts.configure(points, font=_FONTS, background="white")
        title = {"title": {"text": lines, "frame": "bounds", "offset": points}} if lines else {}
        return {**title, "spacing": 1.5 * points, "vconcat": rows, **own, "config": look}

    def _break_title(self) -> list[str]:
        """Return the lines of the title, each of which takes at most three."""
        fitting = int(_INCH * self.size.width / (0.53 * self.size.points))
        form: Any = {"max_lines": 3, "placeholder": "…", "break_on_hyphens": False}
        return [part for line in self.title for part in textwrap.wrap(escape_controls(line), fitting, **form)]


def _sort_lines(found: re.Match[bytes]) -> bytes:
    return b"".join(sorted(found[0].splitlines(keepends=True)))
