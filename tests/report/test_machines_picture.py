"""The picture of machines is legible at each size, with estimates, deadlines and machines that nothing fits."""

from __future__ import annotations

import pytest

import ckptplan
from ckptplan.report.machines import draw_machines
from ckptplan.report.style import SIZES, styled
from ckptplan.studies.machines import MachineComparison
from tests.report.measured import assert_legible, texts_of

#: It draws every picture, and measures where each text stands.
pytestmark = pytest.mark.slow

NAMES = ("ipu-mk2", "ipu-mk1", "nvidia-h200", "raspberry-pi-5", "nvidia-jetson-orin-nano", "cpu-nvme")


def compared(*names: str, batches: int = 1, deadline: float | None = None) -> MachineComparison:
    workload = ckptplan.load_workload("paper-snn").with_steps(2048)
    profiles = [ckptplan.load_profile(name) for name in names]
    return ckptplan.compare_machines(
        workload, profiles, strategies=["base", "standard"], batches=batches, deadline=deadline
    )


CASES = {
    "many": compared(*NAMES, batches=10_000, deadline=43_200.0),
    "one": compared("ipu-mk2"),
    "nothing fits": compared("ipu-mk1"),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES)
def test_every_machine_has_its_time_and_its_longest_sequence(case: str, size: str) -> None:
    comparison = CASES[case]
    with styled(SIZES[size]):
        figure = draw_machines(comparison, SIZES[size])
        assert_legible(figure, points=SIZES[size].points)
        words = [text.get_text() for text in texts_of(figure)]
    for machine in comparison.machines:
        assert machine.profile.name in words
        assert (f"{machine.largest_steps:,}" if machine.largest_steps else "none") in words
        estimated = machine.interval is not None
        assert machine.run_seconds is None or any(word.startswith("~") for word in words) or not estimated
    if case == "many":
        assert {"does not fit", "time not known", "deadline 12 h"} <= set(words)
