"""Prints the largest difference of gradients under ``shard_map``, on the devices that there are.

python -m tests.jax.shards checked|unchecked
"""

from __future__ import annotations

import sys
from collections.abc import Callable
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


def main() -> None:
    """Compare each kind of tape, under a schedule and under a limit."""
    if jax.device_count() < 2:
        sys.exit("there is one device")
    checked = sys.argv[1] == "checked"
    random = np.random.default_rng(0)
    given = [jnp.asarray(random.standard_normal(shape)) for shape in ((4, 4), (6, 4), (STEPS, 6, 4))]
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
