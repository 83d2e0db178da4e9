"""Pictures are legible for any job in any size, and say what is seen: measured on what is drawn."""

from __future__ import annotations

import numpy as np
import pytest

import ckptplan
from ckptplan.report import gantt, sensitivity
from ckptplan.report.charts import Scale
from ckptplan.report.front import draw_front
from ckptplan.report.gantt import Gantt
from ckptplan.report.machines import draw_machines
from ckptplan.report.picture import Picture
from ckptplan.report.sensitivity import draw_tornado
from ckptplan.report.style import SIZES
from ckptplan.report.sweep import draw_sweep
from ckptplan.studies.machines import MachineComparison
from tests.report.jobs import front_of, jobs, plan_of, study_of
from tests.report.measured import assert_legible, words_of
from tests.report.test_sweep import SWEEPS, collected

#: It draws every picture, and measures where each text stands.
pytestmark = pytest.mark.slow


def check_job(words: list[str], name: str) -> None:
    """The title has the workload, the profile and T, also where a long name is broken."""
    job = jobs()[name]
    told = f"{job.workload.name} on {job.profile.name}, T = {job.workload.steps:,}"
    assert told.replace(" ", "") in "".join(words).replace(" ", "")


@pytest.mark.parametrize(
    ("name", "size"),
    [
        # Every job in the narrowest size; some in the others.
        *((name, "column") for name in jobs()),
        *((name, "page") for name in ("ours", "LSTM on a Jetson", "SHD on an A100", "every strategy")),
        *((name, "slide") for name in ("ours", "T = 10^6")),
    ],
)
def test_a_front_names_curves_once_and_shows_what_matters(name: str, size: str) -> None:
    """A strategy that is best somewhere has a name, or is named as beyond the picture; the others have none.

    The picture has the best plan and the fastest, and not much that is slower.
    """
    front = front_of(name)
    picture = draw_front(front, SIZES[size])
    assert_legible(picture)
    words = words_of(picture)
    check_job(words, name)
    for strategy in front.by_strategy:
        named = [word for word in words if word == strategy or word.startswith(f"{strategy} (from +")]
        assert len(named) == (len(front.places_of(strategy)) > 0)
    assert ("other strategies" in words) == any(not len(front.places_of(one)) for one in front.by_strategy)
    [[plot]] = picture.rows
    assert isinstance(plot.y, Scale)
    least, most = (end + front.resident_bytes for end in (plot.x.low, plot.x.high))
    assert least <= front.best.predicted.local_peak_bytes <= most
    assert least <= front.local_peak_bytes[-1] <= most
    assert front.best.predicted.overhead <= plot.y.high <= max(2.0, 3 * front.overhead[-1] + 2)


def test_every_strategy_has_its_colour_if_wanted() -> None:
    words = words_of(draw_front(front_of("ours"), every=True))
    assert set(front_of("ours").by_strategy) <= set(words)
    assert "other strategies" not in words


@pytest.mark.parametrize("name", ["ours", "SHD on an A100"])
def test_memory_is_marked_at_powers_of_two(name: str) -> None:
    [[plot]] = draw_front(front_of(name)).rows
    assert len(plot.x.ticks) >= 4
    assert all(float(tick).hex().startswith("0x1.0000000000000p") for tick in plot.x.ticks)


def timeline(name: str, strategy: str | None, size: str) -> Picture:
    plan = plan_of(name, strategy)
    picture = Gantt(plan)
    ckptplan.simulate(plan, sink=picture.add)
    return picture.draw(SIZES[size])


@pytest.mark.parametrize(
    ("name", "strategy", "size"),
    [
        ("ours", None, "column"),
        ("LSTM on a Jetson", None, "column"),
        ("SHD on an A100", "double", "column"),
        ("T = 64", "hierarchical", "column"),
        ("T = 10^6", "double", "column"),
        ("a long name", "double", "page"),
        ("T = 64", "remote", "slide"),
    ],
)
def test_a_timeline_names_its_plan(name: str, strategy: str | None, size: str) -> None:
    picture = timeline(name, strategy, size)
    assert_legible(picture)
    words = words_of(picture)
    check_job(words, name)
    assert plan_of(name, strategy).strategy in " ".join(words)


def test_memory_is_drawn_from_what_stays_at_steps_of_a_power_of_two() -> None:
    _, [memory], *_ = timeline("ours", None, "page").rows
    assert "local beside 594.9 KiB" in memory.title
    assert isinstance(memory.y, Scale)
    assert list(memory.y.ticks.values()) == ["0 B", "8 KiB", "16 KiB", "24 KiB"]
    assert memory.y.low == next(iter(memory.y.ticks))


def test_many_actions_are_drawn_together() -> None:
    """Else a picture of a long schedule would have a shape for each action."""
    [steps], [local], *_ = timeline("T = 10^6", "double", "column").rows
    detail = gantt._DETAIL
    assert sum(len(one.rows) for one in steps.marks) <= detail.bars + 4 * gantt._SHAPES
    assert all(len(one.rows) <= 8 * detail.intervals for one in local.marks)


NAMES = ("ipu-mk2", "ipu-mk1", "nvidia-h200", "raspberry-pi-5", "nvidia-jetson-orin-nano", "cpu-nvme")


def compared(*names: str, batches: int = 1, deadline: float | None = None) -> MachineComparison:
    workload = ckptplan.load_workload("paper-snn").with_steps(2048)
    profiles = [ckptplan.load_profile(name) for name in names]
    return ckptplan.compare_machines(
        workload, profiles, strategies=["base", "standard"], batches=batches, deadline=deadline
    )


MACHINES = {
    "many": compared(*NAMES, batches=10_000, deadline=43_200.0),
    "one": compared("ipu-mk2"),
    "nothing fits": compared("ipu-mk1"),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", MACHINES)
def test_every_machine_has_its_time_and_its_longest_sequence(case: str, size: str) -> None:
    comparison = MACHINES[case]
    picture = draw_machines(comparison, SIZES[size])
    assert_legible(picture)
    words = words_of(picture)
    for machine in comparison.machines:
        assert machine.profile.name in words
        assert (f"{machine.largest_steps:,}" if machine.largest_steps else "none") in words
        estimated = machine.interval is not None
        assert machine.run_seconds is None or any(word.startswith("~") for word in words) or not estimated
    if case == "many":
        assert {"does not fit", "time not known", "deadline 12 h"} <= set(words)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, "column") for name in ("ours", "LSTM on a Jetson", "SHD on an A100", "T = 64", "a long name")),
        *((name, "page") for name in ("ours", "a trifle beside what stays")),
        ("ours", "slide"),
    ],
)
def test_a_tornado_names_every_input_that_has_an_effect(name: str, size: str) -> None:
    study = study_of(name)
    picture = draw_tornado(study, SIZES[size])
    assert_legible(picture)
    words = words_of(picture)
    check_job(words, name)
    for influence in study.influences:
        assert (influence.name in " ".join(words)) == (influence.no_effect is None)


def test_half_and_twice_differ_in_hue_and_in_grey() -> None:
    half, twice = (
        [int(sensitivity.COLOURS[factor][place : place + 2], 16) / 255 for place in (1, 3, 5)]
        for factor in (0.5, 2.0)
    )
    grey = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (half, twice)]
    assert abs(grey[0] - grey[1]) > 0.25
    assert half[0] > half[2]
    assert twice[2] > twice[0]


@pytest.mark.parametrize(
    ("name", "size"), [*((name, "column") for name in SWEEPS), ("three machines", "slide"), ("map", "slide")]
)
def test_a_sweep_names_the_best_strategies(name: str, size: str) -> None:
    over, wishes = SWEEPS[name]
    sweep = collected(over, **wishes)
    picture = draw_sweep(sweep, SIZES[size])
    assert_legible(picture)
    words = "\n".join(words_of(picture))
    for plane in sweep.planes():
        for best in np.unique(plane.best).tolist():
            assert ("nothing fits" if best < 0 else sweep.names[best]) in words
        assert plane.name in words.replace("\n", "")
    for axis in sweep.sweep.grid.axes:
        assert axis.name in words


def test_a_map_of_many_points_has_as_many_cells_as_can_be_told_apart() -> None:
    [[plot]] = draw_sweep(collected(["T=64:256:+64", "batch=1:1000:+1"])).rows
    assert sum(len(one.rows) for one in plot.marks if one.kind == "cell") == 4 * 250
