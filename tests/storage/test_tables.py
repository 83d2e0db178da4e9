"""How cells are written, whoever writes them."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from ckptplan.storage.tables import Columns, Lines, Row, Rows, csv_pieces
from tests.support import run

COLUMNS: Columns = {"name": "text", "count": "whole", "share": "number", "fits": "truth"}
ROWS: list[Row] = [
    {"name": 'a, "b"', "count": 2**62, "share": 0.1, "fits": True},
    {"name": "", "count": 0, "share": 1e300, "fits": False},
    {"name": ["x", "y"], "fits": None},
]
CSV = f'''name,count,share,fits
"a, ""b""",{2**62},0.1,true
,0,1e+300,false
x y,,,
'''


def test_truth_is_true_and_false_and_what_is_absent_is_empty() -> None:
    assert "".join(csv_pieces(Rows(columns=COLUMNS, rows=ROWS))) == CSV


def test_columns_are_those_of_all_rows_where_none_are_named() -> None:
    assert "".join(csv_pieces(ROWS)) == CSV
    assert "".join(csv_pieces([{"a": 1}, {"b": False}])) == "a,b\n1,\n,false\n"


def test_columns_stay_where_there_are_no_rows() -> None:
    assert "".join(csv_pieces(Rows(columns=COLUMNS, rows=[]))) == "name,count,share,fits\n"


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_a_block_of_columns_is_the_same_rows(format_: str) -> None:
    lines = Lines(format="csv" if format_ == "csv" else "jsonl", columns=COLUMNS)
    cells = [[row.get(name) for row in ROWS[:2]] for name in COLUMNS]
    assert lines.block(cells) == "".join(map(lines.line, ROWS[:2]))


def test_json_lines_keep_types_and_null() -> None:
    lines = Lines(format="jsonl", columns=COLUMNS)
    assert [json.loads(lines.line(row)) for row in ROWS] == list(Rows(columns=COLUMNS, rows=ROWS))


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_a_line_begins_with_its_head(format_: str) -> None:
    lines = Lines(format="csv" if format_ == "csv" else "jsonl", columns=COLUMNS)
    for row in ROWS:
        start = dict(list(row.items())[:1])
        assert lines.line(row).startswith(lines.head(start))


JOB = ("--T", "64", "--local-bytes", "240 kB")


@pytest.mark.parametrize(
    "arguments",
    [
        ("optimize", *JOB),
        ("compare", *JOB),
        ("pareto", *JOB),
        ("largest", "batch", *JOB),
        ("sweep", "--over", "T=8,64", "--jobs", "1", *JOB[2:]),
        ("sensitivity", *JOB, "--strategies", "standard"),
        ("profiles", "list"),
        ("paper",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_writes_truth_the_same_way(arguments: tuple[str, ...]) -> None:
    text = run(*arguments, "--format", "csv").stdout
    header, *rows = csv.reader(io.StringIO(text))
    assert rows
    assert all(len(row) == len(header) for row in rows)
    assert not re.search(r"\b(True|False|None)\b", text)


def test_every_command_names_columns_whatever_fits() -> None:
    """What is read by a program has the same columns where nothing fits."""
    for arguments in (("compare", "--T", "64"), ("largest", "T")):
        headers = {
            run(*arguments, "--local-bytes", size, "--format", "csv").stdout.splitlines()[0]
            for size in ("1 kB", "240 kB")
        }
        assert len(headers) == 1
