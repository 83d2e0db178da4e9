"""Time and memory of executed plans beside torch.utils.checkpoint: python -m benchmarks.runtime.

T = 4,096, batch 32, 64 inputs, 256 neurons, fp32, the loss inside the chunk, one thread. All variants of a
network run in turn, several rounds of them; times are medians. Peaks are of live tensors beside parameters
and inputs (measured apart, the meter is slow), and of whole fresh processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import spread, write
from benchmarks.runtime_variants import (
    MIB,
    Job,
    chunked,
    gru_job,
    lif_job,
    nested,
    plain,
    plan_of,
    planned,
)
from ckptplan import Plan
from ckptplan.torch.meters import LiveBytes

STEPS, ROUNDS, SPIKE_BYTES = 4096, 5, 650
#: M_s and M_a in bytes: a GRU keeps seven states of a step, neurons under autograd one of two tensors.
GRU, LIF_AUTOGRAD, LIF = (2**15, 7 * 2**15), (2**16, 2**16), (2**15, 2**15)
FIRST_STEP = "plain, one step"
SIZES = {
    "live_peak_bytes": "live peak",
    "predicted_peak_bytes": "predicted",
    "process_peak_bytes": "process",
    "process_added_bytes": "added",
}
Variant = Callable[[], torch.Tensor]


def seconds(job: Job, variant: Variant) -> float:
    """Return the time of a forward and a backward pass."""
    for parameter in job.parameters:
        parameter.grad = None
    start = time.perf_counter()
    variant().backward()
    return time.perf_counter() - start


def live_peak(job: Job, variant: Variant) -> int:
    """Return the most bytes of tensors that were alive at once."""
    for parameter in job.parameters:
        parameter.grad = None
    meter = LiveBytes()
    with meter:
        variant().backward()
    return meter.peak


def plans_of(kind: str, steps: int, *, budget: int | None) -> dict[str, Plan]:
    """Return the plans of a network; ``optimal`` within a budget."""
    state, tape = {"gru": GRU, "lif": LIF_AUTOGRAD}[kind]
    found = {"standard": plan_of("standard", steps=steps, state_bytes=state, tape_bytes=tape)}
    if budget is not None:
        found["optimal"] = plan_of(
            "optimal", steps=steps, state_bytes=state, tape_bytes=tape, local_bytes=budget
        )
    if kind == "lif":
        own = partial(plan_of, steps=steps, state_bytes=LIF[0], tape_bytes=LIF[1], saved_bytes=SPIKE_BYTES)
        found |= {"LIF cell, base": own("base"), "LIF cell, standard": own("standard")}
    return found


def variants_of(
    kind: str, steps: int, *, budget: int | None
) -> Iterator[tuple[str, Job, Variant, Plan | None]]:
    """Yield what is compared: the same weights, data and loss."""
    job = gru_job(steps) if kind == "gru" else lif_job(steps, autograd=True)
    plans = plans_of(kind, steps, budget=budget)
    chunk = plans["standard"].parameters.chunk_size
    yield "plain", job, partial(plain, job), None
    yield f"torch.utils.checkpoint, chunk {chunk}", job, partial(chunked, job, chunk), None
    yield "torch.utils.checkpoint, nested", job, partial(nested, job, steps // 16, 16), None
    own = lif_job(steps) if kind == "lif" else job
    for name, plan in plans.items():
        mine = own if name.startswith("LIF cell") else job
        label = name if name == "optimal" or name.endswith("base") else f"{name}, chunk {chunk}"
        yield f"ckptplan, {label}", mine, partial(planned, mine, plan), plan


def compared(kind: str) -> list[dict[str, Any]]:
    """Return a line for each variant of a network."""
    first = {
        name: (live_peak(job, variant), plan)
        for name, job, variant, plan in variants_of(kind, STEPS, budget=None)
    }
    measured, plan = next(one for name, one in first.items() if name.startswith("ckptplan, standard"))
    assert plan is not None  # noqa: S101 - for the type checker
    beside = measured - plan.predicted.local_peak_bytes
    budget = first["torch.utils.checkpoint, nested"][0] - beside
    variants = list(variants_of(kind, STEPS, budget=budget))
    times: dict[str, list[float]] = {name: [] for name, *_ in variants}
    for _ in range(ROUNDS):
        for name, job, variant, _plan in variants:
            times[name].append(seconds(job, variant))
    lines = []
    for name, job, variant, plan in variants:
        predicted = None if plan is None else plan.predicted.local_peak_bytes
        lines.append(
            {
                "network": kind,
                "variant": name,
                **spread(times[name]),
                "live_peak_bytes": live_peak(job, variant),
                "predicted_peak_bytes": predicted,
                **process_memory(kind, name, budget),
            }
        )
    return lines


def process_memory(kind: str, name: str, budget: int) -> dict[str, int]:
    """Return the peak of a fresh process, and what the run added to it."""
    command = [sys.executable, "-m", "benchmarks.runtime", "--one", f"{kind}:{name}:{budget}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def one(description: str) -> None:
    """Run one variant in this process and print its memory."""
    kind, name, budget = description.split(":")
    for label, job, variant, _ in variants_of(kind, STEPS, budget=int(budget)):
        if label == name or (name == FIRST_STEP and label == "plain"):
            before = _status("VmRSS")
            if name == FIRST_STEP:
                job = replace(job, inputs=job.inputs[:1], steps=1)  # noqa: PLW2901 - the last round
                seconds(job, partial(plain, job))
            else:
                seconds(job, variant)
            peak = _status("VmHWM")
            sys.stdout.write(json.dumps({"process_peak_bytes": peak, "process_added_bytes": peak - before}))
            return


def _status(field: str) -> int:
    """Return a size of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def replay(*, spiking: bool) -> dict[str, Any]:
    """Return the time of a chunk of 64 steps, run first and replayed from its spikes."""
    job = lif_job(640, spiking=spiking)
    cell, x = job.cell, job.inputs[512:576]
    times: dict[str, list[float]] = {"forward": [], "replay": []}
    with torch.no_grad():
        states, saved = cell.run(job.state, job.inputs[:512], None)
        state, before = states[-1].clone(), cell.last(saved)
        _, outputs = cell.run(state, x, before)
        for _ in range(41):
            start = time.perf_counter()
            cell.run(state, x, before)
            middle = time.perf_counter()
            cell.replay(state, x, outputs)
            times["forward"].append(middle - start)
            times["replay"].append(time.perf_counter() - middle)
        active = cell.dense(outputs).mean().item()
    medians = {name: statistics.median(found) for name, found in times.items()}
    return {
        "inputs": "spikes" if spiking else "dense",
        "activity": active,
        "forward_seconds": medians["forward"],
        "replay_seconds": medians["replay"],
        "ratio": medians["replay"] / medians["forward"],
    }


def bounds(lines: list[dict[str, Any]], replays: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what was to be reached, and what was."""
    peer, nested_, cell = (
        "torch.utils.checkpoint, chunk",
        "torch.utils.checkpoint, nested",
        "ckptplan, LIF cell",
    )
    standard, optimal, live = "ckptplan, standard", "ckptplan, optimal", "live_peak_bytes"
    found = [
        _ratio(lines, "lif", f"{cell}, standard", peer, at_most=0.80),
        _ratio(lines, "lif", f"{cell}, standard", "plain", at_most=1.15),
        _ratio(lines, "lif", f"{cell}, standard", peer, of=live, at_most=1.10),
        _ratio(lines, "lif", f"{cell}, standard", f"{cell}, base"),
        _ratio(lines, "lif", standard, peer, at_most=0.80),
        _ratio(lines, "lif", standard, "plain", at_most=1.30),
        _ratio(lines, "lif", standard, peer, of=live, at_most=1.10),
        _ratio(lines, "gru", standard, peer, at_most=0.85),
    ]
    for kind in ("lif", "gru"):
        found.append(_ratio(lines, kind, optimal, nested_, at_most=0.80))
        found.append(_ratio(lines, kind, optimal, nested_, of=live, at_most=1.0))
    for one, limit in zip(replays, (0.25, 0.15), strict=True):
        what = f"replay over forward, {one['inputs']} inputs"
        found.append({"what": what, "at_most": limit, "reached": one["ratio"]})
    return found + [_process(lines, line) for line in lines if line.get("predicted_peak_bytes")]


def _line(lines: list[dict[str, Any]], kind: str, start: str) -> dict[str, Any]:
    return next(one for one in lines if one["network"] == kind and one["variant"].startswith(start))


def _ratio(
    lines: list[dict[str, Any]],
    kind: str,
    ours: str,
    theirs: str,
    *,
    of: str = "median_seconds",
    at_most: float | None = None,
) -> dict[str, Any]:
    one, other = _line(lines, kind, ours), _line(lines, kind, theirs)
    noun = "time" if of == "median_seconds" else "live peak"
    what = f"{kind}, {noun}: {one['variant']} over {other['variant']}"
    return {"what": what, "at_most": at_most, "reached": one[of] / other[of]}


def _process(lines: list[dict[str, Any]], line: dict[str, Any]) -> dict[str, Any]:
    """Return what a run added to a fresh process, over what is predicted and a first step adds."""
    first = _line(lines, line["network"], FIRST_STEP)["process_added_bytes"]
    what = f"{line['network']}, added to the process: {line['variant']} over predicted and a first step"
    reached = line["process_added_bytes"] / (line["predicted_peak_bytes"] + first)
    return {"what": what, "at_most": 1.2, "reached": reached}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", help="run one variant and print the memory of the process")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.one:
        one(arguments.one)
        return
    lines = []
    for kind in ("lif", "gru"):
        lines += compared(kind)
        lines.append({"network": kind, "variant": FIRST_STEP, **process_memory(kind, FIRST_STEP, 10**7)})
    replays = [replay(spiking=False), replay(spiking=True)]
    print(f"{'':4} {'variant':<40} {'median':>8}  " + "  ".join(f"{name:>11}" for name in SIZES.values()))
    for line in lines:
        time_ = f"{line['median_seconds']:6.2f} s" if "median_seconds" in line else ""
        sizes = [f"{line[key] / MIB:7.2f} MiB" if line.get(key) else "" for key in SIZES]
        print(
            f"{line['network']:<4} {line['variant']:<40} {time_:>8}  "
            + "  ".join(f"{one:>11}" for one in sizes)
        )
    for found in replays:
        print(
            f"replay, {found['inputs']:<6} inputs, {found['activity']:.1%} active: "
            f"{found['replay_seconds'] * 1e3:.2f} of {found['forward_seconds'] * 1e3:.2f} ms"
        )
    reached = bounds(lines, replays)
    for found in reached:
        limit = f"{found['at_most']:.2f}" if found["at_most"] else "-"
        print(f"{found['reached']:6.2f}  (at most {limit})  {found['what']}")
    write("runtime", {"variants": lines, "replay": replays, "bounds": reached})


if __name__ == "__main__":
    main()
