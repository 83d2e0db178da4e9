"""A machine whose bytes and seconds are known: schedules are played at exact costs, and nothing runs."""

# The names of arguments are those of the protocol.
# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ckptplan
from ckptplan.calibration import calibrate, validate
from ckptplan.calibration.bench import Bench, assume_times
from ckptplan.calibration.fit import Round, read_events
from ckptplan.calibration.torch_bench import make_message_schedules, make_schedules
from ckptplan.calibration.validation import Validation
from ckptplan.cli.command import as_option
from ckptplan.execution.backend import (
    Backend,
    Counted,
    CountedSizes,
    Environment,
    Gradient,
    Pace,
    Program,
    Report,
    Run,
)
from ckptplan.model.plan import Plan
from ckptplan.model.workload import TIMES, Basis
from ckptplan.planning.playback import make_schedule
from ckptplan.report.validation import view_validation
from ckptplan.schedule.actions import Backward, Record
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.simulator import play
from ckptplan.schedule.timeline import Event
from ckptplan.wording import arguments_as
from tests.support import plain_costs, told

#: What a state, a tape and so on take on the machine, in bytes and seconds. A recorded chunk costs four times
#: what an advance costs beside its steps.
COSTS: dict[str, Any] = {
    "state_bytes": 40_000,
    "tape_bytes": 100_000,
    "remote_state_bytes": 40_000,
    "forward_seconds": 1e-3,
    "recompute_seconds": 0.9e-3,
    "record_overhead_seconds": 0.1e-3,
    "backward_seconds": 2e-3,
    "advance_seconds": 0.1e-3,
    "chunk_seconds": 0.4e-3,
    "save_seconds": 20e-6,
    "load_seconds": 30e-6,
    "write_seconds": 400e-6,
    "read_seconds": 200e-6,
    "message_seconds": 50e-6,
}
#: The part of a chunk's own time that passes when it is reversed.
_REVERSE = 2.5 / 4
RESIDENT, PER_STEP, WORKSPACE = 300_000, 1_000, 200_000


class KnownProgram(Program):
    """A schedule that is played, not run."""

    def __init__(self, machine: KnownMachine, plan: Plan | Schedule) -> None:
        self._machine, self.steps = machine, plan.steps
        self._actions = list(ckptplan.actions(plan) if isinstance(plan, Plan) else plan)

    def _play(self) -> tuple[Any, list[Event]]:
        events: list[Event] = []
        trace = play(self._actions, costs=plain_costs(self.steps, **self._machine.costs), sink=events.append)
        return trace, events

    def time(self, *, by_action: bool = False) -> Report:
        """Return the known seconds, times what disturbs the machine now."""
        _, events = self._play()
        chunk, factor = self._machine.costs["chunk_seconds"], self._machine.disturb()
        timed = []
        for event in events:
            shift = _REVERSE * chunk * (isinstance(event.action, Backward) - isinstance(event.action, Record))
            timed.append(replace(event, end=event.start + factor * (event.end - event.start + shift)))
        return Report(
            seconds=sum(event.end - event.start for event in timed), events=timed if by_action else ()
        )

    def count(self) -> Counted:
        """Return the known bytes, and the counts of the schedule."""
        trace, events = self._play()
        names = ("recomputed_steps", "remote_writes", "remote_reads", "messages")
        return Counted(
            state_bytes=self._machine.costs["state_bytes"],
            local_bytes=trace.local_peak_bytes,
            remote_bytes=trace.remote_peak_bytes,
            counts={name: getattr(trace, name) for name in names},
            events=events,
        )

    def peak_bytes(self) -> int:
        """Return what the schedule holds, and what is there besides."""
        return int(self._play()[0].local_peak_bytes + RESIDENT + WORKSPACE + PER_STEP * self.steps)

    def gradients(self) -> list[Gradient]:
        """Return gradients that are right unless the machine has others."""
        return [(np.full(3, next(self._machine.gradients)), 1e-7)]


class KnownMachine(Backend):
    """A machine with exact costs.

    Arguments:
        costs: changes of ``COSTS``.
        disturb: returns the factor by which the next run is longer.
        gradients: the gradient of each run that is asked for one.
        free: the bytes of free memory.
        machine: its name.
    """

    def __init__(
        self,
        *,
        disturb: Callable[[], float] = lambda: 1.0,
        gradients: Iterator[float] | None = None,
        free: int | None = None,
        machine: str = "known",
        **costs: Any,
    ) -> None:
        self.costs, self.disturb, self._free, self._name = {**COSTS, **costs}, disturb, free, machine
        self.gradients = gradients or iter(lambda: 1.0, 0.0)

    @property
    def environment(self) -> Environment:
        """A processor with one thread."""
        return Environment(
            machine=self._name,
            device="cpu",
            threads=1,
            clock="processor time",
            versions={"torch": "0"},
            memory_bytes=2**34,
            remote="a copy",
            remote_bytes=2**34,
            remote_source="known",
            messages="messages of {state}",
        )

    def prepare(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def choose_threads(self, network: Any) -> None:
        """Do nothing."""

    def program(
        self, network: Any, plan: Plan | Schedule | None, *, steps: int = 0, inputs: Any = None
    ) -> KnownProgram:
        """Return a program; that of a plain loop is base."""
        return KnownProgram(self, make_schedule("base", steps=steps) if plan is None else plan)

    def time_steps(self, network: Any, *, most: int | None = None) -> Pace:
        """Return the known pace, which grows with the network."""
        return Pace(step_seconds=3e-3 * network.scale)

    def free_bytes(self) -> int | None:
        """Return the free bytes that were given."""
        return self._free

    def plain_factor(self, network: Any) -> int:
        """Return 1."""
        return 1


class KnownBench(Bench):
    """Plays the schedules that a cell of PyTorch is measured by."""

    def __init__(self, machine: KnownMachine, pace: Pace, *, times_steps: bool, is_quick: bool) -> None:
        self._machine = machine
        schedules = make_message_schedules(2 if is_quick else 8)
        schedules += make_schedules((1, 4, 8) if is_quick else (1, 4, 16, 64)) if times_steps else []
        self._programs = [KnownProgram(machine, schedule) for schedule in schedules]
        self.size_runs, self.round_runs, self.size_seconds = 1, len(schedules), 1.0
        self.start_seconds, self.round_seconds = 0.0, sum(map(pace.run, schedules))
        self.text, self.ways = f"{len(schedules)} schedules", {}

    def count_sizes(self, count: Callable[[], object]) -> CountedSizes:
        """Return the known bytes."""
        count()
        sizes = {
            "state_bytes": self._machine.costs["state_bytes"],
            "tape_bytes": self._machine.costs["tape_bytes"],
            "resident_bytes": RESIDENT,
            "resident_bytes_per_step": PER_STEP,
            "workspace_bytes": WORKSPACE,
        }
        basis = {field: Basis(kind="measured", why="known") for field in sizes}
        assumed = assume_times({field: self._machine.costs[field] for field in TIMES}, "known")
        return CountedSizes(**sizes, basis=basis, assumed=assumed, timed_on=self._machine.environment.machine)

    def start(self) -> Sequence[Run]:
        """Return the runs of a round."""
        return [partial(program.time, by_action=True) for program in self._programs]

    def read(self, reports: Sequence[Report]) -> Round:
        """Return the rows of the actions."""
        return read_events(*(report.events for report in reports))


def install(monkeypatch: pytest.MonkeyPatch, machine: KnownMachine) -> None:
    """Let ``calibrate`` and ``validate`` measure a known machine."""

    def build(_: Any, spec: Any, *, batch: int, **__: Any) -> Any:
        scale = spec.neurons * batch / 64
        state_bytes = int(scale * machine.costs["state_bytes"])
        network = SimpleNamespace(scale=scale, state_bytes=state_bytes, inputs=lambda steps: steps)
        network.in_double = lambda: nullcontext(network)
        return network

    def bench(_: Any, __: Any, ___: Any, pace: Pace, **options: Any) -> KnownBench:
        flags = {"times_steps": options.get("times_steps", True), "is_quick": options.get("is_quick", False)}
        return KnownBench(machine, pace, **flags)

    for module in (calibrate, validate):
        monkeypatch.setattr(module, "open_backend", lambda *_, **__: machine)
        monkeypatch.setattr(module, "build_network", build)
        monkeypatch.setattr(module, "open_bench", bench)


def shown_table(found: Validation, *, width: int = 80) -> str:
    """What a terminal shows, with single spaces."""
    with arguments_as(as_option):
        lines = told(view_validation(found).blocks(), width=width).splitlines()
    assert all(len(line.rstrip()) <= width or line.startswith(("plan", "ran", "on")) for line in lines)
    return " ".join(" ".join(lines).split())
