"""Plans in JAX on the same device, beside a plain scan and jax.checkpoint."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks.gpu.setting import NEEDS_CUDA, Setting

CHUNK = 64


def run(setting: Setting) -> dict[str, Any]:
    """Compare programs of both cells."""
    if find_spec("jax") is None:
        return {"status": "JAX is not installed"}
    # Set before JAX starts: other stages share the device, and memory is to be what programs take.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if not setting.on_gpu:
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    device = jax.devices()[0]
    found: dict[str, Any] = {"jax": jax.__version__, "device": device.device_kind, "platform": device.platform}
    if setting.on_gpu and device.platform != "gpu":
        return {**found, "status": f"{NEEDS_CUDA}: JAX sees none"}
    # Imported here: the module sets flags of XLA for processors, and needs equinox.
    from benchmarks import jax as programs

    steps, chunk = setting.pick((32, 8), (programs.STEPS, CHUNK))
    found |= {"steps": steps, "programs": []}
    for case in programs.make_cases()[: setting.pick(1, 2)]:
        short = replace(case, xs=case.xs[:steps])
        measured = setting.attempt(case.name, partial(_compare, programs, short, chunk))
        found["programs"].append({"cell": case.name, **measured})
        setting.save(found)
    return found


def _compare(programs: Any, case: Any, chunk: int) -> dict[str, Any]:
    """Return a row for each program; ours has the memory of jax.checkpoint."""
    import jax

    plain = programs.compiled("jax.lax.scan", programs.nested(case), case)
    peer = programs.compiled(f"jax.checkpoint, {chunk}", programs.nested(case, chunk), case)
    ours = programs.compiled("ckptplan", programs.planned(case, peer.memory), case)
    results: dict[str, Any] = {}
    for number in range(4):
        for one in (plain, peer, ours):
            began = time.perf_counter()
            results[one.name] = jax.block_until_ready(one.run(case.weights, case.state, case.xs))
            if number:
                one.times.append(time.perf_counter() - began)
    rows = [
        {
            "program": one.name,
            "seconds": statistics.median(one.times),
            "compiled_bytes": one.memory,
            "compile_seconds": one.compile_seconds,
            "gradient_difference": programs.difference(results[one.name], results[plain.name]),
        }
        for one in (plain, peer, ours)
    ]
    return {"rows": rows}
