"""Progress on standard error: lines off a terminal, which short jobs do without."""

import re
from time import monotonic

import pytest

from ckptplan.cli import progress


def test_short_jobs_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar("measuring") as report:
        assert report is not None
        for done in range(11):
            report(done, 10)
    assert capsys.readouterr().err == ""


def test_long_jobs_print_lines_with_the_time_left_which_never_run_backwards(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_INTERVAL_SECONDS", 0.0)
    with progress.progress_bar("measuring") as report:
        assert report is not None
        # After the second report, more work turns out to be left.
        for done, total in ((0, 10), (5, 10), (5, 20), (12, 20), (20, 20)):
            report(done, total)
        report.say("more to do")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        "measuring: 0 %",
        "measuring: 50 %",
        "measuring: 60 %",
        "more to do",
    ]
    assert all(re.fullmatch(r"measuring: \d\d %, about \d+ s left", line) for line in lines[1:3])


def test_lines_keep_a_distance(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_INTERVAL_SECONDS", 0.05)
    with progress.progress_bar("measuring") as report:
        assert report is not None
        began = monotonic()
        while (taken := monotonic() - began) < 0.2:
            report(int(1000 * taken), 1000)
    assert 1 <= len(capsys.readouterr().err.splitlines()) <= 4
