"""Programs of four libraries train the same after their conversion, in a part of the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.networks import compare_gradients, count_lines, list_differences
from tests.examples.support import EXAMPLES, losses, python

CONVERT = EXAMPLES / "convert"
#: Of each converted program: constants for a short sequence, and a limit that plain backpropagation exceeds.
SHORT: dict[str, tuple[list[str], int]] = {
    "snntorch": (["num_steps=40"], 12_000_000),
    "spikingjelly": (["steps=80"], 4_000_000),
    "norse": (["seq_length=10"], 1_500_000),
    # Dropout draws other masks for pieces than for the whole.
    "language": (["seq_len=256", "dropout=0.0"], 8_000_000),
}


def before_of(after: Path) -> Path:
    return CONVERT / f"{after.stem.split('_')[0]}_before.py"


AFTER = sorted(CONVERT.glob("*_after.py"))


def run_two_steps(file: Path, out: Path, *more: str) -> dict[str, Any]:
    constants, _ = SHORT[file.stem.split("_")[0]]
    options = [option for one in constants for option in ("--set", one)]
    done = python("-m", "benchmarks.program", file, out, "--live", "--steps", "2", *options, *more)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = torch.load(out)
    return {**found, "losses": losses(done.stdout)[0]}


@pytest.mark.parametrize("after", AFTER, ids=lambda file: file.stem)
def test_a_converted_program_has_the_losses_and_gradients_of_the_original(after: Path, tmp_path: Path) -> None:
    _, limit = SHORT[after.stem.split("_")[0]]
    plain = run_two_steps(before_of(after), tmp_path / "before.pt")
    ours = run_two_steps(after, tmp_path / "after.pt", "--memory", str(limit))
    # The program prints the first loss; the second step ends the run before its loss is printed.
    assert ours["losses"] == pytest.approx(plain["losses"], abs=1.01e-4)
    for number in range(2):
        assert all(one.any() for one in plain["gradients"][number])
        assert compare_gradients(ours["gradients"][number], plain["gradients"][number]) <= 1e-5
    assert ours["live"][1] < 0.6 * plain["live"][1]


@pytest.mark.parametrize("after", AFTER, ids=lambda file: file.stem)
def test_a_conversion_takes_at_most_six_lines_and_the_page_shows_them(after: Path) -> None:
    written, _ = count_lines(before_of(after), after)
    assert 1 <= written <= 6
    shown = "\n".join(list_differences(before_of(after), after))
    assert f"```diff\n{shown}\n```" in (CONVERT / "README.md").read_text()


@pytest.mark.parametrize("after", AFTER, ids=lambda file: file.stem)
def test_a_converted_program_runs_as_it_stands(after: Path, tmp_path: Path) -> None:
    done = python("-m", "benchmarks.program", after, tmp_path / "out.pt", "--steps", "2")
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout)
