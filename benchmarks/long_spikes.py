"""Train on spiking sequences of up to a million steps in 64 MB: python -m benchmarks.long_spikes.

``LIF(64, 256)``, batch 32, about 7 % of the neurons fire at a time; one thread, a limit of 64 MB beside the
inputs, which a function makes. T grows from a thousand to a million. Beside it: a plain loop, as long as it
fits, ``torch.utils.checkpoint`` with segments of sqrt(T), and a plan that gets the peak of these as its limit.
The peak counts the tensors of the first call; the seconds are those of the second call.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.harness import DOCS, Setting, main, table
from benchmarks.variants import Job, make_job, run_checkpoint, run_plain, run_plan
from ckptplan.torch import plan_for
from ckptplan.torch.device.meters import LiveBytes

#: T; those of the small run are shorter.
LENGTHS, SMALL_LENGTHS = (1_000, 4_096, 10_000, 100_000, 1_000_000), (1_000, 3_000)
#: The limit, in bytes, and the longest sequences of the rivals, beyond which they pass 64 MB many times.
LIMIT, PLAIN_STEPS, CHECKPOINT_STEPS = 64_000_000, 1_000, 100_000
PLAIN, RIVAL, OURS = "plain loop", "torch.utils.checkpoint", "ckptplan"
AS_MUCH = f"{OURS}, as much as {RIVAL}"


def measure(run: Callable[[], torch.Tensor]) -> dict[str, Any]:
    """Return the peak of a forward and a backward pass, and the seconds of another one."""
    with LiveBytes() as live:
        run().backward()
    began = time.perf_counter()
    run().backward()
    return {"peak_bytes": live.peak, "seconds": time.perf_counter() - began}


def measure_plan(job: Job, limit: int, steps: int) -> dict[str, Any]:
    """Measure a plan within a limit."""
    plan = plan_for(job.cell, job.inputs, job.state, job.loss, memory=limit, steps=steps)
    parameters = ", ".join(f"{name} {value:,}" for name, value in plan.parameters.items())
    return {
        **measure(partial(run_plan, job, plan)),
        "plan": f"{plan.strategy}, {parameters}",
        "cache": plan.cache,
        "overhead": plan.predicted.overhead,
        "limit": limit,
    }


def run(setting: Setting) -> dict[str, Any]:
    """Measure each length."""
    job = make_job("replay", batch=32, inputs=64, neurons=setting.pick(32, 256, 256))
    limit = setting.pick(4_000_000, LIMIT, LIMIT)
    results: dict[str, Any] = {}

    def keep(name: str, steps: int, way: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        measured = setting.attempt(f"{name}, T = {steps}", way)
        results[f"{name}, {steps}"] = {"way": name, "steps": steps, **measured}
        setting.save(results)
        return measured

    for steps in SMALL_LENGTHS if setting.small else map(int, setting.parts):
        keep(OURS, steps, partial(measure_plan, job, limit, steps))
        if steps <= PLAIN_STEPS:
            keep(PLAIN, steps, partial(measure, partial(run_plain, job, steps)))
        if steps <= CHECKPOINT_STEPS:
            segments = partial(run_checkpoint, job, steps, (math.isqrt(steps),))
            rival = keep(RIVAL, steps, partial(measure, segments))
            keep(AS_MUCH, steps, partial(measure_plan, job, rival.get("peak_bytes", limit), steps))
    return results


def document(results: dict[str, Any]) -> str:
    """Return a table with a row for each length: the peak and the time of a step, by each way."""
    measured: dict[int, dict[str, Any]] = {}
    for row in results.values():
        if isinstance(row, dict):
            measured.setdefault(row["steps"], {})[row["way"]] = row

    def show(row: dict[str, Any] | None) -> str:
        if row is None or "seconds" not in row:
            return "" if row is None else str(row["status"])
        return f"{row['peak_bytes'] * 1e-6:.1f} MB, {row['seconds'] / row['steps'] * 1e6:.0f} µs"

    lines = [
        [
            f"{steps:,}",
            *(show(rows.get(way)) for way in (PLAIN, RIVAL, AS_MUCH, OURS)),
            f"{rows[OURS]['overhead']:+.0%}",
            rows[OURS]["cache"],
        ]
        for steps, rows in measured.items()
    ]
    heads = ["T", PLAIN, RIVAL, f"{OURS}, the same limit", f"{OURS}, 64 MB", "predicted", "spikes kept"]
    return table(heads, lines)


PAGES = {DOCS / "measured.md": document}

if __name__ == "__main__":
    main("long_spikes", run, PAGES, about=__doc__, parts=map(str, LENGTHS))
