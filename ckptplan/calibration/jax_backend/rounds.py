"""Times compiled programs of a cell in rounds: whole schedules and parts of them, and messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ckptplan.calibration.backend import LEAST_ROUNDS, CountedSizes, Extent, PilotTimes, Rounds, RunCounter
from ckptplan.calibration.fit import Counts, Round, TimedRow, count_actions
from ckptplan.calibration.jax_backend.cells import JaxNetwork
from ckptplan.calibration.jax_backend.programs import (
    CompiledLoop,
    compile_forward,
    compile_gradient,
    compile_sweep,
)
from ckptplan.calibration.jax_backend.sizes import CompiledSizes
from ckptplan.jax.remote import open_states, read_state, rehearse_host, write_state
from ckptplan.model.workload import ACTION_TIMES, TIMES
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import READ, WRITE
from ckptplan.storage.place import count_moves

#: Seconds that a program of T steps may be expected to take, and the least and the largest T.
_RUN_SECONDS, _LEAST_STEPS, _MOST_STEPS = 0.1, 64, 1024
#: Steps of the chunks of the programs that are timed.
_CHUNKS, _QUICK_CHUNKS = (1, 4, 16, 64), (4, 16)
#: Segments of a nested schedule.
_SEGMENTS = 4
#: The steps of the first program.
_PILOT_STEPS = 32
#: A step takes at least this long.
_LEAST_SECONDS = 1e-9
#: Programs of a round that are parts of base: two forward passes and its sweep. They are the first.
_PARTS_OF_BASE = 3


def time_few_steps(network: JaxNetwork, *, most: int | None = None) -> PilotTimes:
    """Compile and time a program of a few steps, at most ``most``."""
    steps = _PILOT_STEPS if most is None else min(_PILOT_STEPS, most)
    program = compile_gradient(network, make_schedule("base", steps=steps), steps=steps)
    program.call()
    each = max(min(program.measure(time.perf_counter)[0] for _ in range(3)) / steps, _LEAST_SECONDS)
    # Half of it for the forward pass is more than it takes: rows of a schedule take some time, too.
    return PilotTimes(
        forward_seconds=each / 2,
        recompute_seconds=each / 2,
        record_overhead_seconds=0.0,
        backward_seconds=each / 2,
        run_seconds=0.0,
        compile_seconds=program.compile_seconds,
        steps=steps,
    )


@dataclass(frozen=True, kw_only=True)
class JaxExtent(Extent):
    """What a calibration measures, and how often: programs of so many steps."""

    ladder = ({"rounds": LEAST_ROUNDS}, {"chunks": _QUICK_CHUNKS})
    length: int

    @classmethod
    def choose(cls, pilot: PilotTimes, *, rounds: int, quick: bool = False) -> JaxExtent:
        """Return what is measured without a limit on the time."""
        length = int(min(_MOST_STEPS, max(_LEAST_STEPS, _RUN_SECONDS / pilot.step_seconds)))
        length = length // _LEAST_STEPS * _LEAST_STEPS
        chunks = tuple(one for one in (_QUICK_CHUNKS if quick else _CHUNKS) if one * _SEGMENTS <= length)
        return cls(pilot=pilot, chunks=chunks, rounds=rounds, length=length)

    @property
    def schedules(self) -> list[Schedule]:
        """Base, then a schedule without and one with steps that run a third time, for each size of a chunk."""
        found = [make_schedule("base", steps=self.length)]
        for chunk in self.chunks:
            segment = max(2 * chunk, self.length // _SEGMENTS // chunk * chunk)
            found.append(make_schedule("standard", steps=self.length, chunk_size=chunk))
            found.append(make_schedule("nested", steps=self.length, chunk_size=chunk, segment_size=segment))
        return found

    @property
    def parts(self) -> Sequence[str]:
        return (f"{self.rounds} rounds of {len(self.round_seconds)} compiled programs",)

    @property
    def ways(self) -> dict[str, str]:
        chunks = ", ".join(map(str, self.chunks))
        return dict.fromkeys((*TIMES, *ACTION_TIMES), f"fit over compiled programs in chunks of {chunks} steps")

    @property
    def start_seconds(self) -> list[float]:
        """The seconds of compiling each program, and of a round that warms up."""
        runs = self.round_seconds
        return [*[self.pilot.compile_seconds] * len(runs), *runs]

    @property
    def round_seconds(self) -> list[float]:
        """The seconds of each run of a round; those of parts of base are at most as long as it."""
        base, *others = super().round_seconds
        return [*[base] * (_PARTS_OF_BASE + 1), *others]


class JaxRounds(Rounds):
    """Compiles programs of one cell, and runs them in rounds.

    A message is a state that a program moves to host memory or back.
    """

    def __init__(
        self,
        network: JaxNetwork,
        extent: JaxExtent,
        sizes: CompiledSizes,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._network, self._sizes, self._clock = network, sizes, clock
        self._schedules = extent.schedules
        self._programs: list[tuple[CompiledLoop, Counts]] = []
        self._messages: tuple[Any, Any, int] | None = None

    def _compile(self) -> Iterator[tuple[CompiledLoop, Counts]]:
        """Yield each program with its parts; two forward passes tell the time of a step from that of a call."""
        network, tape, base = self._network, self._sizes.footprint.tape, self._schedules[0]
        for steps in (base.steps, base.steps // _SEGMENTS):
            forward = compile_forward(network, make_schedule("base", steps=steps))
            yield forward, {"forward": steps, "call": 1}
        yield compile_sweep(network, base, tape=tape), _count(base, sweep=True)
        for one in self._schedules:
            yield compile_gradient(network, one, steps=one.steps, tape=tape), _count(one)

    def start(self, counter: RunCounter) -> None:
        """Compile the programs, and run each once."""
        for compiled in self._compile():
            self._programs.append(compiled)
            counter.count()
        self.run(counter)

    def run(self, counter: RunCounter) -> Round:
        rows: dict[Hashable, TimedRow] = {}
        for number, (program, parts) in enumerate(self._programs):
            seconds, _ = counter.run(partial(program.measure, self._clock))
            rows[number] = TimedRow(counts=parts, seconds=seconds)
        for message, seconds in self._time_messages().items():
            rows[message] = TimedRow(counts={message: 1}, seconds=seconds)
        return rows

    def _time_messages(self) -> dict[str, float]:
        """Return the seconds of moving a state to host memory, and of moving it back.

        Programs move several states, since a call of a program takes longer than a small state.
        """
        if not self._messages:
            self._messages = _compile_messages(self._sizes.state_bytes)
        write, read, count = self._messages
        state = jnp.ones(self._sizes.state_bytes, jnp.uint8)
        seconds, held = _time_call(write, state)
        return {WRITE: seconds / count, READ: _time_call(read, held)[0] / count}

    def complete(self, sizes: CountedSizes) -> CountedSizes:
        wholes = (program.memory_bytes for program, _ in self._programs[_PARTS_OF_BASE:])
        return self._sizes.with_programs(list(zip(self._schedules, wholes, strict=True)))


def _count(schedule: Schedule, *, sweep: bool = False) -> Counts:
    """Return the parts of a program. What a chunk adds is one part, as programs hardly tell two apart."""
    parts = {**count_actions(schedule, sweep=sweep), "call": 1}
    return {name: count for name, count in parts.items() if name != "reverse"}


#: The most states that a timed program moves.
_MOST_MESSAGES = 64


def _compile_messages(state_bytes: int) -> tuple[Any, Any, int]:
    """Return programs that move states to host memory and back, and the number of states that they move."""
    rehearse_host(jax.default_backend())
    count = count_moves(state_bytes, _MOST_MESSAGES)

    def send(state: jax.Array) -> Any:
        def write(number: Any, carry: Any) -> Any:
            # XLA would move a state that stays the same once, before the loop, and fail for a GPU.
            held, state = carry
            return write_state(held, [state], number), state ^ 1

        return jax.lax.fori_loop(0, count, write, (open_states([jax.typeof(state)], count), state))[0]

    def fetch(held: Any) -> jax.Array:
        like = jax.typeof(held[0]).update(shape=(state_bytes,), memory_space=jax.memory.Space.Device)

        def add(number: Any, total: jax.Array) -> jax.Array:
            return jnp.bitwise_xor(total, read_state(held, number, [like])[0])

        found: jax.Array = jax.lax.fori_loop(0, count, add, jnp.zeros(state_bytes, jnp.uint8))
        return found

    write, read = jax.jit(send), jax.jit(fetch)
    jax.block_until_ready(read(write(jnp.ones(state_bytes, jnp.uint8))))
    return write, read, count


def _time_call(program: Any, given: Any) -> tuple[float, Any]:
    """Return the seconds of a call of a compiled program, and its results."""
    began = time.perf_counter()
    found = jax.block_until_ready(program(given))
    return max(time.perf_counter() - began, _LEAST_SECONDS), found
