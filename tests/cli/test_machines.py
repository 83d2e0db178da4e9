"""``ckptplan compare`` with several machines, as its users run it."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from tests.support import run

#: Closed forms answer at once.
QUICK = ("compare", "--T", "300", "--strategies", "base,standard")
THREE = "ipu-mk2,nvidia-h200,cpu-nvme"


def test_the_table_answers_which_machine_how_long_and_for_how_much() -> None:
    done = run(*QUICK, "--profile", THREE, "--price-per-hour", "2.5,cpu-nvme=0.4", "--deadline", "2 h",
               "--batches", "10000")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for words in (
        "Machines for paper-snn, T = 300 time steps, a run of 10,000 batches within 2 h",
        "Quickest: ipu-mk2",
        "Cheapest within 2 h: ipu-mk2",
        "~ estimated by a roofline",
        "profile.float32_flops_per_second",
        "largest T at most twice base's time; --max-overhead sets the limit",
    ):
        assert words in " ".join(done.stdout.split()) or words in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("nvidia-h200")]
    assert re.search(r" ~[\d.]+ (s|min|h) ", line)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("cpu-nvme ")]
    assert "not known" in line


def test_the_cheapest_machine_is_told_with_those_that_may_be_cheaper_and_those_without_a_price() -> None:
    """Prices follow from times: estimates within a factor of three cannot tell 1 from 2 an hour."""
    three = ("--profile", "nvidia-h200,nvidia-a100-80gb,raspberry-pi-5")
    done = run(*QUICK, *three, "--price-per-hour", "nvidia-h200=1,nvidia-a100-80gb=1.1")
    assert done.returncode == 0
    _, cheapest = " ".join(done.stdout.split()).split("Cheapest: ")
    name, other = re.findall("nvidia-h200|nvidia-a100-80gb", cheapest)[:2]
    assert name != other
    assert f"not told apart within the estimates: {other} " in cheapest
    assert "not compared, as they have no price: raspberry-pi-5" in cheapest
    alone = run(*QUICK, *three, "--price-per-hour", "0.0001,nvidia-h200=100,nvidia-a100-80gb=100").stdout
    assert "told apart" not in alone.partition("Cheapest")[2]


def test_no_word_and_no_number_is_broken_at_80_columns() -> None:
    names = "ipu-mk2,tenstorrent-wormhole-n300,nvidia-jetson-orin-nano"
    done = run(*QUICK, "--profile", names, "--price-per-hour", "2.5", COLUMNS="80")
    wide = run(*QUICK, "--profile", names, "--price-per-hour", "2.5", COLUMNS="160")
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    for text in (*names.split(","), "does not fit", "over", "largest"):
        assert text in done.stdout
    numbers = [line.split()[1:] for line in wide.stdout.splitlines() if line.startswith(("ipu-mk2", "nvidia"))]
    assert all(number in done.stdout for line in numbers for number in line[:5])


def test_json_and_csv_hold_the_same_numbers() -> None:
    document = json.loads(run(*QUICK, "--profile", THREE, "--format", "json").stdout)
    rows = list(csv.DictReader(io.StringIO(run(*QUICK, "--profile", THREE, "--format", "csv").stdout)))
    assert document["kind"] == "ckptplan.machines"
    assert [row["profile"] for row in rows] == [one["profile"]["name"] for one in document["machines"]]
    for row, one in zip(rows, document["machines"], strict=True):
        assert row["times"] == one["times"]
        assert row["seconds"] == ("" if one["seconds"] is None else repr(one["seconds"]))
        assert int(row["largest_steps"]) == one["largest_steps"]
    assert [one["times"] for one in document["machines"]] == ["own", "estimated", "carried over"]
    estimated = document["machines"][1]
    assert estimated["seconds_low"] < estimated["seconds"] < estimated["seconds_high"]
    kinds = {entry["kind"] for entry in estimated["plan"]["estimate_basis"]}
    assert "estimated" in kinds


def test_profiles_may_be_given_one_by_one_and_by_path(tmp_path: Path) -> None:
    (tmp_path / "a,b.toml").write_text(
        'name = "mine"\nlocal_bytes = "1 GB"\nremote_bytes = 0\nprice_per_hour = 1.5\n'
    )
    done = run(*QUICK, "--profile", "ipu-mk2", "--profile", "./a,b.toml", "--format", "csv", cwd=tmp_path)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [(row["profile"], row["price_per_hour"]) for row in rows] == [("ipu-mk2", ""), ("mine", "1.5")]


def test_one_profile_compares_strategies_as_ever() -> None:
    assert "disk-revolve" in run("compare", "--T", "64", "--profile", "ipu-mk2").stdout


def test_the_picture_names_every_machine(tmp_path: Path) -> None:
    done = run(*QUICK, "--profile", THREE, "--plot", "machines.svg", cwd=tmp_path)
    assert done.returncode == 0
    assert "picture written to machines.svg" in done.stderr
    picture = (tmp_path / "machines.svg").read_text()
    for text in ("ipu-mk2", "nvidia-h200", "time not known", "largest T", "Quickest: ipu-mk2"):
        assert text in picture


def test_where_it_fits_nowhere_reasons_are_shown_and_the_exit_code_is_3() -> None:
    done = run("compare", "--T", "400000", "--strategies", "base", "--profile", "ipu-mk1,ipu-mk2")
    assert done.returncode == 3
    assert done.stdout.count("does not fit") >= 2


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--profile", "ipu-mk2,ipu-mk3"], "--profile"),
        (["--profile", THREE, "--regret"], "--regret"),
        (["--profile", THREE, "--deadline", "soon"], "--deadline"),
        (["--profile", THREE, "--deadline", "0 h"], "--deadline"),
        (["--profile", THREE, "--price-per-hour", "cheap"], "--price-per-hour"),
        (["--profile", THREE, "--price-per-hour", "nan"], "--price-per-hour"),
        (["--profile", THREE, "--price-per-hour", "h100=2"], "--price-per-hour"),
        (["--profile", THREE, "--batches", "0"], "--batches"),
        (["--profile", THREE, "--plot", "picture.bmp"], "--plot"),
        (["--profile", ","], "--profile"),
    ],
)
def test_a_wrong_option_is_named(given: list[str], named: str) -> None:
    done = run(*QUICK, *given)
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stdout == ""
