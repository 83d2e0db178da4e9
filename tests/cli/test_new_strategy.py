"""A strategy is one new file: every command takes it up, and no output loses its parameter."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STRATEGY = '''
"""Standard, by the number of its chunks instead of their length."""

import numpy as np

from ckptplan.cost.arrays import ceil_div
from ckptplan.cost.exact import Counts
from ckptplan.model.record import Parameters
from ckptplan.schedule.segments import reverse_locally
from ckptplan.strategies.closed_form import ClosedForm


class Even(ClosedForm):
    name = "even"
    rank = 100
    parameter_names = ("nb_chunks",)

    def counts(self, *, low, high, steps):
        # More chunks are shorter: less tape, more checkpoints, and more to run again.
        shortest, longest = ceil_div(steps, high["nb_chunks"]), ceil_div(steps, low["nb_chunks"])
        none = np.zeros_like(shortest)
        return Counts(
            recomputed_steps=steps - longest,
            remote_writes=none,
            remote_reads=none,
            messages=none,
            advances=ceil_div(steps, longest) - 1,
            chunks=ceil_div(steps, longest),
            local_saves=ceil_div(steps, longest) - 1,
            local_loads=ceil_div(steps, longest) - 1,
            largest_message=none,
            tapes=shortest,
            local_checkpoints=ceil_div(steps, longest) - 1,
            remote_checkpoints=none,
        )

    def clamp(self, parameters, *, steps):
        return Parameters(nb_chunks=min(parameters["nb_chunks"], steps))

    def actions(self, parameters, *, steps, splits=None):
        return reverse_locally(0, steps, -(-steps // parameters["nb_chunks"]))


STRATEGIES = (Even(),)
'''
#: The program, with one more folder of strategies; processes that a sweep starts run the first lines, too.
PROGRAM = """
import pathlib

import ckptplan.strategies

ckptplan.strategies.__path__.append(str(pathlib.Path(__file__).parent / "strategies"))

if __name__ == "__main__":
    from ckptplan.cli.main import main

    main()
"""
JOB = ("--T", "64", "--local-bytes", "240 kB", "--strategies", "even,standard")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program beside a folder with one strategy."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "strategies").mkdir()
    (folder / "strategies" / "even.py").write_text(STRATEGY)
    (folder / "program.py").write_text(PROGRAM)
    return folder / "program.py"


def run(program: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=program.parent,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(text: str) -> list[dict[str, Any]]:
    return [row for row in csv.DictReader(io.StringIO(text)) if row["strategy"] == "even"]


def chunks_of(found: list[dict[str, Any]]) -> set[str]:
    return {row["nb_chunks"] for row in found}


def test_optimize_and_simulate(program: Path) -> None:
    only = (*JOB[:-1], "even")
    (row,) = rows(run(program, "optimize", *only, "--format", "csv"))
    plan = json.loads(run(program, "optimize", *only, "--format", "json"))
    assert plan["parameters"] == {"nb_chunks": int(row["nb_chunks"])}
    assert f"even  nb_chunks {row['nb_chunks']}" in run(program, "optimize", *only, "-o", "plan.json")
    assert "equal" in run(program, "simulate", "plan.json")


def test_compare(program: Path) -> None:
    (row,) = rows(run(program, "compare", *JOB, "--format", "csv"))
    assert int(row["nb_chunks"]) > 1
    assert f"nb_chunks {row['nb_chunks']}" in run(program, "compare", *JOB)


def test_pareto(program: Path) -> None:
    found = rows(run(program, "pareto", *JOB, "--format", "csv"))
    assert len(chunks_of(found)) == len(found) > 1
    document = json.loads(run(program, "pareto", *JOB, "--format", "json"))
    assert document["strategies"]["even"]["nb_chunks"] == [int(row["nb_chunks"]) for row in found]
    assert set(document["strategies"]["standard"]["nb_chunks"]) == {0}
    only = (*JOB[:-1], "even")
    assert "nb_chunks 2" in run(program, "pareto", *only, "--plot", "front.svg")
    assert ">even</" in (program.parent / "front.svg").read_text()


def test_largest(program: Path) -> None:
    (row,) = rows(run(program, "largest", "T", *JOB[2:], "--format", "csv"))
    assert int(row["nb_chunks"]) > 1
    only = (*JOB[2:-1], "even")
    assert f"nb_chunks {row['nb_chunks']}" in run(program, "largest", "T", *only)
    # Both reach as far with chunks of the same length, and share a line.
    assert "standard also: even" in run(program, "largest", "T", *JOB[2:])


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_sweep(program: Path, jobs: str) -> None:
    over = ("sweep", "--over", "T=48,64", *JOB[2:-1], "even", "--jobs", jobs)
    found = rows(run(program, *over, "--format", "csv"))
    assert len(found) == 2
    assert all(int(row["nb_chunks"]) > 1 for row in found)
    assert f"nb_chunks {found[0]['nb_chunks']}" in run(program, *over)


def test_sensitivity(program: Path) -> None:
    only = (*JOB[:-1], "even")
    found = rows(run(program, "sensitivity", *only, "--format", "csv"))
    assert all(int(row["nb_chunks"]) >= 1 for row in found)
    assert f"best: even  nb_chunks {found[0]['nb_chunks']}" in run(program, "sensitivity", *only)
