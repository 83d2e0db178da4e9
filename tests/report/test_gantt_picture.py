"""Timelines are legible for any job in any size, and many actions are no long wait: measured on the figure."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

import ckptplan
from ckptplan.report import gantt
from ckptplan.report.gantt import Gantt
from ckptplan.report.style import SIZES, styled
from tests.report.jobs import plan_of
from tests.report.measured import assert_legible, texts_of

#: It draws every picture, and measures where each text stands.
pytestmark = pytest.mark.slow

CASES = [
    ("ours", None, "column"),
    ("LSTM on a Jetson", None, "column"),
    ("SHD on an A100", "double", "column"),
    ("T = 64", "hierarchical", "column"),
    ("T = 10^6", "double", "column"),
    ("a long name", "double", "page"),
    ("T = 64", "remote", "slide"),
]


def drawn(name: str, strategy: str | None, size: str) -> Figure:
    plan = plan_of(name, strategy)
    picture = Gantt(plan)
    ckptplan.simulate(plan, sink=picture.add)
    return picture.draw(SIZES[size])


@pytest.mark.parametrize(("name", "strategy", "size"), CASES)
def test_a_timeline_is_legible_and_names_its_plan(name: str, strategy: str | None, size: str) -> None:
    plan = plan_of(name, strategy)
    with styled(SIZES[size]):
        figure = drawn(name, strategy, size)
        assert_legible(figure, points=SIZES[size].points)
        words = " ".join(text.get_text() for text in texts_of(figure)).replace("\n", " ")
    assert plan.workload.name in words.replace(" ", "")
    assert f"{plan.profile.name}, T = {plan.steps:,}" in words
    assert plan.strategy in words


def test_memory_is_drawn_from_what_stays_at_steps_of_a_power_of_two() -> None:
    with styled(SIZES["page"]):
        axes = drawn("ours", None, "page").axes[1]
    resident = 594.9
    assert f"local beside {resident} KiB" in axes.get_title(loc="left")
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["0 B", "16 KiB"]
    assert axes.get_ylim()[0] == axes.get_yticks()[0]


def test_many_actions_are_dots_in_files_of_lines() -> None:
    """Else an SVG of a long schedule would have a shape for each action."""
    with styled(SIZES["column"]):
        figure = drawn("T = 10^6", "double", "column")
    steps, local, *_ = figure.axes
    assert all(bars.get_rasterized() for bars in steps.collections)
    assert np.asarray(local.lines[0].get_xydata()).shape[0] <= 4 * gantt._DETAIL.intervals
