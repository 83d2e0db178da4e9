"""Compiles programs of a cell, and measures their time and what the compiler says of their memory.

Before a measurement, the process comes to rest; new pages of memory are counted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import jax

from ckptplan.calibration.in_jax.networks import JaxNetwork
from ckptplan.jax.tapes import Tape
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule

#: Seconds of a pause, the share of it in which a process at rest may compute, and the most pauses.
_PAUSE, _REST, _MOST_PAUSES = 0.01, 0.2, 50


def settle() -> None:
    """Wait until no thread of this process computes.

    When a program has returned its results, another thread still gives its buffers back to the system. What
    runs meanwhile takes longer by either clock.
    """
    for _ in range(_MOST_PAUSES):
        began = time.process_time()
        time.sleep(_PAUSE)
        if time.process_time() - began < _REST * _PAUSE:
            return


def count_new_pages() -> int:
    """Return the pages of memory that this process was given so far (page faults); 0 on Windows."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@dataclass(frozen=True, kw_only=True)
class CompiledLoop:
    """A compiled program of a cell, with its arguments."""

    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    #: Arguments, results and temporary arrays, by the compiler's analysis.
    memory_bytes: int
    compile_seconds: float

    def call(self) -> Any:
        """Run the program and return its results."""
        return jax.block_until_ready(self.run(*self.arguments))

    def measure_seconds(self, clock: Callable[[], float]) -> float:
        """Return the seconds of a run that begins with the process at rest."""
        return self.measure(clock)[0]

    def measure(self, clock: Callable[[], float]) -> tuple[float, int]:
        """Return the seconds of a run that begins with the process at rest, and the pages that it was given."""
        settle()
        pages, began = count_new_pages(), clock()
        self.call()
        return clock() - began, count_new_pages() - pages


def compile_gradient(
    network: JaxNetwork, plan: Plan | Schedule | None, *, steps: int, tape: Tape | None = None
) -> CompiledLoop:
    """Return the program of a loss and its gradient under a plan; without one, by ``jax.lax.scan``."""
    function = network.plain() if plan is None else network.under(plan, tape=tape)
    return compile_loop(jax.value_and_grad(function), network.arguments(steps))


def compile_forward(network: JaxNetwork, plan: Schedule, *, tape: Tape | None = None) -> CompiledLoop:
    """Return the program of a forward pass alone, without gradients."""
    return compile_loop(network.under(plan, tape=tape), network.arguments(plan.steps))


def compile_sweep(network: JaxNetwork, plan: Schedule, *, tape: Tape | None = None) -> CompiledLoop:
    """Return the program of what a plan does before its first Backward."""

    def sweep(parameters: Any, state: Any, xs: Any) -> Any:
        function = network.under(plan, tape=tape)
        return jax.vjp(lambda some: function(some, state, xs), parameters)

    return compile_loop(sweep, network.arguments(plan.steps))


def compile_loop(function: Callable[..., Any], arguments: tuple[Any, ...]) -> CompiledLoop:
    """Compile a function for its arguments."""
    began = perf_counter()
    run = jax.jit(function).lower(*arguments).compile()
    took = perf_counter() - began
    found: Any = run.memory_analysis()
    memory = (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        + found.temp_size_in_bytes
        - found.alias_size_in_bytes
    )
    return CompiledLoop(run=run, arguments=arguments, memory_bytes=int(memory), compile_seconds=took)
