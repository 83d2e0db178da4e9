"""Which clock is nearer to the truth for programs of JAX: python -m benchmarks.accuracy_jax_clocks.

Programs of several lengths run on one core, alone and beside a process that only computes, and are timed by
processor time and by wall time. The truth is what a program takes alone. Then the program of 64 steps runs at
once after one with large buffers, and once these are given back. It takes 20 seconds. Only for Linux.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.accuracy_tables import MIB, put_section, table
from benchmarks.record import write
from ckptplan.calibration.in_jax.threads import set_threads

if TYPE_CHECKING:
    from ckptplan.calibration.in_jax.programs import CompiledLoop

CELL, BATCH = "jax:gru(inputs=64, neurons=256)", 32
LENGTHS, LARGE = (1, 4, 16, 64, 256), 1280
RUNS, FEWER_RUNS = 15, 5


def measure() -> dict[str, Any]:
    """Return milliseconds by both clocks: of each length, alone and beside others, and after large buffers."""
    programs = {steps: _compile(steps) for steps in (*LENGTHS, LARGE)}
    with _one_core() as core:
        alone = {steps: _times(programs[steps], _runs(steps)) for steps in LENGTHS}
        with _busy(core):
            beside = {steps: _times(programs[steps], _runs(steps)) for steps in LENGTHS}
    short, large = programs[LENGTHS[-2]], programs[LARGE]
    after = [
        {"what": "at once", **_times(short, FEWER_RUNS, first=large.call, settled=False)},
        {"what": "when they are given back", **_times(short, FEWER_RUNS, first=large.call)},
    ]
    lengths = [{"steps": steps, "alone": alone[steps], "beside": beside[steps]} for steps in LENGTHS]
    return {"lengths": lengths, "after": after, "large_bytes": large.memory_bytes}


def _compile(steps: int) -> CompiledLoop:
    from ckptplan.calibration.cell_spec import CellSpec
    from ckptplan.calibration.in_jax.networks import build_jax_network
    from ckptplan.calibration.in_jax.programs import compile_gradient
    from ckptplan.planning.playback import make_schedule

    network = build_jax_network(CellSpec.parse(CELL), batch=BATCH, seed=0)
    program = compile_gradient(network, make_schedule("base", steps=steps), steps=steps)
    program.call()
    return program


def _runs(steps: int) -> int:
    return FEWER_RUNS if steps == LENGTHS[-1] else RUNS


def _times(
    program: CompiledLoop, runs: int, *, first: Callable[[], object] | None = None, settled: bool = True
) -> dict[str, float]:
    """Return the medians of some runs in milliseconds; ``first`` comes before each of them."""
    from benchmarks.accuracy_jax_clock import measure, measure_at_once

    taken = []
    for _ in range(runs):
        if first is not None:
            first()
        taken.append((measure if settled else measure_at_once)(program))
    return {
        "processor": 1e3 * median(one.processor for one in taken),
        "wall": 1e3 * median(one.wall for one in taken),
    }


@contextmanager
def _one_core() -> Iterator[int]:
    """Keep all threads of this process on one core."""
    before = os.sched_getaffinity(0)
    core = max(before)
    _pin({core})
    try:
        yield core
    finally:
        _pin(before)


def _pin(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def _busy(core: int) -> Iterator[None]:
    """Run a process that only computes on a core."""
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def document(results: dict[str, Any]) -> str:
    """Return the section of docs/accuracy.md."""
    rows = [
        [
            str(one["steps"]),
            *(f"{one[where][clock]:.2f}" for where in ("alone", "beside") for clock in ("processor", "wall")),
        ]
        for one in results["lengths"]
    ]
    after = ", ".join(
        f"{one['what']} {one['processor']:.1f} ms of processor time and {one['wall']:.1f} ms of wall time"
        for one in results["after"]
    )
    large = f"{results['large_bytes'] / MIB:.0f} MiB"
    return (
        f"`python -m benchmarks.accuracy_jax_clocks`, a GRU, batch {BATCH}, 256 neurons, plain "
        "backpropagation, milliseconds on one core, which other programs used at times:\n\n"
        + table(["steps", "processor time, alone", "wall", "processor time, beside", "wall"], rows)
        + f"\n\nA program of {LENGTHS[-2]} steps after one with {large}: {after}.\n"
    )


def main() -> None:
    """Measure, print the table and write it into docs/accuracy.md."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    set_threads(1)
    results = measure()
    print(document(results))
    write("accuracy_jax_clocks", results)
    put_section("accuracy_jax_clocks", document(results))


if __name__ == "__main__":
    main()
