"""``ckptplan paper``: table, page and pictures, data in two formats, errors."""

import csv
import io
import json
from pathlib import Path

import pytest

from ckptplan.paper.claims import make_claims
from ckptplan.paper.figures import FIGURES
from ckptplan.paper.setting import load_paper_setting
from ckptplan.paper.table import view_claims, view_figure
from ckptplan.report.formats import json_text
from ckptplan.storage.tables import csv_text
from tests.support import run

ROOT = Path(__file__).parent.parent.parent
NAMES = [f"paper-figure-{number}.png" for number in FIGURES]


def test_the_table_has_every_claim_its_verdict_and_why_claims_disagree() -> None:
    text = run("paper").stdout
    for claim in make_claims(load_paper_setting()):
        assert claim.subject.split()[0] in text
    for words in (
        "30 claims: 13 agree, 8 agree by fit, 9 disagree",
        "Why claims disagree",
        "assumed, not published",
    ):
        assert words in text
    assert "\x1b" not in text


def test_page_and_pictures_in_the_documents_are_current(tmp_path: Path) -> None:
    """Pictures differ between versions of fonts and of vl-convert: their numbers are in the page's tests."""
    done = run("paper", "--markdown", str(tmp_path / "paper.md"), "--pictures", str(tmp_path / "pictures"))
    assert (done.returncode, done.stdout) == (0, "")
    written = "write it anew: ckptplan paper --markdown docs/paper.md --pictures docs/pictures"
    assert (tmp_path / "paper.md").read_text() == (ROOT / "docs/paper.md").read_text(), written
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == NAMES
    for name in NAMES:
        assert (ROOT / "docs/pictures" / name).stat().st_size < 150_000


def _cell(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_claims_as_json_and_csv_are_the_same() -> None:
    document = json.loads(run("paper", "--format", "json").stdout)
    assert (document["kind"], document["schema_version"]) == ("ckptplan.paper_claims", 1)
    setting = load_paper_setting()
    text = csv_text(view_claims(make_claims(setting), setting).rows())
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["name"] for row in rows] == [claim["name"] for claim in document["claims"]]
    for row, claim in zip(rows, document["claims"], strict=True):
        assert float(row["model"]) == claim["model"]
        assert (row["verdict"], row["agrees"]) == (claim["verdict"], str(claim["agrees"]).lower())
        assert row["assumed"].split() == claim["assumed"]


@pytest.mark.parametrize("number", FIGURES)
def test_a_figures_json_and_csv_are_the_same(number: int) -> None:
    setting = load_paper_setting()
    content = FIGURES[number](setting)
    view = view_figure(content, setting)
    document = json.loads(json_text(view.document()))
    flat = [
        {"figure": number, "panel": panel["panel"], "series": series["series"],
         "x": panel["x"], "y": panel["y"], **point}
        for panel in document["panels"] for series in panel["series"] for point in series["points"]
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(csv_text(view.rows()))))
    assert rows == [{name: _cell(value) for name, value in point.items()} for point in flat]
    assert all(float(row[row["x"]]) > 0 and float(row[row["y"]]) > 0 for row in rows)
    assert {"seconds", "local_peak_bytes", "strategy", "fits"} <= rows[0].keys()


def test_a_figure_on_the_command_line(tmp_path: Path) -> None:
    assert "Figure 5: Double over remote_chunk_size" in run("paper", "--figure", "5").stdout
    file = tmp_path / "figure.csv"
    run("paper", "--figure", "5", "--format", "csv", "-o", str(file))
    assert file.read_text().startswith("figure,panel,series,x,y,strategy,steps,")
    done = run(
        "paper", "--figure", "5", "--pictures", str(tmp_path), "--picture-format", "svg", "--format", "json"
    )
    assert json.loads(done.stdout)["kind"] == "ckptplan.paper_figure"
    assert [path.name for path in tmp_path.glob("*.svg")] == ["paper-figure-5.svg"]


def test_a_page_on_standard_output_refers_to_the_pictures() -> None:
    assert "](pictures/paper-figure-2.png)" in run("paper", "--markdown", "-").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--figure", "7"], ["--figure", "'7'", "accepted: a whole number from 2 to 5"]),
        (["--figure", "two"], ["--figure", "'two'", "accepted: a whole number from 2 to 5"]),
        (["--figure", "2", "--markdown", "page"], ["--markdown", "all figures", "leave out --figure"]),
        (["--format", "xml"], ["--format", "xml", "table"]),
        (["--picture-format", "gif", "--pictures", "."], ["--picture-format", "gif", "png"]),
        (["--pictures", ""], ["--pictures", "empty name"]),
        (["--pictures", "{file}"], ["--pictures", "cannot be a folder", "accepted: a folder"]),
        (["--markdown", "{file}/page"], ["cannot be written"]),
        (["--markdown", "page", "-o", "page"], ["--output", "is also what --markdown writes"]),
    ],
)
def test_mistakes_are_reported(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.write_text("")
    done = run("paper", *(argument.format(file=file) for argument in arguments))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
