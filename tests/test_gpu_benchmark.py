"""The measurements on a GPU, executed in small on a CPU; a GPU is needed for what they are worth."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import SECONDS, STAGES
from benchmarks.headline import find_largest
from benchmarks.remote import find_shared

ROOT = Path(__file__).parent.parent
WRITTEN = [ROOT / "docs/measured.md", ROOT / "benchmarks/results/gpu.json"]


def run(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--device",
        "cpu",
        "--small",
        "--out",
        str(out),
        *options,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_stages_run_on_a_processor_and_write_nothing_into_the_docs(tmp_path: Path) -> None:
    """Those that take seconds; the test of the CUDA tests says what it needs."""
    before = [file.read_bytes() for file in WRITTEN]
    done = run(tmp_path / "gpu.json", "cuda_tests", "headline")
    results = json.loads((tmp_path / "gpu.json").read_text())["results"]
    assert {name: one["status"] for name, one in results["stages"].items()} == {
        "cuda_tests": "needs a CUDA device",
        "headline": "done",
    }, done.stderr
    for row in results["stages"]["headline"]["results"]["sequences"]:
        became = {line["variant"].partition(",")[0]: line["status"] for line in row["variants"]}
        assert became["plain"] == "out of memory"
        assert became["ckptplan"] == "measured"
    assert results["machine"]["device"] is None
    assert [file.read_bytes() for file in WRITTEN] == before


def test_a_stage_that_takes_too_long_is_stopped_and_the_others_go_on(tmp_path: Path) -> None:
    run(tmp_path / "gpu.json", "remote", "jax", "--seconds", "0.5")
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["status"] == "failed"
    assert [one["status"].partition(" after ")[0] for one in found["results"]["stages"].values()] == [
        "stopped"
    ] * 2


def test_a_folder_for_the_results_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    done = run(tmp_path, "headline")
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"--out: {tmp_path} is a folder; accepted is a file" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_stages_fit_into_25_minutes() -> None:
    assert sum(STAGES.values()) <= SECONDS


def test_the_largest_number_that_fits_is_found() -> None:
    assert find_largest(lambda number: number <= 777, start=8, most=2**20, share=0.0) == 777
    assert find_largest(lambda number: number <= 7, start=8, most=2**20) == 0
    assert find_largest(lambda _: True, start=8, most=100) == 100


def test_copies_beside_kernels_are_counted_once() -> None:
    """Kernels of two streams may overlap each other."""
    assert find_shared([(0.0, 4.0)], [(1.0, 2.0), (1.5, 3.0)]) == pytest.approx(0.5)
    assert find_shared([(0.0, 1.0), (5.0, 6.0)], [(0.0, 1.0)]) == pytest.approx(0.5)
    assert find_shared([], [(0.0, 1.0)]) is None
