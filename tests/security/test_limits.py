"""Any file, and any option, is read or refused within seconds and within 500 MiB."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckptplan
from ckptplan.storage.plans import plan_document
from tests.security.program import Runs, run_all
from tests.support import small_plan

#: Processor time that a slow machine stays far below; a parser whose time is quadratic passes it everywhere.
SECONDS = 20.0
PEAK_BYTES = 500 * 2**20
MIB = 2**20
PROFILE = 'name = "p"\nlocal_bytes = "1 MB"\nwrite_bytes_per_second = 1\nread_bytes_per_second = 1\n'
WORKLOAD = (
    'name = "w"\nsteps = 4\nstate_bytes = 1\ntape_bytes = 1\nforward_seconds = 1\nbackward_seconds = 1\n'
    "recompute_seconds = 1\n"
)
BLANKS = " " * 120_000
DEEP = ".".join("b" * 400)
#: Name -> the text of a profile, and what is told.
PROFILES = {
    "a number with blanks before its unit": (PROFILE.replace("1 MB", f"1{BLANKS}x y"), "is not a number"),
    "dotted keys": ("".join(f"a{i}.{DEEP}=1\n" for i in range(1200)), "has more than 10,000"),
    "deep tables": ("".join(f"[a{i}.{DEEP}]\n" for i in range(1200)), "has more than 10,000"),
    "many tables": ("".join(f"[{i}]\n" for i in range(110_000)), "has more than 10,000"),
    "inline tables": (f"a = [{'{b=1},' * 150_000}]", "has more than 10,000"),
    "unknown keys": (PROFILE + "".join(f"k{i}=1\n" for i in range(9_000)), "is not a field"),
    "keys of a number": ("".join(f"latency_seconds.x{i}=1\n" for i in range(9_000)), "is not a key"),
    "a long description": (f'{PROFILE}description = "{"a b " * 250_000}"', "at most 4000 characters"),
    "escapes": (f'{PROFILE}description = "{chr(92)}u0041' + f"{chr(92)}u0041" * 170_000 + '"', "at most 4000"),
    "a large file": (f"# {'x' * MIB}", "is too large (accepted: files up to 1 MiB)"),
}


def plan_with(change: Callable[[dict[str, Any]], object]) -> str:
    document = plan_document(small_plan())
    change(document)
    return json.dumps(document, separators=(",", ":"))


#: Name -> the text of a plan, and what is told.
PLANS: dict[str, tuple[Callable[[], str], str]] = {
    "unknown keys": (
        lambda: plan_with(lambda d: d.update({f"k{i}": 1 for i in range(1_100_000)})),
        "too large",
    ),
    "a megabyte of keys": (
        lambda: plan_with(lambda d: d.update({f"k{i}": 1 for i in range(70_000)})),
        "members",
    ),
    "sources": (
        lambda: plan_with(lambda d: d["profile"]["sources"].update({f"k{i}": 1 for i in range(70_000)})),
        "members",
    ),
    "entries of the basis": (lambda: plan_with(lambda d: d.update(estimate_basis=[{}] * 4_000_000)), "'{'"),
    "wrong decisions": (
        lambda: plan_with(lambda d: d.update(splits=[{}] * 200_000)),
        "splits.0.where: is missing",
    ),
    "a long reason": (
        lambda: plan_with(lambda d: d["estimate_basis"][0].update(text="a b " * 200_000)),
        "at most 10000 characters",
    ),
    "lists": (lambda: f'{{"a":[{"[]," * 5_000_000}[]]}}', "has more than 10,000 '['"),
    "numbers": (lambda: f'{{"a":[{"300," * 4_000_000}1]}}', "has more than 1,250,000 ','"),
    "depth": (lambda: '{"a":' * 200_000, "nested too deeply"),
}


def check(runs: Runs, told: list[str]) -> None:
    for done, words in zip(runs.done, told, strict=True):
        assert done.code == 2, done.err
        assert words in done.err
        assert len(done.err) < 2000
        assert done.seconds < SECONDS, words
    assert runs.peak_bytes < PEAK_BYTES


def test_profiles_and_workloads(tmp_path: Path) -> None:
    commands, told = [], []
    for number, (text, words) in enumerate(PROFILES.values()):
        (tmp_path / f"{number}.toml").write_text(text)
        commands.append(("profiles", "show", tmp_path / f"{number}.toml"))
        told.append(words)
    (tmp_path / "w.toml").write_text(f'{WORKLOAD}[basis.steps]\nkind = "assumed"\nwhy = "{"a b " * 200_000}"\n')
    commands.append(("workloads", "show", tmp_path / "w.toml"))
    check(run_all(*commands, folder=tmp_path), [*told, "basis.steps.why"])


def test_plans(tmp_path: Path) -> None:
    commands = []
    for number, (make, _) in enumerate(PLANS.values()):
        (tmp_path / f"{number}.json").write_text(make())
        commands.append(("simulate", tmp_path / f"{number}.json"))
    check(run_all(*commands, folder=tmp_path), [words for _, words in PLANS.values()])


def test_schedules(tmp_path: Path) -> None:
    plan = small_plan()
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    ckptplan.save_schedule(plan, tmp_path / "s.jsonl")
    whole = (tmp_path / "s.jsonl").read_text()
    head = whole.partition("\n")[0]
    lines = {
        "lists.jsonl": ('{"states":[' + "[]," * 2_000_000 + "[]]}", "has more than 1,000 '['"),
        "long.jsonl": (" " * (9 * MIB), "lines up to 8 MiB"),
        "deep.jsonl": ('{"a":' * 900 + '["b",' * 900, "nested too deeply"),
    }
    for name, (line, _) in lines.items():
        (tmp_path / name).write_text(f"{head}\n{line}\n")
    runs = run_all(*(("simulate", "plan.json", "--schedule", name) for name in lines), folder=tmp_path)
    check(runs, [words for _, words in lines.values()])
    endless = run_all(("simulate", "plan.json", "--schedule", "-"), folder=tmp_path, endless=whole)
    check(endless, ["is followed by more than 1,000 blank lines"])


def test_options_and_axes(tmp_path: Path) -> None:
    runs = run_all(
        ("optimize", "--local-bytes", f"1{BLANKS}x y"),
        ("optimize", "--max-overhead", f"1{BLANKS}x y"),
        ("sweep", "--over", f"latency=1{BLANKS}x y"),
        ("sweep", "--over", f"T={','.join(map(str, range(1, 22_000)))},21999"),
        ("sweep", "--over", "T=1:9999999:+1", "--over", "latency=1,2"),
        folder=tmp_path,
    )
    check(runs, ["is not a number"] * 3 + ["21,999 is given twice", "19,999,998 rows are too many"])


def test_a_number_with_blanks_around_it_and_before_its_unit_is_a_number() -> None:
    from ckptplan.units import parse_bytes

    assert parse_bytes(f"{BLANKS}3  KiB{BLANKS}") == 3072


@pytest.mark.parametrize("text", ["a" * 4000, "tabs\tand\nlines", "<b>=1+1</b> $x$ [red]"])
def test_what_people_write_is_kept_as_it_is(text: str, tmp_path: Path) -> None:
    profile = ckptplan.HardwareProfile(**{**dict(ckptplan.load_profile("ipu-mk2")), "description": text})
    ckptplan.save_profile(profile, tmp_path / "p.toml")
    assert ckptplan.load_profile(tmp_path / "p.toml") == profile
