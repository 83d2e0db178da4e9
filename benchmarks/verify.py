"""What it costs to compare steps that run again: the same jobs with and without, in turn.

One thread; a tanh cell of about 0.1 ms a step, a GRU, the LIF layer, and ``unroll``. Processor time, since
other programs share the machine. Run: python -m benchmarks.verify
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import ckptplan
from benchmarks.record import write
from ckptplan.torch import LIF, bptt, unroll
from ckptplan.torch.adapters import TorchCell

STEPS, BATCH, INPUTS, NEURONS, ROUNDS = 256, 32, 64, 256, 101
MACHINE = ckptplan.HardwareProfile(
    name="units", local_bytes=10**9, write_bytes_per_second=1e3, read_bytes_per_second=1e3,
    latency_seconds=0, synchronisation_seconds=0.1,
)  # fmt: skip
#: The states that each strategy has room for.
ROOM = {"base": 2_100, "standard": 70, "double": 40, "revolve": 12, "optimal": 24}

#: Runs a job; the argument says whether it is verified.
Job = Callable[[bool], None]


def make_plan(strategy: str) -> ckptplan.Plan:
    """Return a plan in units of a state, whose tapes are a state each."""
    workload = ckptplan.Workload(
        name="units", steps=STEPS, state_bytes=1, tape_bytes=1,
        forward_seconds=1, backward_seconds=2, recompute_seconds=1,
    )  # fmt: skip
    return ckptplan.optimize(workload, MACHINE, strategies=[strategy], local_bytes=ROOM[strategy])


def measure_square(_: int, output: torch.Tensor) -> torch.Tensor:
    """Return the loss of a step, or of a chunk."""
    return output.square().mean()


def sum_loss(cell: Any, inputs: torch.Tensor, state: Any, strategy: str, loss: str = "loss") -> Job:
    """Return a job with a loss."""
    plan = make_plan(strategy)
    losses: dict[str, Any] = {loss: measure_square}

    def run(verify: bool) -> None:
        bptt(cell, inputs, state, plan=plan, verify=verify, **losses).loss.backward()

    return run


def keep_outputs(cell: Any, inputs: torch.Tensor, state: Any, strategy: str) -> Job:
    """Return a job that keeps its outputs."""
    plan = make_plan(strategy)

    def run(verify: bool) -> None:
        outputs, _ = unroll(cell, inputs, state, plan=plan, verify=verify)
        outputs.square().mean().backward()

    return run


def make_jobs(inputs: torch.Tensor) -> dict[str, Job]:
    """Return the jobs by name."""
    tanh, gru = (TorchCell(kind(INPUTS, NEURONS)) for kind in (torch.nn.RNNCell, torch.nn.GRUCell))
    lif = LIF(INPUTS, NEURONS)
    zeros, rest = torch.zeros(BATCH, NEURONS), lif.initial_state(BATCH)
    jobs = {f"tanh, {strategy}": sum_loss(tanh, inputs, zeros, strategy) for strategy in ROOM}
    jobs["tanh, standard, chunk_loss"] = sum_loss(tanh, inputs, zeros, "standard", "chunk_loss")
    jobs |= {f"tanh, {one}, unroll": keep_outputs(tanh, inputs, zeros, one) for one in ("standard", "revolve")}
    jobs |= {f"GRU, {one}": sum_loss(gru, inputs, zeros, one) for one in ("standard", "revolve")}
    jobs |= {f"LIF, {one}": sum_loss(lif, inputs, rest, one) for one in ("standard", "revolve")}
    jobs["LIF, standard, unroll"] = keep_outputs(lif, inputs, rest, "standard")
    return jobs


def time_both(run: Job) -> dict[str, float]:
    """Time a job with and without, in turn, in an order that alternates."""
    run(True)
    run(False)
    times: dict[bool, list[float]] = {True: [], False: []}
    gc.disable()
    for round_ in range(ROUNDS):
        for verify in (True, False) if round_ % 2 else (False, True):
            start = time.process_time()
            run(verify)
            times[verify].append(time.process_time() - start)
    gc.enable()
    ratios = [one / other for one, other in zip(times[True], times[False], strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    return {
        "seconds": statistics.median(times[False]),
        "seconds_verified": statistics.median(times[True]),
        "ratio": ratio,
        "ratio_lower_quartile": low,
        "ratio_upper_quartile": high,
        "ratio_of_least": min(times[True]) / min(times[False]),
    }


def time_step(inputs: torch.Tensor) -> float:
    """Return the seconds of a forward step of the tanh cell, without a graph."""
    cell, state = TorchCell(torch.nn.RNNCell(INPUTS, NEURONS)), torch.zeros(BATCH, NEURONS)
    with torch.no_grad():
        start = time.process_time()
        for x in inputs:
            state, _ = cell(state, x)
        return (time.process_time() - start) / STEPS


def main() -> None:
    """Print a row of a table for each job."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(STEPS, BATCH, INPUTS)
    time_step(inputs)
    step = time_step(inputs)
    print(f"T = {STEPS}, {ROUNDS} rounds; a step of the tanh cell takes {step * 1e6:.0f} us forward\n")
    print("| job | without | with | median of ratios | quartiles | least times |\n|---|---|---|---|---|---|")
    jobs = {}
    for name, run in make_jobs(inputs).items():
        found = jobs[name] = time_both(run)
        shares = {key: f"{100 * (value - 1):+.1f} %" for key, value in found.items() if "ratio" in key}
        print(
            f"| {name} | {found['seconds'] * 1e3:.1f} ms | {found['seconds_verified'] * 1e3:.1f} ms "
            f"| {shares['ratio']} | {shares['ratio_lower_quartile']} to {shares['ratio_upper_quartile']} "
            f"| {shares['ratio_of_least']} |",
            flush=True,
        )
    write("verify", {"steps": STEPS, "rounds": ROUNDS, "step_seconds": step, "jobs": jobs})


if __name__ == "__main__":
    main()
