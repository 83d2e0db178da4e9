"""The digits example of JAX learns, in a budget that a plain scan cannot meet."""

from __future__ import annotations

import re

import pytest

from tests.examples.support import EXAMPLES, python

FILE = EXAMPLES / "train_digits_jax.py"
#: A small part of the data: some seconds, and far above the 10 % of a guess.
SHORT = ("--epochs", "6", "--samples", "384", "--batch", "32", "--neurons", "48", "--memory", "1 MB")


def test_it_learns_within_the_budget_that_a_scan_exceeds() -> None:
    done = python(FILE, *SHORT)
    assert done.returncode == 0, done.stderr
    assert re.search(r"jax.lax.scan: [\d.]+ MiB, over the budget of 976.6 KiB", done.stdout), done.stdout
    assert re.search(r"under a plan: [\d.]+ KiB, within the budget", done.stdout), done.stdout
    losses = [float(one) for one in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert losses[-1] < losses[0] - 0.1
    assert float(re.findall(r"test accuracy ([\d.]+)%", done.stdout)[-1]) > 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--memory", "15 kB"], "memory: 15 kB are too little"), (["--memory", "much"], "memory")],
)
def test_what_cannot_be_done_is_said(arguments: list[str], message: str) -> None:
    done = python(FILE, *SHORT, *arguments)
    assert done.returncode == 2
    assert message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_package_is_named() -> None:
    script = (
        f"import runpy, sys; sys.modules['equinox'] = None; sys.argv = ['x', '--samples', '32']; "
        f"runpy.run_path({str(FILE)!r}, run_name='__main__')"
    )
    done = python("-c", script)
    assert done.returncode == 2
    assert "equinox is not installed; install it with: pip install equinox" in done.stderr
