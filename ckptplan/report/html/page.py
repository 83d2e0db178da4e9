"""Defines a page, and writes it as one file with all that it needs.

Charts are drawn by Vega, Vega-Lite and vega-embed in one script. Making it takes seconds, and it is the same
for every page, so it is kept in the user's folder for caches, in a file that only the user can write.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from ckptplan.errors import InputError, MissingExtra
from ckptplan.report.blocks import Block, Chart, Section
from ckptplan.storage.cache import find_cache, is_private
from ckptplan.storage.files import write_bytes
from ckptplan.version import __version__
from ckptplan.wording import escape_controls

#: The version of Vega-Lite that charts are written for.
_VEGA_LITE = "6.1"
#: What pages call to draw a chart.
_ENTRY = "window.drawChart = vegaEmbed;"
#: The most bytes of a file that is read; the script has 0.9 MB.
_MOST_BYTES = 2**23
_log = logging.getLogger("ckptplan.report")


@cache
def load_library() -> str:
    """Return the script."""
    path = _find_file()
    script = None if path is None else _read(path)
    if script is None:
        script = _make()
        if path is not None:
            _write(path, script)
    return script


def _make() -> str:
    import vl_convert

    return str(vl_convert.javascript_bundle(_ENTRY, vl_version=_VEGA_LITE))


def _find_file() -> Path | None:
    """Return the file of the script that the installed release of vl-convert makes."""
    folder, release = find_cache("charts"), version("vl-convert-python")
    name = hashlib.sha256(f"{release} {_VEGA_LITE} {_ENTRY}".encode()).hexdigest()[:32]
    return None if folder is None else folder / f"{name}.js"


def _read(path: Path) -> str | None:
    """Return the script of a file; None if there is none, or one that this user may not have written.

    The first line is the digest of the others, so that a damaged file is none.
    """
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES or not is_private(path):
            return None
        digest, _, script = path.read_bytes().decode().partition("\n")
    except (OSError, ValueError) as error:
        _log.debug("the file %s holds no script, and is replaced: %s", path, error)
        return None
    return script if digest == _digest(script) else None


def _write(path: Path, script: str) -> None:
    """Write the script, if the folder can be written to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_bytes(path, f"{_digest(script)}\n{script}".encode())
        path.chmod(0o600)
    except (InputError, OSError) as error:
        _log.debug("the script of charts is not kept in a file: %s", error)


def _digest(script: str) -> str:
    return f"// {hashlib.sha256(script.encode()).hexdigest()}"


@dataclass(frozen=True, kw_only=True)
class ShownPlan:
    """A plan that can be chosen on a page: its numbers, its chart or why there is none, and its JSON."""

    label: str
    facts: tuple[tuple[str, str], ...]
    chart: Chart | None
    note: str
    #: The plan's file, None if it is left out for its size.
    content: str | None

    @property
    def link(self) -> str | None:
        """The file as a link that needs no server and no script."""
        content = self.content and base64.b64encode(self.content.encode()).decode("ascii")
        return content and f"data:application/json;base64,{content}"


@dataclass(frozen=True, kw_only=True)
class PlanPanel:
    """The place where the chosen plan is shown, and a table to choose it without a pointer."""

    kind: ClassVar[str] = "plans"
    plans: tuple[ShownPlan, ...]
    #: The plan that is shown first.
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class Page:
    """A result as a page."""

    title: str
    #: What the page is about, in a line.
    lede: str
    sections: tuple[Section, ...]

    @classmethod
    def of(cls, *sections: Section, title: str, lede: str) -> Page:
        """Return a page with every table and text once, where it comes last, and without empty sections."""
        later: set[Block] = set()
        kept = []
        for section in reversed(sections):
            blocks = tuple(one for one in section.blocks if not isinstance(one, Block) or one not in later)
            later |= {one for one in blocks if isinstance(one, Block)}
            if blocks:
                kept.append(replace(section, blocks=blocks))
        return cls(title=title, lede=lede, sections=tuple(reversed(kept)))

    def render(self, *, command: str = "") -> str:
        """Return the page as HTML; ``command`` is what made it. Raises MissingExtra."""
        need_html()
        script, style = _asset("page.js"), _asset("page.css")
        blocks = [block for section in self.sections for block in section.blocks]
        charts = {one.name: one.spec for one in blocks if isinstance(one, Chart)}
        plans = [
            {**vars(plan), "chart": plan.chart and vars(plan.chart)}
            for one in blocks
            if isinstance(one, PlanPanel)
            for plan in one.plans
        ]
        library = load_library() if charts or plans else ""
        return str(
            _template().render(
                page=self,
                command=command,
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
    import jinja2

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
