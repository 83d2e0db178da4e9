"""Compiles programs of a cell: their time, their gradients, and what the compiler says of their memory."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ckptplan.calibration.backend import Counted, Gradient, Program, Tick
from ckptplan.calibration.host import KEEPS_MEMORY, count_new_pages, time_new_page
from ckptplan.calibration.jax_backend.cells import JaxNetwork
from ckptplan.calibration.jax_backend.sizes import CompiledSizes, count_sizes
from ckptplan.errors import InputError, PlanMismatch
from ckptplan.jax.footprint import choose_footprint
from ckptplan.jax.tapes import Tape
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.units import format_seconds

#: The largest share of a run that the first touch of new memory may take.
_MOST_TOUCHING = 0.8
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

    def measure(self, clock: Callable[[], float]) -> tuple[float, float]:
        """Return the seconds of a run that begins with the process at rest, and those of touching new memory.

        The second ones are not in the first: a run in memory that it had before does not take them. They are
        seconds of a processor, so those of a run by another clock have them, and 0 is told. Raises InputError
        if they are most of the run: what would be left is no time.
        """
        settle()
        pages, began = count_new_pages(), clock()
        self.call()
        whole = clock() - began
        if clock is not time.process_time:
            return whole, 0.0
        touching = (count_new_pages() - pages) * time_new_page()
        if touching > _MOST_TOUCHING * whole:
            raise InputError(
                f"the first touch of new memory takes {format_seconds(touching)} of a run of "
                f"{format_seconds(whole)}, so that the time of its steps cannot be told",
                field="environment",
                accepted=f"{KEEPS_MEMORY} in the environment, or fewer steps",
            )
        return whole - touching, touching


def compile_gradient(
    network: JaxNetwork,
    plan: Plan | Schedule | None,
    *,
    steps: int,
    tape: Tape | None = None,
    inputs: Any = None,
) -> CompiledLoop:
    """Return the program of a loss and its gradient under a plan; without one, by ``jax.lax.scan``."""
    function = network.plain() if plan is None else network.under(plan, tape=tape)
    return _compile(jax.value_and_grad(function), network, network.inputs(steps) if inputs is None else inputs)


def compile_forward(network: JaxNetwork, plan: Schedule) -> CompiledLoop:
    """Return the program of a forward pass alone, without gradients."""
    return _compile(network.under(plan), network, network.inputs(plan.steps))


def compile_sweep(network: JaxNetwork, plan: Schedule, *, tape: Tape | None = None) -> CompiledLoop:
    """Return the program of what a plan does before its first Backward."""

    def sweep(parameters: Any, state: Any, xs: Any) -> Any:
        function = network.under(plan, tape=tape)
        return jax.vjp(lambda some: function(some, state, xs), parameters)

    return _compile(sweep, network, network.inputs(plan.steps))


def _compile(function: Callable[..., Any], network: JaxNetwork, inputs: Any) -> CompiledLoop:
    arguments = network.parameters, network.state, inputs
    began = time.perf_counter()
    with warnings.catch_warnings():
        # Whether sizes are right is what a validation finds out itself.
        warnings.simplefilter("ignore", PlanMismatch)
        run = jax.jit(function).lower(*arguments).compile()
    took = time.perf_counter() - began
    found: Any = run.memory_analysis()
    memory = (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        + found.temp_size_in_bytes
        - found.alias_size_in_bytes
    )
    return CompiledLoop(run=run, arguments=arguments, memory_bytes=int(memory), compile_seconds=took)


class JaxProgram(Program):
    """A network under a plan or a schedule; without one, by ``jax.lax.scan``. It is compiled at once."""

    def __init__(
        self,
        network: JaxNetwork,
        plan: Plan | Schedule | None,
        *,
        inputs: Any,
        steps: int,
        clock: Callable[[], float],
    ) -> None:
        self._network, self._plan, self._inputs, self._steps = network, plan, inputs, steps
        self._clock = clock
        self.new_memory: list[float] = []
        self._compiled = compile_gradient(network, plan, steps=steps, inputs=inputs)

    def seconds(self) -> float:
        seconds, touching = self._compiled.measure(self._clock)
        self.new_memory.append(touching)
        return seconds

    def counted(self, tick: Tick | None = None) -> Counted:
        """Return the buffers that it allocates, and how many steps a program that counts them runs again."""
        plan = self._plan
        assert isinstance(plan, Plan)  # noqa: S101 - a validation counts its plan alone
        sizes = self._find_sizes(plan)
        return replace(sizes.kept(plan), counts={"recomputed_steps": self._count_again(sizes.footprint.tape)})

    def _find_sizes(self, plan: Plan) -> CompiledSizes:
        kinds = count_sizes(self._network)
        return kinds[choose_footprint(plan, [one.footprint for one in kinds.values()]).tape]

    def _count_again(self, tape: Tape) -> int:
        executed = [0]

        def count() -> None:
            executed[0] += 1

        def step(parameters: Any, state: Any, x: Any) -> tuple[Any, Any]:
            jax.debug.callback(count)
            return self._network.step(parameters, state, x)

        # Steps that are computed again from products do not run as a whole.
        kind: Tape = "states" if tape == "states" else "residuals"
        counting = replace(self._network, step=step)
        compile_gradient(counting, self._plan, steps=self._steps, tape=kind, inputs=self._inputs).call()
        jax.effects_barrier()
        # A kept state is run once more before it is reversed, which is a part of its backward.
        return executed[0] - self._steps * (2 if kind == "states" else 1)

    def peak_bytes(self, tick: Tick | None = None) -> int:
        """Return the bytes of arguments, results and temporary arrays, by the compiler's analysis.

        On a CPU, states in host memory are among these arrays: they are left out.
        """
        plan, memory = self._plan, self._compiled.memory_bytes
        if isinstance(plan, Plan) and jax.default_backend() == "cpu":
            memory -= self._find_sizes(plan).kept(plan).remote_bytes
        return memory

    def gradients(self, tick: Tick | None = None) -> list[Gradient]:
        _, gradients = self._compiled.call()
        return [(_to_numpy(one), float(jnp.finfo(one.dtype).eps)) for one in gradients]  # type: ignore[no-untyped-call]


def _to_numpy(gradient: jax.Array) -> npt.NDArray[Any]:
    return np.asarray(gradient).astype(complex if jnp.iscomplexobj(gradient) else float)
