"""Time and memory of executed plans, compared with torch.utils.checkpoint: python -m benchmarks.runtime.

T = 4,096, batch 32, 64 inputs, 256 neurons, fp32, the loss inside the chunk, one thread. All variants of a
network run in turn, for several rounds; times are medians. Peaks are those of live tensors without parameters
and inputs (measured separately, since the meter is slow), and those of whole fresh processes.
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
from benchmarks.runtime_report import FIRST_STEP, bounds, document, write_document
from benchmarks.runtime_variants import (
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
#: M_s and M_a in bytes: a GRU's tape is as large as seven states; neurons under autograd have equal sizes.
GRU, LIF_AUTOGRAD, LIF = (2**15, 7 * 2**15), (2**16, 2**16), (2**15, 2**15)
Variant = Callable[[], torch.Tensor]


def seconds(job: Job, variant: Variant) -> float:
    """Return the time of a forward and a backward pass."""
    for parameter in job.parameters:
        parameter.grad = None
    return timed(lambda: variant().backward())


def live_peak(job: Job, variant: Variant) -> int:
    """Return the peak bytes of live tensors."""
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
    """Yield the variants to compare: all have the same weights, data and loss."""
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
    peaks: dict[str, int] = {}
    beside = 0
    for name, job, variant, plan in variants_of(kind, STEPS, budget=None):
        peaks[name] = live_peak(job, variant)
        if name.startswith("ckptplan, standard"):
            assert plan is not None  # noqa: S101 - for the type checker
            # Gradients and workspaces, which a plan does not count.
            beside = peaks[name] - plan.predicted.local_peak_bytes
    budget = peaks["torch.utils.checkpoint, nested"] - beside - 2**16
    variants = list(variants_of(kind, STEPS, budget=budget))
    times: dict[str, list[float]] = {name: [] for name, *_ in variants}
    for _ in range(ROUNDS):
        for name, job, variant, _plan in variants:
            times[name].append(seconds(job, variant))
    return [
        {
            "network": kind,
            "variant": name,
            **spread(times[name]),
            "live_peak_bytes": peaks[name] if name in peaks else live_peak(job, variant),
            "predicted_peak_bytes": None if plan is None else plan.predicted.local_peak_bytes,
            **process_memory(kind, name, budget),
        }
        for name, job, variant, plan in variants
    ]


def process_memory(kind: str, name: str, budget: int) -> dict[str, int]:
    """Return the peak of a fresh process, and its growth by the run."""
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
    """Return the time of a chunk of 64 steps, run first and replayed from its spikes.

    Each is timed by itself, and again in turn, so that a replay finds the caches as a forward pass leaves them.
    """
    job = lif_job(640, spiking=spiking)
    cell, x = job.cell, job.inputs[512:576]
    with torch.no_grad():
        states, saved = cell.run(job.state, job.inputs[:512], None)
        state, before = states[-1].clone(), cell.last(saved)
        _, outputs = cell.run(state, x, before)
        forward, again = partial(cell.run, state, x, before), partial(cell.replay, state, x, outputs)
        itself = [statistics.median(timed(action) for _ in range(41)) for action in (forward, again)]
        turns = [(timed(forward), timed(again)) for _ in range(41)]
        active = cell.dense(outputs).mean().item()
    return {
        "inputs": "spikes" if spiking else "dense",
        "activity": active,
        "forward_seconds": itself[0],
        "replay_seconds": itself[1],
        "replay_after_forward_seconds": statistics.median(second for _, second in turns),
        "ratio": itself[1] / itself[0],
    }


def timed(action: Callable[[], object]) -> float:
    """Return the time of an action."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    """Measure, print the tables and write them into docs/measured.md."""
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
    results = {"variants": lines, "replay": replays, "bounds": bounds(lines, replays)}
    print(document(results))
    write("runtime", results)
    write_document(results)


if __name__ == "__main__":
    main()
