"""Benchmarks that are run by hand also run: in small sizes, as processes, writing nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["offload", "equal_memory", "online"])
def test_a_benchmark_runs_in_small_sizes_and_leaves_the_pages_alone(name: str) -> None:
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks/results").glob("*.json")]
    before = {file: file.read_bytes() for file in files}
    command = [sys.executable, "-m", f"benchmarks.{name}", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("|"), done.stdout
    assert {file: file.read_bytes() for file in files} == before
