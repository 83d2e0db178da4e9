"""Hostile files, arguments and surroundings do no harm (docs/robustness.md); the fuzzer itself finds harm."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ckptplan
from tests.faults import SUBJECTS, met_python, run_faults
from tests.fuzz.arguments import commands
from tests.fuzz.campaign import KINDS, make_case
from tests.fuzz.case import Case, Outcome
from tests.fuzz.judge import judge
from tests.robustness import PAGE, tables

HARMLESS = Outcome(
    code=0,
    seconds=0.1,
    cpu_seconds=0.1,
    memory=0,
    stdout=b"",
    stderr=b"",
    written={},
    loaded=None,
    loader_fault="",
)
CASE = Case(name="1:1", kind="plan", arguments=("simulate", "given.json"), codes=frozenset({0, 4}))


@pytest.mark.timeout(1800)
def test_two_thousand_hostile_cases_do_no_harm(tmp_path: Path) -> None:
    """In a process of its own, in which coverage is not measured: it would take most of the time."""
    uncovered = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--cases", "2000", "--jobs", "1", "--failures", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        env=uncovered,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_case_is_made_again_from_its_name() -> None:
    for index in range(50):
        assert make_case(f"7:{index}") == make_case(f"7:{index}")


def test_every_kind_and_every_command_is_attacked() -> None:
    cases = [make_case(f"2:{index}") for index in range(3000)]
    assert {case.kind for case in cases} == set(KINDS)
    first = {" ".join(case.arguments) for case in cases}
    assert [words for words in commands() if not any(one.startswith(" ".join(words)) for one in first)] == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"code": 1, "stderr": b"ckptplan: ValueError: x (a fault in ckptplan)"}, "internal fault"),
        ({"code": 2, "stderr": b"Traceback (most recent call last):\n  x"}, "internal fault"),
        ({"loader_fault": "KeyError: 1"}, "internal fault"),
        ({"code": 3, "stderr": b"ckptplan: x"}, "wrong exit code"),
        ({"code": 0, "loaded": 2}, "wrong exit code"),
        ({"code": -11}, "wrong exit code"),
        ({"cpu_seconds": 20.5}, "too slow"),
        ({"code": -14}, "too slow"),
        ({"memory": 501 * 2**20}, "too much memory"),
        ({"written": {"executed": b""}}, "executed"),
        ({"written": {"other": b""}}, "written"),
        ({"code": 2, "loaded": 2}, "no message"),
        ({"stdout": b"\x1b[31m"}, "control characters"),
        ({"stdout": "\u202e".encode()}, "control characters"),
    ],
)
def test_each_kind_of_harm_is_seen(change: dict[str, object], problem: str) -> None:
    assert judge(CASE, HARMLESS).problems == ()
    assert problem in [name for name, _ in judge(CASE, replace(HARMLESS, **change)).problems]  # type: ignore[arg-type]


def test_json_is_read_where_it_is_asked_for() -> None:
    case = replace(CASE, arguments=("simulate", "given.json", "--format", "json"))
    assert judge(case, replace(HARMLESS, stdout=b'{"a": 1}')).problems == ()
    assert judge(case, replace(HARMLESS, stdout=b'{"a": NaN}')).problems[0][0] == "not JSON"


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        ({"arguments": ("workloads", "--", "new", "--kind", "gru")}, {"written": {"my-workload.toml": b""}}),
        ({"environment": {"CKPTPLAN_CACHE": "kept"}}, {"written": {"kept/charts/0.js": b""}}),
        ({"environment": {"_CKPTPLAN_COMPLETE": "complete_bash"}, "codes": frozenset({2})}, {"code": 0}),
    ],
    ids=["a group's end of options", "what is kept for other processes", "a shell that completes"],
)
def test_what_a_command_does_unasked_is_no_harm(case: dict[str, Any], outcome: dict[str, Any]) -> None:
    assert not judge(replace(CASE, **case), replace(HARMLESS, **outcome)).problems
    # Without the reason, it would be.
    if "written" in outcome:
        assert judge(CASE, replace(HARMLESS, **outcome)).problems
    else:
        assert judge(replace(CASE, codes=case["codes"]), replace(HARMLESS, **outcome)).problems


def test_a_refused_document_must_be_refused_with_the_librarys_code() -> None:
    refused = replace(HARMLESS, code=2, loaded=2, stderr=b"ckptplan: given.json: no")
    assert judge(CASE, refused).problems == ()
    assert judge(CASE, replace(refused, code=3)).problems[0][0] == "wrong exit code"


def test_interrupted_commands_leave_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """A few; sweeps are interrupted in tests/cli/test_sweep.py."""
    quick = tuple(one for one in SUBJECTS if one.name in {"optimize -o", "schedule -o"})
    findings = list(run_faults(4, 1, seed=1, folder=tmp_path, subjects=quick))
    assert [one for one in findings if one.wrong] == []


def test_ctrl_c_before_the_first_line_of_the_program_is_pythons() -> None:
    """A traceback with a frame of the program is not: it would be a fault."""
    site = 'Traceback (most recent call last):\n  File "<frozen site>", line 599, in main\nKeyboardInterrupt\n'
    ours = site.replace("<frozen site>", str(Path(ckptplan.__file__).parent / "cli/main.py"))
    assert met_python(site)
    assert not met_python(ours)
    assert not met_python(site.replace("KeyboardInterrupt", "OSError"))


def test_the_page_has_the_counts_that_were_found() -> None:
    for name, table in tables().items():
        assert f"<!-- {name} -->\n{table}\n<!-- end -->" in PAGE.read_text()
