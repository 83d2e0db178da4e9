"""Compiled pieces, with and without CUDA graphs, beside steps as they are written."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.jobs import (
    Job,
    compute_gradients,
    find_difference,
    make_job,
    run_checkpoint,
    run_plain,
    run_plan,
)
from benchmarks.gpu.setting import Setting, run_once
from benchmarks.record import spread
from ckptplan.planning.playback import make_schedule
from ckptplan.torch import Compile

ROUNDS = 5
#: Pieces are short, since compiling takes longer than all else.
CHUNK, PIECE = 64, 8


def run(setting: Setting) -> dict[str, Any]:
    """Compare the variants of each network."""
    steps, chunk, piece = setting.pick((16, 8, 2), (1024, CHUNK, PIECE))
    found: dict[str, Any] = {"steps": steps, "chunk": chunk, "piece": piece, "networks": []}
    for kind in setting.pick(("lif",), ("lif", "gru")):
        row: dict[str, Any] = {"network": kind, "variants": []}
        found["networks"].append(row)
        job = make_job(kind, setting)
        expected = compute_gradients(job, partial(run_plain, job, steps))
        for name, variant in list_variants(job, steps, chunk, piece, setting).items():
            measured = setting.attempt(f"{kind}, {name}", partial(measure, setting, job, variant, expected))
            row["variants"].append({"variant": name, **measured})
            setting.save(found)
    return found


def list_variants(
    job: Job, steps: int, chunk: int, piece: int, setting: Setting
) -> dict[str, Callable[[], torch.Tensor]]:
    """Return what is compared; all but plain run in chunks of the same length."""
    plan = make_schedule("standard", steps=steps, chunk_size=chunk)
    variants: dict[str, Callable[[], torch.Tensor]] = {
        "plain": partial(run_plain, job, steps),
        "torch.utils.checkpoint, non-reentrant": partial(run_checkpoint, job, steps, (chunk,), reentrant=False),
        "ckptplan": partial(run_plan, job, plan),
        "ckptplan, compiled": partial(run_plan, job, plan, compile_=Compile(steps=piece)),
    }
    if setting.on_gpu:
        graphs = Compile(steps=piece, mode="reduce-overhead")
        variants["ckptplan, compiled, CUDA graphs"] = partial(run_plan, job, plan, compile_=graphs)
    return variants


def measure(
    setting: Setting, job: Job, variant: Callable[[], torch.Tensor], expected: list[torch.Tensor]
) -> dict[str, Any]:
    """Return times, the peak, how far gradients are off, and what a warning said: pieces may not compile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        began = time.perf_counter()
        difference = find_difference(compute_gradients(job, variant), expected)
        setting.wait()
        first = time.perf_counter() - began
    # CUDA graphs are recorded in the second run.
    found = [run_once(setting, variant, limit=None) for _ in range(setting.pick(1, ROUNDS + 1))]
    return {
        **spread([one["seconds"] for one in found[-ROUNDS:]]),
        "peak_bytes": max(one["peak_bytes"] for one in found),
        "first_seconds": first,
        "gradient_difference": difference,
        "warnings": sorted({str(one.message)[:300] for one in caught if "compil" in str(one.message).lower()}),
    }
