"""What every command prints on ten jobs, in every format, is what its golden file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.jobs import ALONE, JOBS, MEASURED, OF_A_PLAN
from tests.golden.snapshots import (
    FOLDER,
    all_commands,
    asked_of_jobs,
    differ,
    take_alone,
    take_job,
    take_measured,
)

HOW = "if this is meant, add a line to CHANGELOG and run: python -m tests.golden"


#: Jobs whose commands take longest, and which differ from others in their limits alone.
LONG_JOBS = ("headroom", "two-tiers")


@pytest.mark.parametrize(
    "job", [pytest.param(job, marks=pytest.mark.slow) if job in LONG_JOBS else job for job in JOBS]
)
def test_every_command_prints_the_golden_file_of_a_job(job: str, tmp_path: Path) -> None:
    taken = dict(take_job(job, tmp_path))
    assert {path.stem for path in (FOLDER / job).iterdir()} == set(taken)
    _compare(FOLDER / job, taken)


def test_commands_that_no_job_changes_print_their_golden_files(tmp_path: Path) -> None:
    taken = dict(take_alone(tmp_path))
    assert {path.stem for path in (FOLDER / "alone").iterdir()} == set(taken)
    _compare(FOLDER / "alone", taken)


@pytest.mark.slow
def test_commands_that_measure_have_the_fields_of_their_golden_files(tmp_path: Path) -> None:
    _compare(FOLDER / "measured", dict(take_measured(tmp_path)))


def test_every_command_has_a_golden_file() -> None:
    assert set(all_commands()) == {*asked_of_jobs(), *OF_A_PLAN, *ALONE, *MEASURED}
    assert {path.stem for path in FOLDER.rglob("*.txt")} == set(all_commands())


def _compare(folder: Path, taken: dict[str, str]) -> None:
    found = {name: differ(text, (folder / f"{name}.txt").read_text()) for name, text in taken.items()}
    assert {name: difference for name, difference in found.items() if difference} == {}, HOW
