"""The pictures of the paper's figures: what is written on them, and that they are small."""

from pathlib import Path

import pytest

from ckptplan.paper.figures import FIGURES
from ckptplan.paper.pictures import draw_figure
from ckptplan.paper.setting import load_paper_setting
from ckptplan.report.style import SIZES
from tests.report.measured import assert_legible, words_of

PAPER = load_paper_setting()


def drawn(number: int, path: Path) -> bytes:
    draw_figure(FIGURES[number](PAPER)).save(str(path))
    return path.read_bytes()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (2, ["time a batch (ms)", "peak local memory (KiB)", "neurons a tile", "Hierarchical", "624 KiB"]),
        (3, ["T = 128, batch 120", "T = 500, batch 60", "T = 900, batch 60", "Base", "Double"]),
        (
            4,
            [
                "Hierarchical: memory",
                "Double: time",
                "nb_local 32",
                "chunk_size (steps)",
                "hollow: over 624 KiB",
            ],
        ),
        (5, ["remote_chunk_size (steps)", "chunk_size = square root", "hollow: over 624 KiB"]),
    ],
)
def test_a_picture_says_what_is_seen(number: int, words: list[str], tmp_path: Path) -> None:
    text = drawn(number, tmp_path / "p.svg").decode()
    for word in words:
        assert word in text


@pytest.mark.parametrize(("number", "size"), [(2, "column"), (4, "column"), (5, "slide")])
def test_a_picture_is_legible_at_its_size_and_names_every_curve(number: int, size: str) -> None:
    content = FIGURES[number](PAPER)
    picture = draw_figure(content, SIZES[size])
    assert_legible(picture)
    words = words_of(picture)
    for panel in content.panels:
        for series in panel.series:
            assert series.label in words


def test_a_png_is_small_and_the_same_twice(tmp_path: Path) -> None:
    one = drawn(5, tmp_path / "one.png")
    assert one.startswith(b"\x89PNG")
    assert len(one) < 250_000
    assert one == drawn(5, tmp_path / "two.png")
