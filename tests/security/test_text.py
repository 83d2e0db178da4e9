"""Text of strangers is text: nothing in a file colours a terminal, reorders a line, or runs in a viewer."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import ckptplan
from ckptplan.report.blocks import Paragraph
from ckptplan.report.console import print_blocks
from ckptplan.storage.tables import csv_pieces
from ckptplan.wording import escape_controls, find_control
from tests.security.program import run_all
from tests.support import small_plan, told

#: Refused in files.
CONTROLS = {
    "colour": "\x1b[31mred\x1b[0m",
    "title of the window": "\x1b]0;owned\x07",
    "back to the beginning of the line": "all fine\roverwritten",
    "8-bit sequence": "\x9b2J",
    "right to left": "abc\u202ecba",
    "isolate": "\u2066abc\u2069",
    "invisible": "a\u200bb",
    "letter without a shape": "a\u3164b",
    "selector of variants": "a\ufe00b",
    "backspace": "fault\x08\x08\x08\x08\x08",
}
#: Accepted in files, and shown as they are.
TEXTS = {
    "markup": "[red]not red[/red] [link=http://example.org]here[/link] [bold",
    "html": "<script>alert(1)</script> <img src=x onerror=alert(1)> &amp;",
    "picture": "<svg><script>alert(1)</script></svg> ]]> <!--",
    "mathematics": r"$\frac{1}{0}$ $\notacommand$ \LaTeX $",
    "formula": "=HYPERLINK(A1)",
    "call": "-2+3+cmd|' /C calc'!A0",
    "format": "{0} {name} %s %(x)d",
    "emoji and joiners": "\u26a1\ufe0f \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
}
#: What a spreadsheet takes for a formula.
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\n=1", "\uff1d1", "\u00a0=1", "\u3000@x"]


def write_inputs(folder: Path, text: str) -> None:
    quoted = json.dumps(text)
    (folder / "p.toml").write_text(
        f'name = "p"\ndescription = {quoted}\nwrite_bytes_per_second = 1e9\nread_bytes_per_second = 1e9\n'
        '[local_bytes]\nvalue = "230 kB"\ngrade = "X"\n'
        f"assumption = {quoted}\nsource = {quoted}\nnote = {quoted}\n"
    )
    (folder / "w.toml").write_text(
        f'name = "w"\ndescription = {quoted}\ntimed_on = {quoted}\ncell = {quoted}\n'
        "steps = 64\nstate_bytes = 4000\ntape_bytes = 4000\n"
        "forward_seconds = 1\nbackward_seconds = 1\nrecompute_seconds = 1\n"
        f'[basis.forward_seconds]\nkind = "assumed"\nwhy = {quoted}\n'
    )


COMMANDS = (
    ("profiles", "show", "./p.toml"),
    ("workloads", "show", "./w.toml"),
    ("optimize", "--profile", "./p.toml", "--workload", "./w.toml", "--basis"),
)


@pytest.mark.parametrize("text", CONTROLS.values(), ids=CONTROLS)
def test_controls_are_refused_and_named_harmlessly(text: str, tmp_path: Path) -> None:
    write_inputs(tmp_path, text)
    for load, name in ((ckptplan.load_profile, "p.toml"), (ckptplan.load_workload, "w.toml")):
        with pytest.raises(ckptplan.InputError, match=r"holds the control character '\\[xurU]") as caught:
            load(tmp_path / name)
        assert find_control(str(caught.value)) is None


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_format_shows_text_as_text(text: str, tmp_path: Path) -> None:
    write_inputs(tmp_path, text)
    runs = run_all(
        *((*command, "--format", form) for form in ("json", "csv", "table") for command in COMMANDS),
        folder=tmp_path,
        COLUMNS="400",
    )
    assert all(done.code == 0 for done in runs.done), [done.err for done in runs.done]
    outputs = [done.out for done in runs.done]
    for output in outputs[:3]:
        assert json.dumps(text)[1:-1] in output
        json.loads(output)
    for output in outputs[3:5]:
        cells = [cell for row in csv.reader(io.StringIO(output)) for cell in row]
        assert any(text in cell for cell in cells)
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
    for output in outputs[6:]:
        assert text in output
        assert find_control(output) is None


def test_names_of_files_are_text_in_pictures_traces_and_messages(tmp_path: Path) -> None:
    """The caller types them, but a folder full of them may come from anywhere."""
    plan = small_plan()
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    names = ["a$\\frac$<script>.jsonl", "\x1b[31mred\u202e.jsonl", "=1+1.jsonl"]
    for name in names:
        ckptplan.save_schedule(plan, tmp_path / name)
    runs = run_all(
        *(
            ("simulate", "plan.json", "--schedule", name, "--gantt", f"{i}.svg", "--trace", f"{i}.json")
            for i, name in enumerate(names)
        ),
        *(("simulate", name) for name in names),
        *(("optimize", "--profile", f"./{name}") for name in names),
        ("simulate", "plan.json", "--format", "csv", "--schedule", names[2]),
        ("simulate", "plan.json", "--trace", "two\nlines.json"),
        folder=tmp_path,
    )
    assert [done.code for done in runs.done] == [0, 0, 0, 2, 2, 2, 2, 2, 2, 0, 0]
    assert "trace written to two\\nlines.json" in runs.done[-1].err
    for done in runs.done:
        assert find_control(done.out + done.err) is None
    for i, name in enumerate(names):
        svg = (tmp_path / f"{i}.svg").read_text()
        found = ET.fromstring(svg)  # noqa: S314 - our own picture
        assert not [one for one in found.iter() if one.tag.endswith("script")]
        assert escape_controls(name) in "".join(found.itertext())
        trace = (tmp_path / f"{i}.json").read_text()
        assert find_control(trace) is None
        assert json.loads(trace)["otherData"]["schedule"] == name


def test_keys_of_a_file_are_told_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('"\\u001b[31m\\nckptplan: all is well" = 1\n')
    with pytest.raises(ckptplan.InputError) as caught:
        ckptplan.load_profile(tmp_path / "p.toml")
    message = str(caught.value)
    assert r"\x1b[31m\nckptplan: all is well: is not a field" in message
    assert "\n" not in message


@given(text=st.text(alphabet=st.one_of(st.sampled_from("a \n\t\r\x1b[31m\x9b\u202e\ud800"), st.characters())))
def test_tables_hold_no_controls(text: str) -> None:
    assert find_control(told([Paragraph(text)], width=10_000)) is None


def test_a_terminal_gets_no_codes_but_those_of_the_tables_own_colours() -> None:
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=True, color_system="standard", width=200, markup=False)
    print_blocks([Paragraph("\x1b[31mred\u202e", "strong")], console)
    assert buffer.getvalue() == "\x1b[1m" + r"\x1b[31mred\u202e" + "\x1b[0m\n"


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_in_csv_begin_with_an_apostrophe(text: str) -> None:
    text_of_row = "".join(csv_pieces([{"text": text, "number": -1.5, "whole": -2, "list": [text]}]))
    (row,) = csv.DictReader(io.StringIO(text_of_row))
    assert row["text"] == row["list"] == f"'{text}"
    assert (row["number"], row["whole"]) == ("-1.5", "-2")
