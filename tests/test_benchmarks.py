"""Benchmarks that are run by hand also run: in small sizes, as processes, writing nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.accuracy import find_pace

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["offload", "equal_memory", "online", "mutants"])
def test_a_benchmark_runs_in_small_sizes_and_leaves_the_pages_alone(name: str) -> None:
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks/results").glob("*.json")]
    before = {file: file.read_bytes() for file in files}
    command = [sys.executable, "-m", f"benchmarks.{name}", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("|"), done.stdout
    assert {file: file.read_bytes() for file in files} == before


def test_the_pace_of_a_machine_is_that_of_undisturbed_runs_of_the_calibration() -> None:
    """As times of a calibration are: runs that other programs lengthen there make no plan seem slower."""
    disturbed = [1.0, 1.0, 1.0, 1.2, 1.4, 3.0]
    assert find_pace(disturbed, [1.0, 1.0]) == 1.0
    assert find_pace(disturbed, [1.0, 2.0]) == 1.5
