"""The measurements on a GPU, executed in small on a CPU; a GPU is needed for what they are worth."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import FAILED, PAGES, STAGES, choose_code, make_section, merge
from benchmarks.harness import NEEDS_GPU
from benchmarks.headline import find_largest
from benchmarks.remote import find_shared

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/gpu.json"
WRITTEN = ("docs/measured.md", "benchmarks/results/gpu.json")


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
    before = [(ROOT / page).read_bytes() for page in WRITTEN if (ROOT / page).exists()]
    out = tmp_path / "gpu.json"
    done = run(out, "--stages", "cuda_tests,headline")
    assert done.returncode == NEEDS_GPU, done.stdout + done.stderr
    assert "cuda_tests: needs a CUDA device" in done.stdout
    document = json.loads(out.read_text())
    stages = document["results"]["stages"]
    assert {name: one["status"] for name, one in stages.items()} == {
        "cuda_tests": "needs a CUDA device",
        "headline": "done",
    }
    for row in stages["headline"]["results"]["sequences"]:
        became = {line["variant"].partition(",")[0]: line["status"] for line in row["variants"]}
        assert became["plain"] == "out of memory"
        assert became["ckptplan"] == "measured"
    assert document["device"] is None
    assert [(ROOT / page).read_bytes() for page in WRITTEN if (ROOT / page).exists()] == before
    with pytest.raises(SystemExit, match="no measurements"):
        merge([document])


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_have_the_results_or_say_that_there_are_none(page: str) -> None:
    section = (ROOT / "docs" / page).read_text().split("<!-- benchmarks.gpu -->\n")[1].split("<!-- end -->")[0]
    if not RESULTS.exists():
        assert section == "Not measured yet.\n"
        return
    assert section == make_section(json.loads(RESULTS.read_text()), PAGES[page])


def test_a_stage_that_takes_too_long_is_stopped_and_the_others_go_on(tmp_path: Path) -> None:
    done = run(tmp_path / "gpu.json", "--stages", "remote,jax", "--minutes", "0.001")
    assert done.returncode == FAILED
    stages = json.loads((tmp_path / "gpu.json").read_text())["results"]["stages"]
    assert all(one["status"].startswith(("stopped after", "not begun")) for one in stages.values())


def test_a_folder_for_the_results_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    done = run(tmp_path, "--stages", "headline")
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"--out: {tmp_path} is a folder; accepted is a file" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_exit_code_says_what_is_missing() -> None:
    done, missing, failed = {"status": "done"}, {"status": "needs a CUDA device"}, {"status": "failed"}
    assert choose_code({"a": done}) == 0
    assert choose_code({"a": done, "b": missing}) == NEEDS_GPU
    assert choose_code({"a": failed, "b": missing}) == FAILED


def test_the_stages_fit_into_25_minutes() -> None:
    assert sum(STAGES.values()) <= 25 * 60


def test_the_largest_number_that_fits_is_found() -> None:
    assert find_largest(lambda number: number <= 777, start=8, most=2**20, share=0.0) == 777
    assert find_largest(lambda number: number <= 7, start=8, most=2**20) == 0
    assert find_largest(lambda _: True, start=8, most=100) == 100


def test_copies_beside_kernels_are_counted_once() -> None:
    """Kernels of two streams may overlap each other."""
    assert find_shared([(0.0, 4.0)], [(1.0, 2.0), (1.5, 3.0)]) == pytest.approx(0.5)
    assert find_shared([(0.0, 1.0), (5.0, 6.0)], [(0.0, 1.0)]) == pytest.approx(0.5)
    assert find_shared([], [(0.0, 1.0)]) is None
