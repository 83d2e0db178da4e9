"""``ckptplan paper``: figures as data, the page of the documents, and pictures.

The claims in each format are in tests/golden, lines that are refused in test_refusals.py.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.support import run

ROOT = Path(__file__).parent.parent.parent
FIGURES = (2, 3, 4, 5)


def test_page_and_pictures_in_the_documents_are_current(tmp_path: Path) -> None:
    """Pixels differ between versions of fonts: numbers of the pictures are in the page's tests."""
    done = run("paper", "--markdown", "-", "--pictures", "pictures", cwd=tmp_path)
    assert done.returncode == 0
    how = "write it again: ckptplan paper --markdown docs/paper.md --pictures docs/pictures"
    assert done.stdout == (ROOT / "docs/paper.md").read_text(), how
    names = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert names == [f"paper-figure-{number}.png" for number in FIGURES]
    for name in names:
        assert f"](pictures/{name})" in done.stdout
        assert (ROOT / "docs/pictures" / name).stat().st_size < 250_000


def _cell(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("number", FIGURES)
def test_a_figure_has_the_same_points_in_json_csv_and_its_table(number: int, tmp_path: Path) -> None:
    """With ``--pictures`` the figure alone is drawn."""
    line = ("paper", "--figure", str(number))
    drawn = ("--pictures", ".", "--picture-format", "svg", "--format", "json")
    document = json.loads(run(*line, *drawn, cwd=tmp_path).stdout)
    assert document["kind"] == "ckptplan.paper_figure"
    assert [path.name for path in tmp_path.iterdir()] == [f"paper-figure-{number}.svg"]
    flat = [
        {"figure": number, "panel": panel["panel"], "series": series["series"],
         "x": panel["x"], "y": panel["y"], **point}
        for panel in document["panels"] for series in panel["series"] for point in series["points"]
    ]  # fmt: skip
    assert run(*line, "--format", "csv", "-o", "figure.csv", cwd=tmp_path).returncode == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "figure.csv").read_text())))
    assert rows == [{name: _cell(value) for name, value in point.items()} for point in flat]
    assert all(float(row[row["x"]]) > 0 and float(row[row["y"]]) > 0 for row in rows)
    assert {"seconds", "local_peak_bytes", "strategy", "fits"} <= rows[0].keys()
    assert f"Figure {number}: " in run(*line).stdout
