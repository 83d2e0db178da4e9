"""Progress on standard error: lines off a terminal, which short jobs do without."""

import re
from time import monotonic, sleep

import pytest

import ckptplan
from ckptplan.cli import progress
from ckptplan.model.progress import tell


def test_short_jobs_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar("measuring") as report:
        for done in range(11):
            report(done, 10)
    assert capsys.readouterr().err == ""


def test_long_jobs_print_lines_with_the_time_left_which_never_run_backwards(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_INTERVAL_SECONDS", 0.0)
    with progress.progress_bar("measuring") as report:
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
        began = monotonic()
        while (taken := monotonic() - began) < 0.2:
            report(int(1000 * taken), 1000)
    assert 1 <= len(capsys.readouterr().err.splitlines()) <= 4


def test_a_part_that_takes_long_is_not_silent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is reported meanwhile; the line says what is being done, and for how long."""
    monkeypatch.setattr(progress, "_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(progress, "_TICK_SECONDS", 0.01)
    with progress.progress_bar("looking for the optimum") as report:
        sleep(0.2)
        tell(report, "periodic")
        report(1, 4)
        sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "looking for the optimum: 0 s so far"
    assert re.fullmatch(r"looking for the optimum \(periodic\): 25 %, about \d+ s left", lines[-1])


def test_what_comes_before_the_work_tells_nothing_of_its_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As imports, and what is measured to know how much work there is: half of it is not done in their time."""
    monkeypatch.setattr(progress, "_INTERVAL_SECONDS", 100.0)
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    with progress.progress_bar("measuring") as report:
        for now[0], done in ((1000.0, 0), (1600.0, 2)):
            report(done, 10)
    assert "measuring: 20 %, about 40 min left" in " ".join(capsys.readouterr().err.split())


def test_stages_say_what_they_do() -> None:
    told: list[str] = []

    class Listener:
        def __call__(self, done: int, total: int) -> None:
            told.append(f"{done} of {total}")

        def doing(self, what: str) -> None:
            told.append(what)

    ckptplan.optimize(
        ckptplan.load_workload("paper-snn").with_steps(512),
        ckptplan.load_profile("ipu-mk2"),
        strategies=["periodic", "optimal"],
        progress=Listener(),
    )
    assert [one for one in told if " of " not in one] == ["periodic", "optimal"]
