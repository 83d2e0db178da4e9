"""Time and memory of executed plans beside plain backpropagation and torch.utils.checkpoint.

Batch 32, 64 inputs, 256 neurons, fp32, T = 4,096, one thread; the loss is inside the chunk. All variants of a
network run in turn, for several rounds; times are medians. Peaks are what the allocator reports beyond
parameters and inputs. The first call includes the trial and compiling.

Run: python -m benchmarks.runtime
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.harness import (
    DOCS,
    MIB,
    Setting,
    find_difference,
    main,
    spread,
    tabulate,
    time_in_turn,
)
from benchmarks.variants import Job, compute_gradients, make_job, make_plan, run_checkpoint, run_plain, run_plan
from ckptplan import Plan
from ckptplan.torch import Compile
from ckptplan.torch.device.meters import make_meter

#: Bytes of a state and of a tape, by batch and neurons.
SIZES = {"gru": (4, 28), "lif": (8, 8), "replay": (4, 4)}
#: Returns a loss; the plan that it runs under is None for peers.
Variant = tuple[Job, Callable[[], torch.Tensor], Plan | None]


def list_variants(kind: str, setting: Setting) -> dict[str, Variant]:
    """Return the variants of a network: all have the same weights, data and loss."""
    batch, inputs, neurons = setting.pick((4, 8, 32), (32, 64, 256), (256, 64, 1024))
    steps, chunk, piece = setting.pick((32, 8, 4), (4096, 64, 16), (1024, 64, 8))
    make = partial(make_job, batch=batch, inputs=inputs, neurons=neurons, device=setting.device)
    job, replay = make(kind), make("replay")
    state, tape = (size * batch * neurons for size in SIZES[kind])
    room = chunk * tape + (steps // chunk - 1) * state
    plan = partial(make_plan, steps=steps, state_bytes=state, tape_bytes=tape)
    standard, base = plan("standard", local_bytes=room), plan("base")
    optimal = plan("optimal", local_bytes=room // 3)
    compile_ = Compile(steps=piece)

    def under_checkpoint(*chunks: int, **how: Any) -> Variant:
        return job, partial(run_checkpoint, job, steps, chunks, **how), None

    def under_plan(plan: Plan, **how: Any) -> Variant:
        return job, partial(run_plan, job, plan, **how), plan

    found: dict[str, Variant] = {
        "plain": (job, partial(run_plain, job, steps), None),
        f"torch.utils.checkpoint, {chunk}": under_checkpoint(chunk),
        f"torch.utils.checkpoint, {4 * chunk} and {chunk // 4}": under_checkpoint(4 * chunk, chunk // 4),
        f"torch.utils.checkpoint, {chunk}, compiled": under_checkpoint(
            chunk, run_part=_compile_pieces(job, piece)
        ),
        f"ckptplan, standard, {chunk}": under_plan(standard),
        "ckptplan, optimal, a third of it": under_plan(optimal),
        f"ckptplan, standard, {chunk}, compiled": under_plan(standard, compile_=compile_),
        "ckptplan, base, compiled": under_plan(base, compile_=compile_),
    }
    if setting.on_gpu:
        for name, mode in (("CUDA graphs", "cudagraphs"), ("compiled CUDA graphs", "reduce-overhead")):
            graphs = Compile(steps=piece, mode=mode)
            found[f"ckptplan, standard, {chunk}, {name}"] = under_plan(standard, compile_=graphs)
    if kind == "lif":
        found[f"ckptplan, standard, {chunk}, LIF layer"] = (replay, partial(run_plan, replay, standard), None)
    return found


def _compile_pieces(job: Job, piece: int) -> Callable[..., Any]:
    """Return steps that run in compiled pieces, as users of torch.compile write them."""
    from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

    nest = tree_structure(job.state)

    @torch.compile(dynamic=False)
    def run_piece(xs: torch.Tensor, total: torch.Tensor, *leaves: torch.Tensor) -> Any:
        state = tree_unflatten(list(leaves), nest)
        for x in xs.unbind(0):
            state, output = job.cell(state, x)
            total = total + job.loss(0, output)
        return total, *tree_leaves(state)

    def run_part(_: Job, start: int, stop: int, *carried: torch.Tensor) -> Any:
        for first in range(start, stop, piece):
            carried = run_piece(job.inputs(first, min(stop, first + piece)), *carried)
        return carried

    return run_part


def measure_variants(kind: str, setting: Setting, keep: Callable[[dict[str, Any]], None]) -> None:
    """Measure each variant of a network; ``keep`` is given a line for each."""
    variants = list_variants(kind, setting)
    lines: dict[str, dict[str, Any]] = {}
    expected: list[torch.Tensor] = []
    for name, (job, run, plan) in variants.items():

        def measure(job: Job = job, run: Callable[[], torch.Tensor] = run) -> dict[str, Any]:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                begun = time.perf_counter()
                gradients = compute_gradients(job, run)
                first = time.perf_counter() - begun
            if not expected:
                expected.extend(gradients)
            with make_meter(torch.device(setting.device), is_compiled=True) as allocated:
                run().backward()
            return {
                "first_seconds": first,
                "gradient_difference": find_difference(gradients, expected),
                "peak_bytes": allocated.peak,
                "warnings": sorted({str(one.message)[:300] for one in caught if "compil" in str(one.message)}),
            }

        lines[name] = setting.attempt(f"{kind}, {name}", measure)
        lines[name]["predicted_bytes"] = None if plan is None else plan.predicted.local_peak_bytes
    runs = {
        name: partial(compute_gradients, *variants[name][:2])
        for name, line in lines.items()
        if line["status"] == "measured"
    }
    times = time_in_turn(runs, rounds=setting.pick(1, 3, 5), setting=setting)
    for name, line in lines.items():
        keep({"network": kind, "variant": name, **line, **(spread(times[name]) if name in times else {})})


def run(setting: Setting) -> list[dict[str, Any]]:
    """Measure both networks."""
    lines: list[dict[str, Any]] = []

    def keep(line: dict[str, Any]) -> None:
        lines.append(line)
        setting.save(lines)

    for kind in ("lif", "gru"):
        measure_variants(kind, setting, keep)
    return lines


def document(lines: list[dict[str, Any]]) -> str:
    """Return a table for each network; ratios are to plain backpropagation."""
    parts = []
    for kind in dict.fromkeys(line["network"] for line in lines):
        of_kind = [line for line in lines if line["network"] == kind]
        # Where plain backpropagation did not run, there is nothing to compare with.
        plain = of_kind[0].get("median_seconds")
        parts.append(
            tabulate(
                of_kind,
                (kind.upper(), "variant"),
                (
                    "time, s",
                    lambda one: f"{one['median_seconds']:.2f}" if "median_seconds" in one else one["status"],
                ),
                ("over plain", "median_seconds", "{:.2f}" if plain else "", 1 / plain if plain else None),
                ("peak, MiB", "peak_bytes", "{:,.1f}", 1 / MIB),
                ("predicted", "predicted_bytes", "{:,.1f}", 1 / MIB),
                ("first call, s", "first_seconds", "{:.1f}"),
            )
        )
        parts += [f"{line['variant']}: {text}" for line in of_kind for text in line.get("warnings", ())]
    return "\n\n".join(parts) + "\n"


PAGES = {DOCS / "measured.md": document}

if __name__ == "__main__":
    main("runtime", run, PAGES, about=__doc__)
