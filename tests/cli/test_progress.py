"""Progress on standard error: lines off a terminal, which short jobs do without."""

import pytest

import ckptplan
from ckptplan.cli import progress
from ckptplan.model.progress import tell
from tests.support import wait_until


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes when a test says so; no thread looks whether a line is due."""
    seconds = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(progress, "_TICK_SECONDS", 1e6)
    return seconds


@pytest.mark.parametrize(
    ("reports", "lines"),
    [
        # A short job prints nothing.
        ([(0.9 * done, done, 10) for done in range(11)], []),
        # After the second report more work turns out to be left: the share never falls.
        ([(10, 0, 10), (20, 5, 10), (30, 5, 20), (40, 12, 20), (50, 20, 20)],
         ["0 %", "50 %, about 10 s left", "60 %, about 20 s left"]),
        # Lines keep a distance.
        ([(second, second, 1000) for second in range(35)],
         ["1 %, about 16 min left", "2 %, about 16 min left", "3 %, about 16 min left"]),
        # Imports, and what is measured to know how much work there is, say nothing of the time of the work.
        ([(1000, 0, 10), (1600, 2, 10)], ["0 %", "20 %, about 40 min left"]),
    ],
)  # fmt: skip
def test_a_long_job_prints_lines_with_the_time_left(
    reports: list[tuple[float, int, int]],
    lines: list[str],
    capsys: pytest.CaptureFixture[str],
    now: list[float],
) -> None:
    with progress.progress_bar("measuring") as report:
        for now[0], done, total in reports:
            report(done, total)
        report.say("more to do")
    assert capsys.readouterr().err.splitlines() == [*(f"measuring: {line}" for line in lines), "more to do"]


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


def test_stages_say_what_they_do() -> None:
    stages: list[str] = []

    class Listener:
        def __call__(self, done: int, total: int) -> None: ...

        def doing(self, what: str) -> None:
            stages.append(what)

    workload, profile = ckptplan.load_workload("paper-snn").with_steps(300), ckptplan.load_profile("ipu-mk2")
    ckptplan.optimize(
        workload, profile, strategies=["bptt-hsm", "optimal"], local_bytes="250 kB", progress=Listener()
    )
    assert stages == ["optimal", "bptt-hsm"]
