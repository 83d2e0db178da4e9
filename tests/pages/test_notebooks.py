"""Notebooks: a result is shown as a table, and those of the docs run as they are kept."""

import pickle
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import ckptplan
from tests.support import small_plan

FOLDER = Path(__file__).parents[2] / "docs/notebooks"
WORKLOAD = ckptplan.load_workload("paper-snn").with_steps(64)
IPU, H200 = ckptplan.load_profile("ipu-mk2"), ckptplan.load_profile("nvidia-h200")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (small_plan(), "chunk_size"),
        (ckptplan.pareto(WORKLOAD, IPU, strategies="base,standard"), "best within 624 KiB"),
        (ckptplan.compare(WORKLOAD, IPU, strategies="base,standard"), "base"),
        (ckptplan.compare_machines(WORKLOAD, [IPU, H200]), "nvidia-h200"),
    ],
    ids=["plan", "front", "strategies", "machines"],
)
def test_a_result_is_a_table(result: Any, words: str) -> None:
    assert words in result._repr_html_()


def test_what_is_compared_is_a_dictionary_that_can_be_copied() -> None:
    compared = ckptplan.compare(WORKLOAD, IPU, strategies="base,standard")
    copy = pickle.loads(pickle.dumps(compared))  # noqa: S301 - our own
    assert list(copy) == list(compared)
    assert copy["standard"] == compared["standard"]
    assert copy.case == compared.case


def list_kinds(cell: Any) -> list[list[str]]:
    """What each result of a cell is shown as; printed lines may come in pieces."""
    return [sorted(one.data) for one in cell.outputs if "data" in one]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_notebooks_run_and_print_what_they_hold(path: Path) -> None:
    """Numbers aside that depend on the machine."""
    assert path.stat().st_size < 300_000
    kept = nbformat.reads(path.read_text(), as_version=4)  # type: ignore[no-untyped-call]
    book = nbformat.reads(path.read_text(), as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(book, timeout=600, startup_timeout=600, kernel_name="python3").execute()
    for cell, old in zip(book.cells, kept.cells, strict=True):
        if cell.cell_type == "code":
            assert list_kinds(cell) == list_kinds(old)
