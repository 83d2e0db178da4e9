"""Prints how gradients on several devices differ from those of ``jax.lax.scan``.

python -m tests.jax.shards checked|unchecked|meshes
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ckptplan.jax.tapes import TAPES
from tests.jax.support import STEPS, difference, limited, standard, under

SPEC: Any = jax.sharding.PartitionSpec


def loss(scan: Callable[..., Any], given: Any, *, checked: bool) -> Any:
    """A loss of a cell whose batch is spread over devices, and which takes means over all of them."""

    def shard(weights: Any, state: Any, xs: Any) -> Any:
        def cell(state: Any, x: Any) -> Any:
            h, count = state
            h = jnp.tanh(h @ weights + x - jax.lax.pmean(jnp.mean(h), "devices") + count / 100)
            return (h, count + 1), (h, count)

        (h, count), (hs, counts) = scan(cell, (state, 0), xs)
        return jax.lax.psum(jnp.sum(hs**2) + jnp.sum(h) * count, "devices") + jnp.sum(counts)

    mesh = jax.make_mesh((jax.device_count(),), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    parts = SPEC(), SPEC("devices"), SPEC(None, "devices")
    return jax.shard_map(shard, mesh=mesh, in_specs=parts, out_specs=SPEC(), check_vma=checked)(*given)


def sharded_loss(
    scan: Callable[..., Any], weights: Any, bias: Any, state: Any, xs: Any, *, twice: bool = False
) -> Any:
    """A loss of a cell without communication of its own, which uses each of its weights once, or ``twice``."""

    def cell(h: Any, x: Any) -> Any:
        total = h @ weights + x
        if twice:
            total = jnp.sin(total) @ weights + bias * weights[0]
        return jnp.tanh(total + bias), h

    final, hs = scan(cell, state, xs)
    return jnp.sum(final) + jnp.sum(hs**2)


def compare_meshes(limit: int) -> None:
    """Print for each kind of mesh: the error, the share of a limit, and reductions within loops."""
    random = np.random.default_rng(0)
    given = [jnp.asarray(random.standard_normal(shape)) for shape in ((16, 16), (16,), (8, 16), (STEPS, 8, 16))]
    specs = SPEC(), SPEC(), SPEC("devices"), SPEC(None, "devices")
    for kind in ("explicit", "auto", "placed", "auto_twice", "shard_map", "twice"):
        loss_of = partial(sharded_loss, twice="twice" in kind)
        theirs = jax.grad(partial(loss_of, jax.lax.scan), (0, 1, 2, 3))(*given)
        axis = jax.sharding.AxisType.Explicit if kind == "explicit" else jax.sharding.AxisType.Auto
        mesh = jax.make_mesh((jax.device_count(),), ("devices",), axis_types=(axis,))

        run: Any = partial(loss_of, limited(limit))
        if kind in {"shard_map", "twice"}:
            shard: Any = lambda *given, run=run: jax.lax.psum(run(*given), "devices")  # noqa: E731
            run = jax.shard_map(shard, mesh=mesh, in_specs=specs, out_specs=SPEC())
        # Arrays that are placed on a mesh of automatic axes need no context.
        with contextlib.nullcontext() if kind == "placed" else jax.set_mesh(mesh):
            shardings = (jax.sharding.NamedSharding(mesh, spec) for spec in specs)
            placed = [jax.device_put(one, sharding) for one, sharding in zip(given, shardings, strict=True)]
            program = jax.jit(jax.grad(run, (0, 1, 2, 3))).lower(*placed).compile()
            found = jax.tree.map(np.asarray, program(*placed))
        memory: Any = program.memory_analysis()
        share = (memory.temp_size_in_bytes + memory.output_size_in_bytes) / limit
        parts = program.as_text().split("\n\n")  # type: ignore[union-attr]
        inside = sum(part.count(" all-reduce(") for part in parts if "ENTRY" not in part)
        sys.stdout.write(f"{kind} {difference(found, theirs)} {share} {inside}\n")


def main() -> None:
    """Compare each kind of tape, under a schedule and under a limit."""
    if sys.argv[1] == "meshes":
        compare_meshes(90_000)
        return
    checked = sys.argv[1] == "checked"
    random = np.random.default_rng(0)
    given = [jnp.asarray(random.standard_normal(shape)) for shape in ((4, 4), (8, 4), (STEPS, 8, 4))]
    theirs = jax.grad(lambda given: loss(jax.lax.scan, given, checked=True))(given)
    scans = [[under(standard(), tape=tape), limited("1 MB", tape=tape)] for tape in TAPES]

    def gradient(scan: Any) -> Any:
        return jax.grad(lambda given: loss(scan, given, checked=checked))

    found = [jax.jit(gradient(scan))(given) for of_tape in scans for scan in of_tape]
    # Eager code runs operation by operation, which takes seconds; kinds of tapes are the same in it.
    found += [gradient(scan)(given) for scan in scans[0]]
    # With gradients of some arguments only, it sees the others in another way.
    alone = [
        jax.grad(lambda weights: loss(scan, [weights, *given[1:]], checked=checked))(given[0])  # noqa: B023
        for scan in scans[0]
    ]
    worst = max(difference(ours, theirs) for ours in found)
    sys.stdout.write(f"{max(worst, *(difference([one], theirs[:1]) for one in alone))}\n")


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
