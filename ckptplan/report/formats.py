"""Writes a result in every format: as blocks for people, a JSON document, rows of CSV, a page and a picture.

A ``View`` of a result has a function for each form, called only if a format needs this form. A new format is
one more entry of ``FORMATS``, which every command then accepts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptplan.errors import CkptplanError
from ckptplan.storage.files import replace_file
from ckptplan.storage.tables import Row, csv_pieces
from ckptplan.units import sizes_like

if TYPE_CHECKING:
    from ckptplan.model.plan import Plan
    from ckptplan.model.prediction import BasisEntry
    from ckptplan.report.blocks import Block
    from ckptplan.report.picture import Chart

#: The characters of a line in a notebook.
_NOTEBOOK_WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class View:
    """One result for every format."""

    #: The kind of the document, as in ``ckptplan.comparison``; None if the document has one, as a plan does.
    kind: str | None
    #: The title that console, page and picture print, as 'Plan: gru on ipu-mk2'.
    heading: str = ""
    title: str = ""
    #: The local memory of the job in bytes, as the user gave it. Sizes are printed in the same kind of units.
    memory: float = 0
    #: The blocks below the title.
    blocks: Callable[[], Iterable[Block]] = tuple
    #: The whole result as nested JSON data, in SI base units. A part may be a function without arguments, which
    #: is called when the part is written, so that long parts are not in memory at the same time.
    document: Callable[[], Mapping[str, Any]] = dict
    #: Flat rows, in SI base units.
    rows: Callable[[], Iterable[Row]] = tuple
    #: The inputs of the estimate with their origins; empty for a result that estimates nothing. A line below
    #: the blocks counts them, and documents list them.
    basis: Callable[[], Sequence[BasisEntry]] = tuple
    #: If nothing fits, a text that says so, as 'no strategy fits'. Commands then exit with the status for this.
    unmet: str = ""
    #: The picture of the result, None if it has none.
    chart: Callable[[], Chart | None] = lambda: None
    #: The plans whose schedules its page shows, by label.
    plans: Callable[[], Sequence[ShownPlan]] = tuple

    def list_blocks(self) -> Iterator[Block]:
        """Yield the title and the blocks below it."""
        from ckptplan.report.blocks import Paragraph

        if self.title:
            yield Paragraph(f"{self.heading}: {self.title}", style="strong")
        yield from self.blocks()


#: The functions that describe and draw a type of results, each with its module; '' if there is none.
_FUNCTIONS = {
    "Calibrated": ("calibration.view_calibration", ""),
    "Compared": ("plan.view_comparison", "plots.rows.draw_strategies"),
    "HardwareProfile": ("inputs.view_profile", ""),
    "LargestValues": ("largest.view_largest", "plots.rows.draw_largest"),
    "MachineComparison": ("machines.view_machines", "plots.rows.draw_machines"),
    "OnlineFactors": ("online.view_online", "plots.online.draw_online"),
    "ParetoFront": ("front.view_front", "plots.front.draw_front"),
    "Plan": ("plan.view_plan", "plots.schedule.draw_schedule"),
    "Sensitivity": ("sensitivity.view_sensitivity", "plots.sensitivity.draw_sensitivity"),
    "SweepResult": ("", "plots.sweep.draw_sweep"),
    "Validation": ("validation.view_validation", ""),
    "Workload": ("inputs.view_workload", ""),
}


def has_view(result: Any) -> bool:
    """Return whether a result can be shown in every format."""
    return bool(_FUNCTIONS.get(type(result).__name__, ("", ""))[0])


def make_view(result: Any, **details: Any) -> View:
    """Return the view of a result. ``details`` are keyword arguments of the function that describes it."""
    describe, _ = _FUNCTIONS[type(result).__name__]
    view: View = _import_function(describe)(result, **details)
    return view


def find_drawing(result: Any) -> Callable[..., None]:
    """Return the function that draws a result on axes or in a figure, whose module imports matplotlib."""
    _, draw = _FUNCTIONS[type(result).__name__]
    return _import_function(draw)


def _import_function(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    function: Callable[..., Any] = getattr(import_module(f"{__package__}.{module}"), name)
    return function


def find_memory(result: Any) -> float | None:
    """Return the local memory of the job of a result in bytes, None if the result has no view."""
    return make_view(result).memory if has_view(result) else None


def show_as_html(result: Any) -> str | None:
    """Return a result as HTML for a notebook, None if it has no view. Text from files is escaped."""
    from html import escape

    from ckptplan.report.console import write_blocks

    if not has_view(result):
        return None
    view = make_view(result)
    with sizes_like(view.memory):
        lines = write_blocks(view.list_blocks(), width=_NOTEBOOK_WIDTH).rstrip("\n")
    table = f'<pre style="line-height: normal; overflow-x: auto">{escape(lines)}</pre>'
    return table + _draw_as_html(result) if hasattr(result, "plot") else table


def _draw_as_html(result: Any) -> str:
    """Return the picture of a result as an HTML image, '' if it cannot be drawn."""
    from base64 import b64encode

    try:
        drawn = result.plot()
    except CkptplanError:
        # The table says why nothing fits, or why the schedule is too long.
        return ""
    image = b64encode(drawn.get_figure(root=True)._repr_png_()).decode("ascii")
    return (
        f'<img alt="Picture of the result above" style="max-width: 100%" src="data:image/png;base64,{image}">'
    )


@dataclass(frozen=True, kw_only=True)
class ShownPlan:
    """A plan whose schedule a page shows when a reader chooses it.

    The plan that is ``first`` is shown from the start, and drawn more finely than the others.
    """

    label: str
    plan: Plan
    first: bool = False


class Column(list[Any]):
    """A long list of plain values in a document, which JSON text has on one line."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way to write any result."""

    #: Yields a result as text, piece by piece: some results are larger than memory.
    render: Callable[[View], Iterator[str]]
    #: The suffix of a file's name that selects this format, as '.json'; None if no suffix does.
    suffix: str | None = None

    def write(self, view: View, path: str) -> None:
        """Write a result to a file, '-' for standard output. Raises InputError if it cannot be written."""
        with sizes_like(view.memory):
            if self is TEXT and path == "-" and sys.stdout.isatty():
                from ckptplan.report.console import print_blocks

                print_blocks(view.list_blocks())
                return
            with replace_file(path) as file:
                file.writelines(self.render(view))


def _render_text(view: View) -> Iterator[str]:
    """Yield the blocks as plain text, in characters that standard output can show."""
    from ckptplan.report.console import write_blocks

    encoding = (sys.stdout.encoding or "utf-8").lower()
    yield write_blocks(view.list_blocks(), encoding=encoding)


#: Text for people: with colours on a terminal, plain elsewhere.
TEXT = Format(render=_render_text)
#: Every format by name, as ``--format`` takes it, the default first.
FORMATS: dict[str, Format] = {
    "table": TEXT,
    # generate_json calls the functions in a document when it reaches them.
    "json": Format(render=lambda view: generate_json(view.document()), suffix=".json"),
    "csv": Format(render=lambda view: csv_pieces(view.rows()), suffix=".csv"),
}


def format_of_file(path: str) -> Format | None:
    """Return the format that the suffix of a file's name selects, None if it selects none."""
    suffix = Path(path).suffix.lower()
    return next((format_ for format_ in FORMATS.values() if suffix and format_.suffix == suffix), None)


def json_text(document: Mapping[str, Any]) -> str:
    """Return JSON as the program prints it."""
    return "".join(generate_json(document))


def generate_json(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield JSON as the program prints it: two spaces a level, NaN and infinity refused with ValueError."""
    import json  # --help names the format, and writes nothing

    yield from _generate(document, encode=json.JSONEncoder(allow_nan=False).encode, margin="\n")
    yield "\n"


def _generate(value: Any, *, encode: Callable[[Any], str], margin: str) -> Iterator[str]:
    if callable(value):
        value = value()
    deeper = f"{margin}  "
    if isinstance(value, Mapping) and value:
        opening = "{"
        for name, member in value.items():
            yield f"{opening}{deeper}{encode(name)}: "
            yield from _generate(member, encode=encode, margin=deeper)
            opening = ","
        yield f"{margin}}}"
    elif isinstance(value, (list, tuple)) and value and not isinstance(value, Column):
        opening = "["
        for member in value:
            yield f"{opening}{deeper}"
            yield from _generate(member, encode=encode, margin=deeper)
            opening = ","
        yield f"{margin}]"
    else:
        yield encode(value)
