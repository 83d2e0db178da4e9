"""Compiled pieces beside steps as they are written: python -m benchmarks.compiled [lif] [gru].

T = 4,096, batch 32, 64 inputs, 256 neurons, fp32, one thread, chunks of 64 steps, pieces of 16. All variants
run in turn, for several rounds; times are medians of processor time. Peaks are what the allocator reports
beyond parameters and inputs. The floor is the arithmetic of a standard plan in C++ (benchmarks/floor.py).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from benchmarks.floor import Floor, build_floor
from benchmarks.record import spread, write
from benchmarks.runtime_variants import MACHINE, Job, chunked, gru_job, lif_job, plain
from ckptplan import Plan, Workload, optimize
from ckptplan.torch import bptt
from ckptplan.torch.compiled.steps import SHIFT, run_with_loss
from ckptplan.torch.compiling.backend import CompiledFunction, set_compiler
from ckptplan.torch.meters import measure_allocated
from ckptplan.torch.trees import flatten
from ckptplan.units import format_bytes

STEPS, CHUNK, PIECE, ROUNDS = 4096, 64, 16, 5
KINDS = ("lif", "gru")
#: Bytes of a state and of a tape.
SIZES = {"lif": (2**16, 2**16), "gru": (2**15, 7 * 2**15), "LIF": (2**15, 2**15)}
OURS, LAYER, FLOOR = "ckptplan, standard, compiled", "ckptplan, standard, LIF layer", "floor in C++"
LAYER_COMPILED = f"{LAYER}, compiled"
#: Runs forwards and backwards; returns the gradients of the parameters.
Variant = Callable[[], Sequence[torch.Tensor]]
#: What times and peaks of ours are compared with, and the most that was aimed at.
BOUNDS = {
    "plain": {"lif": 0.65, "gru": 1.05},
    "torch.utils.checkpoint": {"lif": 0.35, "gru": 0.55},
    "torch.utils.checkpoint, compiled": {"lif": 0.85, "gru": 0.85},
    FLOOR: {"lif": 1.7, "gru": 1.7},
}
#: Of the LIF layer, whose kernels compiled pieces replace, over compiled pieces of the same neurons.
LAYER_BOUND = 1.0
PEAK_BOUND = 1.05


def make_plan(kind: str, strategy: str) -> Plan:
    """Return a plan in chunks of 64 steps, or base."""
    state, tape = SIZES[kind]
    workload = Workload(
        name=kind,
        steps=STEPS,
        units=1,
        state_bytes=state,
        tape_bytes=tape,
        forward_seconds=1e-4,
        backward_seconds=2e-4,
        recompute_seconds=1e-4,
    )
    room = CHUNK * tape + (STEPS // CHUNK - 1) * state
    budget: dict[str, Any] = {"local_bytes": room} if strategy == "standard" else {}
    return optimize(workload, MACHINE, strategies=[strategy], remote_bytes=0, **budget)


def run_ours(job: Job, plan: Plan, *, compiled: bool) -> torch.Tensor:
    """Return the loss of ckptplan."""
    piece = PIECE if compiled else None
    return bptt(job.cell, job.inputs, job.state, job.loss, plan=plan, compile=piece).loss


def run_checkpoint(job: Job, piece: Any) -> torch.Tensor:
    """Return the loss of torch.utils.checkpoint over compiled pieces."""
    structure = flatten(job.state)[1]

    def part(first: int, total: torch.Tensor, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for start in range(first, first + CHUNK, PIECE):
            inputs = job.inputs[start : start + PIECE]
            terms, state = piece(job.cell, job.loss, start + SHIFT, structure.fill(leaves), inputs)
            total, leaves = total + terms.sum(), flatten(state)[0]
        return total, *leaves

    carried: Any = (torch.zeros(()), *flatten(job.state)[0])
    with set_compiler():
        for first in range(0, STEPS, CHUNK):
            carried = checkpoint(partial(part, first), *carried, use_reentrant=False)
    loss: torch.Tensor = carried[0]
    return loss


def differentiate(
    run: Callable[[], torch.Tensor], parameters: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Return the gradients of a loss."""
    return torch.autograd.grad(run(), parameters)


def run_floor(library: Any, kind: str, job: Job) -> Sequence[torch.Tensor]:
    """Return the gradients of the floor."""
    return Floor(library, kind, job, chunk=CHUNK)()[1]


def list_variants(kind: str, job: Job) -> dict[str, Callable[[], torch.Tensor]]:
    """Return what is compared under autograd."""
    standard, base = make_plan(kind, "standard"), make_plan(kind, "base")
    piece = CompiledFunction(run_with_loss, mode="default")
    return {
        "plain": partial(plain, job),
        "torch.utils.checkpoint": partial(chunked, job, CHUNK),
        "torch.utils.checkpoint, compiled": partial(run_checkpoint, job, piece),
        "ckptplan, base, compiled": partial(run_ours, job, base, compiled=True),
        "ckptplan, standard": partial(run_ours, job, standard, compiled=False),
        OURS: partial(run_ours, job, standard, compiled=True),
    }


def list_all(kind: str) -> dict[str, Variant]:
    """Return all variants of a network."""
    job = gru_job(STEPS) if kind == "gru" else lif_job(STEPS, autograd=True)
    found: dict[str, Variant] = {
        name: partial(differentiate, run, job.parameters) for name, run in list_variants(kind, job).items()
    }
    if kind == "lif":
        layer, plan = lif_job(STEPS), make_plan("LIF", "standard")
        for name, compiled in {LAYER: False, LAYER_COMPILED: True}.items():
            found[name] = partial(
                differentiate, partial(run_ours, layer, plan, compiled=compiled), layer.parameters
            )
    library = build_floor()
    if isinstance(library, str):
        sys.stdout.write(f"{library}\n")
    else:
        found[FLOOR] = partial(run_floor, library, kind, job)
    return found


def compare(kind: str) -> list[dict[str, Any]]:
    """Return a line for each variant of a network."""
    variants = list_all(kind)
    times: dict[str, list[float]] = {name: [] for name in variants}
    peaks, first, gradients = {}, {}, {}
    for name, variant in variants.items():
        begun = time.perf_counter()
        variant()
        first[name] = time.perf_counter() - begun
        with measure_allocated(torch.device("cpu")) as allocated:
            gradients[name] = variant()
        peaks[name] = allocated.peak
    for _ in range(ROUNDS):
        for name, variant in variants.items():
            begun = time.process_time()
            variant()
            times[name].append(time.process_time() - begun)
    return [
        {
            "network": kind,
            "variant": name,
            **spread(times[name]),
            "over_plain": statistics.median(times[name]) / statistics.median(times["plain"]),
            "peak_bytes": peaks[name],
            "first_seconds": first[name],
            "gradient_difference": max(
                float((one - other).abs().max() / other.abs().max())
                for one, other in zip(gradients[name], gradients["plain"], strict=True)
            ),
        }
        for name in variants
    ]


def document(results: dict[str, Any]) -> str:
    """Return the results as tables for a page."""
    rows = [
        "| network | variant | time | over plain | peak | gradients differ by | first call |",
        "|---|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {one['network']} | {one['variant']} | {one['median_seconds']:.2f} s | {one['over_plain']:.2f} "
        f"| {format_bytes(one['peak_bytes'])} | {one['gradient_difference']:.0e} "
        f"| {one['first_seconds']:.1f} s |"
        for one in results["variants"]
    ]
    rows += ["", "| compiled standard over | at most | reached |", "|---|---|---|"]
    for kind in KINDS:
        lines = {one["variant"]: one for one in results["variants"] if one["network"] == kind}
        if not lines:
            continue
        ours = lines[OURS]
        for other, bounds in BOUNDS.items():
            if other in lines:
                ratio = ours["median_seconds"] / lines[other]["median_seconds"]
                rows.append(f"| {kind}, time of {other} | {bounds[kind]:.2f} | {ratio:.2f} |")
        if LAYER_COMPILED in lines:
            ratio = lines[LAYER_COMPILED]["median_seconds"] / ours["median_seconds"]
            rows.append(
                f"| {kind}, time of the LIF layer, compiled, over it | {LAYER_BOUND:.2f} | {ratio:.2f} |"
            )
        ratio = ours["peak_bytes"] / lines["ckptplan, standard"]["peak_bytes"]
        rows.append(f"| {kind}, peak of ckptplan, standard | {PEAK_BOUND:.2f} | {ratio:.2f} |")
    return "\n".join(rows)


def main(names: list[str]) -> None:
    """Print a table, and write the numbers if it is whole."""
    torch.set_num_threads(1)
    results = {
        "sizes": {"steps": STEPS, "chunk": CHUNK, "piece": PIECE, "rounds": ROUNDS},
        "variants": [line for kind in KINDS if not names or kind in names for line in compare(kind)],
    }
    print(document(results))
    if not names:
        write("compiled", results)


if __name__ == "__main__":
    main(sys.argv[1:])
