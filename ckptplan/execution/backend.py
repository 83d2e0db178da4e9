"""Defines how a network is measured: a backend runs its schedules, and each run reports bytes and seconds.

PyTorch and JAX each have a backend. ``measure`` in measure.py measures the caller's own functions. Runs are
interleaved in rounds, so that a machine that gets slower affects all runs of a round alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy.typing as npt

from ckptplan.model.network import Operations
from ckptplan.model.plan import Plan
from ckptplan.model.workload import DERIVED, WORKSPACES, Basis, Calibration
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import Event, Frontier
from ckptplan.storage.memory import find_folder_room, host_memory_bytes

#: A gradient in double precision, and the rounding error (eps) of the type in which it was computed.
Gradient: TypeAlias = tuple[npt.NDArray[Any], float]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The seconds of a run, and the timeline of its actions, which is empty for compiled programs."""

    seconds: float
    events: Sequence[Event] = ()
    #: Seconds of the first touch of new memory, which are not part of ``seconds``.
    new_memory: float = 0.0


#: Runs a program once.
Run: TypeAlias = Callable[[], Report]


def measure_rounds(
    runs: Sequence[Run], *, rounds: int, count: Callable[[], object] = lambda: None
) -> Iterator[list[Report]]:
    """Run all ``runs`` in turn in each round, and yield the reports of each round that is complete.

    Arguments:
        runs: the runs of a round.
        rounds: the number of rounds.
        count: called after each run.
    """
    for _ in range(rounds):
        reports = []
        for run in runs:
            reports.append(run())
            count()
        yield reports


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The peak bytes of a run, and its counts of recomputed steps, states and messages."""

    #: Bytes of a state, peak bytes of local checkpoints and tapes, and peak bytes of remote checkpoints.
    state_bytes: int
    local_bytes: int
    remote_bytes: int
    #: Field of ``Predicted`` -> count: recomputed steps, moved states, and messages.
    counts: Mapping[str, int] = field(default_factory=dict)
    #: The timeline of the run, with the bytes held after each action; empty for a compiled program.
    events: Sequence[Event] = ()
    #: Peak bytes of the outputs that the cell saves for the whole sequence.
    saved_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class CountedSizes:
    """The bytes of a cell, by field of a workload of one unit, each with its basis."""

    state_bytes: int
    tape_bytes: int
    resident_bytes: int
    resident_bytes_per_step: int
    workspace_bytes: int
    #: Outputs of a step that a ``ChunkCell`` saves and that plans may drop.
    cache_bytes: int = 0
    #: The workspace that a chunk of several steps needs beyond that of a single step.
    chunk_workspace_bytes: int = 0
    #: Bytes that a recorded chunk holds once, for any number of steps; a part of the workspace.
    tape_bytes_once: int = 0
    #: Range of the measured workspaces, as a share of the peak.
    residual: float = 0.0
    basis: Mapping[str, Basis]
    #: Assumed times of a step, used until they are measured, each with its origin; and the machine, if any.
    assumed: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    timed_on: str | None = None

    def fields(self) -> dict[str, Any]:
        """Return the bytes by field of a workload."""
        return {name: getattr(self, name) for name in (*DERIVED, *WORKSPACES)}


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Peak rates of a machine, and the operations of a step."""

    #: Field of a profile -> its number in SI base units, and how it was measured.
    peaks: Mapping[str, tuple[float, str]]
    #: The operations of a step, None if they were not counted. ``why`` says how, or why they were not.
    operations: Operations | None
    why: str


class Program(Protocol):
    """A network that runs a plan or a schedule, or else its framework's own loop."""

    def time(self, *, by_action: bool = False) -> Report:
        """Run the program and time it. ``by_action`` also times each action, if the runtime can."""
        ...

    def count(self) -> Counted:
        """Run the program, and count its bytes, steps and messages. Raises InputError."""
        ...

    def peak_bytes(self) -> int:
        """Run the program and return the peak bytes of all memory, including memory in use before the run."""
        ...

    def gradients(self) -> list[Gradient]:
        """Run the program and return the gradients of the parameters."""
        ...


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The wall time of runs, estimated from a few steps."""

    #: Seconds of a step, forward and backward.
    step_seconds: float
    #: Seconds to compile a program; 0 if nothing is compiled.
    compile_seconds: float = 0.0
    #: Seconds that counting the live tensors adds to a step.
    meter_seconds: float = 0.0

    def run(self, plan: Plan | Schedule) -> float:
        """Return the seconds of a run. A recomputed step takes a third of a step forward and backward."""
        return self.step_seconds * (plan.steps + count_recomputed(plan) / 3)

    def count(self, plan: Plan | Schedule) -> float:
        """Return the seconds of a run whose live tensors are counted."""
        return 1.2 * self.run(plan) + self.meter_seconds * plan.steps


def count_recomputed(plan: Plan | Schedule) -> int:
    """Return the number of recomputed steps of a run."""
    if isinstance(plan, Plan):
        return plan.predicted.recomputed_steps
    frontier = Frontier()
    return sum(map(frontier.pass_over, plan))


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The runtime and the machine that run networks."""

    machine: str
    device: Literal["cpu", "cuda"]
    threads: int
    clock: Literal["wall time", "processor time"]
    #: Fields of a calibration: the version of the runtime, and the kind of tapes in JAX.
    versions: Mapping[str, Any]
    memory_bytes: int
    #: Remote memory in words, its bytes, the source of this number, and how messages of states of '{state}'
    #: are timed.
    remote: str
    remote_bytes: int
    remote_source: str
    messages: str
    #: A remark about the cell, for the description of a workload.
    remark: str = ""

    @property
    def framework(self) -> str:
        """The runtime with its version."""
        return (
            f"PyTorch {self.versions['torch']}" if "torch" in self.versions else f"JAX {self.versions['jax']}"
        )

    def runs_as(self, calibration: Calibration) -> bool:
        """Return whether a calibration is of the same runtime."""
        return ("jax" in self.versions) == (calibration.jax is not None)


class Backend(Protocol):
    """A runtime (PyTorch or JAX) on a device. A network is a cell with its initial state and its inputs."""

    @property
    def environment(self) -> Environment:
        """The runtime and the machine."""
        ...

    def prepare(self) -> AbstractContextManager[None]:
        """Return a context manager that prepares this process for measurements."""
        ...

    def choose_threads(self, network: Any) -> None:
        """Switch to one thread if a step is faster with it."""
        ...

    def program(
        self, network: Any, plan: Plan | Schedule | None, *, steps: int = 0, inputs: Any = None
    ) -> Program:
        """Return the program of a plan; without a plan, of ``steps`` steps in the framework's own loop."""
        ...

    def time_steps(self, network: Any, *, most: int | None = None) -> Pace:
        """Time a few steps, at most ``most`` in a run. Raises InputError."""
        ...

    def free_bytes(self) -> int | None:
        """Return the bytes of free memory, None if the system does not report them."""
        ...

    def plain_factor(self, network: Any) -> int:
        """Return the memory of the framework's own loop as a multiple of base's memory."""
        ...


def describe_remote(folder: Path | None, *, memory: str, messages: str) -> dict[str, Any]:
    """Return the fields of an environment about remote memory, which is ``folder`` or else host memory."""
    if folder is None:
        return {
            "remote": memory,
            "remote_bytes": host_memory_bytes(),
            "remote_source": "host memory, as the system reports",
            "messages": messages,
        }
    return {
        "remote": f"the folder {folder}",
        "remote_bytes": find_folder_room(folder),
        "remote_source": f"free space of {folder}, less a margin for others",
        "messages": f"states of {{state}}, written and read in {folder}",
    }
