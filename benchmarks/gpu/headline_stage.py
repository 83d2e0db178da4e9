"""Under one limit of memory: longer sequences and larger networks than plain backpropagation holds.

The limit is that of PyTorch's allocator (``torch.cuda.set_per_process_memory_fraction``): weights, inputs,
workspaces and holes count. First the longest sequence of base is found. Then every way to train runs a sequence
that is ten times longer; what does not fit is a row, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.jobs import (
    Job,
    make_fused,
    make_job,
    make_plan,
    run_checkpoint,
    run_fused,
    run_plain,
    run_plan,
)
from benchmarks.gpu.setting import GIB, MIB, ExhaustedError, Setting, clean, find_largest, run_once, set_limit
from ckptplan.errors import InputError
from ckptplan.torch import Compile

Run = Callable[[], torch.Tensor]
#: How many times longer than base's longest sequence.
LONGER = 10
#: T of the larger network.
FIXED_STEPS = 300
#: Room for the workspaces of libraries and for holes, which no plan counts.
_ASIDE, _ASIDE_BYTES = 0.1, 96 * MIB


def run(setting: Setting) -> dict[str, Any]:
    """Measure both networks."""
    limit = setting.pick(128 * 2**10, 4 * GIB)
    found: dict[str, Any] = {"limit_bytes": limit, "sequences": [], "networks": []}
    for kind in setting.pick(("gru",), ("gru", "lif")):
        _compare_lengths(kind, setting, limit, found)
    for kind in setting.pick(("lif",), ("gru", "lif")):
        found["networks"].append(_compare_networks(kind, setting, limit))
        setting.save(found)
    return found


def _compare_lengths(kind: str, setting: Setting, limit: int, found: dict[str, Any]) -> None:
    job = make_job(kind, setting)
    # Libraries allocate their workspaces in the first run.
    run_once(setting, partial(run_plain, job, 8), limit=None)
    set_limit(setting, limit)
    try:
        base = _find_longest(setting, lambda steps: partial(run_plain, job, steps), limit)
        row: dict[str, Any] = {"network": kind, "longest_of_base": base, "variants": []}
        found["sequences"].append(row)
        if not base:
            raise RuntimeError(f"base of {kind} fits no sequence within {limit:,} bytes")
        longer = setting.pick(2, LONGER) * base
        once = _measure(setting, partial(run_plain, job, base), base, limit)
        row["base"] = once
        for name, make in list_variants(job, longer, setting, limit).items():
            measured = setting.attempt(
                f"{kind}, {name}", partial(_make_and_measure, setting, make, longer, limit)
            )
            if "seconds_per_step" in measured:
                measured["over_base"] = measured["seconds_per_step"] / once["seconds_per_step"] - 1
            row["variants"].append({"variant": name, "steps": longer, **measured})
            setting.save(found)
    finally:
        set_limit(setting, None)


def list_variants(job: Job, steps: int, setting: Setting, limit: int) -> dict[str, Callable[[], Run]]:
    """Return the ways to train; what a way prepares, such as a plan, is prepared when it is asked for."""
    inner = max(2, round(math.sqrt(steps)))
    cube = max(2, round(steps ** (1 / 3)))
    variants: dict[str, Callable[[], Run]] = {
        "plain": lambda: partial(run_plain, job, steps),
        "ckptplan": lambda: _plan(job, steps, setting, limit),
        f"torch.utils.checkpoint, {inner}, non-reentrant": lambda: partial(
            run_checkpoint, job, steps, (inner,), reentrant=False
        ),
        f"torch.utils.checkpoint, {inner}, reentrant": lambda: partial(
            run_checkpoint, job, steps, (inner,), reentrant=True
        ),
        f"torch.utils.checkpoint, {cube**2} and {cube}, non-reentrant": lambda: partial(
            run_checkpoint, job, steps, (cube**2, cube), reentrant=False
        ),
        f"torch.utils.checkpoint, {cube**2} and {cube}, reentrant": lambda: partial(
            run_checkpoint, job, steps, (cube**2, cube), reentrant=True
        ),
        "save_on_cpu": lambda: partial(run_plain, job, steps, saved="cpu", pinned=setting.on_gpu),
    }
    if job.kind == "gru":
        net = make_fused(job)
        variants["nn.GRU as a whole (cuDNN)"] = lambda: partial(run_fused, net, job, steps)
    else:
        replayed = make_job("replay", setting)
        variants["ckptplan, replayed spikes"] = lambda: _plan(replayed, steps, setting, limit)
    if setting.on_gpu:
        # Last: compiling takes longest, and nothing waits for it if time is over.
        variants["ckptplan, compiled pieces"] = lambda: _plan(
            job, steps, setting, limit, compile_=Compile(steps=8)
        )
    return variants


def _plan(job: Job, steps: int, setting: Setting, limit: int, *, compile_: Any = None) -> Run:
    """Return the run of a plan for what the limit leaves."""
    clean(setting)
    held = torch.cuda.memory_allocated(setting.device) if setting.on_gpu else 0
    aside = int(_ASIDE * limit) + (_ASIDE_BYTES if setting.on_gpu else 0)
    try:
        plan = make_plan(job, steps, limit - held - aside)
    except InputError as error:
        if error.field != "memory":
            raise
        raise ExhaustedError(f"no plan fits: {error.message}") from None
    if compile_ is not None:
        # Compile before the run that is timed.
        run_plan(job, plan, compile_=compile_).backward()
    return partial(run_plan, job, plan, compile_=compile_)


def _measure(setting: Setting, variant: Run, steps: int, limit: int) -> dict[str, float]:
    found = run_once(setting, variant, limit=limit)
    return {**found, "seconds_per_step": found["seconds"] / steps}


def _make_and_measure(setting: Setting, make: Callable[[], Run], steps: int, limit: int) -> dict[str, float]:
    return _measure(setting, make(), steps, limit)


def _find_longest(setting: Setting, make: Callable[[int], Run], limit: int) -> int:
    def fits(number: int) -> bool:
        try:
            run_once(setting, make(number), limit=limit)
        except ExhaustedError:
            return False
        return True

    return find_largest(fits, start=setting.pick(8, 64), most=2**20)


def _compare_networks(kind: str, setting: Setting, limit: int) -> dict[str, Any]:
    """Return the largest network of base and of plans at T = 300, within the limit."""
    steps, unit = setting.pick(12, FIXED_STEPS), setting.pick(8, 64)

    def find(make: Callable[[Job], Run]) -> dict[str, Any]:
        best: dict[str, Any] = {}

        def fits(number: int) -> bool:
            if setting.seconds_left < 0:
                return False
            try:
                # The limit holds for the making of a network, too.
                job = make_job(kind, setting, neurons=unit * number)
                weights = sum(one.nbytes for one in job.parameters)
                one = run_once(setting, make(job), limit=limit)
            except (ExhaustedError, torch.OutOfMemoryError):
                return False
            numbers = sum(parameter.numel() for parameter in job.parameters)
            best.update(neurons=job.neurons, parameters=numbers, weight_bytes=weights, **one)
            return True

        find_largest(fits, start=setting.pick(2, 4), most=2**12, share=setting.pick(1.0, 0.06))
        return best

    set_limit(setting, limit)
    try:
        base = setting.attempt(
            f"{kind}, larger, base", lambda: find(lambda job: partial(run_plain, job, steps))
        )
        ours = setting.attempt(
            f"{kind}, larger, ckptplan", lambda: find(lambda job: _plan(job, steps, setting, limit))
        )
    finally:
        set_limit(setting, None)
    return {"network": kind, "steps": steps, "base": base, "ckptplan": ours}
