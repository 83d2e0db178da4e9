"""Pictures of fronts and schedules, through the objects of matplotlib that ``plot`` draws."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from cycler import cycler
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

import ckptplan
from ckptplan.report.formats import find_memory
from ckptplan.report.picture import SIZES
from ckptplan.report.plots import figures, make_picture, style
from ckptplan.report.sketch import Detail, sketch_schedule
from ckptplan.schedule.timeline import Event
from ckptplan.units import format_bytes, format_percent
from tests.report.jobs import front_of, jobs, plan_of
from tests.report.measured import assert_legible, find_crossings, list_words
from tests.support import small_plan

PAPER = ("standard", "remote", "hierarchical", "double")
#: Every job in the narrowest size, and some of them in the others.
SOME = ("ours", "T = 64", "every strategy")
DRAWN = [*((name, "column") for name in jobs()), *((name, size) for name in SOME for size in ("page", "slide"))]


def check_title(figure: Figure, name: str) -> None:
    """The title has the workload, the profile and T, also where a long name is broken."""
    job = jobs()[name]
    told = f"{job.workload.name} on {job.profile.name}, T = {job.workload.steps:,} time steps"
    assert told.replace(" ", "") in "".join(list_words(figure)).replace(" ", "").replace("\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), DRAWN)
def test_a_front_shows_the_best_plan_the_budget_and_the_papers_strategies(name: str, size: str) -> None:
    front = front_of(name)
    figure = make_picture(front, SIZES[size])
    assert_legible(figure)
    check_title(figure, name)
    [ax], words, best = figure.axes, list_words(figure), front.best.predicted
    for label in ("best of all", *(one for one in PAPER if one in front.by_strategy)):
        assert words.count(label) == 1
    budget = format_bytes(front.budget_bytes, like=find_memory(front))
    assert any(budget in word for word in words if "budget" in word)
    [marker] = [word for word in words if word.startswith(f"{front.best.strategy}\n")]
    assert format_percent(best.overhead) in marker
    assert find_crossings(ax, marker) == []
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    assert left <= max(1, best.local_peak_bytes - front.resident_bytes) <= right
    assert bottom <= best.overhead <= top <= max(1.0, 1.5 * best.overhead)
    assert ax.get_xscale() == "log"
    resident = format_bytes(front.resident_bytes, like=find_memory(front))
    assert not front.resident_bytes or resident in ax.get_xlabel()


def test_labels_of_lines_touch_no_line() -> None:
    ax = front_of("ours").plot()
    assert_legible(style.find_figure(ax))
    for label in ("best of all", *PAPER):
        assert find_crossings(ax, label) == []


def test_every_strategy_has_a_label_if_wanted() -> None:
    assert set(front_of("ours").by_strategy) <= set(list_words(make_picture(front_of("ours"), every=True)))


def test_the_knee_is_marked_only_with_the_balanced_objective() -> None:
    job = jobs()["T = 64"]
    ask: Any = {"strategies": "closed", "local_bytes": "230 kB"}
    words = {
        objective: list_words(
            make_picture(ckptplan.pareto(job.workload, job.profile, objective=objective, **ask))
        )
        for objective in ("time", "balanced")
    }
    assert not [word for word in words["time"] if "knee" in word]
    assert [word for word in words["balanced"] if word.startswith("knee: ")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strategy", "size"),
    [
        *((name, None, "column") for name in ("ours", "LSTM on a Jetson", "every strategy")),
        *((name, "double", "page") for name in ("SHD on an A100", "T = 10^6", "a long name", "every strategy")),
        *(("T = 64", strategy, "slide") for strategy in ("hierarchical", "remote")),
    ],
)
def test_a_schedule_names_its_plan(name: str, strategy: str | None, size: str) -> None:
    plan = plan_of(name, strategy)
    figure = make_picture(plan, SIZES[size])
    assert_legible(figure)
    check_title(figure, name)
    assert plan.strategy in "".join(list_words(figure))
    steps, *memories = figure.axes
    assert steps.get_ylim()[0] > plan.steps > 0 >= steps.get_ylim()[1]
    assert len(memories) == (2 if plan.predicted.remote_peak_bytes else 1)
    peaks = (plan.predicted.local_peak_bytes, plan.predicted.remote_peak_bytes)
    for ax, peak in zip(memories, peaks, strict=False):
        assert f"peak {format_bytes(peak, like=find_memory(plan))}" in ax.get_title(loc="left")


def test_the_legend_of_a_schedule_has_what_happens() -> None:
    steps = {
        strategy: small_plan(strategy, local_bytes=size).plot().axes[0]
        for strategy, size in (("base", "300 kB"), ("double", "230 kB"))
    }
    labels = {name: set(ax.get_legend_handles_labels()[1]) for name, ax in steps.items()}
    assert labels["base"] == {"run with tape", "backward"}
    assert labels["double"] == {"first run", "run again", "run with tape", "backward", "write", "read"}


@pytest.mark.parametrize("detail", [Detail(), Detail(bars=5, intervals=7)], ids=["each", "merged"])
@pytest.mark.parametrize("strategy", ["double", "hierarchical", "remote", "revolve"])
def test_a_sketch_keeps_ends_peaks_and_every_step_that_ran(strategy: str, detail: Detail) -> None:
    plan = small_plan(strategy)
    events: list[Event] = []
    trace = ckptplan.simulate(plan, sink=events.append)
    sketch = sketch_schedule(plan, detail=detail)
    assert sketch.seconds == pytest.approx(trace.seconds)
    assert sketch.actions == trace.actions
    assert sketch.memory[:, 1].max() == trace.local_peak_bytes
    assert sketch.memory[:, 2].max() == max(event.remote_bytes for event in events)
    reversed_steps = np.zeros(plan.steps, dtype=bool)
    for _, _, first, last in sketch.bars["backward"]:
        reversed_steps[int(min(first, last)) : int(max(first, last))] = True
    assert reversed_steps.all()
    if detail.bars == 5:
        assert sketch.interval is not None
        assert sum(map(len, sketch.bars.values())) <= 10 * detail.intervals
        assert len(sketch.memory) <= 8 * detail.intervals


def test_local_memory_rises_and_falls_with_the_tapes() -> None:
    plan = small_plan("base", local_bytes="300 kB")
    trace, memory = ckptplan.simulate(plan), sketch_schedule(plan, detail=Detail()).memory
    assert memory[:, 1].tolist() == [222_144] * 2 + [trace.local_peak_bytes] * 2 + [222_144]
    assert memory[:, 0] / trace.seconds == pytest.approx([0, 0, 0.5, 0.5, 1])


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_drawn_twice_is_the_same_file(suffix: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.{suffix}" for name in ("first", "second")]
    for file in files:
        figures.save_figure(make_picture(small_plan("remote")), str(file))
    assert files[0].read_bytes() == files[1].read_bytes()


def test_results_draw_on_the_axes_and_figures_of_the_caller_and_leave_settings_alone() -> None:
    before = dict(mpl.rcParams)
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    assert front_of("T = 64").plot(ax=left) is left
    assert front_of("T = 64").plot(right) is right
    assert left.lines
    assert left.get_title(loc="left") == right.get_title(loc="left")
    inner = Figure(layout="constrained")
    assert small_plan().plot(figure=inner) is inner
    parts: Any = Figure().subfigures(1, 2)
    study = ckptplan.sensitivity(jobs()["T = 64"].workload, jobs()["T = 64"].profile)
    for part, result in zip(parts, (small_plan(), study), strict=True):
        assert result.plot(figure=part) is part
        assert part.axes
    assert len(inner.axes) == 3
    assert front_of("T = 64").plot().figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[union-attr]
    assert dict(mpl.rcParams) == before
    assert pytest.importorskip("matplotlib.pyplot").get_fignums() == []


def test_settings_of_the_user_win() -> None:
    with mpl.rc_context(
        {"axes.grid": True, "axes.titleweight": "light", "axes.prop_cycle": cycler(color=["c"])}
    ):
        ax = front_of("T = 64").plot()
    assert ax._left_title.get_fontweight() == "light"  # type: ignore[attr-defined]
    assert to_rgb("c") in {to_rgb(line.get_color()) for line in ax.lines}


def test_kinds_of_actions_can_be_told_apart_in_all_common_kinds_of_colour_vision() -> None:
    """Distances in linear RGB after a simulation of protanopia and deuteranopia (Machado et al. 2009)."""
    colours = np.array(
        [to_rgb(one) for one in (style.GREEN, style.SKY, style.BLUE, style.VERMILION, style.PURPLE)]
    )
    protanopia = np.array(((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)))
    deuteranopia = np.array(((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)))
    for vision in (np.eye(3), protanopia, deuteranopia):
        for one, other in combinations(colours**2.2 @ vision.T, 2):
            assert np.abs(one - other).max() > 0.1
