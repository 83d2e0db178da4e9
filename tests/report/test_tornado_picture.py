"""Tornados are legible for any job in any size: measured on the drawn figure."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_rgb

from ckptplan.report import sensitivity
from ckptplan.report.sensitivity import draw_tornado
from ckptplan.report.style import SIZES, styled
from tests.report.jobs import jobs, study_of
from tests.report.measured import assert_legible, texts_of

#: It draws every picture, and measures where each text stands.
pytestmark = pytest.mark.slow

CASES = [
    *((name, "column") for name in ("ours", "LSTM on a Jetson", "SHD on an A100", "T = 64", "a long name")),
    *((name, "page") for name in ("ours", "a trifle beside what stays")),
    ("ours", "slide"),
]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_a_tornado_is_legible_and_names_every_input_that_has_an_effect(name: str, size: str) -> None:
    study = study_of(name)
    with styled(SIZES[size]):
        figure = draw_tornado(study, SIZES[size])
        assert_legible(figure, points=SIZES[size].points)
        words = "\n".join(text.get_text() for text in texts_of(figure)).replace("\n", " ")
    job = jobs()[name]
    assert job.workload.name in words.replace(" ", "")
    assert f"{job.profile.name}, T = {job.workload.steps:,}" in words
    for influence in study.influences:
        assert (influence.name in words) == (influence.no_effect is None)


def test_half_and_twice_differ_in_hue_and_in_grey() -> None:
    half, twice = (to_rgb(sensitivity.COLOURS[factor]) for factor in (0.5, 2.0))
    grey = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (half, twice)]
    assert abs(grey[0] - grey[1]) > 0.25
    assert half[0] > half[2]
    assert twice[2] > twice[0]
