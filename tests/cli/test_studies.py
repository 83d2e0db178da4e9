"""``pareto``, ``largest``, ``sensitivity``, machines and unknown lengths: results and their pictures.

What these commands print on ten jobs is in tests/golden, which lines they refuse in test_refusals.py.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import ckptplan
from tests.support import run, run_on_terminal, small_plan

SHORT = ("--T", "64", "--local-bytes", "230 kB")


def as_json(line: str, cwd: Path | None = None) -> Any:
    return json.loads(run(*shlex.split(line), "--format", "json", cwd=cwd).stdout)


def as_rows(line: str, cwd: Path | None = None) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(run(*shlex.split(line), "--format", "csv", cwd=cwd).stdout)))


#: A command without the name of its picture, and words that the picture has.
PICTURES = {
    "pareto --T 64 --local-bytes 230kB --strategies double,optimal --plot": ("paper-snn on ipu-mk2", "optimal"),
    "compare --T 300 --strategies base,standard --profile ipu-mk2,nvidia-h200 --plot": (
        "ipu-mk2",
        "nvidia-h200",
    ),
    "sensitivity --T 64 --strategies standard,double --local-bytes 230kB --plot": ("recompute-ratio",),
    "sweep --over T=64,128 --jobs 1 -o rows.csv --restart --plot": ("paper-snn on ipu-mk2",),
    "simulate plan.json --gantt": ("ipu-mk2",),
    "simulate --online --slots 5 --T 10:50 --plot": ("5 slots",),
}


@pytest.mark.parametrize("line", PICTURES, ids=lambda line: " ".join(line.split()[:3]))
def test_pictures_are_of_the_kind_that_their_names_end_in(line: str, tmp_path: Path) -> None:
    ckptplan.save_plan(small_plan(), tmp_path / "plan.json")
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        done = run(*shlex.split(line), f"picture.{suffix}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"picture written to picture.{suffix}" in done.stderr
        assert (tmp_path / f"picture.{suffix}").read_bytes().startswith(start)
    picture = (tmp_path / "picture.svg").read_text()
    assert [word for word in PICTURES[line] if word not in picture] == []


@pytest.mark.parametrize("line", ["pareto --T 64", "largest T", "sensitivity --T 64", "compare --T 64"])
def test_a_file_holds_what_its_name_ends_in(line: str, tmp_path: Path) -> None:
    """A table, if its name does not end in .json or .csv."""
    for name in ("a.json", "a.CSV", "a.txt"):
        done = run(*line.split(), "--strategies", "standard,double", "-o", name, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "")
        assert f"written to {name}" in done.stderr
    assert json.loads((tmp_path / "a.json").read_text())["kind"].startswith("ckptplan.")
    assert "strategy" in (tmp_path / "a.CSV").read_text().splitlines()[0].split(",")
    assert "Estimate basis" in (tmp_path / "a.txt").read_text()


def test_reasons_are_in_the_file_if_nothing_fits(tmp_path: Path) -> None:
    line = "pareto --T 64 --local-bytes 100KiB --strategies closed -o f.json"
    done = run(*line.split(), cwd=tmp_path)
    assert done.returncode == 3
    assert "212 KiB, has 100 KiB" in done.stderr
    assert "f.json" in done.stderr
    document = json.loads((tmp_path / "f.json").read_text())
    assert document["best_within_budget"] is None
    assert document["front"]["strategy"]
    done = run("compare", "--T", "400000", "--strategies", "base", "--profile", "ipu-mk1,ipu-mk2")
    assert done.returncode == 3
    assert done.stdout.count("does not fit") >= 2


# Fronts


def test_a_plan_that_a_coarse_front_leaves_out_still_fits() -> None:
    """The plan with the least memory may be left out for one that needs a little more."""
    asked = ("--T", "200000", "--strategies", "double", "--local-bytes", "19419840 B", "--cache", "all")
    coarse = run("pareto", *asked, "--resolution", "0.1%")
    assert "does not fit" not in coarse.stdout
    assert "within 0.1 % of a listed one" in " ".join(coarse.stdout.split())
    predicted = as_json(shlex.join(("optimize", *asked)))["predicted"]
    assert f"+{100 * predicted['overhead']:.1f} %" in coarse.stdout


def test_a_front_has_the_numbers_of_the_python_interface() -> None:
    document = as_json(shlex.join(("pareto", *SHORT)))
    workload = ckptplan.load_workload("paper-snn").with_steps(64)
    front = ckptplan.pareto(workload, ckptplan.load_profile("ipu-mk2"), local_bytes="230 kB")
    assert document["front"]["seconds"] == front.seconds.tolist()
    assert document["front"]["chunk_size"] == front.parameters["chunk_size"].tolist()
    assert (document["knee"], document["resident_bytes"]) == (front.knee_place, front.resident_bytes)


def test_the_plan_at_a_budget_is_the_plan_that_optimize_finds(tmp_path: Path) -> None:
    """With the headroom that is named beside the budget."""
    done = run("pareto", "--T", "64", "--at", "230 kB", "-o", "picked.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "plan written to picked.json\n")
    run("optimize", *SHORT, "-o", "best.json", cwd=tmp_path)
    picked, best = (ckptplan.load_plan(tmp_path / f"{name}.json") for name in ("picked", "best"))
    assert (picked.strategy, picked.parameters) == (best.strategy, best.parameters)
    assert picked.predicted == best.predicted
    assert run("simulate", "picked.json", cwd=tmp_path).returncode == 0
    at_budget = as_json("pareto --T 64 --at 250kB --headroom 10%")
    optimal = as_json("optimize --T 64 --local-bytes 250kB --headroom 10%")
    assert (at_budget["goal"], at_budget["predicted"]) == (optimal["goal"], optimal["predicted"])
    assert (at_budget["goal"]["local_bytes"], at_budget["goal"]["headroom"]) == (225_000, 0.1)


def test_table_and_data_have_the_same_knee_where_a_simpler_plan_is_to_be_run() -> None:
    """Whoever asks for the balance alone reads that a simpler plan was taken."""
    job = "--T 128 --workload gru --profile nvidia-a100-80gb --strategies standard,growing"
    document = as_json(f"pareto {job}")
    assert document["front"]["strategy"][document["knee"]] == "growing"
    (row,) = (line for line in run(*shlex.split(f"pareto {job}")).stdout.splitlines() if "knee" in line.split())
    assert "growing" in row.split()
    balanced = as_json(f"optimize {job} --objective balanced")
    assert balanced["strategy"] == "standard"
    assert any("growing" in entry["text"] for entry in balanced["estimate_basis"] if entry["field"] == "search")


# Largest values


@pytest.mark.parametrize(("quantity", "field"), [("T", "steps"), ("batch", "batch"), ("neurons", "neurons")])
def test_the_largest_value_is_that_of_its_plan(quantity: str, field: str) -> None:
    reaches = as_json(f"largest {quantity} --strategies standard,double --max-overhead 20%")["strategies"]
    rows = as_rows(f"largest {quantity} --strategies standard,double --max-overhead 20%")
    assert {row["strategy"]: int(row["value"]) for row in rows} == {
        name: reach["value"] for name, reach in reaches.items()
    }
    for reach in reaches.values():
        job = {**reach["plan"]["workload"], **reach["plan"]["workload"]["network"]}
        assert job[field] == reach["value"] > 0
        assert reach["plan"]["predicted"]["overhead"] <= 0.2
    assert run("largest", quantity, "--strategies", "double", "--local-bytes", "1 kB").returncode == 3


@pytest.mark.parametrize(
    ("options", "at", "complete"),
    [
        # Closed forms are answered within a second; solving the sequences that bptt-* reach takes longer.
        ("--profile nvidia-a100-80gb --strategies base,standard,bptt-hsm,bptt-msm", r" (5[2-9]|[6-9]\d)%",
         {"base", "standard"}),
        # With a limit of overhead several values are solved; the best of them has its plan, and is not proved.
        ("--strategies bptt-msm --max-overhead 3%", r" ([78]\d)%", set()),
    ],
)  # fmt: skip
def test_an_interruption_leaves_the_largest_values_so_far(options: str, at: str, complete: set[str]) -> None:
    line = ("largest", "T", *options.split(), "--format", "json")
    status, output, shown = run_on_terminal(*line, interrupt_at=at)
    assert status == 130, shown
    assert re.search(r"only the largest values found so far\s+interrupted", shown)
    reaches = json.loads(output)["strategies"]
    for name, reach in reaches.items():
        assert (reach["proved"], reach["interrupted"]) == (name in complete, name not in complete)
        if complete and name not in complete:
            assert (reach["value"], reach["plan"]) == (0, None)
            assert (reach["bound_by"], reach["same_schedule"]) == (None, [])
        else:
            assert reach["plan"]["steps"] == reach["value"] > 0


def test_an_interruption_before_anything_is_found_ends_the_command() -> None:
    options = ("T", "--profile", "nvidia-a100-80gb", "--strategies", "bptt-msm")
    status, output, shown = run_on_terminal("largest", *options, interrupt_at=r" ([6-9]|[1-9]\d)%")
    assert (status, output) == (130, "")
    assert "interrupted" in shown


# Inputs that vary, and lengths that nobody knows


def test_a_schedule_that_does_not_know_its_length_is_compared_with_the_optimum() -> None:
    line = "simulate --online --slots 5 --T 10:12"
    points = as_json(line)["points"]
    assert [point["steps"] for point in points] == [10, 11, 12]
    assert all(point["online"] >= point["optimum"] for point in points)
    assert [row["steps"] for row in as_rows(line)] == ["10", "11", "12"]
    assert "T = 10 to 12" in run(*line.split()).stdout


# Machines

#: Closed forms answer at once.
MACHINES = "compare --T 300 --strategies base,standard --profile"


def test_times_of_machines_say_whether_they_are_estimated() -> None:
    """Their intervals and rows are in tests/golden."""
    machines = as_json(f"{MACHINES} ipu-mk2,nvidia-h200,cpu-nvme")["machines"]
    assert [machine["times"] for machine in machines] == ["own", "estimated", "carried over"]
    assert "estimated" in {entry["kind"] for entry in machines[1]["plan"]["estimate_basis"]}


def test_the_cheapest_machine_is_named_and_estimates_come_with_their_intervals() -> None:
    """Prices follow from times: estimates within a factor of three cannot tell 1 from 2 an hour."""
    prices = "nvidia-h200=1,nvidia-a100-80gb=9"
    three = f"{MACHINES} nvidia-h200,nvidia-a100-80gb,raspberry-pi-5 --price-per-hour {prices}"
    printed = run(*shlex.split(three), COLUMNS="160").stdout
    assert "Cheapest: nvidia-h200, " in printed
    assert "no price is known for raspberry-pi-5" in printed
    assert "intervals overlap may be equally quick or cheap" in printed
    rows = [line for line in printed.splitlines() if line.startswith(("nvidia-", "raspberry-"))]
    assert all(re.search(r"~[\d.]+ \w+ +[\d.]+ \w+ to [\d.]+ \w+ +estimated", row) for row in rows[:3])


def test_profiles_may_be_given_one_by_one_and_by_a_path_with_a_comma(tmp_path: Path) -> None:
    text = 'name = "mine"\nlocal_bytes = "1 GB"\nremote_bytes = 0\nprice_per_hour = 1.5\n'
    (tmp_path / "a,b.toml").write_text(text)
    rows = as_rows(f"{MACHINES} ipu-mk2 --profile ./a,b.toml", cwd=tmp_path)
    assert [(row["profile"], row["price_per_hour"]) for row in rows] == [("ipu-mk2", ""), ("mine", "1.5")]


# Room that is left free

JOB = "name = 'job'\nsteps = 99\nstate_bytes = 1000\ntape_bytes = 3000\nforward_seconds = 1\n"
TIMES = "backward_seconds = 1\nrecompute_seconds = 0.5\n"
GPU = "name = 'gpu'\nlocal_bytes = '100 kB'\nheadroom = '10%'\nremote_bytes = 0\n"


def test_the_local_budget_is_what_the_headroom_leaves(tmp_path: Path) -> None:
    """The headroom is the machine's, or the option's; a budget that is named has none."""
    (tmp_path / "job.toml").write_text(JOB + TIMES)
    (tmp_path / "gpu.toml").write_text(GPU)
    line = "optimize --workload ./job.toml --profile ./gpu.toml"
    for options, budget in (("", 90_000), ("--headroom 25%", 75_000), ("--local-bytes 99000", 99_000)):
        assert as_json(f"{line} {options}", cwd=tmp_path)["goal"]["local_bytes"] == budget
    shown = run("profiles", "show", "./gpu.toml", cwd=tmp_path).stdout
    assert any(row.split()[:2] == ["headroom", "10"] for row in shown.splitlines())


@pytest.mark.slow
def test_a_full_memory_in_which_nothing_else_is_counted_is_warned_of_once(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB + TIMES)
    (tmp_path / "gpu.toml").write_text(GPU)
    warning = "resident_bytes, resident_bytes_per_step and workspace_bytes are 0"

    def count(command: str, options: str) -> int:
        line = f"{command} --workload ./job.toml --profile ./gpu.toml {options}"
        done = run(*line.split(), cwd=tmp_path, COLUMNS="200")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.count(warning)

    for command in ("optimize", "compare", "largest T", "pareto"):
        assert (count(command, "--headroom 0"), count(command, "")) == (1, 0)
    # A budget that is named leaves the rest of the machine free.
    assert count("optimize", "--local-bytes 90kB") == 0
    (tmp_path / "job.toml").write_text(f"resident_bytes = 1\n{JOB}{TIMES}")
    assert count("optimize", "--headroom 0") == 0
