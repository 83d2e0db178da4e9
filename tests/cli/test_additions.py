"""A strategy is one new file and an output format is one entry: every command takes them up."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.security.program import Done, run_all

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


FORMATS["markdown"] = Format(render=render, suffix=".mdown")
'''
STRATEGY = '''
"""Standard, by the number of its chunks instead of their length."""

from ckptplan.cost.arrays import ceil_div
from ckptplan.cost.exact import Counts
from ckptplan.model.record import Parameters
from ckptplan.schedule.loops import cut_evenly, reverse_chunks
from ckptplan.strategies.closed_form import ClosedForm


class Even(ClosedForm):
    name = "even"
    rank = 100
    parameter_names = ("nb_chunks",)

    def counts(self, *, low, high, steps):
        # More chunks are shorter: less tape, more checkpoints, and more to run again.
        shortest, longest = ceil_div(steps, high["nb_chunks"]), ceil_div(steps, low["nb_chunks"])
        chunks = ceil_div(steps, longest)
        return Counts(
            recomputed_steps=steps - longest, advances=chunks - 1, chunks=chunks, tapes=shortest,
            local_saves=chunks - 1, local_loads=chunks - 1, local_checkpoints=chunks - 1,
        )

    def clamp(self, parameters, *, steps):
        return Parameters(nb_chunks=min(parameters["nb_chunks"], steps))

    def loops(self, parameters, *, steps):
        return reverse_chunks(*cut_evenly(steps, -(-steps // parameters["nb_chunks"])))


STRATEGIES = (Even(),)
'''
#: What Python runs at its start, also in the processes of a sweep.
NEW_STRATEGY = """
import pathlib
import ckptplan.strategies

ckptplan.strategies.__path__.append(str(pathlib.Path(__file__).parent / "strategies"))
"""
Program = Callable[..., list[Done]]


def started_by(text: str, folder: Path, *, strategy: str = "") -> Program:
    """Return a function that runs command lines, in one process that first runs a text."""
    (folder / "start" / "strategies").mkdir(parents=True)
    (folder / "start" / "strategies" / "even.py").write_text(strategy)
    (folder / "start" / "sitecustomize.py").write_text(text)
    path = os.pathsep.join([str(folder / "start"), *sys.path])

    def run_lines(*lines: str) -> list[Done]:
        return run_all(*map(shlex.split, lines), folder=folder, PYTHONPATH=path).done

    return run_lines


def test_every_command_prints_in_a_new_format(tmp_path: Path) -> None:
    """Its name is an option's value, and the end of its files' names asks for it."""
    job = "--local-bytes 240kB --strategies standard,double"
    expected = {
        f"optimize --T 64 {job}": ("plan", "standard", 1),
        f"compare --T 64 {job}": ("comparison", "double", 2),
        f"pareto --T 64 {job}": ("front", "double", 10),
        f"largest T {job}": ("largest", "standard", 2),
        f"sensitivity --T 64 {job}": ("sensitivity", "break-even", 30),
        "profiles list": ("profiles", "ipu-mk2", 3),
        "workloads show paper-snn": ("workload", "tape_bytes", 5),
        "paper --figure 4": ("paper_figure", "hierarchical", 10),
    }
    program = started_by(FORMAT, tmp_path)
    filed, helped, refused, *done = program(
        f"pareto --T 64 {job} -o result.mdown",
        "optimize --help",
        "compare --format markdwn",
        *(f"{line} --format markdown" for line in expected),
    )
    for printed, (kind, cell, least) in zip(done, expected.values(), strict=True):
        assert (printed.code, printed.err) == (0, "")
        title, empty, _header, _line, *rows = printed.out.splitlines()
        assert (title, empty, len(rows) >= least) == (f"# ckptplan.{kind}", "", True)
        assert any(f"| {cell} |" in row for row in rows)
    assert (filed.code, filed.out) == (0, "")
    assert (tmp_path / "result.mdown").read_text().startswith("# ckptplan.front\n")
    assert "table, json, csv, markdown" in " ".join(helped.out.replace("│", " ").split())
    assert (refused.code, "'table', 'json', 'csv', 'markdown'" in refused.err) == (2, True)


def even_rows(text: str) -> list[dict[str, Any]]:
    return [row for row in csv.DictReader(io.StringIO(text)) if row["strategy"] == "even"]


def test_every_command_takes_up_a_new_strategy_and_its_parameter(tmp_path: Path) -> None:
    program = started_by(NEW_STRATEGY, tmp_path, strategy=STRATEGY)
    job = "--local-bytes 240kB --cache all --strategies"
    #: A command whose table shows the parameter of the first row, and how many rows it has at least.
    commands = {
        f"optimize --T 64 {job} even": 1,
        f"compare --T 64 {job} even,standard": 1,
        f"largest T {job} even": 1,
        f"sweep --over T=48,64 {job} even --jobs 1": 2,
        f"sweep --over T=48,64 {job} even --jobs 2": 2,
        f"sensitivity --T 64 {job} even": 10,
    }
    shared, front, planned, *done = program(
        f"largest T {job} even,standard",
        f"pareto --T 64 {job} even,standard --format json",
        f"optimize --T 64 {job} even --format json",
        f"optimize --T 64 {job} even -o plan.json",
        "simulate plan.json",
        f"pareto --T 64 {job} even --plot front.svg",
        f"pareto --T 64 {job} even,standard --format csv",
        *(f"{line} {form}" for line in commands for form in ("", "--format csv")),
    )
    assert [command.code for command in done] == [0] * len(done)
    on_front, tables, data = even_rows(done[3].out), done[4::2], done[5::2]
    for table, rows, least in zip(
        tables, (even_rows(command.out) for command in data), commands.values(), strict=True
    ):
        assert len(rows) >= least
        assert all(int(row["nb_chunks"]) >= 1 for row in rows)
        assert f"nb_chunks {rows[0]['nb_chunks']}" in table.out
    assert json.loads(planned.out)["parameters"] == {"nb_chunks": int(even_rows(data[0].out)[0]["nb_chunks"])}
    strategies = json.loads(front.out)["strategies"]
    assert strategies["even"]["nb_chunks"] == [int(row["nb_chunks"]) for row in on_front]
    assert len(set(strategies["even"]["nb_chunks"])) == len(on_front) > 1
    assert set(strategies["standard"]["nb_chunks"]) == {0}
    assert ">even</" in (tmp_path / "front.svg").read_text()
    # Both reach as far with chunks of the same length, and a note says so.
    [note] = [line for line in shared.out.splitlines() if line.startswith("same schedule: ")]
    assert "even" in note
