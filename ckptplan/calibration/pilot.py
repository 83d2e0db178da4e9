"""Times a few steps of a cell, to estimate how long measuring it will take."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.calibration.machine import exclude_loaded_objects
from ckptplan.calibration.runs import measure_live_peak, time_actions
from ckptplan.model.step_costs import StepCosts
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Advance, Backward, Record
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.simulator import play
from ckptplan.schedule.timeline import Event, kind_of

#: Steps of the chunks of the runs that are timed, each eight chunks long. The longest runs that are short
#: enough are timed several times.
_CHUNKS = (1, 4, 8)
_RUNS = 3
#: Seconds that a run may be expected to take.
_SHORT_SECONDS = 1.0
#: A step takes at least this long, as times of a workload must be above zero.
_LEAST_SECONDS = 1e-9


@dataclass(frozen=True, kw_only=True)
class PilotTimes:
    """Seconds of a step by what is done with it, and of a run besides its steps, from very few steps."""

    forward_seconds: float
    recompute_seconds: float
    record_overhead_seconds: float
    backward_seconds: float
    #: What a run takes besides its actions: garbage collection, trial runs of the first step.
    run_seconds: float
    #: Steps that were timed.
    steps: int

    def run(self, schedule: Schedule) -> float:
        """Return the estimated seconds of a run of a schedule."""
        costs = StepCosts(
            steps=schedule.steps,
            state_bytes=1,
            tape_bytes=1,
            remote_state_bytes=1,
            forward_seconds=self.forward_seconds,
            recompute_seconds=self.recompute_seconds,
            record_overhead_seconds=self.record_overhead_seconds,
            backward_seconds=self.backward_seconds,
        )
        return self.run_seconds + play(schedule, costs=costs).seconds

    @property
    def step_seconds(self) -> float:
        """Seconds of a step that is run, recorded and reversed."""
        return self.forward_seconds + self.record_overhead_seconds + self.backward_seconds

    def scaled(self, factor: float) -> PilotTimes:
        """Return the times of a machine that takes ``factor`` times as long."""
        return replace(
            self,
            forward_seconds=self.forward_seconds * factor,
            recompute_seconds=self.recompute_seconds * factor,
            record_overhead_seconds=self.record_overhead_seconds * factor,
            backward_seconds=self.backward_seconds * factor,
            run_seconds=self.run_seconds * factor,
        )


def time_few_steps(network: MeasuredNetwork) -> PilotTimes:
    """Time a few steps, which also warms up the machine: fewer if they take long. Raises InputError."""
    shortest = make_schedule("standard", steps=2, chunk_size=1)
    # The first count of live tensors takes a second: it loads modules, whose objects each later collection of
    # garbage would go through, a tenth of a second every run.
    measure_live_peak(network, network.inputs(shortest.steps), plan=shortest)
    exclude_loaded_objects()
    found = _time_runs(network, shortest, runs=1)
    for chunk in _CHUNKS:
        schedule = make_schedule("nested", steps=8 * chunk, chunk_size=chunk, segment_size=4 * chunk)
        if found.run(schedule) > _SHORT_SECONDS:
            break
        found = _time_runs(network, schedule, runs=_RUNS if chunk == _CHUNKS[-1] else 1)
    return found


def _time_runs(network: MeasuredNetwork, schedule: Schedule, *, runs: int) -> PilotTimes:
    inputs = network.inputs(schedule.steps)
    beside, each = [], defaultdict(list)
    for _ in range(runs):
        # Wall time: this is to tell how long a person waits.
        run = time_actions(network, inputs, plan=schedule, clock=perf_counter)
        beside.append(run.seconds - sum(event.end - event.start for event in run.events))
        for kind, seconds in _divide(run.events).items():
            each[kind].append(seconds)
    step = {kind: max(median(values), _LEAST_SECONDS) for kind, values in each.items()}
    recompute = step.get("recompute", step["forward"])
    return PilotTimes(
        forward_seconds=step["forward"],
        recompute_seconds=recompute,
        record_overhead_seconds=max(0.0, step["record"] - recompute),
        backward_seconds=step["backward"],
        run_seconds=max(0.0, median(beside)),
        steps=runs * schedule.steps,
    )


def _divide(events: list[Event]) -> dict[str, float]:
    """Return the seconds of a step by kind of action."""
    seconds: dict[str, float] = defaultdict(float)
    steps: dict[str, int] = defaultdict(int)
    for event in events:
        action = event.action
        if isinstance(action, Advance | Record | Backward):
            seconds[kind_of(event)] += event.end - event.start
            steps[kind_of(event)] += action.stop - action.start
    return {kind: total / steps[kind] for kind, total in seconds.items()}
