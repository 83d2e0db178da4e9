"""What calibration and validation ask of PyTorch and of JAX: a backend, its rounds and its programs.

Backends differ in what they can measure. What one cannot is None, or empty: compiled programs of JAX show no
times of their actions, and their bytes are known without a run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy.typing as npt

from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.fit import Round, Times, count_actions
from ckptplan.model.network import Operations
from ckptplan.model.plan import Plan
from ckptplan.model.progress import Progress
from ckptplan.model.workload import DERIVED, TIMES, WORKSPACES, Basis, Calibration, Workload
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import Event
from ckptplan.storage.memory import find_folder_room, host_memory_bytes
from ckptplan.units import format_wait

_T = TypeVar("_T")
#: Receives lines about a measurement: how long it takes, and what is left out.
Announce = Callable[[str], None]
#: Called after each action of a run that is not timed.
Tick = Callable[[], None]
#: An interval needs at least this many rounds.
LEAST_ROUNDS = 3
#: A gradient in double precision, and the rounding of the type that it was computed in.
Gradient = tuple[npt.NDArray[Any], float]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What runs cells, and where."""

    machine: str
    device: Literal["cpu", "cuda"]
    threads: int
    clock: Literal["wall time", "processor time"]
    #: Fields of a calibration: the version of what runs the cell, and the kind of tapes in JAX.
    versions: Mapping[str, Any]
    memory_bytes: int
    #: What remote memory is and how much of it there is, how that was found out, and how messages of states of
    #: '{state}' are timed.
    remote: str
    remote_bytes: int
    remote_source: str
    messages: str
    #: What else a workload's description says of its cell.
    remark: str = ""

    @property
    def framework(self) -> str:
        """What runs the cell, with its version."""
        return (
            f"PyTorch {self.versions['torch']}" if "torch" in self.versions else f"JAX {self.versions['jax']}"
        )

    def runs_as(self, calibration: Calibration) -> bool:
        """Return whether a calibration is of the same runtime."""
        return ("jax" in self.versions) == (calibration.jax is not None)


def describe_remote(folder: Path | None, *, memory: str, messages: str) -> dict[str, Any]:
    """Return the fields of an environment about remote memory: a folder, or host memory without one."""
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


@dataclass(frozen=True, kw_only=True)
class CountedSizes:
    """Bytes as the fields of a workload of one unit, each with its basis."""

    state_bytes: int
    tape_bytes: int
    resident_bytes: int
    resident_bytes_per_step: int
    workspace_bytes: int
    #: None: the tapes of a measured cell hold all that its backward pass needs.
    cache_bytes: int = 0
    #: What recording several steps at once needs besides.
    chunk_workspace_bytes: int = 0
    #: What a recorded chunk holds once, however many steps it has; part of the workspace.
    tape_bytes_once: int = 0
    #: Range of the measured workspaces, as a share of the peak.
    residual: float = 0.0
    basis: Mapping[str, Basis]
    #: Times of a step before any was measured, each with its origin, and the machine that they are of, if any.
    assumed: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    timed_on: str | None = None

    def fields(self) -> dict[str, Any]:
        """Return the bytes by the fields of a workload."""
        return {name: getattr(self, name) for name in (*DERIVED, *WORKSPACES)}


def assume_times(seconds: Mapping[str, float], why: str) -> dict[str, tuple[float, str]]:
    """Return times of steps with their origin; there may be others among them, which are left out."""
    # More digits would pretend that these times are known well.
    return {name: (float(f"{seconds[name]:.2g}"), why) for name in TIMES}


@dataclass(frozen=True, kw_only=True)
class PilotTimes:
    """Seconds of a step by what is done with it, and of a run besides its steps, from very few steps."""

    forward_seconds: float
    recompute_seconds: float
    record_overhead_seconds: float
    backward_seconds: float
    #: What a run takes besides its actions: garbage collection, trial runs of the first step.
    run_seconds: float
    #: What compiling a program takes; 0 if nothing is compiled.
    compile_seconds: float = 0.0
    #: Steps that were timed.
    steps: int

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Return the times of a workload that was calibrated here."""
        return cls(**{name: getattr(workload, name) for name in TIMES}, run_seconds=0.0, steps=workload.steps)

    def run(self, what: Plan | Schedule) -> float:
        """Return the estimated seconds of a run."""
        again = what.predicted.recomputed_steps if isinstance(what, Plan) else count_actions(what)["recompute"]
        return self.run_seconds + again * self.recompute_seconds + what.steps * self.step_seconds

    @property
    def step_seconds(self) -> float:
        """Seconds of a step that is run, recorded and reversed."""
        return self.forward_seconds + self.record_overhead_seconds + self.backward_seconds

    def scaled(self, factor: float) -> PilotTimes:
        """Return the times of a machine that takes ``factor`` times as long."""
        names = [name for name in vars(self) if name.endswith("_seconds")]
        return replace(self, **{name: factor * getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class Extent(ABC):
    """What a calibration measures, and how often; seconds of runs are estimated by the ``pilot``."""

    #: What is left out if everything takes too long: each of these changes after those before it.
    ladder: ClassVar[tuple[Mapping[str, Any], ...]]
    pilot: PilotTimes
    #: Steps of the chunks that are timed; empty if only bytes are counted.
    chunks: tuple[int, ...]
    rounds: int

    @property
    @abstractmethod
    def parts(self) -> Sequence[str]:
        """What is measured, in words."""

    @property
    @abstractmethod
    def schedules(self) -> Sequence[Schedule]:
        """The schedules of a round."""

    @property
    @abstractmethod
    def ways(self) -> Mapping[str, str]:
        """By the fields of a workload, how each time is obtained."""

    @property
    def size_seconds(self) -> list[float]:
        """The seconds of each run that bytes are counted in."""
        return []

    @property
    @abstractmethod
    def start_seconds(self) -> list[float]:
        """The seconds of each run before the first round."""

    @property
    def round_seconds(self) -> list[float]:
        """The seconds of each run of a round."""
        return [self.pilot.run(one) for one in self.schedules]

    def reduce(self) -> Iterator[Extent]:
        """Yield ever smaller extents."""
        extent = self
        for change in self.ladder:
            smaller = {name: value for name, value in change.items() if _is_less(value, getattr(extent, name))}
            if smaller:
                extent = replace(extent, **smaller)
                yield extent

    @property
    def amounts(self) -> dict[str, object]:
        """How much there is of what may be left out, by a text that has '{}' in its place."""
        *others, last = self.chunks or (0,)
        listed = f"{', '.join(map(str, others))} and {last}" if others else str(last)
        return {"chunks of {} steps": listed, "{} rounds": self.rounds}

    @property
    def time_seconds(self) -> list[float]:
        """The seconds of each run that times are measured in."""
        return [*self.start_seconds, *self.round_seconds * self.rounds] if self.chunks else []

    @property
    def seconds(self) -> float:
        """The seconds of everything."""
        return sum(self.size_seconds) + sum(self.time_seconds)

    @property
    def text(self) -> str:
        """How long it takes, and why: 'about 40 s: 5 rounds of 6 schedules, ...'."""
        return f"{format_wait(self.seconds)}: {', '.join(self.parts)}"

    def left_out(self, full: Extent) -> tuple[str, ...]:
        """Return what this measures less than ``full`` does."""
        whole = full.amounts
        return tuple(
            f"{text.format(amount)} instead of {whole[text]}"
            for text, amount in self.amounts.items()
            if amount != whole[text]
        )


def _is_less(value: Any, present: Any) -> bool:
    """Return whether a change of the ladder leaves anything out."""
    if isinstance(value, tuple):
        value, present = sum(value), sum(present)
    return bool(present) and value < present


#: Parts of a second in which progress is reported.
_PARTS = 1_000


class RunCounter:
    """Reports the progress of several runs, in thousandths of the seconds that they are expected to take."""

    def __init__(self, seconds: Sequence[float] = (), *, progress: Progress | None = None) -> None:
        self._progress = progress
        self._done, self._share = 0, -1.0
        self.expect(seconds)
        # Estimates of the time that is left begin here.
        self._report(0)

    def expect(self, seconds: Sequence[float]) -> None:
        """Replace what the runs that are left are expected to take."""
        self._expected = [max(1, round(_PARTS * one)) for one in seconds]

    def run(self, action: Callable[[], _T]) -> _T:
        """Return what a run returns, and count it."""
        found = action()
        self.count()
        return found

    def count(self) -> None:
        """Count a completed run."""
        self._done += self._expected.pop(0) if self._expected else 1
        self._report(self._done)

    def within(self, parts: int) -> Tick:
        """Return what to call after each of so many parts of the present run."""
        run, number = (self._expected[0] if self._expected else 0), 0

        def tick() -> None:
            nonlocal number
            number += 1
            self._report(self._done + int(run * min(1.0, number / parts)))

        return tick

    def end(self) -> None:
        """Report that everything is done, whether all runs were needed or not."""
        self._expected = []
        self._report(max(1, self._done))

    def _report(self, done: int) -> None:
        total = max(1, self._done + sum(self._expected))
        # What is left may have become more, but the share that is done does not decrease.
        if self._progress is not None and done / total > self._share:
            self._share = done / total
            self._progress(done, total)


class Rounds(ABC):
    """Everything that is timed in a round, in turn, so that a slower machine affects all of it equally."""

    @abstractmethod
    def start(self, counter: RunCounter) -> None:
        """Prepare what runs, and run once what is slower the first time."""

    @abstractmethod
    def run(self, counter: RunCounter) -> Round:
        """Run a round."""

    def complete(self, sizes: CountedSizes) -> CountedSizes:
        """Return the sizes with what the runs showed of them."""
        return sizes


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """A run whose actions were timed one by one."""

    events: list[Event]
    #: Seconds of the whole run, its actions and what is before, between and after them.
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What a run kept, and what it did."""

    #: Bytes of a state; peak bytes of local checkpoints and tapes, and of remote checkpoints.
    state_bytes: int
    local_bytes: int
    remote_bytes: int
    #: Field of ``Predicted`` -> how often: steps that ran again, states and messages that moved.
    counts: Mapping[str, int] = field(default_factory=dict)
    #: The timeline of the run, with the bytes held after each action; empty for a compiled program.
    events: Sequence[Event] = ()
    #: Peak bytes of the outputs that the cell saves for the whole sequence.
    saved_bytes: int = 0


class Program(ABC):
    """A cell under a plan or a schedule; or, without one, in its framework's own loop."""

    #: Seconds that the first touch of new memory took in each run, which ``seconds`` leaves out.
    new_memory: Sequence[float] = ()

    @abstractmethod
    def seconds(self) -> float:
        """Run it and return the seconds."""

    def timed(self) -> TimedRun | None:
        """Run it and time its actions one by one; return None if that is not possible."""
        return None

    @abstractmethod
    def counted(self, tick: Tick | None = None) -> Counted:
        """Run it and count what it keeps and does. Raises InputError."""

    @abstractmethod
    def peak_bytes(self, tick: Tick | None = None) -> int:
        """Return the peak bytes of everything, including what exists before."""

    @abstractmethod
    def gradients(self, tick: Tick | None = None) -> list[Gradient]:
        """Run it and return the gradients of the parameters."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Peaks of a machine, and what a step computes on it."""

    #: Field of a profile -> its number in SI base units, and how it was measured.
    peaks: Mapping[str, tuple[float, str]]
    #: The operations of a step, None if they were not counted; how they were, or why they were not.
    operations: Operations | None
    why: str


class Backend(ABC):
    """PyTorch or JAX on a device.

    A network is a cell with its initial state and its inputs; ``in_double`` returns one in double precision,
    within a block.
    """

    @property
    @abstractmethod
    def environment(self) -> Environment:
        """What runs cells, and where."""

    def prepare(self) -> AbstractContextManager[None]:
        """Prepare this process for measurements, within a block."""
        return nullcontext()

    @abstractmethod
    def build(self, spec: CellSpec, *, batch: int, seed: int, announce: Announce | None = None) -> Any:
        """Return the network of a spec, compiled if it is to be, which is announced. Raises InputError.

        The seed determines weights and data.
        """

    def choose_threads(self, network: Any) -> None:  # noqa: B027 - the number stays
        """Go on with one thread if a step then takes less."""

    @abstractmethod
    def pilot(self, network: Any, *, most: int | None = None) -> Iterator[PilotTimes]:
        """Yield the times of a few steps, then of more, at most ``most`` in a run. Raises InputError."""

    @abstractmethod
    def choose(self, pilot: PilotTimes, *, rounds: int, quick: bool = False) -> Extent:
        """Return what is measured without a limit on the time; of no rounds, bytes alone."""

    @abstractmethod
    def sizes(self, network: Any, runs: Callable[[], tuple[Extent, RunCounter]]) -> CountedSizes:
        """Count bytes: from shapes, or in runs, which ``runs`` tells the extent of. Raises InputError."""

    @abstractmethod
    def rounds(self, network: Any, extent: Extent, sizes: CountedSizes) -> Rounds:
        """Return the rounds of an extent."""

    def roofline(self, network: Any, pilot: PilotTimes) -> Roofline | None:
        """Measure the peaks of the machine and count the operations of a step; None if that is not possible."""
        return None

    @abstractmethod
    def program(self, network: Any, plan: Plan | Schedule | None, *, inputs: Any, steps: int) -> Program:
        """Return a program of so many steps."""

    def messages(self, network: Any, counter: RunCounter, *, rounds: int) -> Times | None:
        """Time messages alone; return None if they are not timed apart from runs."""
        return None

    def meter_seconds(self, seconds: float, *, steps: int) -> tuple[float, float]:
        """Return how long a run of some seconds takes while it is counted, and while its peak is measured."""
        return seconds, 0.0

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Return the bytes of free memory, None if the system does not report them."""

    def plain_factor(self, network: Any) -> int:
        """Return how many times more memory than base the framework's own loop takes."""
        return 1
