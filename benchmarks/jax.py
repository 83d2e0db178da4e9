"""Plans in JAX against equinox's checkpointed scan and nested ``jax.checkpoint``, at equal or less memory.

One thread, forward and backward with a loss over all outputs, batch 32, 64 inputs, 256 neurons, GRU, LIF and
LSTM, T up to 4,096. The limit of ``ckptplan.jax.bptt`` is the memory of a rival's compiled program: temporary
arrays and results. Times are processor time, since other programs share the machine, of runs in turn that begin
with the process at rest; a compilation counts tracing, planning and the programs that planning compiles.

Run: python -m benchmarks.jax
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import ckptplan
from benchmarks.harness import (
    DOCS,
    MIB,
    NeedsCudaError,
    Setting,
    find_difference,
    find_ratio,
    main,
    pivot,
    time_in_turn,
)
from ckptplan.jax import bptt, plan_for
from ckptplan.jax.backend import settle
from ckptplan.jax.cells import BUILT_IN_CELLS
from ckptplan.model.plan import Plan
from ckptplan.strategies.registry import all_strategies

STEPS, BATCH, INPUTS, NEURONS = 4_096, 32, 64, 256
#: Checkpoints of equinox, besides its default.
COUNTS = (256, 128, 64, 48, 32, 24, 16, 8, 4)
#: The share of the memory of base that strategies are compiled for.
SHARE = 0.1


@dataclass(frozen=True)
class Case:
    """A cell with its weights, its initial state and inputs."""

    name: str
    cell: Callable[..., Any]
    weights: Any
    state: Any
    xs: Any

    def step(self, weights: Any) -> Callable[..., Any]:
        """Return a step that carries the sum of the losses."""

        def step(carry: Any, x: Any) -> Any:
            state, total = carry
            state, output = self.cell(weights, state, x)
            return (state, total + loss(0, output)), None

        return step


@dataclass(frozen=True)
class Program:
    """A compiled program of a case."""

    run: Any
    memory: int
    compile_seconds: float

    def __call__(self, case: Case) -> Any:
        """Run it, and return its results."""
        return jax.block_until_ready(self.run(case.weights, case.state, case.xs))


def loss(_: Any, output: Any) -> Any:
    """Return the loss of a step."""
    return jnp.mean(jnp.square(output)) / STEPS


def make_cases() -> list[Case]:
    """Return the cells of calibrations, with inputs."""
    sizes = {"batch": BATCH, "inputs": INPUTS, "neurons": NEURONS}
    xs = np.random.default_rng(0).standard_normal((STEPS, BATCH, INPUTS)).astype(np.float32)
    cases = []
    for name in ("gru", "lif", "lstm"):
        cell, weights, state = BUILT_IN_CELLS[name](**sizes, seed=0)
        cases.append(Case(name.upper(), cell, weights, state, xs))
    return cases


def nested(case: Case, *chunks: int) -> Callable[..., Any]:
    """Return scans of checkpointed scans: one level for each chunk size, the outermost first."""

    def run(weights: Any, carry: Any, xs: Any, chunks: tuple[int, ...]) -> Any:
        if not chunks:
            return lax.scan(case.step(weights), carry, xs)[0]
        pieces = xs.reshape((-1, chunks[0], *xs.shape[1:]))
        inner = jax.checkpoint(lambda carry, x: (run(weights, carry, x, chunks[1:]), None), prevent_cse=False)
        return lax.scan(inner, carry, pieces)[0]

    return lambda weights, state, xs: run(weights, (state, 0.0), xs, chunks)[1]


def equinox(case: Case, checkpoints: int | None) -> Callable[..., Any]:
    """Return equinox's checkpointed scan."""

    def run(weights: Any, state: Any, xs: Any) -> Any:
        scan = eqxi.scan(case.step(weights), (state, 0.0), xs, kind="checkpointed", checkpoints=checkpoints)
        return scan[0][1]

    return run


def under(case: Case, **how: Any) -> Callable[..., Any]:
    """Return ``bptt`` under a plan, or within a limit of memory."""
    return lambda weights, state, xs: bptt(partial(case.cell, weights), state, xs, loss, **how)[0]


def compiled(function: Callable[..., Any], case: Case) -> Program:
    """Return a compiled program with its gradient for the weights."""
    start = time.process_time()
    run = jax.jit(jax.value_and_grad(function)).lower(case.weights, case.state, case.xs).compile()
    took = time.process_time() - start
    analysis: Any = run.memory_analysis()
    return Program(run, analysis.temp_size_in_bytes + analysis.output_size_in_bytes, took)


def fit(case: Case, limit: int) -> tuple[Program, Plan]:
    """Return our program within a limit of memory, and its plan."""
    program = compiled(under(case, memory=limit), case)
    # Afterwards, as a search may remember what it found.
    cell = partial(case.cell, case.weights)
    return program, plan_for(cell, case.state, case.xs, loss, memory=limit)


def list_rivals(case: Case, setting: Setting) -> dict[str, Callable[..., Any]]:
    """Return the rivals of a case by name; those that need equinox run on a CPU alone."""
    steps = len(case.xs)
    found = {"chunks of sqrt(T)": nested(case, math.isqrt(steps))}
    if steps == STEPS:
        found["chunks of 256 and 16"] = nested(case, 256, 16)
    if not setting.on_gpu:
        found["equinox"] = equinox(case, None)
        for count in COUNTS if steps == STEPS else ():
            found[f"equinox, {count} checkpoints"] = equinox(case, count)
    return found


def compare(case: Case, rival: Callable[..., Any], setting: Setting) -> dict[str, Any]:
    """Return what a case takes in both ways."""
    theirs = compiled(rival, case)
    ours, plan = fit(case, theirs.memory)
    times = time_programs(case, {"ours": ours, "theirs": theirs}, setting)
    return {
        "rival_bytes": theirs.memory,
        "bytes": ours.memory,
        "predicted_bytes": plan.predicted.local_peak_bytes,
        "rival_seconds": statistics.median(times["theirs"]),
        "time_over_rival": find_ratio(times, "ours", "theirs"),
        "rival_compile_seconds": theirs.compile_seconds,
        "compile_over_rival": ours.compile_seconds / theirs.compile_seconds,
        "difference": find_difference(*(jax.tree.leaves(one(case)) for one in (ours, theirs))),
        "plan": f"{plan.strategy}, {plan.workload.name.removeprefix('jax-')}",
    }


def time_programs(case: Case, programs: dict[str, Program], setting: Setting) -> dict[str, list[float]]:
    """Return the seconds of programs in turn; each run begins with the process at rest."""
    for program in programs.values():
        program(case)
    jobs = {name: partial(program, case) for name, program in programs.items()}
    return time_in_turn(jobs, rounds=setting.pick(2, 3, 5), setting=setting, before=settle)


def compile_strategies(case: Case) -> list[dict[str, Any]]:
    """Return a row for each strategy: seconds to plan and to compile, predicted and compiled memory."""
    plan = plan_for(partial(case.cell, case.weights), case.state, case.xs, loss, memory=2**40)
    base = STEPS * plan.workload.tape_bytes
    rows: list[dict[str, Any]] = []
    for name in all_strategies():
        start = time.perf_counter()
        try:
            found = ckptplan.optimize(
                plan.workload,
                ckptplan.HardwareProfile(
                    name="host", local_bytes=2**40, write_bytes_per_second=1e9, read_bytes_per_second=1e9
                ),
                strategies=[name],
                local_bytes=2**40 if name == "base" else int(SHARE * base),
            )
        except ckptplan.Infeasible as error:
            rows.append({"case": case.name, "strategy": name, "reason": str(error)})
            continue
        took = time.perf_counter() - start
        program = compiled(under(case, plan=found), case)
        rows.append(
            {
                "case": case.name,
                "strategy": name,
                "plan_seconds": took,
                "compile_seconds": program.compile_seconds,
                # On a CPU, states in host memory are arrays of the program.
                "bytes": program.memory - found.predicted.remote_peak_bytes,
                "predicted_bytes": found.predicted.local_peak_bytes,
            }
        )
    return rows


#: Rivals with no number of checkpoints of their own choice, which a page shows.
_USUAL = ("chunks of sqrt(T)", "equinox")
#: A length that a page leaves out.
_BETWEEN = "T = 1024"


def document(results: dict[str, Any]) -> str:
    """Return a table of the usual rivals, and the extremes of the others and of all strategies."""
    rivals = {name: row for name, row in results["rivals"].items() if _BETWEEN not in name}

    def show(row: dict[str, Any]) -> str:
        if "bytes" not in row:
            return str(row["status"])
        ratios = f"{row['time_over_rival']:.2f}, {row['compile_over_rival']:.2f}"
        return f"{row['rival_bytes'] / MIB:.1f} MiB: {ratios}"

    usual = {name: name.rpartition(", ") for name in rivals if name.endswith(_USUAL)}
    cells = (
        (program, f"{rival}: memory, time over it, compilation over it", show(rivals[name]))
        for name, (program, _, rival) in usual.items()
    )
    others = [row for name, row in rivals.items() if not name.endswith(_USUAL) and "bytes" in row]
    times, compiled = ([row[key] for row in others] for key in ("time_over_rival", "compile_over_rival"))
    plain = (
        f"{row['seconds']:.2f} s and {row['bytes'] / MIB:,.0f} MiB ({name})"
        for name, row in results["plain"].items()
    )
    planned = [row for row in results["strategies"] if "bytes" in row]
    off = max(abs(row["predicted_bytes"] / row["bytes"] - 1) for row in planned)
    parts = [
        pivot("program", cells),
        f"{len(others)} rivals with other checkpoints, at T = {STEPS:,}: time {min(times):.2f} to "
        f"{max(times):.2f} of theirs, compilation {min(compiled):.2f} to {max(compiled):.2f}.",
        f"`jax.lax.scan` at T = {STEPS:,}: {', '.join(plain)}.",
        f"All strategies in {SHARE:.0%} of the memory of base, {len(planned)} programs: bytes are predicted "
        f"within {off:.1%}; compiling takes at most {max(row['compile_seconds'] for row in planned):.1f} s.",
    ]
    return "\n\n".join(parts) + "\n"


def run(setting: Setting) -> dict[str, Any]:
    """Measure each cell beside each rival; a whole scan and all strategies at the greatest T."""
    # Flags of a CPU; memory of a GPU is to be what programs take.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    device = jax.devices()[0]
    if setting.on_gpu and device.platform != "gpu":
        raise NeedsCudaError
    found: dict[str, Any] = {"device": device.device_kind, "jax": jax.__version__}
    found |= {"rivals": {}, "plain": {}, "strategies": []}
    cases = make_cases()
    # What the first programs of a process load is in none of the rows.
    first = replace(cases[0], xs=cases[0].xs[:16])
    fit(first, compiled(nested(first, 4), first).memory)
    for case in cases[: setting.pick(1, len(cases), len(cases))]:
        for steps in setting.pick((64,), (256, 1024, STEPS), (STEPS,)):
            sized = replace(case, xs=case.xs[:steps])
            for name, rival in list_rivals(sized, setting).items():
                what = f"{case.name}, T = {steps}, {name}"
                found["rivals"][what] = setting.attempt(what, partial(compare, sized, rival, setting))
                setting.save(found)
        if not setting.small:
            found["plain"][case.name] = measure_plain(case, setting)
        if not setting.on_gpu and not setting.small:
            found["strategies"] += compile_strategies(case)
        setting.save(found)
    return found


def measure_plain(case: Case, setting: Setting) -> dict[str, Any]:
    """Return what a scan takes that keeps what every step leaves."""
    program = compiled(nested(case), case)
    times = time_programs(case, {"scan": program}, setting)["scan"]
    return {"seconds": statistics.median(times), "bytes": program.memory}


PAGES = {DOCS / "measured.md": document}

if __name__ == "__main__":
    main("jax", run, PAGES, about=__doc__)
