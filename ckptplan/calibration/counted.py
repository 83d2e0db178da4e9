"""Makes workloads whose sizes are counted and whose times are assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ckptplan.calibration.cells import CellSpec, build_network
from ckptplan.calibration.extent import size_extent
from ckptplan.calibration.footprint import Footprint
from ckptplan.calibration.machine import prepare_machine
from ckptplan.calibration.measuring import Announce, Measuring
from ckptplan.calibration.pilot import PilotTimes
from ckptplan.errors import InputError
from ckptplan.model.progress import Progress
from ckptplan.model.workload import TIMES, Basis, Workload

#: A time that is not given -> how many times a given ``forward_seconds`` it is, and in words.
_RATIOS = {
    "recompute_seconds": (1.0, "as forward_seconds"),
    "record_overhead_seconds": (0.0, "recording is free"),
    "backward_seconds": (2.0, "twice forward_seconds"),
}


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
    given = _complete(times) if times else None
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


def make_counted(
    spec: CellSpec,
    sizes: Footprint,
    times: Mapping[str, tuple[float, str]],
    *,
    batch: int,
    steps: int,
    name: str,
) -> Workload:
    """Return a workload of counted sizes and assumed times; each time comes with its origin."""
    seconds: dict[str, Any] = {field: value for field, (value, _) in times.items()}
    assumed = {field: Basis(kind="assumed", why=why) for field, (_, why) in times.items()}
    return Workload(
        name=name,
        description=f"{spec}, batch {batch}: sizes counted, times assumed",
        steps=steps,
        batch=batch,
        units=1,
        **sizes.fields(),
        **seconds,
        cell=str(spec),
        basis={**sizes.basis(), **assumed},
    )


def timed_once(pilot: PilotTimes) -> dict[str, tuple[float, str]]:
    """Return the times of a few steps with their origin."""
    why = f"timed once over {pilot.steps} steps, not a calibration"
    # More digits would pretend that these times are known well.
    return {field: (float(f"{getattr(pilot, field):.2g}"), why) for field in TIMES}


def _complete(given: Mapping[str, float]) -> dict[str, tuple[float, str]]:
    """Return all times with their origin. Raises InputError unless those given are enough."""
    if "forward_seconds" not in given:
        raise InputError(
            "is missing, and the other times are for the same machine",
            field="forward_seconds",
            accepted="a time above 0 s, from which those that are not given follow",
        )
    times = {"forward_seconds": (given["forward_seconds"], "given")}
    for field, (ratio, text) in _RATIOS.items():
        times[field] = (
            (given[field], "given")
            if field in given
            else (ratio * given["forward_seconds"], f"{text}, for want of a measurement")
        )
    return times
