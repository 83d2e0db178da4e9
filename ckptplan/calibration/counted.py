"""Makes workloads whose sizes are counted and whose times are assumed."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.cells import build_network
from ckptplan.calibration.extent import size_extent
from ckptplan.calibration.machine import prepare_machine
from ckptplan.calibration.measuring import Announce, Measuring
from ckptplan.calibration.pilot import PilotTimes
from ckptplan.calibration.workloads import complete_times, make_counted
from ckptplan.model.progress import Progress
from ckptplan.model.workload import TIMES, Workload


def count_sizes(
    spec: CellSpec,
    *,
    batch: int,
    steps: int,
    name: str = "my-workload",
    device: str = "cpu",
    thread_count: int | None = None,
    seed: int = 0,
    times: Mapping[str, float] | None = None,
    max_seconds: float | None = None,
    announce: Announce | None = None,
    progress: Progress | None = None,
) -> Workload:
    """Count the bytes of a cell, and return a workload whose times are assumed.

    Such a workload shows what fits and plans for the least memory. Its times are ``times``, or those of a few
    steps that were timed once; `validate` does not compare them with measurements.

    Arguments:
        spec: the cell and its sizes.
        batch: the number of samples.
        steps: T of the workload.
        name: the name of the workload.
        device: 'cpu' or 'cuda'.
        thread_count: the number of PyTorch's threads; None keeps it.
        seed: the seed of weights and data.
        times: fields of a workload that are times; the others follow from ``forward_seconds``.
        max_seconds: fewer runs are made if all would take longer; None means no limit.
        announce: called with a line on how long it takes, and on what is left out.
        progress: called with the time done and the time expected, in milliseconds.

    Raises InputError.
    """
    given = complete_times(times) if times else None
    with prepare_machine(threads=thread_count or torch.get_num_threads()):
        network = build_network(spec, batch=batch, device=device, seed=seed)
        measuring = Measuring(
            network,
            choose=lambda _: size_extent(),
            max_seconds=max_seconds,
            announce=announce,
            progress=progress,
        )
        sizes = measuring.count_sizes()
    found = given or timed_once(measuring.pilot)
    return make_counted(spec, sizes, found, batch=batch, steps=steps, name=name)


def timed_once(pilot: PilotTimes) -> dict[str, tuple[float, str]]:
    """Return the times of a few steps with their origin."""
    why = f"timed once over {pilot.steps} steps, not a calibration"
    # More digits would pretend that these times are known well.
    return {field: (float(f"{getattr(pilot, field):.2g}"), why) for field in TIMES}
