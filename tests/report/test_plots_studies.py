"""Pictures of sweeps, machines, inputs and largest values: what is drawn, and that no text covers another."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

import ckptplan
from ckptplan import InputError
from ckptplan.report.picture import SIZES
from ckptplan.report.plots import make_picture
from ckptplan.studies.online import compare_online
from tests.report.jobs import JETSON, LSTM, jobs
from tests.report.measured import assert_legible, read_points

OURS = jobs()["ours"]
MACHINES = [
    ckptplan.load_profile(name) for name in ("ipu-mk2", "ipu-mk1", "nvidia-a100-80gb", "raspberry-pi-5")
]


def _sweep(*over: str, **wishes: Any) -> ckptplan.SweepResult:
    return ckptplan.sweep(over, **{"workloads": OURS.workload, "profiles": OURS.profile, **wishes})


@cache
def _compare(**wishes: Any) -> ckptplan.MachineComparison:
    workload = OURS.workload.with_steps(2048)
    return ckptplan.compare_machines(workload, MACHINES, strategies=["base", "standard"], **wishes)


@cache
def _vary(name: str) -> ckptplan.Sensitivity:
    return ckptplan.sensitivity(jobs()[name].workload, jobs()[name].profile)


#: Results unlike each other, of which every picture must be legible.
RESULTS: dict[str, Callable[[], Any]] = {
    "lengths": lambda: _sweep("T=64:65536:x2"),
    "three machines": lambda: _sweep("local-bytes=600KiB:1MiB:n9", profiles=MACHINES[:3]),
    "unbounded, no number": lambda: _sweep("remote-bytes=1MiB,1GiB,unbounded"),
    "nothing fits": lambda: _sweep("T=1000000,2000000"),
    "least memory": lambda: _sweep("T=256:4096:x2", objective="memory"),
    "another job": lambda: _sweep("T=100:20000:x3", workloads=LSTM, profiles=JETSON),
    "map": lambda: _sweep("bandwidth=5GB/s:80GB/s:n5", "local-bytes=300KiB:1MiB:n12"),
    "maps of three machines": lambda: _sweep("T=256:8192:x4", "batch=30,60,120", profiles=MACHINES[:3]),
    "machines": _compare,
    "machines with a deadline": lambda: _compare(batches=10_000, deadline="12 h", prices=2.5),
    "inputs": lambda: _vary("ours"),
    "inputs of a long name": lambda: _vary("a long name"),
    "largest T": lambda: ckptplan.largest("T", OURS.workload, OURS.profile, max_overhead="50%"),
    "largest batch": lambda: ckptplan.largest("batch", OURS.workload, OURS.profile, local_bytes="300 KiB"),
    "unknown T": lambda: compare_online(slots=5, first=10, last=400),
}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, "column") for name in RESULTS),
        *((name, "page") for name in ("map", "inputs", "machines with a deadline")),
        *((name, "slide") for name in ("three machines", "maps of three machines", "inputs", "largest T")),
    ],
)
def test_texts_lie_within_the_picture_and_do_not_overlap(name: str, size: str) -> None:
    assert_legible(make_picture(RESULTS[name](), SIZES[size]))


def test_a_line_of_a_sweep_shows_time_over_base_and_hatches_where_nothing_fits() -> None:
    result = _sweep("T=64:65536:x2")
    ax: Any = result.plot()
    rows = list(result)
    expected = [row["overhead"] if row["fits"] else math.nan for row in rows]
    np.testing.assert_array_equal(
        read_points(ax.lines[0]), list(zip([row["steps"] for row in rows], expected, strict=True))
    )
    assert ax.get_xscale() == "log"
    [hatched] = [patch for patch in ax.patches if patch.get_hatch()]
    nowhere = [row["steps"] for row in rows if not row["fits"]]
    assert 0.5 * nowhere[0] < hatched.get_extents().transformed(ax.transData.inverted()).x0 < nowhere[0]
    words = {text.get_text() for text in ax.texts} | {"nothing fits"}
    assert {row["strategy"] or "nothing fits" for row in rows} == words
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["nothing fits"]


def test_rows_are_yielded_once_before_and_after_the_picture() -> None:
    result, ax = _sweep("T=64,128,256"), Figure().add_subplot(1, 2, 2)
    first = next(result)
    assert result.plot(ax) is ax
    assert [row["steps"] for row in (first, *result)] == [64, 128, 256]
    assert list(result) == []


def test_a_map_has_the_first_axis_upwards_and_no_value_where_nothing_fits() -> None:
    ax: Any = _sweep("T=4096,8192", "batch=30,60,120").plot()
    [mesh] = [child for child in ax.get_children() if isinstance(child, QuadMesh)]
    shown: Any = mesh.get_array()
    assert np.ma.getmaskarray(shown).tolist() == [[False, False, False], [False, False, True]]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["30", "60", "120"]
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("T", "batch")
    assert ax.figure.axes[1].get_ylabel() == "time over plain backpropagation"


def test_several_maps_are_panels_of_one_figure_and_not_of_one_pair_of_axes() -> None:
    over = ("T=256,1024", "batch=30,60")
    ax = _sweep(*over, profiles=MACHINES[:2]).plot()
    assert [one.get_title(loc="left") for one in ax.figure.axes[:2]] == ["ipu-mk2", "ipu-mk1"]
    with pytest.raises(InputError, match=r"ax: the sweep has 2 maps.*no ax, which makes a figure of all maps"):
        _sweep(*over, profiles=MACHINES[:2]).plot(Figure().add_subplot())


@pytest.mark.parametrize(
    ("over", "words"),
    [
        (["T=64", "batch=30"], "shows one axis or two, and 0 vary"),
        (["T=64,128", "batch=30,60", "latency=0,1us"], "shows one axis or two, and 3 vary"),
        (["T=1:1000001:+1"], "shows up to 1,000,000 points, and the sweep has 1,000,001"),
    ],
)
def test_a_sweep_that_no_picture_shows_is_refused_before_it_is_planned(over: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        _sweep(*over).plot()


def test_machines_have_a_row_each_the_quickest_on_top() -> None:
    comparison = _compare(batches=10_000, deadline="12 h", prices=2.5)
    axes = Figure().add_subplot()
    ax = comparison.plot(ax=axes)
    assert ax is axes
    assert ax.get_xscale() == "log"
    names = [label.get_text().partition("\n")[0] for label in ax.get_yticklabels()]
    assert names == [machine.profile.name for machine in comparison.machines]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    dots = [tuple(read_points(line)[0]) for line in ax.lines if line.get_marker() == "o"]
    timed = [machine for machine in comparison.machines if machine.run_seconds]
    assert dots == [(machine.run_seconds, row) for row, machine in enumerate(timed)]
    words = [text.get_text() for text in ax.texts]
    assert {"does not fit", "deadline: 12 h"} <= set(words)
    assert [43_200.0, 43_200.0] in [[x for x, _ in read_points(line)] for line in ax.lines]


def test_inputs_have_a_panel_each_with_the_best_plan_and_the_plan_of_now() -> None:
    study = _vary("ours")
    panels = {ax.get_title(loc="left").partition("\n")[0]: ax for ax in study.plot().axes if ax.lines}
    for influence in study.influences:
        changes = [point.change for point in influence.points if point.change is not None]
        if max(map(abs, changes), default=0) >= 0.0005:
            (_, again, kept, *_) = panels[influence.name].lines
            assert len(read_points(again)) == len(read_points(kept)) == 1 + len(influence.points)
            assert {round(change, 9) for change in changes} <= {round(y, 9) for _, y in read_points(again)}
            assert kept.get_linestyle() == "--"
        assert influence.no_effect is None or influence.name not in panels


def test_largest_values_are_a_mapping_with_a_dot_for_each_strategy_that_fits() -> None:
    values = ckptplan.largest("T", OURS.workload, OURS.profile, strategies=["base", "double"])
    assert values == dict(values.items())
    assert (list(values), len(values), "base" in values) == (["double", "base"], 2, True)
    ax = values.plot()
    dots = [read_points(line)[0][0] for line in ax.lines if line.get_marker() == "o"]
    assert dots == [reach.value for reach in values.values()]
    assert "400 (local memory)" in [text.get_text() for text in ax.texts]
