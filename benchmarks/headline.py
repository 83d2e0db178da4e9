"""Under one limit of memory: longer sequences and larger networks than plain backpropagation holds.

On a GPU the limit is that of PyTorch's allocator (``torch.cuda.set_per_process_memory_fraction``): weights,
inputs, workspaces and holes count. First the longest sequence of base is found. Then every way to train runs a
sequence that is ten times longer; what does not fit is a row, too. Run: python -m benchmarks.headline
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.harness import GIB, MIB, ExhaustedError, Setting, clean, main, tabulate, wait
from benchmarks.variants import Job, make_job, run_checkpoint, run_plain, run_plan
from ckptplan.errors import InputError
from ckptplan.torch import Compile, plan_for
from ckptplan.torch.device.memory import OutOfMemory
from ckptplan.torch.device.meters import LiveBytes

Run = Callable[[], torch.Tensor]
#: How many times longer than base's longest sequence.
LONGER = 10
#: The variant that runs for another number of steps.
LONGEST = "ckptplan, ten times as long again"
#: How often a run of fewer seconds is repeated.
REPEATS, SHORT = 3, 3.0
#: T of the larger network.
FIXED_STEPS = 300
#: Room for the workspaces of libraries and for holes, which no plan counts.
_ASIDE, _ASIDE_BYTES = 0.1, 96 * MIB


def make_sized(kind: str, setting: Setting, *, neurons: int | None = None) -> Job:
    """Return a network of the setting's size."""
    batch, inputs, usual = setting.pick((4, 8, 32), (32, 64, 256), (256, 64, 1024))
    return make_job(kind, batch=batch, inputs=inputs, neurons=neurons or usual, device=setting.device)


def run(setting: Setting) -> dict[str, Any]:
    """Measure both networks."""
    limit = setting.pick(128 * 2**10, 32 * MIB, 2 * GIB)
    found: dict[str, Any] = {"limit_bytes": limit, "sequences": [], "networks": []}
    for kind in setting.pick(("gru",), ("gru", "lif"), ("gru", "lif")):
        _compare_lengths(kind, setting, limit, found)
    for kind in setting.pick(("lif",), ("gru", "lif"), ("gru", "lif")):
        found["networks"].append(_compare_networks(kind, setting, limit))
        setting.save(found)
    return found


def run_once(setting: Setting, variant: Run, *, limit: int | None, repeats: int = 0) -> dict[str, float]:
    """Return the seconds and the peak bytes of a forward and a backward pass. Raises ExhaustedError.

    Of a few short runs, the quickest counts: other programs disturb the processor that starts the kernels.

    On a GPU, peaks are those of the allocator, which also enforces a limit (``set_limit``). On a CPU, live
    tensors are counted in a run of their own, and the limit is compared with their peak.
    """
    clean(setting)
    try:
        if setting.on_gpu:
            wait(setting)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            taken = [_time(setting, variant)]
            peak = torch.cuda.max_memory_allocated() - before
            taken += [_time(setting, variant) for _ in range(repeats) if taken[0] < SHORT]
            return {"seconds": min(taken), "peak_bytes": peak}
        with LiveBytes() as live:
            variant().backward()
    except (torch.OutOfMemoryError, OutOfMemory):
        raise ExhaustedError("out of memory") from None
    if limit is not None and live.peak > limit:
        raise ExhaustedError("out of memory")
    return {"seconds": _time(setting, variant), "peak_bytes": live.peak}


def _time(setting: Setting, variant: Run) -> float:
    began = time.perf_counter()
    variant().backward()
    wait(setting)
    return time.perf_counter() - began


def set_limit(setting: Setting, limit: int | None) -> None:
    """Let PyTorch's allocator take so many bytes of the GPU in all, or everything."""
    if setting.on_gpu:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(1.0 if limit is None else min(1.0, limit / total))


def _compare_lengths(kind: str, setting: Setting, limit: int, found: dict[str, Any]) -> None:
    job = make_sized(kind, setting)
    # Libraries allocate their workspaces in the first run.
    run_once(setting, partial(run_plain, job, 8), limit=None)
    set_limit(setting, limit)
    try:

        def fits(steps: int) -> bool:
            try:
                run_once(setting, partial(run_plain, job, steps), limit=limit)
            except ExhaustedError:
                return False
            return True

        base = find_largest(fits, start=setting.pick(8, 64, 64), most=2**20)
        row: dict[str, Any] = {"network": kind, "longest_of_base": base, "variants": []}
        found["sequences"].append(row)
        if not base:
            raise RuntimeError(f"base of {kind} fits no sequence within {limit:,} bytes")
        longer = setting.pick(2, LONGER, LONGER) * base
        once = _measure(setting, partial(partial, run_plain, job, base), base, limit)
        row["base"] = once
        for name, make in list_variants(job, longer, setting, limit).items():
            steps = LONGER * longer if name == LONGEST else longer
            measured = setting.attempt(f"{kind}, {name}", partial(_measure, setting, make, steps, limit))
            if "seconds_per_step" in measured:
                measured["over_base"] = measured["seconds_per_step"] / once["seconds_per_step"] - 1
            row["variants"].append({"variant": name, "steps": steps, **measured})
            setting.save(found)
    finally:
        set_limit(setting, None)


def list_variants(job: Job, steps: int, setting: Setting, limit: int) -> dict[str, Callable[[], Run]]:
    """Return the ways to train; what a way prepares, such as a plan, is prepared when it is asked for."""
    root, cube = max(2, round(math.sqrt(steps))), max(2, round(steps ** (1 / 3)))
    plan = partial(_plan, setting=setting, limit=limit)
    variants: dict[str, Callable[[], Run]] = {
        "plain": partial(partial, run_plain, job, steps),
        "ckptplan": partial(plan, job, steps),
    }
    for chunks, mode in product(((root,), (cube**2, cube)), ("non-reentrant", "reentrant")):
        name = f"torch.utils.checkpoint, {' and '.join(map(str, chunks))}, {mode}"
        variants[name] = partial(partial, run_checkpoint, job, steps, chunks, reentrant=mode == "reentrant")
    if setting.on_gpu:
        variants["ckptplan, offload to the host"] = partial(plan, job, steps, offload="host")
    if job.kind == "gru":
        # Of a step that takes twice as long, this would take minutes.
        variants[LONGEST] = partial(plan, job, LONGER * steps)
    else:
        variants["ckptplan, replayed spikes"] = partial(plan, make_sized("replay", setting), steps)
    if setting.on_gpu:
        # Last: compiling takes longest, and nothing waits for it if time is over.
        for name, mode in (("CUDA graphs", "cudagraphs"), ("compiled pieces", "default")):
            variants[f"ckptplan, {name}"] = partial(plan, job, steps, compile_=Compile(steps=8, mode=mode))
    return variants


def _plan(job: Job, steps: int, *, setting: Setting, limit: int, compile_: Any = None, **more: Any) -> Run:
    """Return the run of a plan for what the limit leaves."""
    clean(setting)
    held = torch.cuda.memory_allocated() if setting.on_gpu else 0
    aside = int(_ASIDE * limit) + (_ASIDE_BYTES if setting.on_gpu else 0)
    try:
        plan = plan_for(
            job.cell, job.inputs, job.state, job.loss, memory=limit - held - aside, steps=steps, **more
        )
    except InputError as error:
        if error.field != "memory":
            raise
        raise ExhaustedError(f"no plan fits: {error.message}") from None
    if compile_ is not None:
        # Compile before the run that is timed.
        run_plan(job, plan, compile_=compile_).backward()
    return partial(run_plan, job, plan, compile_=compile_)


def _measure(setting: Setting, make: Callable[[], Run], steps: int, limit: int) -> dict[str, float]:
    found = run_once(setting, make(), limit=limit, repeats=REPEATS)
    return {**found, "seconds_per_step": found["seconds"] / steps}


def _compare_networks(kind: str, setting: Setting, limit: int) -> dict[str, Any]:
    """Return the largest network of base and of plans at T = 300, within the limit."""
    steps, unit = setting.pick(12, FIXED_STEPS, FIXED_STEPS), setting.pick(8, 64, 64)

    def find(make: Callable[[Job], Run]) -> dict[str, Any]:
        best: dict[str, Any] = {}

        def fits(number: int) -> bool:
            if setting.seconds_left < 0:
                return False
            try:
                # The limit holds for the making of a network, too.
                job = make_sized(kind, setting, neurons=unit * number)
                weights = sum(one.nbytes for one in job.parameters)
                one = run_once(setting, make(job), limit=limit)
            except (ExhaustedError, torch.OutOfMemoryError, OutOfMemory):
                return False
            numbers = sum(parameter.numel() for parameter in job.parameters)
            best.update(neurons=unit * number, parameters=numbers, weight_bytes=weights, **one)
            return True

        find_largest(fits, start=setting.pick(2, 4, 4), most=2**12, share=setting.pick(1.0, 0.06, 0.06))
        return best

    set_limit(setting, limit)
    try:
        base = setting.attempt(
            f"{kind}, larger, base", lambda: find(lambda job: partial(run_plain, job, steps))
        )
        ours = setting.attempt(
            f"{kind}, larger, ckptplan",
            lambda: find(lambda job: _plan(job, steps, setting=setting, limit=limit)),
        )
    finally:
        set_limit(setting, None)
    return {"network": kind, "steps": steps, "base": base, "ckptplan": ours}


def find_largest(fits: Callable[[int], bool], *, start: int, most: int, share: float = 0.05) -> int:
    """Return the largest number that fits, to ``share``; 0 if ``start`` does not fit.

    Arguments:
        fits: whether a number fits; larger ones fit less.
        start: where to begin.
        most: the largest number of interest.
        share: how far apart the last number that fits and the first that does not may be.
    """
    if not fits(start):
        return 0
    low, high = start, start
    while high == low:
        high = min(2 * low, most)
        if high == low:
            return low
        if fits(high):
            low = high
    while high - low > max(1, share * low):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def in_short(results: dict[str, Any]) -> str:
    """Return the tables of a page: runs that fit, without nested segments, and the largest networks."""
    parts = [f"A limit of {results['limit_bytes'] / MIB:,.0f} MiB for everything on the device."]
    for one in results["sequences"]:
        longest, base = one["longest_of_base"], one["base"]
        parts.append(
            f"{one['network'].upper()}: a plain loop fits T = {longest:,} at most, with "
            f"{base['seconds_per_step'] * 1e3:.3f} ms a step."
        )
        lines = [
            line
            for line in one["variants"]
            if "seconds" in line and line["steps"] >= longest and " and " not in line["variant"]
        ]
        parts.append(
            tabulate(
                lines,
                ("trained by", "variant"),
                ("T", "steps", "{:,}"),
                ("ms a step", "seconds_per_step", "{:.3f}", 1e3),
                ("over plain", "over_base", "{:+.0%}"),
                ("peak, MiB", "peak_bytes", "{:,.0f}", 1 / MIB),
            )
        )
    larger = "; ".join(
        f"{one['network'].upper()}, T = {one['steps']}: {one['base']['parameters']:,} parameters by a plain "
        f"loop, {one['ckptplan']['parameters']:,} by ckptplan"
        for one in results["networks"]
        if "parameters" in one["base"] and "parameters" in one["ckptplan"]
    )
    return "\n\n".join([*parts, f"The largest networks that fit: {larger or 'not measured'}."]) + "\n"


if __name__ == "__main__":
    main("headline", run, {}, about=__doc__)
