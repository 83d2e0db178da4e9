"""Measures a cell on a machine, and returns a workload and a profile with their basis.

The peak rates of a machine are measured, too: of products, of its local memory, and of starting kernels.
They are those of large products and copies, which real steps do not reach. The share that the steps of a cell
reach is its efficiency (``cost/roofline.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ckptplan.calibration.action_times import ActionTimes
from ckptplan.calibration.calibrated import Calibrated, judge_noise
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.cells import MeasuredNetwork, build_network
from ckptplan.calibration.counted import timed_once
from ckptplan.calibration.extent import full_extent, quick_extent
from ckptplan.calibration.footprint import Footprint
from ckptplan.calibration.host import HEADROOM, HEADROOM_ASSUMPTION
from ckptplan.calibration.machine import machine_name, memory_bytes, prepare_machine
from ckptplan.calibration.measuring import Announce, Measuring
from ckptplan.calibration.transfer_times import TransferTimes
from ckptplan.calibration.work import CountedWork, count_work
from ckptplan.calibration.workloads import make_calibration, make_counted, make_measured, round_digits
from ckptplan.cost.roofline import find_ideal, name_peak
from ckptplan.model.profile import HardwareProfile, Source
from ckptplan.model.progress import Progress
from ckptplan.model.workload import Basis, Calibration, Workload
from ckptplan.schedule.timeline import READ, WRITE
from ckptplan.torch.meters import choose_clock, name_clock
from ckptplan.units import format_bytes, format_share

#: Rows of the square matrices whose product is timed, and bytes of the tensor that is copied.
_ROWS = {"cpu": 1024, "cuda": 8192}
_COPIED = {"cpu": 64 * 2**20, "cuda": 2**30}
#: Kernels that are started in a row.
_KERNELS = 1000
#: The quickest of several runs counts: a peak is what nothing disturbs.
_RUNS = 4


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peak rates, in SI base units."""

    flops_per_second: dict[str, float]
    local_bytes_per_second: float
    launch_seconds: float
    #: How each was measured.
    product: str
    copied: str
    started: str


def measure_peaks(device: torch.device, *, dtypes: tuple[str, ...]) -> Peaks:
    """Measure peak rates with PyTorch: of products in some types of numbers, of copies, of small kernels."""
    rows, size = _ROWS[device.type], _COPIED[device.type]
    rates = {}
    with torch.no_grad():
        for name in dtypes:
            factor = torch.ones(rows, rows, dtype=getattr(torch, name), device=device)
            out = torch.empty_like(factor)
            rates[name] = 2 * rows**3 / _time(lambda a=factor, b=out: torch.mm(a, a, out=b), device)  # type: ignore[misc]
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        copying = _time(lambda: target.copy_(source), device)
        one = torch.zeros(1, device=device)

        def start_many() -> None:
            for _ in range(_KERNELS):
                torch.add(one, one)

        starting = _time(start_many, device) / _KERNELS
    return Peaks(
        flops_per_second=rates,
        local_bytes_per_second=2 * size / copying,
        launch_seconds=starting,
        product=f"product of two matrices of {rows:,} x {rows:,}, the quickest of {_RUNS}",
        copied=f"copy of {size // 2**20:,} MiB, read and written, the quickest of {_RUNS}",
        started=f"a sum of two numbers, {_KERNELS:,} in a row, the quickest of {_RUNS}",
    )


def _time(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the quickest run after one that warms up."""
    clock = choose_clock(device)
    found = []
    for _ in range(_RUNS + 1):
        began = clock()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(clock() - began)
    return max(min(found[1:]), 1e-9)


#: Times of a quick calibration are not known better than this, whatever its rounds say.
QUICK_UNCERTAINTY = 0.1


def calibrate(
    spec: CellSpec,
    *,
    batch: int,
    steps: int,
    name: str = "my-workload",
    profile_name: str = "my-machine",
    device: str = "cpu",
    thread_count: int | None = None,
    repeats: int = 5,
    tolerance: float = 0.1,
    seed: int = 0,
    quick: bool = False,
    max_seconds: float | None = None,
    announce: Announce | None = None,
    keep: Callable[[Workload], None] | None = None,
    progress: Progress | None = None,
) -> Calibrated:
    """Measure a cell and return a workload and a profile.

    Bytes are counted in real storages. Times are medians of ``repeats`` rounds, fitted over several chunk
    sizes; messages are fitted over several numbers of states. If Ctrl-C, or a signal that the caller turns
    into an exception, ends the measurement after three rounds or more, the result is that of these rounds.

    Arguments:
        spec: the cell and its sizes.
        batch: the number of samples.
        steps: T of the workload.
        name: the name of the workload.
        profile_name: the name of the profile.
        device: 'cpu' or 'cuda'.
        thread_count: the number of PyTorch's threads; None keeps it.
        repeats: the number of rounds.
        tolerance: the result is ``noisy`` if the rounds of a time spread by more than half of this share.
        seed: the seed of weights and data.
        quick: whether to measure in a few seconds: three rounds of a few short schedules, whose times are
            known to 10 % at best; it is never ``noisy``.
        max_seconds: less is measured if all of it would take longer; None means no limit.
        announce: called with lines on how long it takes, and on what is left out.
        keep: called with the workload that `count_sizes` would return, as soon as sizes are counted.
        progress: called with the time done and the time expected, in milliseconds.

    Raises InputError, also if even the least takes longer than ``max_seconds``.
    """
    with prepare_machine(threads=thread_count or torch.get_num_threads()):
        network = build_network(spec, batch=batch, device=device, seed=seed)
        measuring = Measuring(
            network,
            choose=quick_extent if quick else partial(full_extent, rounds=repeats),
            max_seconds=max_seconds,
            announce=announce,
            progress=progress,
        )
        sizes = measuring.count_sizes()
        if keep is not None:
            once = timed_once(measuring.pilot)
            keep(make_counted(spec, sizes, once, batch=batch, steps=steps, name=name))
        counted = count_work(network, pilot=measuring.pilot)
        work = None if isinstance(counted, str) else counted
        peaks = measure_peaks(network.device, dtypes=_choose_types(work))
        rounds = measuring.time_rounds()
        times, transfers = rounds.fit_steps(), rounds.fit_transfers()
        calibration = make_calibration(
            times,
            transfer_uncertainty=math.hypot(transfers.misfit, max(transfers.spread.values())),
            machine=machine_name(network.device),
            device="cuda" if network.device.type == "cuda" else "cpu",
            repeats=rounds.complete,
            least=QUICK_UNCERTAINTY if quick or measuring.fewer_chunks else 0.0,
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            seed=seed,
            clock=name_clock(network.device),
            tape_bytes_once=sizes.tape_bytes_once,
        )
    workload = make_measured(
        spec,
        sizes,
        times,
        calibration,
        basis=_time_basis(calibration, times),
        batch=batch,
        steps=steps,
        name=name,
        timed_on=profile_name,
    )
    profile = _make_profile(network, sizes, transfers, calibration, peaks, name=profile_name)
    if work is not None:
        workload = _add_operations(workload, profile, work)
    left_out = (*((f"quick: {rounds.complete} rounds of few sizes",) if quick else ()), *measuring.left_out)
    return Calibrated(
        workload=_mark(workload, left_out),
        profile=profile,
        workspace_residual=sizes.residual,
        steps=times,
        transfers=transfers,
        # A quick calibration promises little, and its uncertainty says how little.
        noisy=None if quick else judge_noise(times, tolerance=tolerance),
        left_out=(*left_out, *((counted,) if isinstance(counted, str) else ())),
        ended_by=measuring.ended_by,
    )


def _choose_types(work: CountedWork | None) -> tuple[str, ...]:
    """Return the types of numbers whose peak rates are measured: that of the cell, and the usual one."""
    return tuple(dict.fromkeys((*((work.operations.dtype,) if work else ()), "float32")))


def _add_operations(workload: Workload, profile: HardwareProfile, work: CountedWork) -> Workload:
    """Return the workload with the work of its steps, and the share of this machine's roofline they reach."""
    measured = workload.forward_seconds + workload.backward_seconds
    share = min(1.0, sum(find_ideal(work.operations, profile)) / measured)
    operations = work.operations.model_copy(
        update={"efficiency": round_digits(share), "measured_on": workload.timed_on}
    )
    basis = {**workload.basis, "operations": Basis(kind="measured", why=work.why)}
    return workload.model_copy(update={"operations": operations, "basis": basis})


def _mark(workload: Workload, left_out: tuple[str, ...]) -> Workload:
    """Return the workload with what was left out in its description and in the basis of each time."""
    if not left_out:
        return workload
    text = "; ".join(left_out)
    marked = {
        field: basis.model_copy(update={"why": f"{basis.why}; {text}"})
        for field, basis in workload.basis.items()
        if field.endswith("_seconds")
    }
    return workload.model_copy(
        update={
            "description": f"{workload.description} ({text})",
            "basis": {**workload.basis, **marked},
        }
    )


def _time_basis(calibration: Calibration, times: ActionTimes) -> dict[str, Basis]:
    chunks = ", ".join(str(chunk) for chunk in times.chunks)
    fitted = f"fit over chunks of {chunks} steps"
    ways = {
        **dict.fromkeys(("forward_seconds", "recompute_seconds", "backward_seconds"), fitted),
        "record_overhead_seconds": "the difference of steps with and without a tape",
        **dict.fromkeys(("advance_seconds", "chunk_seconds"), f"{fitted}: what no step explains"),
        **dict.fromkeys(("save_seconds", "load_seconds"), "each timed"),
    }
    # What recording adds is not measured alone: recorded steps are.
    spreads = {"record_overhead_seconds": calibration.measured["recorded_seconds"].spread}
    return {
        field: Basis(
            kind="measured",
            why=f"{way}, medians of rounds, {calibration.clock} on {calibration.threads_text}; rounds spread "
            f"by {format_share(spreads.get(field, times.spread.get(field, 0.0)))}",
        )
        for field, way in ways.items()
    }


def _make_profile(
    network: MeasuredNetwork,
    sizes: Footprint,
    transfers: TransferTimes,
    calibration: Calibration,
    peaks: Peaks,
    *,
    name: str,
) -> HardwareProfile:
    state = format_bytes(sizes.state_bytes)
    today = calibration.date[:10]
    measured = f"messages of 1, 2, 4 and 8 states of {state}, in the middle of a schedule"
    both = f"off by {format_share(transfers.misfit)} (root mean square)"

    def source(text: str, note: str | None = None) -> Source:
        return Source(grade="M", source=text, date=today, note=note)

    rates: dict[str, Any] = {
        name_peak(name): round_digits(rate) for name, rate in peaks.flops_per_second.items()
    }
    memory = memory_bytes(network.device)
    host = torch.device("cpu")
    return HardwareProfile(
        name=name,
        description=f"{calibration.machine}, {calibration.threads_text}, {calibration.framework}; "
        + (
            "remote memory is pinned host memory" if calibration.device == "cuda" else "remote memory is a copy"
        ),
        local_bytes=memory,
        headroom=HEADROOM,
        remote_bytes=memory_bytes(host),
        write_bytes_per_second=round_digits(transfers.rate(WRITE, state_bytes=sizes.state_bytes)),
        read_bytes_per_second=round_digits(transfers.rate(READ, state_bytes=sizes.state_bytes)),
        latency_seconds=round_digits(transfers.message_seconds),
        synchronisation_seconds=0.0,
        overlaps_compute=calibration.device == "cuda",
        **rates,
        local_bytes_per_second=round_digits(peaks.local_bytes_per_second),
        launch_seconds=round_digits(peaks.launch_seconds),
        sources={
            "local_bytes": source("as the system reports"),
            "headroom": Source(grade="X", assumption=HEADROOM_ASSUMPTION, date=today),
            "remote_bytes": source(
                "host memory, as the system reports",
                None if calibration.device == "cuda" else "the local memory once more: both count together",
            ),
            "write_bytes_per_second": source(
                measured, f"effective at this size; spread {format_share(transfers.spread[WRITE])}, fit {both}"
            ),
            "read_bytes_per_second": source(
                measured, f"effective at this size; spread {format_share(transfers.spread[READ])}, fit {both}"
            ),
            "latency_seconds": source(measured, f"once a message, either way; fit {both}"),
            "synchronisation_seconds": source(measured, "contained in the latency"),
            **{field: source(peaks.product) for field in rates},
            "local_bytes_per_second": source(peaks.copied),
            "launch_seconds": source(peaks.started),
        },
    )
