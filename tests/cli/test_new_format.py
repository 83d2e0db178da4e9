"""An output format is one entry: every command that prints a result takes it up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FORMAT = '''
"""Results as a table of Markdown."""

from ckptplan.report.formats import FORMATS, Format


def render(view):
    rows = list(view.rows())
    names = dict.fromkeys(name for row in rows for name in row)
    yield f"# {view.document()['kind']}\\n\\n"
    yield f"| {' | '.join(names)} |\\n|{'---|' * len(names)}\\n"
    for row in rows:
        yield f"| {' | '.join(str(row.get(name)) for name in names)} |\\n"


FORMATS["markdown"] = Format(render=render, suffix=".md")
'''
#: The program, with one more format.
PROGRAM = f"""
{FORMAT}

from ckptplan.cli.main import main

main()
"""
JOB = ("--T", "64", "--local-bytes", "240 kB", "--strategies", "standard,double")
#: Command -> what its document says it is, a cell of a row, and the rows that there are at least.
COMMANDS = {
    ("optimize", *JOB): ("ckptplan.plan", "standard", 1),
    ("compare", *JOB): ("ckptplan.comparison", "double", 2),
    ("pareto", *JOB): ("ckptplan.front", "double", 10),
    ("largest", "T", *JOB[2:]): ("ckptplan.largest", "standard", 2),
    ("sensitivity", *JOB): ("ckptplan.sensitivity", "break-even", 30),
    ("profiles", "list"): ("ckptplan.profiles", "ipu-mk2", 3),
    ("workloads", "show", "paper-snn"): ("ckptplan.workload", "tape_bytes", 5),
    ("paper", "--figure", "4"): ("ckptplan.paper_figure", "hierarchical", 10),
}
every_command = pytest.mark.parametrize(
    ("command", "kind", "cell", "least"),
    [(command, *expected) for command, expected in COMMANDS.items()],
    ids=[" ".join(command[:2]) for command in COMMANDS],
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a format of its own."""
    file = tmp_path_factory.mktemp("program") / "program.py"
    file.write_text(PROGRAM)
    return file


def start(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(program), *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=program.parent,
    )


def rows_of(text: str, *, kind: str) -> list[str]:
    title, empty, _header, _line, *rows = text.splitlines()
    assert (title, empty) == (f"# {kind}", "")
    return rows


@every_command
def test_a_command_prints_in_a_new_format(
    command: tuple[str, ...], kind: str, cell: str, least: int, program: Path
) -> None:
    done = start(program, *command, "--format", "markdown")
    assert (done.returncode, done.stderr) == (0, "")
    rows = rows_of(done.stdout, kind=kind)
    assert len(rows) >= least
    assert any(f"| {cell} |" in row for row in rows)


@pytest.mark.parametrize("command", [("pareto", *JOB), ("largest", "T", *JOB[2:])], ids=["pareto", "largest"])
def test_the_name_of_a_file_asks_for_a_new_format(command: tuple[str, ...], program: Path) -> None:
    file = (program.parent / "result").with_suffix(".md")
    done = start(program, *command, "-o", file.name)
    assert (done.returncode, done.stdout) == (0, "")
    assert len(rows_of(file.read_text(), kind=COMMANDS[command][0])) >= 2


def test_help_and_mistakes_name_a_new_format(program: Path) -> None:
    told = start(program, "optimize", "--help").stdout.replace("│", " ")
    assert "one of table, json, csv, markdown" in " ".join(told.split())
    done = start(program, "compare", "--format", "markdwn")
    assert done.returncode == 2
    assert "'table', 'json', 'csv', 'markdown'" in done.stderr
