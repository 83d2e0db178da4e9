"""Law: the plans of ``memory=`` are kept in files for other processes, and no file can make a wrong plan."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ckptplan import Infeasible, Plan, load_plan
from ckptplan.model.record import Parameters
from ckptplan.storage import cache
from ckptplan.storage.plans import save_plan
from ckptplan.torch import budget, plan_cache
from ckptplan.torch.measurement import Measurement

STEPS, STATE = 400, 1_000
LIMIT = 120 * STATE


def measure(**changes: Any) -> Measurement:
    numbers: dict[str, Any] = {
        "state_bytes": STATE, "tape_bytes": 3 * STATE, "resident_bytes_per_step": 0, "output_bytes": 8,
        "workspace_bytes": 500, "parameter_bytes": 100, "forward_seconds": 1e-4, "record_seconds": 1e-4,
        "backward_seconds": 2e-4, "counted": 4, "steps": 16,
    }  # fmt: skip
    return Measurement(**{**numbers, **changes})


def make_plan(measurement: Measurement | None = None, *, limit: int = LIMIT, steps: int = STEPS) -> Plan:
    """Return a plan as a process makes it that has made none before."""
    budget._plan.cache_clear()
    return budget._plan(measure() if measurement is None else measurement, steps, limit, 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    return tmp_path / "plans"


def find_file(folder: Path) -> Path:
    (file,) = folder.glob("*.json")
    return file


def replace(plan: Plan, **changes: Any) -> Plan:
    return plan.model_copy(update=changes)


def test_a_second_process_takes_the_plan_of_the_file(folder: Path) -> None:
    first = make_plan()
    file = find_file(folder)
    assert load_plan(file).parameters == first.parameters
    # Another one that fits shows that the file is read.
    slower = {**first.parameters, "chunk_size": first.parameters["chunk_size"] - 1}
    save_plan(replace(first, parameters=Parameters(slower)), file)
    second = make_plan()
    assert second.parameters == Parameters(slower)
    assert second.predicted.local_peak_bytes <= LIMIT
    assert second.predicted.seconds > first.predicted.seconds


def test_what_a_plan_costs_is_what_this_process_has_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_plan()
    again = make_plan(measure(forward_seconds=1.02e-4, backward_seconds=2.1e-4))
    assert len(list(folder.glob("*.json"))) == 1
    assert again.workload.forward_seconds == 1.02e-4
    monkeypatch.setenv(cache.VARIABLE, "0")
    assert again.predicted == make_plan(measure(forward_seconds=1.02e-4, backward_seconds=2.1e-4)).predicted


@pytest.mark.parametrize(
    "other",
    [
        {"steps": STEPS + 1},
        {"limit": LIMIT + 1},
        {"measurement": measure(tape_bytes=3 * STATE + 1)},
        {"measurement": measure(state_bytes=STATE + 1)},
        {"measurement": measure(workspace_bytes=501)},
        {"measurement": measure(backward_seconds=4e-4)},
    ],
)
def test_another_problem_has_a_file_of_its_own(folder: Path, other: dict[str, Any]) -> None:
    make_plan()
    make_plan(**other)
    assert len(list(folder.glob("*.json"))) == 2


def _too_large(plan: Plan) -> Plan:
    return replace(plan, parameters=Parameters(chunk_size=STEPS))


def _unknown(plan: Plan) -> Plan:
    return replace(plan, strategy="unheard-of")


def _other_sizes(plan: Plan) -> Plan:
    return replace(plan, workload=plan.workload.model_copy(update={"tape_bytes": 1}))


def _solved(plan: Plan) -> Plan:
    return replace(plan, strategy="optimal", parameters=Parameters({}))


@pytest.mark.parametrize("spoil", [_too_large, _unknown, _other_sizes, _solved])
def test_a_plan_that_does_not_fit_is_replaced(folder: Path, spoil: Any) -> None:
    right = make_plan()
    file = find_file(folder)
    save_plan(spoil(right), file)
    assert make_plan().parameters == right.parameters
    assert load_plan(file).parameters == right.parameters


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'{"kind": "ckptplan.plan"}', b"[" * 10**5, bytes(2**19)],
)
def test_a_damaged_or_foreign_file_is_replaced(folder: Path, content: bytes) -> None:
    right = make_plan()
    file = find_file(folder)
    file.write_bytes(content)
    assert make_plan().parameters == right.parameters
    assert load_plan(file).parameters == right.parameters


def test_an_edited_file_is_replaced(folder: Path) -> None:
    right = make_plan()
    file = find_file(folder)
    document = json.loads(file.read_text())
    document["workload"]["state_bytes"] += 1
    file.write_text(json.dumps(document))
    assert make_plan() != document
    assert load_plan(file).parameters == right.parameters


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    assert make_plan().steps == STEPS
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_folder_of_a_user_that_does_not_exist_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, "~nosuchuser/x")
    assert cache.find_cache("plans") is None
    assert make_plan().steps == STEPS


def test_what_does_not_fit_is_not_kept(folder: Path) -> None:
    with pytest.raises(Infeasible):
        make_plan(limit=STATE)
    assert not folder.exists()


def test_the_oldest_files_are_deleted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_MOST_FILES", 3)
    names: list[str] = []
    for extra in range(5):
        make_plan(limit=LIMIT + extra)
        (new,) = {one.name for one in folder.glob("*.json")} - set(names)
        os.utime(folder / new, (extra, extra))
        names.append(new)
    assert {one.name for one in folder.iterdir()} == set(names[-3:])


def test_the_folder_is_the_users_unless_a_variable_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for off in ("0", "off", ""):
        monkeypatch.setenv(cache.VARIABLE, off)
        assert cache.find_cache("plans") is None
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    for platform, base in {
        "linux": tmp_path,
        "darwin": tmp_path / "home" / "Library" / "Caches",
        "win32": tmp_path / "local",
    }.items():
        monkeypatch.setattr("sys.platform", platform)
        assert cache.find_cache("plans") == base / "ckptplan" / "plans"
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.find_cache("plans") == tmp_path / "home" / ".cache" / "ckptplan" / "plans"
