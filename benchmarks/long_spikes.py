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
from torch.utils.checkpoint import checkpoint

from benchmarks.harness import DOCS, Setting, main, table
from ckptplan.torch import LIF, bptt, plan_for
from ckptplan.torch.device.meters import LiveBytes

INPUTS, NEURONS, BATCH, PERIOD = 64, 256, 32, 509
#: T; those of the small run are shorter.
LENGTHS, SMALL_LENGTHS = (1_000, 4_096, 10_000, 100_000, 1_000_000), (1_000, 3_000)
#: The limit, in bytes, and the longest sequences of the rivals, beyond which they pass 64 MB many times.
LIMIT, PLAIN_STEPS, CHECKPOINT_STEPS = 64_000_000, 1_000, 100_000
PLAIN, RIVAL, OURS = "plain loop", "torch.utils.checkpoint", "ckptplan"


class Job:
    """A layer, and inputs of any length."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(0)
        self.neurons = setting.pick(32, NEURONS, NEURONS)
        self.cell = LIF(INPUTS, self.neurons, threshold=1.0)
        with torch.no_grad():
            self.cell.get_parameter("recurrent_weight").mul_(0.3)
        self.table = (torch.rand(PERIOD, BATCH, INPUTS) < 0.1).float() * 2
        self.state = self.cell.initial_state(BATCH)

    def inputs(self, start: int, stop: int) -> torch.Tensor:
        """Return the inputs of some steps."""
        return self.table[torch.arange(start, stop) % PERIOD]

    @staticmethod
    def loss(_: int, spikes: torch.Tensor) -> torch.Tensor:
        """Return the loss of a step."""
        return spikes.square().mean()

    def find_activity(self) -> float:
        """Return the share of neurons that fire, on average over some steps."""
        with torch.no_grad():
            state, shares = self.state, []
            for x in self.inputs(0, 100):
                state, spikes = self.cell(state, x)
                shares.append(float(spikes.mean()))
        return sum(shares) / len(shares)


def _run_plain(job: Job, steps: int) -> None:
    state, total = job.state, torch.zeros(())
    for step in range(steps):
        state, spikes = job.cell(state, job.inputs(step, step + 1)[0])
        total = total + job.loss(step, spikes)
    total.backward()


def _run_segment(job: Job, state: torch.Tensor, start: int, stop: int) -> Any:
    total = torch.zeros(())
    for step, x in enumerate(job.inputs(start, stop), start):
        state, spikes = job.cell(state, x)
        total = total + job.loss(step, spikes)
    return state, total


def _run_checkpoint(job: Job, steps: int) -> None:
    state, total, length = job.state, torch.zeros(()), math.isqrt(steps)
    for start in range(0, steps, length):
        segment = partial(_run_segment, job, start=start, stop=min(steps, start + length))
        state, term = checkpoint(segment, state, use_reentrant=False)
        total = total + term
    total.backward()


def _measure(run: Callable[[], object]) -> dict[str, Any]:
    with LiveBytes() as live:
        run()
    began = time.perf_counter()
    run()
    return {"peak_bytes": live.peak, "seconds": time.perf_counter() - began}


def _run_planned(job: Job, limit: int, steps: int) -> dict[str, Any]:
    plan = plan_for(job.cell, job.inputs, job.state, job.loss, memory=limit, steps=steps)

    def train() -> None:
        bptt(job.cell, job.inputs, job.state, job.loss, plan=plan).loss.backward()

    measured = _measure(train)
    parameters = ", ".join(f"{name} {value:,}" for name, value in plan.parameters.items())
    return {**measured, "plan": f"{plan.strategy}, {parameters}", "cache": plan.cache, "steps": steps,
            "overhead": plan.predicted.overhead, "limit": limit}  # fmt: skip


def _run_within(job: Job, results: dict[str, Any], steps: int) -> dict[str, Any]:
    """Measure a plan whose limit is the peak that the rival had."""
    return _run_planned(job, results[f"{RIVAL}, {steps}"]["peak_bytes"], steps)


def run(setting: Setting) -> dict[str, Any]:
    """Measure each length."""
    torch.set_num_threads(1)
    job = Job(setting)
    limit = setting.pick(4_000_000, LIMIT, LIMIT)
    results: dict[str, Any] = {"activity": job.find_activity()}
    for steps in SMALL_LENGTHS if setting.small else map(int, setting.parts):
        ways: dict[str, Callable[[], dict[str, Any]]] = {OURS: partial(_run_planned, job, limit, steps)}
        if steps <= PLAIN_STEPS:
            ways[PLAIN] = partial(_measure, partial(_run_plain, job, steps))
        if steps <= CHECKPOINT_STEPS:
            ways[RIVAL] = partial(_measure, partial(_run_checkpoint, job, steps))
            ways[f"{OURS}, as much as {RIVAL}"] = partial(_run_within, job, results, steps)
        for name, way in ways.items():
            measured = setting.attempt(f"{name}, T = {steps}", way)
            results[f"{name}, {steps}"] = {"way": name, "steps": steps, **measured}
            setting.save(results)
    return results


def _show(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if "seconds" not in row:
        return str(row["status"])
    return f"{row['peak_bytes'] * 1e-6:.1f} MB, {row['seconds'] / row['steps'] * 1e6:.0f} µs"


def document(results: dict[str, Any]) -> str:
    """Return a table with a row for each length: the peak and the time of a step, by each way."""
    measured: dict[int, dict[str, Any]] = {}
    for row in results.values():
        if isinstance(row, dict):
            measured.setdefault(row["steps"], {})[row["way"]] = row
    ways = (PLAIN, RIVAL, f"{OURS}, as much as {RIVAL}", OURS)
    lines = [
        [
            f"{steps:,}",
            *(_show(rows.get(way)) for way in ways),
            f"{rows[OURS]['overhead']:+.0%}",
            rows[OURS]["cache"],
        ]
        for steps, rows in measured.items()
    ]
    heads = ["T", PLAIN, RIVAL, f"{OURS}, the same limit", f"{OURS}, 64 MB", "predicted", "spikes kept"]
    return table(heads, lines)


if __name__ == "__main__":
    parts = [str(steps) for steps in LENGTHS]
    main("long_spikes", run, document, about=__doc__, page=DOCS / "measured.md", parts=parts)
