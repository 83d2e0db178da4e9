"""Plans in JAX against equinox's checkpointed scan and nested ``jax.checkpoint``, at equal or less memory.

One thread, forward and backward with a loss over all outputs, T = 4,096, batch 32, 64 inputs, 256 neurons, GRU
and LIF. The limit of ``ckptplan.jax.bptt`` is the memory of a peer's compiled program. Memory is that
of the compiled programs: temporary arrays and results. Times are processor time, since other programs share the
machine, of runs that begin with the process at rest.

Run: python -m benchmarks.jax
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

#: Flags of a CPU; memory of a GPU is to be what programs take.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import ckptplan
from benchmarks.harness import MIB, NeedsCudaError, Setting, find_difference, main, table
from ckptplan.calibration.jax_backend.programs import settle
from ckptplan.jax import bptt, plan_for
from ckptplan.model.plan import Plan
from ckptplan.strategies.registry import all_strategies

STEPS, BATCH, INPUTS, NEURONS = 4_096, 32, 64, 256
#: Checkpoints of equinox: those that are compared in three rounds, None for its default, and further budgets.
COUNTS, MORE_COUNTS = (None, 32, 8), (256, 128, 64, 48, 24, 16, 4)
ROUNDS, FEWER_ROUNDS = 3, 2
#: The share of the memory of base that strategies are compiled for.
SHARE = 0.1


@jax.custom_jvp
def spike(x: Any) -> Any:
    """Return 1 where a membrane is over its threshold, with a surrogate gradient."""
    return (x > 0).astype(x.dtype)


@spike.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return spike(primals[0]), tangents[0] / (1 + 10.0 * jnp.abs(primals[0])) ** 2


def lif(weights: Any, state: Any, x: Any) -> Any:
    """Run a recurrent layer of leaky neurons for a step."""
    v, z = state
    v = 0.9 * v + (x @ weights["wi"] + weights["b"] + z @ weights["wr"]) - lax.stop_gradient(z)
    z = spike(v - 1.0)
    return (v, z), z


def gru(weights: Any, h: Any, x: Any) -> Any:
    """Run a GRU cell for a step."""
    ir, iz, inn = jnp.split(x @ weights["wi"] + weights["bi"], 3, -1)
    hr, hz, hn = jnp.split(h @ weights["wh"] + weights["bh"], 3, -1)
    r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
    n = jnp.tanh(inn + r * hn)
    h = n + z * (h - n)
    return h, h


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


@dataclass
class Program:
    """A compiled program of a case, and its times."""

    name: str
    run: Any
    memory: int
    compile_seconds: float
    rounds: int = ROUNDS
    plan: Plan | None = None
    times: list[float] = field(default_factory=list)

    @property
    def choice(self) -> str:
        """Return the strategy and the kind of tapes of its plan."""
        assert self.plan is not None  # noqa: S101 - fit sets it
        return f"{self.plan.strategy}, {self.plan.workload.name.removeprefix('jax-')}"

    @property
    def seconds(self) -> float:
        """Return the median of the times."""
        return statistics.median(self.times)


def loss(_: Any, output: Any) -> Any:
    """Return the loss of a step."""
    return jnp.mean(jnp.square(output)) / STEPS


def make_cases() -> list[Case]:
    """Return both cells; the weights are those of PyTorch's defaults."""
    random = np.random.default_rng(0)

    def uniform(*shape: int) -> Any:
        return ((random.random(shape) * 2 - 1) / np.sqrt(NEURONS)).astype(np.float32)

    xs = random.standard_normal((STEPS, BATCH, INPUTS)).astype(np.float32)
    zero = np.zeros((BATCH, NEURONS), np.float32)
    wide = 3 * NEURONS
    of_gru = {
        "wi": uniform(INPUTS, wide),
        "wh": uniform(NEURONS, wide),
        "bi": uniform(wide),
        "bh": uniform(wide),
    }
    of_lif = {"wi": 2.3 * uniform(INPUTS, NEURONS), "wr": uniform(NEURONS, NEURONS), "b": 0 * uniform(NEURONS)}
    return [Case("GRU", gru, of_gru, zero, xs), Case("LIF", lif, of_lif, (zero, zero), xs)]


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


def planned(case: Case, memory: int) -> Callable[..., Any]:
    """Return ``bptt`` within a limit of memory."""
    return lambda weights, state, xs: bptt(
        lambda state, x: case.cell(weights, state, x), state, xs, loss, memory=memory
    )[0]


def compiled(name: str, function: Callable[..., Any], case: Case) -> Program:
    """Return a compiled program with its gradient for the weights."""
    start = time.process_time()
    run = jax.jit(jax.value_and_grad(function)).lower(case.weights, case.state, case.xs).compile()
    took = time.process_time() - start
    analysis: Any = run.memory_analysis()
    return Program(name, run, analysis.temp_size_in_bytes + analysis.output_size_in_bytes, took)


def fit(case: Case, peer: Program) -> Program:
    """Return our program within the compiled memory of a peer."""
    limit = peer.memory
    program = compiled(f"ckptplan at the memory of {peer.name}", planned(case, limit), case)
    # Afterwards, as a search may remember what it found.
    program.plan = plan_for(
        lambda state, x: case.cell(case.weights, state, x), case.state, case.xs, loss, memory=limit
    )
    program.rounds = peer.rounds
    return program


def measure(case: Case, setting: Setting) -> list[dict[str, Any]]:
    """Return a row for each peer, with ours at its memory."""
    plain = compiled("jax.lax.scan", nested(case), case)
    peers = [
        compiled(f"equinox, {count or 'default'} checkpoints", equinox(case, count), case)
        for count in setting.pick((None,), (*COUNTS, *MORE_COUNTS), ())
    ]
    for peer in peers[len(COUNTS) :]:
        peer.rounds = FEWER_ROUNDS
    chunk = setting.pick(8, 64, 64)
    peers += [compiled(f"jax.checkpoint, {chunk}", nested(case, chunk), case)]
    if not setting.small:
        peers += [compiled("jax.checkpoint, 256 and 16", nested(case, 256, 16), case)]
    ours = [fit(case, peer) for peer in peers]
    results: dict[str, Any] = {}
    for number in range(ROUNDS):
        for program in (one for one in (plain, *peers, *ours) if number < one.rounds):
            settle()
            start = time.process_time()
            results[program.name] = jax.block_until_ready(program.run(case.weights, case.state, case.xs))
            program.times.append(time.process_time() - start)
    rows = [{"case": case.name, "peer": plain.name, "peer_seconds": plain.seconds, "peer_bytes": plain.memory}]
    for peer, mine in zip(peers, ours, strict=True):
        assert mine.plan is not None  # noqa: S101 - fit sets it
        rows.append(
            {
                "case": case.name,
                "peer": peer.name,
                "peer_seconds": peer.seconds,
                "peer_bytes": peer.memory,
                "peer_compile_seconds": peer.compile_seconds,
                "seconds": mine.seconds,
                "bytes": mine.memory,
                "predicted_bytes": mine.plan.predicted.local_peak_bytes,
                "compile_seconds": mine.compile_seconds,
                "plan": mine.choice,
                "ratio": statistics.median(a / b for a, b in zip(mine.times, peer.times, strict=True)),
                "gradient_difference": find_difference(
                    *(jax.tree.leaves(results[one.name]) for one in (mine, plain))
                ),
            }
        )
    return rows


def compile_strategies(case: Case) -> list[dict[str, Any]]:
    """Return a row for each strategy: seconds to plan and to compile, predicted and compiled memory."""
    plan = plan_for(lambda state, x: case.cell(case.weights, state, x), case.state, case.xs, loss, memory=2**40)
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
        program = compiled(name, under(case, found), case)
        rows.append(
            {
                "case": case.name,
                "strategy": name,
                "plan_seconds": took,
                "compile_seconds": program.compile_seconds,
                "bytes": program.memory,
                "predicted_bytes": found.predicted.local_peak_bytes,
            }
        )
    return rows


def under(case: Case, plan: Plan) -> Callable[..., Any]:
    """Return ``bptt`` under a plan."""
    return lambda weights, state, xs: bptt(
        lambda state, x: case.cell(weights, state, x), state, xs, loss, plan=plan
    )[0]


def document(results: dict[str, Any]) -> str:
    """Return a table for each cell, and one of the plans of all strategies."""
    parts = []
    rows = results["rows"]
    head = ["time, s", "memory, MiB", "our time", "our memory", "predicted", "compiled in, s", "plan", "ratio"]
    for case in dict.fromkeys(row["case"] for row in rows):
        parts.append(table([f"{case}, beside", *head], [_line(row) for row in rows if row["case"] == case]))
    if results["strategies"]:
        lines = [_line_of_strategy(row) for row in results["strategies"]]
        parts.append(table(["cell", "strategy", "planned in", "compiled in", "memory", "predicted"], lines))
    return "\n\n".join(parts) + "\n"


def _line(row: dict[str, Any]) -> list[str]:
    theirs = [row["peer"], f"{row['peer_seconds']:.2f}", f"{row['peer_bytes'] / MIB:.2f}"]
    if "seconds" not in row:
        return [*theirs, *[""] * 6]
    memory = [f"{row['bytes'] / MIB:.2f}", f"{row['predicted_bytes'] / MIB:.2f}"]
    took = f"{row['compile_seconds']:.1f} (theirs {row['peer_compile_seconds']:.1f})"
    return [*theirs, f"{row['seconds']:.2f}", *memory, took, row["plan"], f"{row['ratio']:.2f}"]


def _line_of_strategy(row: dict[str, Any]) -> list[str]:
    if "reason" in row:
        return [row["case"], row["strategy"], "", "no plan", "", ""]
    times = (f"{row[key]:.1f} s" for key in ("plan_seconds", "compile_seconds"))
    sizes = (f"{row[key] / MIB:.1f} MiB" for key in ("bytes", "predicted_bytes"))
    return [row["case"], row["strategy"], *times, *sizes]


def run(setting: Setting) -> dict[str, Any]:
    """Measure both cells, beside all peers on a CPU and beside ``jax.checkpoint`` on a GPU."""
    platform = jax.devices()[0].platform
    if setting.on_gpu and platform != "gpu":
        raise NeedsCudaError
    found: dict[str, Any] = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "rows": []}
    found["strategies"] = []
    cases = make_cases()
    for case in cases[: setting.pick(1, len(cases), len(cases))]:
        if not setting.on_gpu and not setting.small:
            found["strategies"] += compile_strategies(case)
        sized = replace(case, xs=case.xs[: setting.pick(64, STEPS, STEPS)])
        found["rows"] += measure(sized, setting)
        setting.save(found)
    return found


if __name__ == "__main__":
    main("jax", run, document, about=__doc__)
