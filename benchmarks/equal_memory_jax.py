"""ckptplan in JAX at the memory of chunks of sqrt(T) under ``jax.checkpoint``, and of equinox's loop.

Each rival's compiled program (temporary arrays and results) is the limit of ``ckptplan.jax.bptt``. One thread,
processor time of runs in turn; a compilation counts tracing, planning and the programs that planning compiles.

Run: python -m benchmarks.equal_memory_jax
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from functools import partial
from typing import Any

# It sets the flags of the compiler, so it comes before what compiles.
from benchmarks import jax as peers  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import DOCS, MIB, Setting, find_difference, main, table, time_in_turn

#: A rival, by its name, as a function of a case.
_RIVALS = {
    "chunks of sqrt(T)": lambda case: peers.nested(case, math.isqrt(len(case.xs))),
    "equinox": lambda case: peers.equinox(case, None),
}


def lstm(weights: Any, state: Any, x: Any) -> Any:
    """Run an LSTM cell for a step."""
    h, c = state
    i, f, g, o = jnp.split(x @ weights["wi"] + h @ weights["wh"], 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def make_cases() -> list[peers.Case]:
    """Return a GRU, a layer of leaky neurons and an LSTM."""
    cases = peers.make_cases()
    random = np.random.default_rng(1)
    scale = peers.NEURONS**-0.5
    weights = {
        name: (scale * (random.random((rows, 4 * peers.NEURONS)) * 2 - 1)).astype(np.float32)
        for name, rows in (("wi", peers.INPUTS), ("wh", peers.NEURONS))
    }
    zero = np.zeros((peers.BATCH, peers.NEURONS), np.float32)
    return [*cases, peers.Case("LSTM", lstm, weights, (zero, zero), cases[0].xs)]


def compare(case: peers.Case, rival: str, rounds: int) -> dict[str, Any]:
    """Return what a case takes in both ways."""
    theirs = peers.compiled(rival, _RIVALS[rival](case), case)
    ours = peers.fit(case, theirs)
    given = case.weights, case.state, case.xs

    def run(program: peers.Program) -> Any:
        return jax.block_until_ready(program.run(*given))

    pair = {"ours": ours, "theirs": theirs}
    difference = find_difference(*(jax.tree.leaves(run(one)) for one in pair.values()))
    times = time_in_turn({name: partial(run, one) for name, one in pair.items()}, rounds=rounds)
    ratios = (one / other for one, other in zip(times["ours"], times["theirs"], strict=True))
    return {
        "rival_bytes": theirs.memory,
        "bytes": ours.memory,
        "rival_seconds": statistics.median(times["theirs"]),
        "time_over_rival": statistics.median(ratios),
        "rival_compile_seconds": theirs.compile_seconds,
        "compile_over_rival": ours.compile_seconds / theirs.compile_seconds,
        "difference": difference,
        "plan": ours.choice,
    }


def run(setting: Setting) -> dict[str, Any]:
    """Return a line for each cell, number of steps and rival."""
    found: dict[str, Any] = {}
    for case in make_cases():
        for steps in setting.pick((64,), (256, 1024, 4096), (256, 1024, 4096)):
            sized = replace(case, xs=case.xs[:steps])
            for rival in _RIVALS:
                name = f"{case.name}, T = {steps}, {rival}"
                found[name] = setting.attempt(name, partial(compare, sized, rival, setting.pick(2, 3, 5)))
                setting.save(found)
    return found


def document(results: dict[str, Any]) -> str:
    """Return the results as a table."""
    head = ["program", "the rival's MiB", "ckptplan's", "time over rival", "compilation over rival", "plan"]
    rows = [
        [
            name,
            f"{one['rival_bytes'] / MIB:.2f}",
            f"{one['bytes'] / MIB:.2f}",
            f"{one['time_over_rival']:.2f}",
            f"{one['compile_over_rival']:.2f}",
            one["plan"],
        ]
        if "bytes" in one
        else [name, one["status"], "", "", "", ""]
        for name, one in results.items()
    ]
    return table(head, rows) + "\n"


if __name__ == "__main__":
    main("equal_memory_jax", run, document, about=__doc__, page=DOCS / "measured-jax.md")
