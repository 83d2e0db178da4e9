"""The content of the figures: points that the model gives, curves that end where nothing fits."""

import pytest

from ckptplan.paper.figures import FIGURES, MODEL_SIZE_STEPS, PaperFigure, Series, two_level_setting
from ckptplan.paper.setting import load_paper_setting
from ckptplan.strategies.registry import closed_form_of

PAPER = load_paper_setting()
DRAWN = {number: make(PAPER) for number, make in FIGURES.items()}


def curves(content: PaperFigure, panel: str) -> dict[str, Series]:
    [chosen] = [one for one in content.panels if one.name == panel]
    return {series.label: series for series in chosen.series}


@pytest.mark.parametrize("number", FIGURES)
def test_points_are_what_the_strategies_cost(number: int) -> None:
    for panel in DRAWN[number].panels:
        for series in panel.series:
            for point in (series.points[0], series.points[-1]):
                cost = closed_form_of(point.strategy).cost(point.parameters, costs=point.setting.costs)
                assert (point.seconds, point.local_peak_bytes) == (cost.seconds[0], cost.local_peak_bytes[0])
                assert point.fits == (point.local_peak_bytes <= panel.budget_bytes)


@pytest.mark.parametrize("number", [2, 3])
def test_curves_over_length_and_size_end_where_nothing_fits(number: int) -> None:
    for panel in DRAWN[number].panels:
        for series in panel.series:
            assert all(point.fits for point in series.points)
            last = series.points[-1]
            one_more = last.setting.replace(
                steps=last.setting.workload.steps + (panel.x == "steps"),
                neurons=last.setting.neurons + (panel.x != "steps"),
            ).evaluate(last.strategy, last.parameters)
            assert not one_more.fits


def test_figure_2_ends_at_the_largest_lengths() -> None:
    ends = {
        label: series.points[-1].setting.workload.steps for label, series in curves(DRAWN[2], "left").items()
    }
    assert ends["Base"] == 400
    for strategy in ("standard", "remote", "hierarchical"):
        assert ends[strategy.capitalize()] == PAPER.find_largest_steps(strategy)
    assert 4200 < ends["Double"] < PAPER.find_largest_steps("double")


def test_figure_3_has_the_papers_configurations() -> None:
    first = [panel.series[0].points[0] for panel in DRAWN[3].panels]
    assert [(point.setting.workload.steps, point.setting.workload.batch) for point in first] == [
        (128, 120),
        (500, 60),
        (900, 60),
    ]
    assert two_level_setting(MODEL_SIZE_STEPS) == {"chunk_size": 4, "remote_chunk_size": 16}


def test_figure_4_says_which_settings_exceed_the_memory() -> None:
    double = curves(DRAWN[4], "bottom left")
    assert set(double) == {"Standard", "Remote", *(f"remote_chunk_size = {n} chunks" for n in (2, 4, 16))}
    assert not any(point.fits for point in double["Standard"].points)
    assert {point.fits for point in double["remote_chunk_size = 16 chunks"].points} == {True, False}
    assert "room for 31 states" in DRAWN[4].caption


def test_figure_5_the_square_root_needs_least_memory() -> None:
    memory = curves(DRAWN[5], "left")
    root = {
        one.parameters["remote_chunk_size"]: one.local_peak_bytes
        for one in memory["chunk_size = square root"].points
    }
    for series in memory.values():
        for point in series.points:
            assert root[point.parameters["remote_chunk_size"]] <= point.local_peak_bytes
