"""No file makes the program import, call or evaluate anything: each kind of file is tried with planted code."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import ckptplan
from ckptplan.calibration.validate import validate
from ckptplan.model.cell_spec import CellSpec
from tests.security.program import run_all
from tests.support import small_plan

PLANTED = """
from pathlib import Path
Path("ran").write_text("planted code ran")
def factory():
    raise RuntimeError("called")
"""
PROGRAM = str(Path(sys.executable).with_name("ckptplan"))
#: Texts that some readers of files would evaluate.
CODE = (
    "planted:factory",
    "__import__('planted')",
    "!!python/object/apply:os.system ['touch ran']",
    "$(touch ran)",
    "{{ planted }}",
)


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch ran",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "planted.py").write_text(PLANTED)
    ckptplan.save_plan(small_plan(), tmp_path / "plan.json")
    return tmp_path


def plan_naming(cell: str, folder: Path) -> Path:
    document = json.loads((folder / "plan.json").read_text())
    document["workload"] |= {"cell": cell, "batch": 2, "network": None}
    workload = ckptplan.Workload(**{k: v for k, v in document["workload"].items() if k != "hash"})
    document["workload"] = {"hash": workload.hash, **workload.model_dump(mode="json")}
    path = folder / "naming.json"
    path.write_text(json.dumps(document))
    return path


def test_a_cell_that_a_plan_names_runs_only_if_the_caller_says_so(folder: Path) -> None:
    """`os:abort` would end the process; importing `planted` would leave a file."""
    names = ("planted:factory", "os:abort")
    plans = [plan_naming(f"{name}(neurons=2)", folder).rename(folder / f"{name}.json") for name in names]
    large = plan_naming("lif(inputs=900000000, neurons=900000000)", folder)
    *refused, too_large = run_all(*(("validate", plan) for plan in (*plans, large)), folder=folder).done
    assert not (folder / "ran").exists()
    for done, name in zip(refused, names, strict=True):
        assert done.code == 2
        assert f"asks to import and call '{name}'" in done.err
        assert f"--trust-cell, or --cell '{name}(inputs=64, neurons=2)'" in done.err
        assert str(folder) not in done.path
    assert too_large.code == 2
    assert "would take at least" in too_large.err
    wishes = (("--trust-cell",), ("--cell", "planted:factory(neurons=2)"))
    for done in run_all(*(("validate", plans[0], *wish) for wish in wishes), folder=folder).done:
        assert "planted:factory raised RuntimeError: called" in done.err
        assert str(folder) in done.path
    assert (folder / "ran").exists()


def test_the_python_interface_asks_too(folder: Path) -> None:
    plan = ckptplan.load_plan(plan_naming("nowhere.at_all:make(neurons=2)", folder))
    with pytest.raises(ckptplan.InputError, match=r"trust_cell=True, or cell='nowhere.at_all:make\("):
        validate(plan)
    with pytest.raises(ckptplan.InputError, match="cannot be imported: ModuleNotFoundError"):
        validate(plan, trust_cell=True)
    assert CellSpec.of(plan.workload, trust=True).name == "nowhere.at_all:make"


def test_numbers_of_a_cell_have_an_end() -> None:
    with pytest.raises(ckptplan.InputError, match="is not a setting of a cell"):
        CellSpec.parse(f"gru(neurons={'9' * 5000})")


@pytest.mark.parametrize("content", [*CODE, pickle.dumps(Bomb(), protocol=0).decode()], ids=range(6))
def test_no_kind_of_file_runs_what_it_holds(folder: Path, content: str) -> None:
    """As the whole file, and where the format has room for text."""
    (folder / "whole").write_text(content)
    (folder / "whole.csv").write_text(content)
    (folder / "whole.parquet").write_text(content)
    text = json.dumps(content)
    for kind, lines in {
        "profile": ("local_bytes = 9", "write_bytes_per_second = 1", "read_bytes_per_second = 1"),
        "workload": (
            "steps = 4",
            *(f"{size}_bytes = 1" for size in ("state", "tape")),
            *(f"{time}_seconds = 1" for time in ("forward", "backward", "recompute")),
        ),
    }.items():
        more = (f"cell = {text}", f"timed_on = {text}") if kind == "workload" else ()
        (folder / f"{kind}.toml").write_text("\n".join(('name = "x"', f"description = {text}", *lines, *more)))
    ckptplan.save_schedule(small_plan(), folder / "actions.jsonl")
    head = (folder / "actions.jsonl").read_text().partition("\n")[0]
    (folder / "actions.jsonl").write_text(f'{head}\n{{"action": {text}, "start": {text}}}\n')
    jobs = ("--workload", folder / "workload.toml", "--profile", folder / "profile.toml")
    runs = run_all(
        ("profiles", "show", folder / "profile.toml"),
        ("profiles", "show", "./whole"),
        ("workloads", "show", folder / "workload.toml"),
        ("workloads", "show", "./whole"),
        ("optimize", *jobs),
        ("simulate", "plan.json", "--schedule", "actions.jsonl"),
        ("simulate", "plan.json", "--schedule", "whole"),
        ("simulate", "whole"),
        ("sweep", "--over", "T=1,2", "-o", "whole.csv"),
        ("sweep", "--over", "T=1,2", "-o", "whole.parquet"),
        folder=folder,
    )
    assert [done.code for done in runs.done] == [0, 2, 0, 2, 0, 2, 2, 2, 2, 2], [done.err for done in runs.done]
    assert not (folder / "ran").exists()
    assert all(str(folder) not in done.path for done in runs.done)


@pytest.mark.parametrize("name", ["signal", "multiprocessing", "numpy", "ckptplan"])
def test_workers_of_a_sweep_import_nothing_from_the_current_folder(folder: Path, name: str) -> None:
    """A module in it has the name of one that workers import; the sweep is long enough for workers."""
    (folder / f"{name}.py").write_text(PLANTED)
    found = subprocess.run(
        [PROGRAM, "sweep", "--over", "batch=1:700:+1", "--T", "64", "--jobs", "2", "-o", "s.csv"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert not (folder / "ran").exists()
