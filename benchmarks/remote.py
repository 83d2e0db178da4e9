"""Remote checkpoints in host memory: standard and remote plans in turn, and a trace of the copies.

Run: python -m benchmarks.remote
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import ckptplan
from benchmarks.accuracy import find_budget
from benchmarks.harness import Setting, main
from ckptplan import Plan
from ckptplan.calibration.calibrate import Calibrated, calibrate
from ckptplan.model.cell_spec import CellSpec
from ckptplan.torch.backend import TorchProgram
from ckptplan.torch.cells import build_torch_network

TRACE, TRACED_STEPS = "gpu-remote-trace.json", 192
Interval = tuple[float, float]


def run(setting: Setting) -> dict[str, Any]:
    """Measure standard and remote plans in turn, and trace a remote one."""
    spec = CellSpec.parse(
        setting.pick("gru(inputs=8, neurons=32)", "gru(inputs=64, neurons=256)", "gru(inputs=64, neurons=1024)")
    )
    batch, steps = setting.pick(4, 32, 256), setting.pick(48, 1024, 1024)
    calibrated = calibrate(spec, batch=batch, steps=steps, device=setting.device, quick=True)
    network = build_torch_network(spec, batch=batch, device=setting.device, seed=0)
    budget = find_budget(calibrated.workload.with_steps(steps), 0.3)
    plans = {
        name: ckptplan.optimize(calibrated.workload, calibrated.profile, strategies=[name], local_bytes=budget)
        for name in ("standard", "remote")
    }
    found: dict[str, Any] = {"profile": calibrated.profile.model_dump(mode="json", exclude_none=True)}
    found["compared"] = _compare(plans, network, setting, steps)
    setting.save(found)
    if setting.on_gpu:
        found["trace"] = setting.attempt("trace", lambda: _trace(calibrated, network, setting.folder / TRACE))
    return found


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
    short = calibrated.workload.with_steps(TRACED_STEPS)
    plan = ckptplan.optimize(
        short, calibrated.profile, strategies=["remote"], local_bytes=find_budget(short, 0.3)
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


if __name__ == "__main__":
    main("remote", run, {}, about=__doc__)
