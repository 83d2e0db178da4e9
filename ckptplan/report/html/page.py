"""Defines a page, and writes it as one file with all that it needs."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, ClassVar

from ckptplan.errors import MissingExtra
from ckptplan.report.html.blocks import Block
from ckptplan.report.html.charts.look import Chart
from ckptplan.report.html.library import load_library
from ckptplan.version import __version__
from ckptplan.wording import escape_controls


@dataclass(frozen=True, kw_only=True)
class Download:
    """A file within the page."""

    kind: ClassVar[str] = "download"
    text: str
    file_name: str
    content: str

    @property
    def link(self) -> str:
        """The file as a link that needs no server."""
        return f"data:application/json;base64,{base64.b64encode(self.content.encode()).decode('ascii')}"


@dataclass(frozen=True, kw_only=True)
class ShownPlan:
    """A plan that can be chosen on a page: its numbers, its chart or why there is none, and its JSON."""

    label: str
    facts: tuple[tuple[str, str], ...]
    chart: Chart | None
    note: str
    #: The plan's file, None if it is left out for its size.
    content: str | None

    def data(self) -> dict[str, Any]:
        """Return what the page's script reads."""
        return {
            "label": self.label,
            "facts": [list(fact) for fact in self.facts],
            "spec": None if self.chart is None else self.chart.spec,
            "caption": "" if self.chart is None else self.chart.caption,
            "note": self.note,
            "content": self.content,
        }


@dataclass(frozen=True, kw_only=True)
class PlanPanel:
    """The place where the chosen plan is shown, and a table to choose it without a pointer."""

    kind: ClassVar[str] = "plans"
    plans: tuple[ShownPlan, ...]
    #: The plan that is shown first.
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class ChartBlock:
    """A chart within a section."""

    kind: ClassVar[str] = "chart"
    chart: Chart


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page, with a heading of its own."""

    name: str
    title: str
    blocks: tuple[Block | ChartBlock | Download | PlanPanel, ...]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A result as a page."""

    title: str
    #: What the page is about, in a line.
    lede: str
    sections: tuple[Section, ...]
    #: The command that made it.
    command: str = ""
    language: str = field(default="en")

    def tidied(self) -> Page:
        """Return the page with every table and text once, where it comes last, and without empty sections."""
        later: set[Any] = set()
        kept = []
        for section in reversed(self.sections):
            blocks = tuple(one for one in section.blocks if not isinstance(one, Block) or one not in later)
            later |= {one for one in blocks if isinstance(one, Block)}
            kept.append(replace(section, blocks=blocks))
        kept.reverse()
        return replace(self, sections=tuple(one for one in kept if one.blocks))

    def render(self) -> str:
        """Return the page as HTML. Raises MissingExtra."""
        script, style = _asset("page.js"), _asset("page.css")
        charts = {
            block.chart.name: block.chart.spec
            for section in self.sections
            for block in section.blocks
            if isinstance(block, ChartBlock)
        }
        plans = [
            plan.data()
            for section in self.sections
            for block in section.blocks
            if isinstance(block, PlanPanel)
            for plan in block.plans
        ]
        library = load_library() if charts or plans else ""
        return str(
            _template().render(
                page=self,
                version=__version__,
                style=_as_is(style),
                library=_as_is(library),
                script=_as_is(script),
                data=_as_is(encode_data({"charts": charts, "plans": plans})),
                policy=_make_policy(library, script),
            )
        )


def need_html() -> None:
    """Raise MissingExtra if what pages are made with is not installed."""
    from importlib.util import find_spec

    for module, package in {"jinja2": "jinja2", "vl_convert": "vl-convert-python"}.items():
        if find_spec(module) is None:
            raise MissingExtra("html", package=package)


def encode_data(data: object) -> str:
    """Return data as JSON that a script element can hold: no text ends the element, or begins a comment."""
    text = json.dumps(_harmless(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _harmless(data: object) -> object:
    """Return data whose texts show control characters instead of holding them."""
    if isinstance(data, str):
        return escape_controls(data)
    if isinstance(data, dict):
        return {key: _harmless(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_harmless(value) for value in data]
    return data


def _make_policy(*scripts: str) -> str:
    """Return what the page may do: run these scripts, and load nothing from anywhere."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}'"
        for script in scripts
        if script
    )
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:"


@cache
def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _as_is(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - our own files, and data that encode_data made harmless


@cache
def _template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise MissingExtra("html", package="jinja2") from None
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # Names are other people's: what is no text is shown as an escape, and markup as text.
        finalize=lambda value: (
            escape_controls(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
        ),
    )
    return environment.from_string(_asset("page.html.j2"))
