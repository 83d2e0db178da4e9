"""``ckptplan sensitivity`` as a real process."""

import csv
import io
import json
from pathlib import Path

import pytest

from tests.support import run

JOB = ("sensitivity", "--T", "500", "--local-bytes", "300 KiB", "--strategies", "nested,growing")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same study in every format, and its picture."""
    folder = tmp_path_factory.mktemp("sensitivity")
    picture = folder / "tornado.svg"
    found = {
        "table": run(*JOB, "--uncertainty", "30%", "--plot", str(picture)),
        "json": run(*JOB, "--uncertainty", "0.3", "--format", "json"),
        "csv": run(*JOB, "--uncertainty", "0.3", "--format", "csv"),
    }
    assert {done.returncode for done in found.values()} == {0}
    assert found["table"].stderr.endswith(f"picture written to {picture}\n")
    return {"picture": picture.read_text(), **{name: done.stdout for name, done in found.items()}}


def test_the_table_tells_influences_break_evens_and_error_bars(written: dict[str, str]) -> None:
    text = written["table"]
    assert "paper-snn on ipu-mk2, T = 500 time steps" in text
    assert "latency" in text
    assert "no effect" in text
    assert "The best strategy changes" in text
    assert ", not growing" in text
    assert "Every time known to within 30 %" in text
    assert "in 90 % of 300 samples" in text


def test_json_and_csv_hold_the_same_study(written: dict[str, str]) -> None:
    document = json.loads(written["json"])
    assert (document["kind"], document["schema_version"]) == ("ckptplan.sensitivity", 1)
    rows = list(csv.DictReader(io.StringIO(written["csv"])))
    inputs = {one["input"]: one for one in document["inputs"]}
    assert [row["input"] for row in rows if row["kind"] == "input"] == list(inputs)
    for row in (row for row in rows if row["kind"] == "point"):
        point = next(one for one in inputs[row["input"]]["points"] if one["factor"] == float(row["factor"]))
        assert row["value"] == " ".join(map(str, point["values"]))
        assert row["seconds"] == ("" if point["best"] is None else str(point["best"]["seconds"]))
        assert row["kept_seconds"] == str(point["kept_seconds"])
    for row in (row for row in rows if row["kind"] == "break-even"):
        assert float(row["factor"]) in [one["factor"] for one in inputs[row["input"]]["break_evens"]]
    bars = document["uncertainty"]
    low = next(row for row in rows if row["note"] == "5 % quantile")
    assert (low["kind"], float(low["seconds"])) == ("uncertainty", bars["low_seconds"])


def test_the_picture_names_inputs_and_units(written: dict[str, str]) -> None:
    for text in (
        "recompute-ratio",
        "300 KiB",
        "time of the best plan against now",
        "half the input",
    ):
        assert text in written["picture"]
    assert "latency" not in written["picture"], "what has no effect is no bar"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--uncertainty", "10"], 2, "--uncertainty: '10' would be 1000%; say '10%' or '1000%'"),
        (["--uncertainty", "foo"], 2, "--uncertainty: 'foo' is not a number with a unit (accepted: a share"),
        (
            ["--uncertainty", "0"],
            2,
            "--uncertainty: '0' is out of range (accepted: a share above 0 and up to 1",
        ),
        (["--uncertainty", "200%"], 2, "--uncertainty: '200%' is out of range"),
        (["--plot", "t.gif"], 2, "--plot: 't.gif' does not say which kind of picture"),
        (
            ["--plot", "no/t.png", "--T", "64"],
            2,
            "--plot: cannot be written: the folder of 'no/t.png' does not exist",
        ),
        # Before the answer is printed: JSON would be followed by that of the error.
        (["--plot", "{tmp}/t.png", "--T", "64"], 2, "cannot be written: it is a folder"),
        (["--strategies", "doubel"], 2, "--strategies: there is no strategy 'doubel'."),
        (["--local-bytes", "200 KiB"], 3, "the local memory of one unit is too small"),
    ],
)
def test_what_cannot_be_done_is_told(arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.png").mkdir()
    done = run("sensitivity", *(argument.format(tmp=tmp_path) for argument in arguments))
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_results_go_to_files(tmp_path: Path) -> None:
    done = run("sensitivity", "--T", "64", "--format", "json", "-o", str(tmp_path / "s.json"))
    assert (done.returncode, done.stdout) == (0, "")
    assert json.loads((tmp_path / "s.json").read_text())["best"]["strategy"] == "base"


def test_quicker_transfers_that_change_nothing_are_explained() -> None:
    same = "Quicker transfers change nothing: "
    assert f"{same}the best plan uses no remote memory." in run("sensitivity", "--T", "200").stdout
    assert same not in run("sensitivity", "--T", "1024", "--strategies", "remote").stdout
