"""Runs networks of JAX as compiled programs, and measures their time, gradients and bytes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ckptplan.errors import InputError, PlanMismatch
from ckptplan.execution.backend import (
    Backend,
    Counted,
    Environment,
    Gradient,
    Pace,
    Program,
    Report,
    describe_remote,
)
from ckptplan.jax.api import scan, with_loss
from ckptplan.jax.footprint import StepFootprint, choose_footprint, measure_step
from ckptplan.jax.leaves import byte_size, has_gradient
from ckptplan.jax.new_memory import KEEPS_MEMORY, count_new_pages, time_new_page
from ckptplan.jax.remote import open_states, read_state, rehearse_host, write_state
from ckptplan.jax.tapes import Tape, check_tape
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.memory import find_free_memory, host_memory_bytes
from ckptplan.storage.place import count_moves
from ckptplan.studies.workers import processor_name
from ckptplan.units import format_seconds

#: The largest share of a run that the first touch of new memory may take.
_MOST_TOUCHING = 0.8
#: Seconds of a pause, the share of a pause in which an idle process may still compute, and the most pauses.
_PAUSE, _REST, _MOST_PAUSES = 0.01, 0.2, 50
#: The steps of the program that measures the pace, and the most states that a timed program moves.
_PACE_STEPS, _MOST_MESSAGES = 32, 64


@dataclass(frozen=True, kw_only=True)
class JaxNetwork:
    """A step with its parameters and its initial state, and inputs of any length."""

    step: Callable[[Any, Any, Any], tuple[Any, Any]]
    #: The leaves of the parameters that have a gradient. Other leaves are part of ``step``.
    parameters: tuple[jax.Array, ...]
    state: Any
    make_inputs: Callable[[int], Any]

    @property
    def state_bytes(self) -> int:
        """The bytes of the arrays of a state."""
        return max(1, byte_size(jax.tree.leaves(self.state)))

    def inputs(self, steps: int) -> Any:
        """Return inputs for ``steps`` steps, time first. Raises InputError if they cannot be made."""
        return self.make_inputs(steps)

    @staticmethod
    def loss(_: Any, output: Any) -> Any:
        """Return the loss of a step: a mean of squares of the first array of its output."""
        values = jax.tree.leaves(output)[0]
        real = values if has_gradient(values) else values.astype(jnp.float32)
        return jnp.mean(jnp.square(jnp.abs(real)))

    def loss_under(self, plan: Plan | Schedule | None, *, tape: Tape | None = None) -> Callable[..., Any]:
        """Return the loss of a sequence, as a function of a program's arguments.

        The sequence runs under a plan; without one, by ``jax.lax.scan``, which keeps residuals of all steps.
        """
        loop: Callable[..., Any] = jax.lax.scan if plan is None else partial(scan, plan=plan, tape=tape)

        def run(parameters: Any, state: Any, xs: Any) -> Any:
            step, start = with_loss(partial(self.step, parameters), state, xs, self.loss)
            return loop(step, start, xs)[0][2]

        return run

    @contextmanager
    def in_double(self) -> Iterator[JaxNetwork]:
        """Enable double precision within a block, and yield a copy of the network in double precision."""
        with jax.enable_x64(True):
            yield replace(
                self,
                parameters=_to_double(self.parameters),
                state=_to_double(self.state),
                make_inputs=lambda steps: _to_double(self.make_inputs(steps)),
            )

    def measure_footprints(self) -> dict[Tape, StepFootprint]:
        """Return the footprint of a step with each kind of tape, from shapes, without running or compiling."""
        gradient = jax.grad(self.loss_under(make_schedule("base", steps=1)))
        closed = jax.make_jaxpr(gradient)(self.parameters, self.state, self.inputs(1))
        passes = next(equation.params["passes"] for equation in closed.eqns if "passes" in equation.params)
        footprints = measure_step(passes.sums.traced)
        return {
            footprint.sums.kind: footprint for footprint in footprints if footprint.sums.steps_per_matmul == 1
        }


def _to_double(tree: Any) -> Any:
    def change(leaf: Any) -> Any:
        return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float64)) if has_gradient(leaf) else leaf

    return jax.tree.map(change, tree)


def settle() -> None:
    """Wait until no thread of this process computes.

    After a program has returned its results, another thread still returns its buffers to the system. A run at
    the same time would take longer by either clock.
    """
    for _ in range(_MOST_PAUSES):
        began = time.process_time()
        time.sleep(_PAUSE)
        if time.process_time() - began < _REST * _PAUSE:
            return


@dataclass(frozen=True, kw_only=True)
class JaxProgram(Program):
    """A compiled program of a network, with its arguments."""

    network: JaxNetwork
    plan: Plan | Schedule | None
    clock: Callable[[], float]
    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    #: Bytes of arguments, results and temporary arrays, by the compiler's analysis.
    memory_bytes: int
    compile_seconds: float

    def call(self) -> Any:
        """Run the program and return its results."""
        return jax.block_until_ready(self.run(*self.arguments))

    def time(self, *, by_action: bool = False) -> Report:
        """Run the program in an idle process, and return its seconds and the seconds of touching new memory.

        The seconds of the run leave out the first touch of new memory, which a run in old memory does not need.
        The touch is measured in processor time. With any other clock, the seconds of the run include it, and
        the second number is 0. A compiled program has no timeline of actions. Raises InputError if touching
        takes most of the run.
        """
        settle()
        pages, began = count_new_pages(), self.clock()
        self.call()
        total = self.clock() - began
        if self.clock is not time.process_time:
            return Report(seconds=total)
        touching = (count_new_pages() - pages) * time_new_page()
        if touching > _MOST_TOUCHING * total:
            raise InputError(
                f"the first touch of new memory takes {format_seconds(touching)} of a run of "
                f"{format_seconds(total)}, so that the time of its steps cannot be told",
                field="environment",
                accepted=f"{KEEPS_MEMORY} in the environment, or fewer steps",
            )
        return Report(seconds=total - touching, new_memory=touching)

    def count(self) -> Counted:
        """Return the bytes of the program's buffers, and the number of steps that its rows recompute."""
        plan = self.plan
        assert isinstance(plan, Plan)  # noqa: S101 - a validation counts its plan alone
        footprint = choose_footprint(plan, list(self.network.measure_footprints().values()))
        table = footprint.tabulate(plan)
        return Counted(
            state_bytes=footprint.state_bytes,
            local_bytes=table.layout.byte_size,
            remote_bytes=table.remote_slots * footprint.state_bytes,
            counts={"recomputed_steps": table.recomputed_steps},
        )

    def peak_bytes(self) -> int:
        """Return the bytes of arguments, results and temporary arrays, by the compiler's analysis.

        On a CPU, the analysis includes states in host memory. They are subtracted.
        """
        memory = self.memory_bytes
        if isinstance(self.plan, Plan) and jax.default_backend() == "cpu":
            memory -= self.count().remote_bytes
        return memory

    def gradients(self) -> list[Gradient]:
        """Run the program and return the gradients of the parameters."""
        _, gradients = self.call()
        return [(_to_numpy(leaf), float(jnp.finfo(leaf.dtype).eps)) for leaf in gradients]  # type: ignore[no-untyped-call]


def _to_numpy(gradient: jax.Array) -> npt.NDArray[Any]:
    return np.asarray(gradient).astype(complex if jnp.iscomplexobj(gradient) else float)


def compile_gradient(
    network: JaxNetwork,
    plan: Plan | Schedule | None,
    inputs: Any,
    *,
    clock: Callable[[], float],
    tape: Tape | None = None,
) -> JaxProgram:
    """Return the program of a loss and its gradient under a plan; without a plan, by ``jax.lax.scan``."""
    gradient = jax.value_and_grad(network.loss_under(plan, tape=tape))
    return compile_loop(gradient, network, inputs, clock=clock, plan=plan)


def compile_loop(
    function: Callable[..., Any],
    network: JaxNetwork,
    inputs: Any,
    *,
    clock: Callable[[], float],
    plan: Plan | Schedule | None = None,
) -> JaxProgram:
    """Return the program of a function of the parameters, the initial state and the inputs of a network."""
    arguments = network.parameters, network.state, inputs
    began = time.perf_counter()
    with warnings.catch_warnings():
        # A validation compares the sizes itself.
        warnings.simplefilter("ignore", PlanMismatch)
        run = jax.jit(function).lower(*arguments).compile()
    seconds = time.perf_counter() - began
    sizes: Any = run.memory_analysis()
    memory = sizes.argument_size_in_bytes + sizes.output_size_in_bytes
    memory += sizes.temp_size_in_bytes - sizes.alias_size_in_bytes
    return JaxProgram(
        network=network,
        plan=plan,
        clock=clock,
        run=run,
        arguments=arguments,
        memory_bytes=int(memory),
        compile_seconds=seconds,
    )


def compile_messages(state_bytes: int) -> tuple[Any, Any, int]:
    """Return a program that moves states to host memory, one that moves them back, and the number of states.

    A program moves several states, since calling a program takes longer than moving a small state.
    """
    rehearse_host(jax.default_backend())
    count = count_moves(state_bytes, _MOST_MESSAGES)

    def send(state: jax.Array) -> Any:
        def write(number: Any, carry: Any) -> Any:
            # Change the state in each round. XLA would move a constant one before the loop, and fail on a GPU.
            held, state = carry
            return write_state(held, [state], number), state ^ 1

        return jax.lax.fori_loop(0, count, write, (open_states([jax.typeof(state)], count), state))[0]

    def fetch(held: Any) -> jax.Array:
        like = jax.typeof(held[0]).update(shape=(state_bytes,), memory_space=jax.memory.Space.Device)

        def add(number: Any, total: jax.Array) -> jax.Array:
            return jnp.bitwise_xor(total, read_state(held, number, [like])[0])

        total: jax.Array = jax.lax.fori_loop(0, count, add, jnp.zeros(state_bytes, jnp.uint8))
        return total

    return jax.jit(send), jax.jit(fetch), count


def time_message(program: Any, given: Any, moved: int) -> Report:
    """Run a compiled program that moves ``moved`` states, and return the seconds of a state."""
    began = time.perf_counter()
    jax.block_until_ready(program(given))
    return Report(seconds=max(time.perf_counter() - began, 1e-9) / moved)


class JaxBackend(Backend):
    """JAX on a processor with ``threads`` threads. Remote memory is host memory."""

    def __init__(self, *, threads: int, tape: str | None = None) -> None:
        self._threads = threads
        kind: Any = tape or "residuals"
        check_tape(kind)
        self.tape: Tape = kind
        # With one thread, use processor time, which other programs do not lengthen.
        self.clock = time.process_time if threads == 1 else time.perf_counter

    @property
    def environment(self) -> Environment:
        """JAX with its version, and the machine."""
        return Environment(
            machine=processor_name(),
            device="cpu",
            threads=self._threads,
            clock="processor time" if self.clock is time.process_time else "wall time",
            versions={"jax": jax.__version__, "tape": self.tape},
            memory_bytes=host_memory_bytes(),
            **describe_remote(
                None,
                memory="host memory of the program",
                messages="states of {state}, which a program copies to arrays in host memory and back",
            ),
            remark=f"tapes of {self.tape}",
        )

    def prepare(self) -> AbstractContextManager[None]:
        """Do nothing: the number of threads was set when JAX was imported."""
        return nullcontext()

    def choose_threads(self, network: JaxNetwork) -> None:
        """Do nothing: the number of threads was set when JAX was imported."""

    def program(
        self, network: JaxNetwork, plan: Plan | Schedule | None, *, steps: int = 0, inputs: Any = None
    ) -> JaxProgram:
        """Return the compiled program of a plan; without a plan, of ``steps`` steps of ``jax.lax.scan``."""
        inputs = network.inputs(steps if plan is None else plan.steps) if inputs is None else inputs
        return compile_gradient(network, plan, inputs, clock=self.clock)

    def time_steps(self, network: JaxNetwork, *, most: int | None = None) -> Pace:
        """Compile and time a program of a few steps by the wall clock."""
        steps = _PACE_STEPS if most is None else min(_PACE_STEPS, most)
        schedule, inputs = make_schedule("base", steps=steps), network.inputs(steps)
        program = compile_gradient(network, schedule, inputs, clock=time.perf_counter)
        program.call()
        seconds = min(program.time().seconds for _ in range(3))
        return Pace(step_seconds=max(seconds / steps, 1e-9), compile_seconds=program.compile_seconds)

    def free_bytes(self) -> int | None:
        """Return the bytes of free memory, None if the system does not report them."""
        return find_free_memory()

    def plain_factor(self, network: JaxNetwork) -> int:
        """Return the memory of ``jax.lax.scan`` as a multiple of base's memory."""
        return 1
