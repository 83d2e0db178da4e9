"""The pages on sweeps and sensitivity keep what they promise."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ckptplan.studies.axes import all_axes
from tests.support import run

#: It runs every documented command.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = ("sweep", "sensitivity")


@pytest.mark.parametrize("page", PAGES)
def test_commands_run_as_they_stand(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/pictures").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(ROOT), *sys.path]))
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / f"docs/{page}.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    # What installs an extra has been done here.
    commands = [shlex.split(line) for line in lines if line.startswith(".venv/bin/ckptplan ")]
    assert len(commands) >= 2
    for words in commands:
        done = run(*words[1:])
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_python_runs_as_it_stands(page: str) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / f"docs/{page}.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_every_axis_and_its_column_are_documented() -> None:
    page = (ROOT / "docs/sweep.md").read_text()
    for axis in all_axes().values():
        assert f"`{axis.name}`" in page
        assert axis.column in (axis.name, axis.name.replace("-", "_")) or f"`{axis.column}`" in page
