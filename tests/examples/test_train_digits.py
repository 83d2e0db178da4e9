"""The digits example learns, in a budget that base cannot meet, and as plain backpropagation does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ckptplan
from tests.examples.support import EXAMPLES, python

FILE = EXAMPLES / "train_digits.py"
#: A small part of the data: some seconds, and far above the 10 % of a guess.
SHORT = ("--epochs", "3", "--samples", "256", "--batch", "32", "--neurons", "64", "--local-bytes", "1.5 MB")


def told(text: str) -> tuple[int, int, list[float], list[float]]:
    """Bytes that base needs, the measured peak, and loss and accuracy of each epoch."""
    units = {"KiB": 2**10, "MiB": 2**20}
    base = re.search(r"base needs ([\d.]+) (\w+)", text)
    peak = re.search(r"gradients included: ([\d.]+) (\w+)", text)
    assert base is not None
    assert peak is not None
    sizes = [round(float(one[1]) * units[one[2]]) for one in (base, peak)]
    epochs = re.findall(r"loss ([\d.]+)  test accuracy ([\d.]+)%", text)
    return sizes[0], sizes[1], [float(one) for one, _ in epochs], [float(one) for _, one in epochs]


def test_a_plan_learns_what_plain_backpropagation_learns_in_a_fraction_of_its_memory() -> None:
    """From the same seed: the same losses, but for rounding that spikes may amplify after some batches."""
    runs = [python(FILE, *SHORT, *more) for more in ((), ("--plain",))]
    for done in runs:
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    (base, peak, losses, right), (_, plain_peak, plain_losses, plain_right) = (
        told(done.stdout) for done in runs
    )
    assert peak < 1_500_000 + 2**19 < plain_peak / 4
    assert base > 10 * 1_500_000
    assert right[-1] > 25
    assert abs(right[-1] - plain_right[-1]) < 15
    assert losses[0] == pytest.approx(plain_losses[0], rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--local-bytes", "15 kB"], "fits: needs local_bytes"),
        (["--local-bytes", "much"], "local_bytes"),
        (["--plan", "no-such-plan.json"], "no-such-plan.json"),
        (["--plan", "plan.json", "--plain"], "not allowed with argument"),
        (["--neurons", "0"], "--neurons: is 0"),
        (["--epochs", "-1"], "--epochs: is -1"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = python(FILE, *SHORT, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(message, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_for_another_length_is_refused(tmp_path: Path) -> None:
    plan = ckptplan.optimize(
        ckptplan.load_workload("paper-snn").with_steps(64), ckptplan.load_profile("ipu-mk2")
    )
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    done = python(FILE, *SHORT, "--plan", tmp_path / "plan.json")
    assert done.returncode == 2
    assert "has 512 steps, the plan has 64" in done.stderr


def test_without_scikit_learn_it_says_what_to_install() -> None:
    script = (
        "import runpy, sys; sys.modules['sklearn.datasets'] = None; sys.argv = ['x', '--samples', '32']; "
        f"runpy.run_path({str(FILE)!r}, run_name='__main__')"
    )
    done = python("-c", script)
    assert done.returncode == 2
    assert "scikit-learn is not installed; install it with: pip install scikit-learn" in done.stderr
