"""``ckptplan pareto`` and ``ckptplan largest``, as their users run them."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

import ckptplan
from tests.support import run, run_on_terminal

JSON = ("--format", "json")
SHORT = ("--T", "64", "--local-bytes", "230 kB")


def test_the_table_shows_ends_budget_and_knee() -> None:
    done = run("pareto", *SHORT)
    assert done.returncode == 0
    assert done.stderr == ""
    for words in (
        "paper-snn on ipu-mk2, T = 64 time steps",
        "plans that no other listed beats in local memory and time, of 12 strategies",
        "best within 224.6 KiB",
        "knee",
        "does not fit",
        "Estimate basis",
    ):
        assert words in done.stdout


def test_what_fits_fits_also_where_a_coarse_front_lists_no_plan_of_it() -> None:
    """The plan with the least memory may be left out for one that needs a little more."""
    asked = ("--T", "200000", "--strategies", "double", "--local-bytes", "19419840 B")
    coarse = run("pareto", *asked, "--resolution", "0.1%")
    assert "does not fit" not in coarse.stdout
    assert "plans within 0.1 % of a listed one" in coarse.stdout
    assert "--resolution 0 lists all" in " ".join(coarse.stdout.split())
    predicted = json.loads(run("optimize", *asked, "--format", "json").stdout)["predicted"]
    assert f"+{100 * predicted['overhead']:.1f} %" in coarse.stdout


def test_json_and_csv_hold_the_same_columns() -> None:
    """The front of each strategy; in CSV a column says which points no strategy beats."""
    asked = ("pareto", *SHORT, "--strategies", "closed")
    document = json.loads(run(*asked, "--format", "json").stdout)
    rows = list(csv.DictReader(io.StringIO(run(*asked, "--format", "csv").stdout)))
    assert document["kind"] == "ckptplan.front"
    assert document["exact"] is True
    assert {name: len(one["seconds"]) for name, one in document["strategies"].items()} == {
        name: sum(row["strategy"] == name for row in rows) for name in document["strategies"]
    }
    for name, columns in document["strategies"].items():
        own = [row for row in rows if row["strategy"] == name]
        for column, values in columns.items():
            assert [str(value) if value else "0" for value in values] == [
                row[column] or "0" for row in own
            ] or [float(row[column] or 0) for row in own] == values
    together = sorted(
        (int(row["local_peak_bytes"]), row["seconds"]) for row in rows if row["on_front"] == "true"
    )
    assert [local for local, _ in together] == document["front"]["local_peak_bytes"]
    assert [float(seconds) for _, seconds in together] == document["front"]["seconds"]
    assert document["front"]["local_peak_bytes"][document["best_within_budget"]] <= 230_000


def test_numbers_are_those_of_the_python_interface() -> None:
    document = json.loads(run("pareto", *SHORT, "--format", "json").stdout)
    workload = ckptplan.load_workload("paper-snn").with_steps(64)
    front = ckptplan.pareto(workload, ckptplan.load_profile("ipu-mk2"), local_bytes="230 kB")
    assert document["front"]["seconds"] == front.seconds.tolist()
    assert document["front"]["chunk_size"] == front.parameters["chunk_size"].tolist()
    assert (document["knee"], document["resident_bytes"]) == (front.knee_place, front.resident_bytes)


def test_at_is_the_plan_that_optimize_finds(tmp_path: Path) -> None:
    picked, found = tmp_path / "picked.json", tmp_path / "found.json"
    done = run("pareto", "--T", "64", "--at", "230 kB", "-o", str(picked))
    assert done.returncode == 0
    assert "plan written to" in done.stderr
    assert "does not fit" in done.stdout
    run("optimize", *SHORT, "-o", str(found))
    one, other = ckptplan.load_plan(picked), ckptplan.load_plan(found)
    assert (one.strategy, one.parameters, one.predicted) == (other.strategy, other.parameters, other.predicted)
    assert run("simulate", str(picked)).returncode == 0


def test_a_front_without_a_plan_within_the_budget_exits_3(tmp_path: Path) -> None:
    file = tmp_path / "front.json"
    done = run("pareto", "--T", "64", "--local-bytes", "100 KiB", "--strategies", "closed", "-o", str(file))
    assert done.returncode == 3
    need = "needs at least 217.9 KiB, has 100 KiB"
    assert done.stderr == f"ckptplan: no plan keeps the budget: {need}; the reasons are in {file}\n"
    document = json.loads(file.read_text())
    assert document["best_within_budget"] is None
    assert document["front"]["strategy"]


def test_at_less_than_anything_needs() -> None:
    done = run("pareto", "--T", "64", "--at", "100 KiB")
    assert done.returncode == 3
    assert "needs at least" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_pictures(suffix: str, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"front.{suffix}"
    done = run("pareto", *SHORT, "--plot", str(path))
    assert done.returncode == 0
    assert f"picture written to {path}" in done.stderr
    assert path.read_bytes().startswith(start)


def test_a_picture_says_what_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "front.svg"
    run("pareto", *SHORT, "--plot", str(path))
    text = path.read_text()
    for words in (
        "Least time within each amount of local memory",
        "paper-snn on ipu-mk2, T = 64",
        "budget: 7.672 KiB of 224.6 KiB",
        "best: ",
        "knee: ",
        "time over base's",
        "local memory, one unit",
        "216.9 KiB stay",
        "other strategies",
    ):
        assert words in text


def test_a_picture_says_that_what_stays_leaves_nothing_of_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "front.svg"
    run("pareto", "--T", "64", "--local-bytes", "100 KiB", "--plot", str(path))
    assert "budget: what stays leaves nothing of 100 KiB<" in path.read_text()


def test_table_picture_and_data_have_the_same_knee_where_a_simpler_plan_is_to_be_run(tmp_path: Path) -> None:
    """Whoever asks for the balance alone is told that a simpler plan was taken."""
    picture, data = tmp_path / "front.svg", tmp_path / "front.json"
    job = ("--T", "128", "--local-bytes", "5 MB", "--strategies", "standard,growing")
    run("pareto", *job, "--plot", str(picture), "-o", str(data))
    found = json.loads(data.read_text())
    knee = {name: column[found["knee"]] for name, column in found["front"].items()}
    table = run("pareto", *job).stdout
    (row,) = (line for line in table.splitlines() if line.endswith("  knee"))
    assert knee["strategy"] == "growing" in row.split()
    assert "knee: growing, " in picture.read_text()
    balanced = run("optimize", *job, "--objective", "balanced").stdout
    assert re.search(
        r"strategy +standard .*\nchoice +growing is predicted to be the better balance by", balanced
    )


def test_solved_strategies_are_on_the_front_when_they_are_named(tmp_path: Path) -> None:
    path = tmp_path / "front.svg"
    done = run("pareto", *SHORT, "--strategies", "double,optimal", "--plot", str(path))
    assert done.returncode == 0
    assert "optimal" in path.read_text()
    assert "decisions" in done.stdout
    assert "closed forms" not in done.stdout


def test_nothing_fits_the_limits_of_the_front() -> None:
    """One tape at a time cannot be as quick as base, whatever the memory."""
    done = run("pareto", "--T", "64", "--strategies", "disk-revolve", "--max-overhead", "0")
    assert done.returncode == 3
    assert "no plan is quick enough" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pareto", "--plot", "front.gif"), "--plot: 'front.gif' does not say which kind of picture"),
        (("pareto", "--plot", "-"), "--plot: standard output carries the result"),
        (("pareto", "--at", "300 KB"), "--at: '300 KB' has the unknown unit 'KB'"),
        (("pareto", "--at", "0", "--local-bytes", "1MB"), "--local-bytes: does not go together with --at"),
        (("pareto", "--resolution", "2"), "--resolution: '2' would be 200%"),
        (
            ("pareto", "--plot", "/nowhere/front.png"),
            "--plot: cannot be written: the folder of '/nowhere/front.png' does not exist",
        ),
        (("pareto", "--strategies", "paretto"), "there is no strategy 'paretto'"),
        (("pareto", "--html", "same.svg", "--plot", "same.svg"), "is also what --html writes"),
        (("pareto", "-o", "front.png"), "--output: 'front.png' would hold text"),
        (("largest", "tea"), "'tea' is not one of 'T', 'batch', 'neurons'"),
        (("largest", "T", "--T", "10"), "--T: cannot be combined with `largest T`"),
        (("largest", "batch", "--max-overhead", "10"), "--max-overhead"),
    ],
)
def test_bad_input(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = (
        run(*arguments, "--T", "64")
        if "--T" not in arguments and "largest" not in arguments
        else run(*arguments)
    )
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


def test_largest_as_table_json_and_csv() -> None:
    done = run("largest", "T", "--max-overhead", "20%")
    assert done.returncode == 0
    for words in (
        "Largest T (time steps) of paper-snn on ipu-mk2, at most +20.0 % over base",
        "10.34 x",
        "4,136",
        "only closed forms are compared, which answer at once; --strategies all adds",
    ):
        assert words in done.stdout
    document = json.loads(run("largest", "T", "--max-overhead", "20%", "--format", "json").stdout)
    assert document["strategies"]["double"]["value"] == 4136
    assert document["strategies"]["double"]["plan"]["steps"] == 4136
    rows = csv.DictReader(io.StringIO(run("largest", "T", "--max-overhead", "20%", "--format", "csv").stdout))
    assert {row["strategy"]: (row["value"], row["bound_by"]) for row in rows}["double"] == (
        "4136",
        "max_overhead",
    )


def test_largest_of_nothing_exits_3() -> None:
    done = run("largest", "T", "--local-bytes", "100 KiB")
    assert done.returncode == 3
    assert "does not fit" in done.stdout


@pytest.mark.slow
def test_a_file_is_what_its_name_says(tmp_path: Path) -> None:
    """JSON or CSV by the end of the name, where no format is asked for; a table otherwise."""
    for command in (("pareto", *SHORT), ("largest", "T")):
        for name in ("a.json", "a.csv", "a.txt"):
            done = run(*command, "-o", str(tmp_path / name))
            assert done.returncode == 0
            assert "written to" in done.stderr
        assert json.loads((tmp_path / "a.json").read_text())["kind"].startswith("ckptplan.")
        assert "," in (tmp_path / "a.csv").read_text().splitlines()[0]
        assert "strategy" in (tmp_path / "a.txt").read_text()


def test_an_interruption_leaves_the_largest_values_so_far() -> None:
    """Closed forms are answered within a second; solving the sequences that bptt-* reach takes longer."""
    options = ("T", "--profile", "nvidia-a100-80gb", "--strategies", "base,standard,bptt-hsm,bptt-msm")
    code, output, said = run_on_terminal("largest", *options, *JSON, interrupt_at=r" (5[2-9]|[6-9]\d)%")
    assert code == 130, said
    assert re.search(r"only the largest values found so far\s+interrupted", said)
    found = json.loads(output)["strategies"]
    for name in ("base", "standard"):
        assert found[name]["plan"]["steps"] == found[name]["value"] > 0
        assert (found[name]["proved"], found[name]["interrupted"]) == (True, False)
    for name in ("bptt-hsm", "bptt-msm"):
        nothing = {"value": 0, "bound_by": None, "proved": False, "interrupted": True, "plan": None}
        assert found[name] == {**nothing, "same_schedule": []}


def test_an_interruption_leaves_the_largest_value_that_kept_the_limits_so_far() -> None:
    """With a limit of overhead several values are solved; the best of them has its plan, and is not proved."""
    options = ("T", "--strategies", "bptt-msm", "--max-overhead", "3%")
    code, output, said = run_on_terminal("largest", *options, *JSON, interrupt_at=r" (3[1-9]|[4-9]\d)%")
    assert code == 130, said
    found = json.loads(output)["strategies"]["bptt-msm"]
    assert found["plan"]["steps"] == found["value"] > 0
    assert (found["proved"], found["interrupted"]) == (False, True)


def test_an_interruption_before_anything_is_found_ends_the_command() -> None:
    options = ("T", "--profile", "nvidia-a100-80gb", "--strategies", "bptt-msm")
    code, output, said = run_on_terminal("largest", *options, interrupt_at=r" ([6-9]|[1-9]\d)%")
    assert (code, output) == (130, "")
    assert "interrupted" in said
