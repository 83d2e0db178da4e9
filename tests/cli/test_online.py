"""``simulate --online``: what it costs not to know T."""

import json
from pathlib import Path

import pytest

from tests.support import run


def test_the_factors_of_every_length_are_shown_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "factors.svg"
    done = run("simulate", "--online", "--slots", "5", "--T", "10:200", "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    assert "online, 5 slots and a tape of a state's size, T = 10 to 200" in done.stdout
    assert "in the mean" in done.stdout
    assert "<svg" in picture.read_text()


def test_the_document_has_a_point_for_each_length() -> None:
    done = run("simulate", "--online", "--slots", "5", "--T", "10:12", "--format", "json")
    found = json.loads(done.stdout)
    assert [point["steps"] for point in found["points"]] == [10, 11, 12]
    assert all(point["online"] >= point["optimum"] for point in found["points"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "PLAN: is missing (accepted: a plan file, or --online)"),
        (("--slots", "3"), "--slots: needs --online (accepted: --online --slots N beside it, without a plan)"),
        (("--T", "40"), "--T: needs --online (accepted: --online --slots N beside it"),
        (("--online",), "--slots: is missing"),
        (("--online", "--slots", "3", "--T", "9:1"), "--T: '9:1' is no range of lengths"),
        (
            ("--online", "--slots", "3", "--T", f"1:{'9' * 4400}"),
            "is no range of lengths (accepted: FIRST:LAST",
        ),
        (("--online", "--slots", "3", "--T", "1:99999999"), "T: a table of the optima"),
        (("--online", "--slots", "3", "--gantt", "x.png"), "--gantt: does not go together with --online"),
    ],
)
def test_arguments_that_are_refused(arguments: tuple[str, ...], message: str) -> None:
    done = run("simulate", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
