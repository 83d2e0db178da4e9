"""Remote checkpoints in host memory: rates of copies, hidden transfers as planned, a trace, the longest T.

Run: python -m benchmarks.remote
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import ckptplan
from benchmarks.harness import MIB, Setting, main, show, table, wait
from ckptplan import Plan
from ckptplan.calibration.calibrate import Calibrated, calibrate
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.torch_backend.cells import build_network
from ckptplan.calibration.torch_backend.runs import TorchProgram

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
    network = build_network(spec, batch=batch, device=setting.device, seed=0)
    budget = _find_budget(calibrated, steps, share=0.3)
    plans = {
        name: ckptplan.optimize(calibrated.workload, calibrated.profile, strategies=[name], local_bytes=budget)
        for name in ("standard", "remote")
    }
    found: dict[str, Any] = {"transfers": measure_transfers(setting)}
    found["profile"] = calibrated.profile.model_dump(mode="json", exclude_none=True)
    found["compared"] = _compare(plans, network, setting, steps)
    found["hidden_as_planned"] = is_hidden(plans["remote"])
    found["overlaps_compute"] = calibrated.profile.overlaps_compute
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
            rates: dict[str, Any] = {"bytes": size, "pinned": pinned}
            for way, into, out in (("write", here, there), ("read", there, here)):
                taken = []
                for _ in range(ROUNDS + 1):
                    wait(setting)
                    began = time.perf_counter()
                    into.copy_(out, non_blocking=True)
                    wait(setting)
                    taken.append(time.perf_counter() - began)
                rates[f"{way}_bytes_per_second"] = size / statistics.median(taken[1:])
            found.append(rates)
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
            seconds = TorchProgram(network, plan, inputs=inputs).seconds()
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
    TorchProgram(network, plan, inputs=inputs).seconds()
    # Of the processor, events would make a file of a hundred megabytes.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        TorchProgram(network, plan, inputs=inputs).seconds()
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    kernels = [_interval(one) for one in events if one.get("cat") == "kernel"]
    copies = {
        way: [one for one in events if one.get("cat") == "gpu_memcpy" and way in one["name"]]
        for way in ("DtoH", "HtoD")
    }
    streams = {str(one["args"].get("stream")) for some in copies.values() for one in some}
    return {
        "kernels": len(kernels),
        "streams_of_copies": sorted(streams),
        **{
            f"{way}_{what}": value
            for way, some in copies.items()
            for what, value in (
                ("copies", len(some)),
                ("seconds", sum(one["dur"] for one in some) * 1e-6),
                ("hidden_share", find_shared([_interval(one) for one in some], kernels)),
            )
        },
    }


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
    local = longest["standard"].value or 0
    steps = max(
        1,
        min(affordable, setting.pick(96, 20 * max(local, 1), 20 * max(local, 1)), longest["remote"].value or 1),
    )
    plan = ckptplan.optimize(
        work.with_steps(steps), calibrated.profile, strategies=["remote"], local_bytes=budget
    )
    seconds = TorchProgram(network, plan).seconds()
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


def _document_device(results: dict[str, Any]) -> list[str]:
    """Return the tables of the rates, and of the profile that plans use."""
    copies = [
        [
            f"{one['bytes'] / MIB:g} MiB",
            "pinned" if one["pinned"] else "pageable",
            f"{one['write_bytes_per_second'] / 1e9:.2f} GB/s",
            f"{one['read_bytes_per_second'] / 1e9:.2f} GB/s",
        ]
        for one in results["transfers"]
    ]
    profile = results["profile"]
    fields = [[name, f"{profile[name]}", profile["sources"].get(name, {}).get("grade", "")] for name in FIELDS]
    return [
        table(["copy of", "host memory", "to the host", "to the device"], copies),
        table(["field of the calibrated profile", "value", "grade"], fields),
    ]


def document(results: dict[str, Any]) -> str:
    """Return the tables of a page."""
    rows = [
        [
            one["strategy"],
            f"{one['steps']:,}",
            ", ".join(f"{name} {value}" for name, value in one["parameters"].items()),
            f"{one['predicted_seconds']:.3f} s",
            f"{one['seconds']:.3f} s",
            f"{one['local_peak_bytes'] / MIB:,.1f} MiB",
            f"{one['remote_peak_bytes'] / MIB:,.1f} MiB",
        ]
        for one in results["compared"]
    ]
    head = ["strategy", "T", "parameters", "time predicted", "measured", "local, predicted", "remote"]
    standard, remote = results["compared"]
    hidden = "hidden" if results["hidden_as_planned"] else "not all hidden"
    ratio = remote["seconds"] / standard["seconds"]
    bound = results["hidden_as_planned"]
    limit = f"at most {MOST_REMOTE} where transfers are hidden; by the model they are {hidden} here"
    missed = " (missed)" if bound and ratio > MOST_REMOTE else ""
    parts = [
        *_document_device(results),
        table(head, rows),
        f"Remote over standard: {ratio:.3f}{missed}; {limit}.",
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
        rows = [
            [name, f"{one['steps']:,}" if one["steps"] else "none", f"{one['bound_by']}"]
            for name, one in longest["predicted"].items()
        ]
        parts.append(table(["strategy", "longest T by the model", "bound by"], rows))
        ran = longest["ran"]
        parts.append(
            f"Executed with remote states: T = {ran['steps']:,} in {ran['seconds']:.2f} s (predicted "
            f"{ran['predicted_seconds']:.2f} s), {ran['remote_peak_bytes'] / MIB:,.1f} MiB in host memory."
        )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main("remote", run, document, about=__doc__)
