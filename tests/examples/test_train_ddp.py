"""Two real processes with half of a batch each compute the gradients of one with all of it."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ckptplan
from tests.examples.support import EXAMPLES, losses, python
from tests.torch.support import assert_close, plan_of

SCRIPT = EXAMPLES / "train_ddp.py"
TWO = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan whose checkpoints wait in both memories, and are run from again."""
    ckptplan.save_plan(plan_of(40, "hierarchical", states=10), tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_gradients_of_two_processes_are_those_of_one(plan: Path, tmp_path: Path) -> None:
    options = ("--plan", plan, "--steps-of-training", "3", "--dtype", "float64")
    saved, printed = [], []
    for number, start in enumerate([(), TWO]):
        file = tmp_path / f"{number}.pt"
        done = python(*start, SCRIPT, *options, "--save", file)
        assert (done.returncode, done.stderr) == (0, "")
        printed.append(done.stdout)
        saved.append(torch.load(file))
    one, two = saved
    # Rank 0 alone prints.
    assert [len(training) for text in printed for training in losses(text)] == [3, 3]
    assert "processes  1 (cpu), 16 samples each\n" in printed[0] or torch.cuda.is_available()
    assert "processes  2 (" in printed[1]
    assert "), 8 samples each\n" in printed[1]
    assert one["gradients"].keys() == two["gradients"].keys()
    assert all(gradient.any() for gradient in one["gradients"].values())
    gradients = [list(run["gradients"].values()) for run in saved]
    assert_close(*gradients, relative=1e-12)
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-12)
    # Three steps of Adam, which divides by the size of a gradient, lie between.
    parameters = [list(run["parameters"].values()) for run in saved]
    assert_close(*parameters, relative=1e-9)


def test_the_commands_of_its_docstring(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    optimize, train = [
        shlex.split(line) for line in SCRIPT.read_text().splitlines() if line.startswith("    ")
    ][:2]
    assert (optimize[0], train[:3]) == ("ckptplan", ["torchrun", "--nproc-per-node", "2"])
    planned = python("-m", *optimize, cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    base = next(line for line in planned.stdout.splitlines() if line.startswith("base"))
    assert re.search("(does not|no) fit", base)
    done = python(*TWO, *train[3:], "--steps-of-training", "2", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [len(training) for training in losses(done.stdout)] == [2]
    assert "those of" not in done.stdout


def test_a_plan_that_is_missing_is_told_in_a_line() -> None:
    done = python(SCRIPT, "--plan", "nowhere.json")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "train_ddp.py: error: argument --plan: nowhere.json: cannot be read: No such file or directory"
    )
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"kind": "recipe"}, [], "argument --plan: plan.json: kind: 'recipe' is not a plan"),
        ({"steps": 41}, [], "argument --plan: plan.json: steps: "),
        ({}, ["--batch", "15"], "argument --batch: 15 samples cannot be shared equally by 2 processes"),
        ({}, ["--batch", "0"], "argument --batch: invalid positive value: '0'"),
        ({}, ["--save", "no/where.pt"], "argument --save: there is no folder no"),
    ],
)
def test_bad_input(
    change: dict[str, Any],
    options: list[str],
    message: str,
    plan: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a process that takes itself for the second of two: each looks before it waits for the other."""
    plan.write_text(json.dumps(json.loads(plan.read_text()) | change))
    monkeypatch.chdir(plan.parent)
    for variable, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--plan", "plan.json", *options])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert f"train_ddp.py: error: {message}" in capsys.readouterr().err
