"""Remote checkpoints in host memory: rates of copies, hidden transfers as planned, a trace, the longest T.

Run: python -m benchmarks.remote
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import ckptplan
from benchmarks.harness import MIB, Setting, main, show, tabulate, time_in_turn
from ckptplan import Plan
from ckptplan.calibration.calibrate import Calibrated, calibrate
from ckptplan.model.cell_spec import CellSpec
from ckptplan.torch.backend import TorchProgram
from ckptplan.torch.cells import build_torch_network

TRACE, TRACED_STEPS = "gpu-remote-trace.json", 192
ROUNDS, SIZES = 7, (2**16, MIB, 16 * MIB, 256 * MIB)
Interval = tuple[float, float]
#: Of the calibrated profile.
FIELDS = (
    *("local_bytes", "write_bytes_per_second", "read_bytes_per_second"),
    *("latency_seconds", "overlaps_compute"),
)
#: The most time of remote over standard where transfers are hidden.
MOST_REMOTE = 1.05


def run(setting: Setting) -> dict[str, Any]:
    """Measure standard and remote plans in turn, then one beyond local memory."""
    spec = CellSpec.parse(
        setting.pick("gru(inputs=8, neurons=32)", "gru(inputs=64, neurons=256)", "gru(inputs=64, neurons=1024)")
    )
    batch, steps = setting.pick(4, 32, 256), setting.pick(48, 1024, 1024)
    calibrated = calibrate(spec, batch=batch, steps=steps, device=setting.device, quick=True)
    network = build_torch_network(spec, batch=batch, device=setting.device, seed=0)
    budget = _find_budget(calibrated, steps, share=0.3)
    plans = {
        name: ckptplan.optimize(calibrated.workload, calibrated.profile, strategies=[name], local_bytes=budget)
        for name in ("standard", "remote")
    }
    found: dict[str, Any] = {"transfers": measure_transfers(setting)}
    found["profile"] = calibrated.profile.model_dump(mode="json", exclude_none=True)
    found["compared"] = _compare(plans, network, setting, steps)
    found["hidden_as_planned"] = is_hidden(plans["remote"])
    setting.save(found)
    if setting.on_gpu:
        found["trace"] = setting.attempt("trace", lambda: _trace(calibrated, network, setting.folder / TRACE))
        setting.save(found)
    found["longest"] = setting.attempt("longest", lambda: _run_longest(calibrated, network, setting, budget))
    return found


def measure_transfers(setting: Setting) -> list[dict[str, Any]]:
    """Return the rates of copies between host and device, by size and kind of host memory."""
    found = []
    for size in setting.pick(SIZES[:2], SIZES, SIZES):
        there = torch.empty(size, dtype=torch.uint8, device=setting.device)
        for pinned in (False, True) if setting.on_gpu else (False,):
            here = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
            copies = {
                "write": partial(here.copy_, there, non_blocking=True),
                "read": partial(there.copy_, here, non_blocking=True),
            }
            times = time_in_turn(copies, rounds=ROUNDS, setting=setting)
            rates = {f"{way}_bytes_per_second": size / statistics.median(some) for way, some in times.items()}
            found.append({"bytes": size, "pinned": pinned, **rates})
    return found


def _find_budget(calibrated: Calibrated, steps: int, *, share: float) -> int:
    """Return the resident bytes and a share of the tapes of base."""
    workload = calibrated.workload
    resident = workload.resident_bytes + workload.resident_bytes_per_step * steps
    resident += workload.workspace_bytes + workload.chunk_workspace_bytes
    return resident + int(share * steps * workload.tape_bytes)


def is_hidden(plan: Plan) -> bool:
    """Return whether compute is to hide the transfers: each lasts at most as long as what runs beside it."""
    work, machine, chunk = plan.workload, plan.profile, plan.parameters["chunk_size"]
    latency = machine.latency_seconds + machine.synchronisation_seconds
    write = latency + work.state_bytes / machine.write_bytes_per_second
    read = latency + work.state_bytes / machine.read_bytes_per_second
    again = work.recompute_seconds + work.record_overhead_seconds + work.backward_seconds
    return machine.overlaps_compute and write <= chunk * work.forward_seconds and read <= chunk * again


def _compare(plans: dict[str, Plan], network: Any, setting: Setting, steps: int) -> list[dict[str, Any]]:
    inputs = network.inputs(steps)
    times: dict[str, list[float]] = {name: [] for name in plans}
    for number in range(setting.pick(2, 6, 6)):
        for name, plan in plans.items():
            seconds = TorchProgram(network, plan, inputs=inputs).time().seconds
            if number:
                times[name].append(seconds)
    return [
        {
            "strategy": name,
            "steps": steps,
            "parameters": dict(plan.parameters),
            "predicted_seconds": plan.predicted.seconds,
            "seconds": statistics.median(times[name]),
            "local_peak_bytes": plan.predicted.local_peak_bytes,
            "remote_peak_bytes": plan.predicted.remote_peak_bytes,
        }
        for name, plan in plans.items()
    ]


def _trace(calibrated: Calibrated, network: Any, path: Path) -> dict[str, Any]:
    """Profile a short run; return how much of the copies ran beside kernels."""
    plan = ckptplan.optimize(
        calibrated.workload.with_steps(TRACED_STEPS),
        calibrated.profile,
        strategies=["remote"],
        local_bytes=_find_budget(calibrated, TRACED_STEPS, share=0.3),
    )
    inputs = network.inputs(TRACED_STEPS)
    TorchProgram(network, plan, inputs=inputs).time()
    # Of the processor, events would make a file of a hundred megabytes.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        TorchProgram(network, plan, inputs=inputs).time()
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    kernels = [_interval(one) for one in events if one.get("cat") == "kernel"]
    copies = {
        way: [one for one in events if one.get("cat") == "gpu_memcpy" and way in one["name"]]
        for way in ("DtoH", "HtoD")
    }
    streams = {str(one["args"].get("stream")) for some in copies.values() for one in some}
    found: dict[str, Any] = {"kernels": len(kernels), "streams_of_copies": sorted(streams)}
    for way, some in copies.items():
        found[f"{way}_copies"] = len(some)
        found[f"{way}_seconds"] = sum(one["dur"] for one in some) * 1e-6
        found[f"{way}_hidden_share"] = find_shared([_interval(one) for one in some], kernels)
    return found


def _interval(event: dict[str, Any]) -> Interval:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def find_shared(ones: Sequence[Interval], others: Sequence[Interval]) -> float | None:
    """Return the share of the time of ``ones`` during which any of ``others`` runs; None if there is none."""
    whole = sum(end - start for start, end in ones)
    merged: list[list[float]] = []
    for start, end in sorted(others):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    shared = sum(max(0.0, min(end, last) - max(start, first)) for start, end in ones for first, last in merged)
    return shared / whole if whole else None


def _run_longest(calibrated: Calibrated, network: Any, setting: Setting, budget: int) -> dict[str, Any]:
    """Return the longest T of each strategy by the model, and the run of a plan with remote states."""
    names = ["base", "standard", "remote", "hierarchical", "optimal"]
    longest = ckptplan.largest(
        "T", calibrated.workload, calibrated.profile, strategies=names, local_bytes=budget
    )
    predicted = {name: {"steps": one.value, "bound_by": one.bound_by} for name, one in longest.items()}
    work = calibrated.workload
    step = work.forward_seconds + work.recompute_seconds + work.backward_seconds
    # As long as half of the time that is left allows: a sequence of millions of steps would take hours.
    affordable = int(min(setting.pick(2.0, 60.0, 60.0), setting.seconds_left / 2) / (4 * step))
    # Much longer than what fits without remote states.
    local = longest["standard"].value or 1
    longer = setting.pick(96, 20 * local, 20 * local)
    steps = max(1, min(affordable, longer, longest["remote"].value or 1))
    plan = ckptplan.optimize(
        work.with_steps(steps), calibrated.profile, strategies=["remote"], local_bytes=budget
    )
    seconds = TorchProgram(network, plan).time().seconds
    return {
        "local_budget_bytes": budget,
        "predicted": predicted,
        "ran": {
            "steps": steps,
            "seconds": seconds,
            "predicted_seconds": plan.predicted.seconds,
            "remote_peak_bytes": plan.predicted.remote_peak_bytes,
            "parameters": dict(plan.parameters),
        },
    }


def document(results: dict[str, Any]) -> str:
    """Return the tables of a page: rates, the profile that plans use, what is hidden, and the longest T."""
    profile = results["profile"]
    standard, remote = results["compared"]
    ratio, hidden = remote["seconds"] / standard["seconds"], results["hidden_as_planned"]
    missed = " (missed)" if hidden and ratio > MOST_REMOTE else ""
    parts = [
        tabulate(
            results["transfers"],
            ("copy of", "bytes", "{:g} MiB", 1 / MIB),
            ("host memory", lambda one: "pinned" if one["pinned"] else "pageable"),
            ("to the host", "write_bytes_per_second", "{:.2f} GB/s", 1e-9),
            ("to the device", "read_bytes_per_second", "{:.2f} GB/s", 1e-9),
        ),
        tabulate(
            FIELDS,
            ("field of the calibrated profile", str),
            ("value", profile.__getitem__),
            ("grade", lambda name: profile["sources"].get(name, {}).get("grade")),
        ),
        tabulate(
            results["compared"],
            ("strategy", "strategy"),
            ("T", "steps", "{:,}"),
            (
                "parameters",
                lambda one: ", ".join(f"{name} {value}" for name, value in one["parameters"].items()),
            ),
            ("time predicted", "predicted_seconds", "{:.3f} s"),
            ("measured", "seconds", "{:.3f} s"),
            ("local, predicted", "local_peak_bytes", "{:,.1f} MiB", 1 / MIB),
            ("remote", "remote_peak_bytes", "{:,.1f} MiB", 1 / MIB),
        ),
        f"Remote over standard: {ratio:.3f}{missed}; at most {MOST_REMOTE} where transfers are hidden; by the "
        f"model they are {'hidden' if hidden else 'not all hidden'} here.",
    ]
    trace = results.get("trace", {})
    if trace.get("status") == "measured":
        shares = " and ".join(
            f"{show(trace[f'{way}_hidden_share'], '.0%')} of {trace[f'{way}_copies']} copies {text}"
            for way, text in (("DtoH", "to the host"), ("HtoD", "to the device"))
        )
        parts.append(f"Trace of PyTorch's profiler: {shares} (in time) ran beside kernels.")
    longest = results.get("longest", {})
    if "predicted" in longest:
        ran, of_model = longest["ran"], longest["predicted"].items()
        parts.append(
            tabulate(
                of_model,
                ("strategy", lambda one: one[0]),
                ("longest T by the model", lambda one: f"{one[1]['steps']:,}" if one[1]["steps"] else "none"),
                ("bound by", lambda one: one[1]["bound_by"]),
            )
        )
        parts.append(
            f"Executed with remote states: T = {ran['steps']:,} in {ran['seconds']:.2f} s (predicted "
            f"{ran['predicted_seconds']:.2f} s), {ran['remote_peak_bytes'] / MIB:,.1f} MiB in host memory."
        )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main("remote", run, document, about=__doc__)
