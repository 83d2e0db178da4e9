"""Hostile input is refused in one clear sentence; a file is the old one or the new one at any moment."""

import io
import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptplan
from ckptplan import InputError, Plan
from ckptplan.paper.setting import load_paper_setting
from ckptplan.storage.files import parse_json, parse_toml, read_text, write_text
from ckptplan.storage.plans import plan_text
from tests.support import started

SNN, MK2 = load_paper_setting().workload, ckptplan.load_profile("ipu-mk2")
PLAN = ckptplan.optimize(SNN, MK2, strategies="paper")
_COMPARED = ckptplan.compare(SNN.with_steps(500), MK2, strategies="optimal", local_bytes="300 kB")
SOLVED = next(plan for plan in _COMPARED.values() if isinstance(plan, Plan) and plan.splits)


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    ckptplan.save_plan(PLAN, path)
    return path


def test_a_plan_survives_being_written_and_read(plan_file: Path) -> None:
    assert ckptplan.load_plan(plan_file) == PLAN


def test_a_plan_of_decisions_survives_and_plays_as_predicted(tmp_path: Path) -> None:
    assert SOLVED.splits
    ckptplan.save_plan(SOLVED, tmp_path / "plan.json")
    plan = ckptplan.load_plan(tmp_path / "plan.json")
    assert plan == SOLVED
    trace = ckptplan.simulate(plan)
    assert trace.local_peak_bytes == plan.predicted.local_peak_bytes
    assert trace.seconds == pytest.approx(plan.predicted.seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d.update(splits=None), "splits: hold no possible decision for 500 steps"),
        (lambda d: d["splits"].pop(3), "splits: hold no possible decision for"),
        (lambda d: d["splits"][0].update(choice="split", length=3), "whose first state is free"),
        (lambda d: d["splits"][1].update(length=10**6), "whose first state is "),
        (lambda d: d["splits"][1].update(choice="jump"), "splits.1.choice: 'jump' is not accepted"),
        (lambda d: d["splits"][1].update(more=1), "splits.1.more: is not a field"),
        (lambda d: d["parameters"].update(local_units=3), "splits: hold no possible decision for 500"),
    ],
)
def test_wrong_decisions_are_refused(tmp_path: Path, change: Any, told: str) -> None:
    ckptplan.save_plan(SOLVED, tmp_path / "plan.json")
    with pytest.raises(InputError) as caught:
        ckptplan.load_plan(edited(tmp_path / "plan.json", change))
    assert told in str(caught.value)


# Each example solves a plan.
@settings(max_examples=max(12, settings().max_examples // 3))
@given(steps=st.integers(1, 300), objective=st.sampled_from(["time", "memory", "balanced"]))
def test_every_plan_survives(tmp_path_factory: pytest.TempPathFactory, steps: int, objective: str) -> None:
    workload = load_paper_setting().workload.with_steps(steps)
    plan = ckptplan.optimize(workload, ckptplan.load_profile("ipu-mk2"), objective=objective)
    document = json.loads(plan_text(plan))
    assert document["predicted"]["seconds"] == plan.predicted.seconds
    path = tmp_path_factory.getbasetemp() / "any.json"
    ckptplan.save_plan(plan, path)
    assert ckptplan.load_plan(path) == plan


def edited(path: Path, change: Any) -> Path:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d.update(schema_version=4), "schema_version: this ckptplan does not read version 4"),
        (lambda d: d.update(cache="last"), "cache: is 'last', but the parameters of double keep 'all'"),
        (lambda d: d.update(schema_version=0), "schema_version: this ckptplan does not read version 0"),
        (lambda d: d.update(schema_version=True), "schema_version: this ckptplan does not read version True"),
        (lambda d: d.pop("schema_version"), "schema_version: this ckptplan does not read version None"),
        (lambda d: d.update(kind="ckptplan.trace"), "kind: 'ckptplan.trace' is not a plan"),
        (lambda d: d.update(steps=0), "steps: 0 is not accepted"),
        (lambda d: d.pop("profile"), "profile: is missing"),
        (lambda d: d.update(workload=3), "workload: is missing, or is not an object"),
        (lambda d: d["profile"].update(local_bytes=5), "profile.hash: does not match"),
        (lambda d: d["profile"].update(local_bytes=-5), "profile.local_bytes: -5 is not accepted"),
        (lambda d: d["workload"].update(stats=5), "workload.stats: is not a field"),
        (lambda d: d["parameters"].update(chunk_size=0), "parameters.chunk_size: 0 is not accepted"),
        (lambda d: d.update(parameters=[]), "parameters: [] is not an object"),
        (lambda d: d["predicted"].pop("seconds"), "predicted.seconds: is missing"),
        (lambda d: d["predicted"].update(minutes=1), "predicted.minutes: is not a field"),
        (lambda d: d["goal"].update(objective="fun"), "goal.objective: 'fun' is not accepted"),
        (lambda d: d.update(strateg="x"), "Did you mean 'strategy'"),
        (lambda d: d.update(strategy="dubble"), "Did you mean 'double'"),
        (lambda d: d.update(parameters={"chunk": 3}), "parameters: double takes chunk_size, remote_chunk_size"),
        (lambda d: d["parameters"].update(chunk_size=10**9), "is not a setting for 4096 steps"),
        (lambda d: d.update(steps=7), "steps: 7 is not the workload's 4096"),
        (lambda d: d.update(schema_version=1.0), "schema_version: this ckptplan does not read version 1.0"),
    ],
)
def test_wrong_plans_are_refused_by_field(plan_file: Path, change: Any, told: str) -> None:
    with pytest.raises(InputError) as caught:
        ckptplan.load_plan(edited(plan_file, change))
    assert told in str(caught.value)
    assert str(plan_file) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not valid JSON"),
        ('{"kind": "ckptplan.plan"', "not valid JSON"),
        ("[]", "not a JSON object"),
        ("[" * 9_000, "nested too deeply"),
        ("[" * 100_000, r"has more than 10,000 '\['"),
        ('{"a": ' * 100_000, "nested too deeply"),
        ('{"a": Infinity}', "Infinity is not a JSON number"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": 1, "a": 2}', "a: is given twice"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
    ids=range(10),
)
def test_hostile_json(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        parse_json(text, source="x.json")
    assert str(caught.value).startswith("x.json: ")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = ", "not valid TOML"),
        ("a = 1\na = 2", "not valid TOML"),
        ("a = " + "[" * 9_000, "nested too deeply"),
        ("a = " + "[" * 100_000, r"has more than 10,000 '\['"),
        ("a = " + "9" * 5000, "an integer of thousands of digits"),
        ("a = 1\nlocal_bytes = 24 GB  # of one", 'local_bytes: a value with a unit needs quotes.*"24 GB"'),
        ("write_bytes_per_second = 1.5GB/s", '= "1.5GB/s"'),
        ("headroom = 10%", '= "10%"'),
        ("a = 1e5\nb = 0x10\nc =", "not valid TOML"),
    ],
    ids=range(9),
)
def test_hostile_toml(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_toml(text, source="x.toml")


@pytest.mark.parametrize("depth", [400, 50_000])
@pytest.mark.parametrize("field", ["steps", "state_bytes", "nothing", "network", "basis"])
def test_deep_tables_are_refused(tmp_path: Path, field: str, depth: int) -> None:
    """A dotted key nests without recursion in the parser: refused before it, or in the model."""
    path = tmp_path / "deep.toml"
    path.write_text('name = "w"\n' + ".".join([field, *["a"] * depth]) + " = 1\n")
    for load in (ckptplan.load_workload, ckptplan.load_profile):
        with pytest.raises(InputError) as caught:
            load(path)
        assert len(str(caught.value)) < 600
        assert "Recursion" not in str(caught.value.details())


def test_names_that_no_file_can_have() -> None:
    with pytest.raises(InputError, match="no file can have this name"):
        ckptplan.load_profile("a\0/b")
    with pytest.raises(InputError, match="no file can have this name"):
        write_text("a\0/b", "x")


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(b"\xef\xbb\xbf" + b"a = 1")
    assert parse_toml(read_text(path), source="p") == {"a": 1}


def test_unreadable_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_text(tmp_path / "none.toml")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_text(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"name = \xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read_text(binary)


def test_endless_files_are_refused() -> None:
    with pytest.raises(InputError, match="too large"):
        read_text("/dev/zero")


def test_unwritable_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: No such file"):
        write_text(tmp_path / "none" / "plan.json", "x")
    with pytest.raises(InputError, match="it is a folder"):
        write_text(tmp_path, "x")


def test_devices_are_written_to_and_not_replaced() -> None:
    write_text("/dev/null", "x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_links_and_rights_are_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_text(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert path.read_text() == "old"


def test_a_killed_writer_leaves_the_old_plan_or_the_new_one(tmp_path: Path) -> None:
    """Kill a process that writes two plans in turn; what is left is always one of them, whole."""
    path = tmp_path / "plan.json"
    script = (
        "import sys; from ckptplan.storage.files import write_text\n"
        "texts = ['a' * 200_000, 'b' * 200_000]\n"
        "write_text(sys.argv[1], texts[0]); print('ready', flush=True)\n"
        "i = 0\n"
        "while True: i += 1; write_text(sys.argv[1], texts[i % 2])\n"
    )
    for delay in (0.0, 0.003, 0.01, 0.03, 0.07):
        with started("-c", script, str(path), stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        text = path.read_text()
        assert len(text) == 200_000
        assert len(set(text)) == 1


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors of other systems write one; a file has it, and what is piped from it."""
    (tmp_path / "plan.json").write_bytes(b"\xef\xbb\xbf{}")
    assert read_text(tmp_path / "plan.json") == "{}"
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeff{}"))
    assert read_text("-") == "{}"


def test_a_file_of_another_kind_is_called_by_its_name(tmp_path: Path) -> None:
    """Which field of it is unknown would say little."""
    workload, profile, plan = (tmp_path / name for name in ("w.toml", "p.toml", "plan.json"))
    ckptplan.save_workload(SNN, workload)
    ckptplan.save_profile(MK2, profile)
    ckptplan.save_plan(PLAN, plan)
    for load, file, told in (
        (ckptplan.load_profile, workload, "this is a workload: pass it as workload="),
        (ckptplan.load_workload, profile, "this is a profile: pass it as profile="),
        (ckptplan.load_profile, plan, "this is a plan: it holds its workload and its profile"),
        (ckptplan.load_workload, plan, "this is a plan: it holds its workload and its profile"),
        (ckptplan.load_plan, workload, "this is a workload: `ckptplan optimize` makes a plan with it"),
        (ckptplan.load_plan, profile, "this is a profile: `ckptplan optimize` makes a plan with it"),
    ):
        with pytest.raises(InputError, match=told) as refused:
            load(file)
        assert refused.value.source == str(file)


def test_what_is_wrong_in_a_file_of_the_right_kind_is_told(tmp_path: Path) -> None:
    """Also if it has a field that is of another kind of file."""
    file = tmp_path / "w.toml"
    ckptplan.save_workload(SNN, file)
    for more in ("stepz = 3", "local_bytes = 3"):
        file.write_text(f"{more}\n{file.read_text()}")
        with pytest.raises(InputError, match="is not a field of a workload"):
            ckptplan.load_workload(file)
