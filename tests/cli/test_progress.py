"""Progress on standard error: lines off a terminal, which short jobs do without."""

import pytest

import ckptplan
from ckptplan.cli import progress
from ckptplan.model.progress import tell
from tests.support import wait_until


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes when a test says so; nobody looks by itself whether a line is due."""
    found = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: found[0])
    monkeypatch.setattr(progress, "_TICK_SECONDS", 1e6)
    return found


def test_short_jobs_print_nothing(capsys: pytest.CaptureFixture[str], now: list[float]) -> None:
    with progress.progress_bar("measuring") as report:
        for done in range(11):
            now[0] = 0.9 * done
            report(done, 10)
    assert capsys.readouterr().err == ""


def test_long_jobs_print_lines_with_the_time_left_which_never_run_backwards(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    with progress.progress_bar("measuring") as report:
        # After the second report, more work turns out to be left.
        for done, total in ((0, 10), (5, 10), (5, 20), (12, 20), (20, 20)):
            now[0] += 10
            report(done, total)
        report.say("more to do")
    assert capsys.readouterr().err.splitlines() == [
        "measuring: 0 %",
        "measuring: 50 %, about 10 s left",
        "measuring: 60 %, about 20 s left",
        "more to do",
    ]


def test_lines_keep_a_distance(capsys: pytest.CaptureFixture[str], now: list[float]) -> None:
    with progress.progress_bar("measuring") as report:
        for now[0] in range(35):
            report(int(now[0]), 1000)
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_part_that_takes_long_is_not_silent(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    """Nothing is reported meanwhile; the line says what is being done, and for how long."""
    lines: list[str] = []
    monkeypatch.setattr(progress, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(progress, "note", lines.append)
    with progress.progress_bar("looking for the optimum") as report:
        now[0] = 10
        wait_until(lambda: lines, what="a line of a job that has reported nothing")
        tell(report, "periodic")
        report(1, 4)
        now[0] = 20
        wait_until(lambda: len(lines) > 1, what="another line")
    assert lines == [
        "looking for the optimum: 10 s so far",
        "looking for the optimum (periodic): 25 %, about 60 s left",
    ]


def test_what_comes_before_the_work_tells_nothing_of_its_time(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    """As imports, and what is measured to know how much work there is: half of it is not done in their time."""
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
