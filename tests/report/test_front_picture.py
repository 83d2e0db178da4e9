"""Pictures of fronts are legible for any job in any size: measured on the drawn figure."""

from __future__ import annotations

from typing import Any

import pytest

from ckptplan.report.front import draw_front
from ckptplan.report.style import SIZES, styled
from tests.report.jobs import front_of, jobs
from tests.report.measured import assert_legible, texts_of

#: It draws every picture, and measures where each text stands.
pytestmark = pytest.mark.slow

#: Every job in the narrowest size; some in the others.
CASES = [
    *((name, "column") for name in jobs()),
    *((name, "page") for name in ("ours", "LSTM on a Jetson", "SHD on an A100", "every strategy")),
    *((name, "slide") for name in ("ours", "T = 10^6")),
]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_a_front_is_legible_and_says_what_is_seen(name: str, size: str) -> None:
    with styled(SIZES[size]):
        figure = draw_front(front_of(name), SIZES[size])
        assert_legible(figure, points=SIZES[size].points)
        names_job(figure, name)
        names_curves_once(figure, name)
        shows_what_matters(figure, name)


def names_job(figure: Any, name: str) -> None:
    """The title has the workload, the profile and T."""
    job = jobs()[name]
    title = figure._suptitle.get_text().replace("\n", "")
    assert job.workload.name in title
    assert f"on {job.profile.name}, T = {job.workload.steps:,}".replace(" ", "") in title.replace(" ", "")


def names_curves_once(figure: Any, name: str) -> None:
    """Each strategy that is best somewhere is named once, or as beyond the picture; the others are not."""
    words = [text.get_text() for text in texts_of(figure)]
    front = front_of(name)
    for strategy in front.by_strategy:
        named = [word for word in words if word == strategy or word.startswith(f"{strategy} (from +")]
        assert len(named) == (len(front.places_of(strategy)) > 0)
    assert ("other strategies" in words) == any(not len(front.places_of(one)) for one in front.by_strategy)


def test_every_strategy_has_its_colour_if_wanted() -> None:
    with styled(SIZES["page"]):
        words = [text.get_text() for text in texts_of(draw_front(front_of("ours"), SIZES["page"], every=True))]
    assert set(front_of("ours").by_strategy) <= set(words)
    assert "other strategies" not in words


def shows_what_matters(figure: Any, name: str) -> None:
    """The picture has the best plan and the fastest, and not much that is slower."""
    front = front_of(name)
    axes = figure.axes[0]
    least, most = (end + front.resident_bytes for end in axes.get_xlim())
    assert least <= front.best.predicted.local_peak_bytes <= most
    assert least <= front.local_peak_bytes[-1] <= most
    assert front.best.predicted.overhead <= axes.get_ylim()[1] <= max(2.0, 3 * front.overhead[-1] + 2)


@pytest.mark.parametrize("name", ["ours", "SHD on an A100"])
def test_memory_is_marked_at_powers_of_two(name: str) -> None:
    with styled(SIZES["page"]):
        axes = draw_front(front_of(name), SIZES["page"]).axes[0]
    ticks = [float(tick) for tick in axes.get_xticks()]
    assert len(ticks) >= 4
    assert all(tick.hex().startswith("0x1.0000000000000p") for tick in ticks)
