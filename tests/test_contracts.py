"""The contracts of import-linter hold files that are not written yet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def check_contract(place: Path, *, file: str, line: str) -> subprocess.CompletedProcess[str]:
    """Add a line to a file of a copy of the package, or begin the file with it, and check the contract."""
    shutil.copytree(ROOT / "ckptplan", place / "ckptplan", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    with (place / "ckptplan/strategies" / file).open("a") as stream:
        stream.write(f"\n{line}\n")
    return subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache", "--no-logo", "--contract", "independent-strategies"],
        check=False,
        capture_output=True,
        text=True,
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place)},
    )


@pytest.mark.parametrize(
    ("file", "line", "told"),
    [
        ("brand_new.py", "from ckptplan.strategies.segments import Double", "brand_new -> {}segments"),
        ("brand_new.py", "import ckptplan.strategies.optimal", "brand_new -> {}optimal"),
        ("brand_new.py", "from ckptplan.strategies import registry", "brand_new -> {}registry"),
        ("segments.py", "from ckptplan.strategies import revolve", "segments -> {}revolve"),
        ("revolve.py", "from ckptplan.strategies.segments import Growing", "revolve -> {}segments"),
        ("solved.py", "from ckptplan.strategies.segments import Nested", "solved -> {}segments"),
    ],
)
def test_no_strategy_imports_another(file: str, line: str, told: str, tmp_path: Path) -> None:
    """Nor does what strategies share import one of them."""
    done = check_contract(tmp_path, file=file, line=line)
    assert done.returncode == 1, done.stderr
    assert "No strategy imports another BROKEN" in done.stdout
    assert f"ckptplan.strategies.{told.format('ckptplan.strategies.')}" in done.stdout


def test_a_new_strategy_takes_what_strategies_share(tmp_path: Path) -> None:
    shared = ("closed_form", "protocol", "solved")
    line = "\n".join(f"import ckptplan.strategies.{room}" for room in shared)
    done = check_contract(tmp_path, file="brand_new.py", line=line)
    assert done.returncode == 0, done.stdout
    assert "No strategy imports another KEPT" in done.stdout
