"""What pictures and pages of sweeps collect, over one axis and two, of one job and several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ckptplan
from ckptplan import InputError
from ckptplan.report.sweep import SweepPicture
from ckptplan.studies.sweep import iterate_rows, make_sweep
from tests.report.jobs import JETSON, LSTM, jobs

OURS = jobs()["ours"]
MACHINES = [OURS.profile, ckptplan.load_profile("ipu-mk1"), ckptplan.load_profile("nvidia-a100-80gb")]


def collected(over: list[str], **wishes: Any) -> SweepPicture:
    given = {"workloads": OURS.workload, "profiles": OURS.profile, **wishes}
    sweep = make_sweep(over, **given)
    picture = SweepPicture(sweep)
    for rows in iterate_rows(sweep):
        picture.add(rows)
    return picture


SWEEPS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "lengths": (["T=64:65536:x2"], {}),
    "three machines": (["local-bytes=600KiB:1MiB:n9"], {"profiles": MACHINES}),
    "unbounded is no number": (["remote-bytes=1MiB,1GiB,unbounded"], {}),
    "nothing fits": (["T=1000000,2000000"], {}),
    "least memory": (["T=256:4096:x2"], {"objective": "memory"}),
    "much time": (["local-bytes=595KiB:700KiB:n12"], {}),
    "another job": (["T=100:20000:x3"], {"workloads": LSTM, "profiles": JETSON}),
    "map": (["bandwidth=5GB/s:80GB/s:n5", "local-bytes=300KiB:1MiB:n12"], {}),
    "maps of three machines": (["T=256:8192:x4", "batch=30,60,120"], {"profiles": MACHINES}),
}


def test_jobs_have_the_names_of_what_differs() -> None:
    over = ["T=64,128"]
    machines = [ckptplan.load_profile(name) for name in ("ipu-mk2", "ipu-bow")]
    workloads = [ckptplan.load_workload(name) for name in ("paper-snn", "gru")]
    assert collected(over, profiles=machines).jobs == ["ipu-mk2", "ipu-bow"]
    assert collected(over, workloads=workloads).jobs == ["paper-snn", "gru"]
    both = collected(over, workloads=workloads, profiles=machines).jobs
    assert both == ["paper-snn on ipu-mk2", "paper-snn on ipu-bow", "gru on ipu-mk2", "gru on ipu-bow"]


def test_a_map_has_the_first_axis_upwards_and_gaps_where_nothing_fits() -> None:
    [plane] = collected(["T=4096,8192", "batch=30,60,120"]).planes()
    assert plane.added.shape == (2, 3)
    assert np.isnan(plane.added).tolist() == [[False, False, False], [False, False, True]]
    assert (plane.best == -1).tolist() == np.isnan(plane.added).tolist()


@pytest.mark.parametrize(
    ("over", "words"),
    [
        (["T=64", "batch=30"], "shows one axis or two, and 0 vary"),
        (["T=64,128", "batch=30,60", "latency=0,1us"], "shows one axis or two, and 3 vary"),
        (["T=1:1000001:+1"], "shows up to 1,000,000 points, and the sweep has 1,000,001"),
    ],
)
def test_what_no_picture_shows_is_refused_before_it_is_planned(over: list[str], words: str) -> None:
    sweep = make_sweep(over, workloads=OURS.workload, profiles=OURS.profile)
    with pytest.raises(InputError, match=words):
        SweepPicture(sweep)
