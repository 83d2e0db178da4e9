"""Measures a cell of PyTorch, by schedules with every kind of action in several sizes, and by messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

from ckptplan.calibration.bench import Bench, assume_times
from ckptplan.calibration.fit import Round, TimedRow, read_events
from ckptplan.execution.backend import CountedSizes, Pace, Report, Roofline, Run
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import READ, WRITE, Event, kind_of
from ckptplan.torch.backend import TorchBackend, TorchNetwork, TorchProgram
from ckptplan.torch.footprint import ALL_RUNS, FEW_RUNS, SizeRuns, measure_bytes
from ckptplan.torch.state.nests import fill, flatten
from ckptplan.torch.store.place import time_place
from ckptplan.torch.work import measure_roofline
from ckptplan.units import format_threads


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The extent of a measurement."""

    #: Steps of the timed chunks. Chunks of single steps show the fixed seconds of an action.
    chunks: tuple[int, ...]
    #: Steps between the states of a message, so that caches are in the same condition as in a plan.
    between: int
    size_runs: SizeRuns


#: The full extent, and a smaller one for quick calibrations and for steps of at least _LONG_SECONDS.
FULL = Extent(chunks=(1, 4, 16, 64, 192), between=8, size_runs=ALL_RUNS)
FEW = Extent(chunks=(1, 4, 16), between=2, size_runs=FEW_RUNS)
_LONG_SECONDS = 4e-3
#: The least number of steps of a schedule, so that single steps are timed several times in each round.
_SINGLE_STEPS = 32
#: For assumed times: the steps of a chunk, the most runs, and the most seconds of all runs.
_ASSUMED_CHUNK, _ASSUMED_RUNS, _ASSUMED_SECONDS = 8, 10, 1.0


class TorchBench(Bench):
    """Runs schedules in turn: some that time messages, and some that time steps.

    If remote memory is a folder, it is timed separately, as ``offload=`` times it.

    Arguments:
        backend: PyTorch on a device.
        network: the cell.
        pace: the pace of its steps.
        is_quick: whether to use the smaller extent, even if steps are short.
        times_steps: whether to time steps, and not only messages.
        states: the number of states that may be in a folder at once.
    """

    def __init__(
        self,
        backend: TorchBackend,
        network: TorchNetwork,
        pace: Pace,
        *,
        is_quick: bool = False,
        times_steps: bool = True,
        states: int = 1,
    ) -> None:
        self._backend, self._network, self._pace, self._states = backend, network, pace, states
        self._extent = FEW if is_quick or pace.step_seconds >= _LONG_SECONDS else FULL
        self._size_runs = self._extent.size_runs
        messages = [] if network.remote_dir is not None else make_message_schedules(self._extent.between)
        self._schedules = [*messages, *(make_schedules(self._extent.chunks) if times_steps else ())]
        self.size_runs, self.round_runs = self._size_runs.runs, len(self._schedules)
        self.size_seconds = self._size_runs.seconds(pace)
        self.start_seconds = sum(map(pace.run, self._schedules[:1]))
        self.round_seconds = sum(map(pace.run, self._schedules))
        self.text = f"{self.round_runs} schedules ({'steps and transfers' if messages else 'steps'})"
        fitted = f"fit over chunks of {', '.join(map(str, self._extent.chunks))} steps"
        self.ways = {
            **dict.fromkeys(("forward_seconds", "recompute_seconds", "backward_seconds"), fitted),
            "record_overhead_seconds": "the difference of steps with and without a tape",
            **dict.fromkeys(("advance_seconds", "chunk_seconds"), f"{fitted}: what no step explains"),
            **dict.fromkeys(("save_seconds", "load_seconds"), "each timed"),
        }

    def count_sizes(self, count: Callable[[], object]) -> CountedSizes:
        """Count bytes in real storages, and time a few steps to assume times until they are measured."""
        sizes = measure_bytes(self._network, runs=self._size_runs, count=count)
        return replace(sizes, assumed=self._assume_times(), timed_on=self._backend.environment.machine)

    def _assume_times(self) -> Mapping[str, tuple[float, str]]:
        """Return the least times of steps in a few short runs, with their origin."""

        def make(chunk: int) -> Schedule:
            return make_schedule("nested", steps=8 * chunk, chunk_size=chunk, segment_size=4 * chunk)

        schedule = make(_ASSUMED_CHUNK)
        if self._pace.run(schedule) > _ASSUMED_SECONDS:
            schedule = make(1)
        runs = min(_ASSUMED_RUNS, max(1, int(_ASSUMED_SECONDS / self._pace.run(schedule))))
        program = TorchProgram(self._network, schedule)
        runs_by_kind = [_time_kinds(program.time(by_action=True).events) for _ in range(runs)]
        # Other programs can only lengthen a run, and the times of a workload must be above zero.
        least = {kind: max(min(seconds[kind] for seconds in runs_by_kind), 1e-9) for kind in runs_by_kind[0]}
        here = self._backend.environment
        why = (
            f"the least of {runs} runs of {schedule.steps} steps on this machine, "
            f"{here.clock} on {format_threads(here.threads)}, not a calibration"
        )
        seconds = {
            "forward_seconds": least["forward"],
            "recompute_seconds": least["recompute"],
            "record_overhead_seconds": max(0.0, least["record"] - least["recompute"]),
            "backward_seconds": least["backward"],
        }
        return assume_times(seconds, why)

    def start(self) -> Sequence[Run]:
        """Run the first schedule to warm up, and return the runs of a round."""
        leaves, nest = flatten(
            self._network.inputs(max((schedule.steps for schedule in self._schedules), default=1))
        )
        piece = self._network.piece or 1
        runs = []
        for schedule in self._schedules:
            inputs = fill(nest, [leaf[: schedule.steps * piece] for leaf in leaves])
            program = self._backend.program(self._network, schedule, inputs=inputs)
            runs.append(partial(program.time, by_action=True))
        for run in runs[:1]:
            run()
        return runs

    def read(self, reports: Sequence[Report]) -> Round:
        """Return the rows of a round, including those of a folder. Raises InputError if the folder fails."""
        rows = read_events(*(report.events for report in reports))
        return rows if self._network.remote_dir is None else {**rows, **self._time_folder(rows)}

    def _time_folder(self, rows_of_actions: Round) -> Round:
        """Return the row of a state that moves to the folder, and the row of a state that moves back."""
        network = self._network
        link = time_place(
            network.remote_dir, states=self._states, state_bytes=network.state_bytes, device=network.device
        )
        rows: dict[Hashable, TimedRow] = {}
        for way, kind, seconds in ((WRITE, "save", link.rates.write), (READ, "load", link.rates.read)):
            # A local save or load shows the fixed seconds of an action.
            local = rows_of_actions.get(((kind, 1),))
            rows[way] = TimedRow(counts={way: 1}, seconds=seconds + (0.0 if local is None else local.seconds))
        return rows

    def roofline(self) -> Roofline:
        """Measure the peaks of the machine and count the operations of a step."""
        return measure_roofline(self._network, pace=self._pace)


def _time_kinds(events: Sequence[Event]) -> Mapping[str, float]:
    """Return the seconds of a step by kind of action."""
    steps: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for event in events:
        if isinstance(event.action, Advance | Record | Backward):
            steps[kind_of(event)] += event.action.stop - event.action.start
            seconds[kind_of(event)] += event.end - event.start
    return {kind: seconds[kind] / count for kind, count in steps.items()}


def make_schedules(chunks: tuple[int, ...]) -> list[Schedule]:
    """Return schedules that run every kind of action with each size of a chunk.

    For each size, there is a schedule of two segments of four or more chunks. Another schedule records all
    steps at once, as plain backpropagation does.
    """
    nested = []
    for chunk in chunks:
        segment = chunk * max(4, _SINGLE_STEPS // 2 // chunk)
        nested.append(make_schedule("nested", steps=2 * segment, chunk_size=chunk, segment_size=segment))
    return [*nested, make_schedule("base", steps=3 * chunks[-1])]


#: The numbers of states in the timed messages.
_GROUPS = (8, 4, 2, 1)


def make_message_schedules(between: int) -> list[Schedule]:
    """Return schedules with messages of every size, ``between`` steps apart. The first schedule warms up."""
    steps = between * (sum(_GROUPS) + 1)
    # In both orders, since the first message of a run takes longer.
    messages = [
        Schedule(steps=steps, actions=partial(make_grouped_actions, groups, chunk=between), chunk_size=between)
        for groups in (_GROUPS, _GROUPS[::-1])
    ]
    return [make_schedule("remote", steps=steps, chunk_size=between), *messages]


def make_grouped_actions(groups: Sequence[int], *, chunk: int) -> Iterator[Action]:
    """Yield a legal schedule that moves its checkpoints out and back in messages of ``groups`` states."""
    states = [chunk * number for number in range(sum(groups))]
    messages = [tuple(states[low:high]) for low, high in pairwise(accumulate(groups, initial=0))]
    for state in states:
        yield Save(state, Tier.LOCAL)
        yield Advance(state, state + chunk)
    for message in messages:
        yield Transfer(message, Tier.LOCAL, Tier.REMOTE)
    last = states[-1] + chunk
    yield Record(last, last + chunk)
    yield Backward(last, last + chunk)
    for message in reversed(messages):
        yield Transfer(message, Tier.REMOTE, Tier.LOCAL)
        for state in reversed(message):
            yield Load(state, Tier.LOCAL)
            yield Free(state, Tier.LOCAL)
            yield Record(state, state + chunk)
            yield Backward(state, state + chunk)
