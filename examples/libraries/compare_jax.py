"""Prints the peak that the compiler reports, the time and the gradients of several JAX programs."""

import time

import jax
import jax.numpy as jnp

from ckptplan.units import format_bytes, parse_bytes

CALLS = 3


def compare(ways, *, memory):
    """Measure each way, and compare its gradients with the gradients of the first way.

    Arguments:
        ways: by name, a function without arguments that was compiled, and the program that runs it.
            ``run()`` returns the gradients.
        memory: the limit, in whose units sizes are shown.
    """
    expected = None
    print(f"{'way':<26}{'peak':>10}{'time':>10}  gradients differ by")
    for name, (compiled, run) in ways.items():
        analysis = compiled.memory_analysis()
        peak = analysis.temp_size_in_bytes + analysis.output_size_in_bytes
        gradients = jax.tree.leaves(jax.block_until_ready(run()))
        expected = gradients if expected is None else expected
        pairs = zip(gradients, expected, strict=True)
        differ = max(float(jnp.linalg.norm(ours - theirs) / jnp.linalg.norm(theirs)) for ours, theirs in pairs)
        seconds = []
        for _ in range(CALLS):
            began = time.perf_counter()
            jax.block_until_ready(run())
            seconds.append(time.perf_counter() - began)
        size = format_bytes(peak, like=parse_bytes(memory))
        print(f"{name:<26}{size:>10}{1000 * min(seconds):>7.0f} ms  {differ:.0e}")
