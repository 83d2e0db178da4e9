"""The page on sweeps keeps its promises."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ckptplan.studies.axes import all_axes
from tests.support import HAS_MPI, dask_cluster, run, run_mpi

#: It runs every documented command.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_commands_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/pictures").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(ROOT), *sys.path]))
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/sweep.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    # What installs an extra has been done here.
    commands = [shlex.split(line) for line in lines if line.startswith(".venv/bin/ckptplan ")]
    assert len(commands) >= 2
    for words in commands:
        done = run(*words[1:])
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr


def _read_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs/sweep.md").read_text(), re.DOTALL)


def test_python_runs_as_it_stands() -> None:
    code = _read_blocks("python")[0]
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_rows_come_from_a_cluster_of_dask_and_from_mpi(tmp_path: Path) -> None:
    """The programs of the page, with the address of a cluster that is there; they print the same rows."""
    dask, mpi = _read_blocks("python")[1:]
    with dask_cluster() as address:
        code = dask.replace("tcp://10.0.0.1:8786", address)
        one = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert one.returncode == 0, one.stderr
    assert [int(line.split()[0]) for line in one.stdout.splitlines()] == [256, 512, 1024, 2048, 4096]
    if not HAS_MPI:
        return  # tests/studies/test_workers.py says so
    (tmp_path / "rows.py").write_text(mpi)
    assert run_mpi("rows.py", cwd=tmp_path) == one.stdout


def test_a_job_array_writes_parts_that_are_merged(tmp_path: Path) -> None:
    """The script of the page, as SLURM starts it, with three tasks."""
    script, merge = (
        text.replace(".venv/bin/ckptplan", f"{sys.executable} -m ckptplan") for text in _read_blocks("bash")
    )
    assert len(_read_blocks("bash")[0].splitlines()) <= 10
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "SLURM_ARRAY_TASK_COUNT": "3"}
    jobs = [(script, str(number)) for number in (1, 2, 3)] + [(merge, "")]
    for text, number in jobs:
        done = subprocess.run(
            ["/bin/bash", "-c", text],
            cwd=tmp_path,
            env={**os.environ, **environment, "SLURM_ARRAY_TASK_ID": number},
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    axes = ("--over", "T=256:65536:x2", "--over", "batch=30,60,120")
    assert run("sweep", *axes, "-o", "whole.csv", cwd=tmp_path).returncode == 0
    assert (tmp_path / "all.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_every_axis_and_its_column_are_documented() -> None:
    page = (ROOT / "docs/sweep.md").read_text()
    for axis in all_axes().values():
        assert f"`{axis.name}`" in page
        assert axis.column in (axis.name, axis.name.replace("-", "_")) or f"`{axis.column}`" in page
