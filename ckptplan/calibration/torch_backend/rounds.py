"""Times steps and messages of a cell in rounds, whose schedules hold every kind of action and several sizes."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from time import perf_counter

import torch

from ckptplan.calibration.backend import (
    LEAST_ROUNDS,
    Extent,
    PilotTimes,
    Rounds,
    RunCounter,
    assume_times,
)
from ckptplan.calibration.fit import Round, TimedRow, read_events, seconds_by_kind
from ckptplan.calibration.torch_backend.cells import MeasuredNetwork, run_step
from ckptplan.calibration.torch_backend.footprint import ALL_RUNS, FEWER_RUNS, FEWEST_RUNS, SizeRuns
from ckptplan.calibration.torch_backend.runs import TorchProgram
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import READ, WRITE, Event, kind_of
from ckptplan.torch.device.meters import Clock
from ckptplan.torch.state.nests import count_bytes, fill, flatten
from ckptplan.torch.store.place import time_place

#: Steps of the chunks of the runs that are timed first, each eight chunks long. The longest runs that are short
#: enough are timed several times.
_PILOT_CHUNKS, _PILOT_RUNS = (1, 4, 8), 3
#: How many runs times are assumed from at most, within the seconds below.
_MOST_RUNS = 10
#: Seconds that a first run may be expected to take.
_SHORT_SECONDS = 1.0
#: A step takes at least this long, as times of a workload must be above zero.
_LEAST_SECONDS = 1e-9
#: A first step that takes so many seconds twice takes them for what it does, not for being the first.
_LONG_STEP = 0.1


def choose_threads(network: MeasuredNetwork) -> None:
    """Go on with one thread if a step then takes less, as where other programs keep all threads waiting.

    The code of compiled pieces is that of a number of threads.
    """
    many = torch.get_num_threads()
    if network.device.type == "cuda" or network.piece is not None or many == 1:
        return
    seconds = min(_time_step(network, network.clock) for _ in range(_PILOT_RUNS))
    if seconds <= _LONG_STEP:
        torch.set_num_threads(1)
        if _time_step(network, network.clock) > seconds:
            torch.set_num_threads(many)


def time_few_steps(network: MeasuredNetwork, *, most: int | None = None) -> Iterator[PilotTimes]:
    """Time a few steps, then more unless they take long, which also warms up the machine. Raises InputError.

    The first one runs forward alone. If it takes long, again, a backward step is taken to be as long. At most
    ``most`` steps run at a time.
    """
    each = _time_step(network, perf_counter)
    if each > _LONG_STEP and (each := min(each, _time_step(network, perf_counter))) > _LONG_STEP:
        yield PilotTimes(
            forward_seconds=each,
            recompute_seconds=each,
            record_overhead_seconds=0.0,
            backward_seconds=each,
            run_seconds=0.0,
            steps=1,
        )
    shortest, *longer = _make_pilot_schedules(most)
    # The first count of live tensors takes a second: it loads modules, whose objects each later collection of
    # garbage would go through, a tenth of a second every run.
    TorchProgram(network, shortest).peak_bytes()
    exclude_loaded_objects()
    # Wall time: this is to tell how long a person waits.
    found = _time_runs(network, shortest, runs=2, clock=perf_counter)
    yield found
    for schedule in longer:
        if found.run(schedule) > _SHORT_SECONDS:
            break
        runs = _PILOT_RUNS if schedule is longer[-1] else 1
        found = _time_runs(network, schedule, runs=runs, clock=perf_counter)
        yield found


def _make_pilot_schedules(most: int | None = None) -> list[Schedule]:
    """Return the schedules of few steps, the shortest first; none has more than ``most``."""
    shortest = make_schedule("standard", steps=2 if most is None else min(2, most), chunk_size=1)
    chunks = [chunk for chunk in _PILOT_CHUNKS if most is None or 8 * chunk <= most]
    nested = (make_schedule("nested", steps=8 * one, chunk_size=one, segment_size=4 * one) for one in chunks)
    return [shortest, *nested]


def assume_steps(network: MeasuredNetwork, pilot: PilotTimes, *, clock: str) -> dict[str, tuple[float, str]]:
    """Return times of steps with their origin: by the clock of the network, from the longest short runs.

    The pilot tells how long a person waits, which other programs lengthen. If no run is short, it is enough.
    ``clock``: what it measures, in words.
    """
    short = [one for one in _make_pilot_schedules() if pilot.run(one) <= _SHORT_SECONDS]
    if not short:
        return assume_times(vars(pilot), f"wall time of {pilot.steps} steps on this machine, not a calibration")
    runs = max(_PILOT_RUNS, min(_MOST_RUNS, int(_SHORT_SECONDS / pilot.run(short[-1]))))
    found = _time_runs(network, short[-1], runs=runs, clock=network.clock)
    why = f"the least of {runs} runs of {short[-1].steps} steps on this machine, {clock}, not a calibration"
    return assume_times(vars(found), why)


def _time_step(network: MeasuredNetwork, clock: Clock) -> float:
    """Return the seconds of a forward step."""
    began = clock()
    run_step(network)
    return clock() - began


def exclude_loaded_objects() -> None:
    """Exclude all objects from garbage collection, until ``TorchBackend.prepare`` ends."""
    gc.collect()
    gc.freeze()


def _time_runs(network: MeasuredNetwork, schedule: Schedule, *, runs: int, clock: Clock) -> PilotTimes:
    program = TorchProgram(network, schedule)
    timed = [program.timed(clock) for _ in range(runs)]
    each = [_seconds_of_steps(run.events) for run in timed]
    # Other programs only ever lengthen a run.
    step = {kind: max(min(one[kind] for one in each), _LEAST_SECONDS) for kind in each[0]}
    # A single step is recorded at once.
    forward = step.get("forward", step["record"])
    recompute = step.get("recompute", forward)
    beside = [run.seconds - sum(event.end - event.start for event in run.events) for run in timed]
    return PilotTimes(
        forward_seconds=forward,
        recompute_seconds=recompute,
        record_overhead_seconds=max(0.0, step["record"] - recompute),
        backward_seconds=step["backward"],
        run_seconds=max(0.0, min(beside)),
        steps=runs * schedule.steps,
    )


def _seconds_of_steps(events: Sequence[Event]) -> dict[str, float]:
    """Return the seconds of a step by kind of action."""
    steps: dict[str, int] = defaultdict(int)
    for event in events:
        if isinstance(event.action, Advance | Record | Backward):
            steps[kind_of(event)] += event.action.stop - event.action.start
    seconds = seconds_by_kind(events)
    return {kind: seconds[kind] / count for kind, count in steps.items()}


#: Steps of the chunks that are timed: from single steps, which show what an action takes besides its steps, to
#: those of plans for some MiB of memory. If steps take long, the second ones are enough.
_CHUNKS, _QUICK_CHUNKS = ((1, 4, 16, 64, 192), (1, 2, 4, 8, 16)), ((1, 4, 16, 32), (1, 4))
_LONG_SECONDS = 4e-3
#: Steps between the states of a message, so that caches are in the same condition as in a plan.
_STEPS_BETWEEN = 8


@dataclass(frozen=True, kw_only=True)
class TorchExtent(Extent):
    """What a calibration measures, and how often."""

    ladder = (
        {"chunks": (1, 4, 16, 64)},
        {"chunks": (1, 4, 16, 32)},
        {"rounds": LEAST_ROUNDS},
        {"steps_between": 2},
        {"size_runs": FEWER_RUNS},
        {"chunks": (1, 4, 8)},
        {"chunks": (1, 4)},
        {"size_runs": FEWEST_RUNS, "steps_between": 1},
        {"chunks": (1, 2)},
        {"single_steps": 8},
    )
    #: Steps between the states that are moved in messages; 0 if a folder is timed by itself.
    steps_between: int = _STEPS_BETWEEN
    size_runs: SizeRuns = ALL_RUNS
    #: The least number of steps of a schedule: single steps are timed several times in each round.
    single_steps: int = 32

    @classmethod
    def choose(cls, pilot: PilotTimes, *, rounds: int, quick: bool = False, moves: bool = True) -> TorchExtent:
        """Return what is measured without a limit on the time; of no rounds, bytes alone.

        Without ``moves``, no schedule times messages.
        """
        if not rounds:
            return cls(pilot=pilot, chunks=(), rounds=0)
        chunks = (_QUICK_CHUNKS if quick else _CHUNKS)[pilot.step_seconds >= _LONG_SECONDS]
        between = 0 if not moves else 2 if quick else _STEPS_BETWEEN
        sizes = FEWER_RUNS if quick else ALL_RUNS
        return cls(pilot=pilot, chunks=chunks, rounds=rounds, steps_between=between, size_runs=sizes)

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules of a round: those that time messages, if any do, and those that time steps."""
        messages = make_message_schedules(self.steps_between) if self.steps_between else []
        return [*messages, *make_schedules(self.chunks, least=self.single_steps)]

    @property
    def parts(self) -> Sequence[str]:
        counted = f"sizes in {len(self.size_runs.chunks) + 2 * len(self.size_runs.schedules)} runs"
        if not self.chunks:
            return (counted,)
        timed = "steps and transfers" if self.steps_between else "steps"
        return f"{self.rounds} rounds of {len(self.schedules)} schedules ({timed})", counted

    @property
    def ways(self) -> dict[str, str]:
        fitted = f"fit over chunks of {', '.join(map(str, self.chunks))} steps"
        return {
            **dict.fromkeys(("forward_seconds", "recompute_seconds", "backward_seconds"), fitted),
            "record_overhead_seconds": "the difference of steps with and without a tape",
            **dict.fromkeys(("advance_seconds", "chunk_seconds"), f"{fitted}: what no step explains"),
            **dict.fromkeys(("save_seconds", "load_seconds"), "each timed"),
        }

    @property
    def size_seconds(self) -> list[float]:
        return list(self.size_runs.seconds(self.pilot))

    @property
    def start_seconds(self) -> list[float]:
        return self.round_seconds[:1]

    @property
    def amounts(self) -> dict[str, object]:
        return {
            **super().amounts,
            "messages {} steps apart": self.steps_between,
            "single steps {} times": self.single_steps,
            "sizes in runs of up to {} steps": max(self.size_runs.peaks)[0],
        }


def make_schedules(chunks: tuple[int, ...], *, least: int = 32) -> list[Schedule]:
    """Return schedules of ``least`` steps or more that run every kind of action with each size of a chunk.

    For each size, there is a schedule of two segments of four or more chunks. A further one records all steps
    at once, as plain backpropagation does.
    """
    nested = []
    for chunk in chunks:
        segment = chunk * max(4, least // 2 // chunk)
        nested.append(make_schedule("nested", steps=2 * segment, chunk_size=chunk, segment_size=segment))
    return [*nested, make_schedule("base", steps=3 * chunks[-1])] if chunks else []


#: States of the messages that are timed; a saved or loaded state is a message of one state.
_GROUPS = (8, 4, 2, 1)


def make_message_schedules(chunk: int = _STEPS_BETWEEN) -> list[Schedule]:
    """Return schedules with messages of every size, ``chunk`` steps between two states; the first warms up."""
    steps = chunk * (sum(_GROUPS) + 1)
    # In both orders, since the first message of a run takes longer.
    messages = [
        Schedule(steps=steps, actions=partial(make_grouped_actions, groups, chunk=chunk), chunk_size=chunk)
        for groups in (_GROUPS, _GROUPS[::-1])
    ]
    return [make_schedule("remote", steps=steps, chunk_size=chunk), *messages]


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


class TorchRounds(Rounds):
    """Runs schedules in turn: some that time messages, and some that time steps.

    If the remote memory of the network is a folder, it is timed by itself, as ``offload=`` times it, and local
    saves and loads tell what actions take besides.

    Arguments:
        network: the cell.
        schedules: what runs in a round; of a folder's, none has messages.
        states: how many states may be in a folder at once.
    """

    def __init__(self, network: MeasuredNetwork, schedules: Sequence[Schedule], *, states: int = 1) -> None:
        self._network, self._states = network, states
        leaves, nest = flatten(network.inputs(max((schedule.steps for schedule in schedules), default=1)))
        self._programs = [
            TorchProgram(
                network, one, inputs=fill(nest, [leaf[: one.steps * (network.piece or 1)] for leaf in leaves])
            )
            for one in schedules
        ]

    def start(self, counter: RunCounter) -> None:
        for program in self._programs[:1]:
            counter.run(program.timed)

    def run(self, counter: RunCounter) -> Round:
        found = read_events(*(counter.run(program.timed).events for program in self._programs))
        return found if self._network.remote_dir is None else {**found, **self._time_folder(found)}

    def _time_folder(self, walked: Round) -> Round:
        """Return the rows of a state that goes to the folder, and of one that comes back. Raises InputError."""
        network = self._network
        assert network.remote_dir is not None  # noqa: S101 - who calls has looked
        size = count_bytes(flatten(network.state)[0])
        link = time_place(network.remote_dir, states=self._states, state_bytes=size, device=network.device)
        found: dict[Hashable, TimedRow] = {}
        for way, kind, seconds in ((WRITE, "save", link.rates.write), (READ, "load", link.rates.read)):
            local = walked.get(((kind, 1),))
            found[way] = TimedRow(counts={way: 1}, seconds=seconds + (0.0 if local is None else local.seconds))
        return found
