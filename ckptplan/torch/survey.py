"""Watches sizes and times in the first call of a kind, beyond the steps that were measured.

A state may grow, and a part of a network may be used late. So some steps of the first sweep are recorded, one
at a time, and their tapes counted; so is each checkpoint. If the plan would not stay within the limit with what
shows, everything is put back, and a plan is made with that. The next call knows the sizes of all steps, and
how long they took: a few steps that are measured before may spend most of their time on memory that is new to
the process, which a sequence uses again and again. What steps keep may depend on data, so later calls are
watched, too, though more and more rarely.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

from ckptplan.cost.case import Case
from ckptplan.errors import InputError, PlanMismatch
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import actions
from ckptplan.schedule.actions import Action, Advance, Backward, Load, Record, Save, Tier
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.simulator import play
from ckptplan.units import format_bytes

#: Steps of the first sweep whose tapes are counted, about evenly spread.
_SAMPLES = 8
#: Sizes may be larger by this share without being others.
_SHARE = 0.02
#: Times of a measurement, and where they come from.
_TIMES = (
    "forward_seconds",
    "record_seconds",
    "backward_seconds",
    "chunk_seconds",
    "save_seconds",
    "load_seconds",
    "steps",
    "retimed",
)
#: A call that takes no more than this share beyond its limit keeps it.
KEPT = 0.03
#: The last steps of a first sweep are recorded in so many parts: a tape may leave no room for the next one.
_PARTS = 8


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes in bytes, as the fields of a ``Workload`` of one unit."""

    state_bytes: int
    tape_bytes: int
    #: Outputs that a cell saves for the whole sequence, such as spikes; zero for most cells.
    resident_bytes_per_step: int


@dataclass(frozen=True, kw_only=True)
class Measurement(Sizes):
    """Bytes and seconds of a call, for any number of steps."""

    #: The output of one step.
    output_bytes: int
    #: What a run takes besides checkpoints, tapes and outputs: gradients of parameters, the tensors of a step.
    workspace_bytes: int
    #: What a run takes more of it if its first state moves away: that one is the caller's, and takes nothing.
    first_bytes: int
    #: Gradients of the parameters, and one more of the largest: what does not grow with the batch.
    parameter_bytes: int
    forward_seconds: float
    record_seconds: float
    backward_seconds: float
    #: What recording and reversing a run of steps takes besides its steps.
    chunk_seconds: float = 0.0
    #: What it takes to save a checkpoint and to load one, in any memory, besides moving its bytes.
    save_seconds: float = 0.0
    load_seconds: float = 0.0
    #: What each recording holds once, whatever its steps, such as weights in another type.
    once_bytes: int = 0
    #: What is kept of each time step, to compare it with what it gives when it runs again.
    compared_bytes: int = 0
    #: Steps whose bytes were counted, and steps that were timed.
    counted: int = 1
    steps: int = 1
    #: Whether the times are those of a whole call, not of its first steps before it.
    retimed: bool = False
    #: Whether the state was larger after the last of these steps than after the first one.
    grows: bool = False
    #: What trying the first steps took at most; 0 if another call did.
    taken_bytes: int = 0
    #: How many times those of a call of other shapes they are, 0 if such a call itself was measured.
    scaled_by: float = 0.0

    @property
    def is_scaled(self) -> bool:
        """Whether a call of other shapes was measured."""
        return self.scaled_by > 0

    @property
    def sizes(self) -> tuple[Any, ...]:
        """All that tells steps from others: not the times, nor what it took to find it out."""
        others = (*_TIMES, "taken_bytes")
        return tuple(value for name, value in vars(self).items() if name not in others)

    def with_times(self, other: Measurement) -> Measurement:
        """Return the same with the times of another measurement."""
        return replace(self, **{name: getattr(other, name) for name in _TIMES})

    def scale(self, ratio: float) -> Measurement:
        """Return the same for a call of larger shapes: all but the gradients of parameters is in proportion.

        The tensors of a step that it does not keep may be products of the batch with itself: that is the bound.
        """

        def grow(size: int) -> int:
            return math.ceil(ratio * size)

        fixed = min(self.workspace_bytes, self.parameter_bytes)
        return replace(
            self,
            state_bytes=grow(self.state_bytes),
            tape_bytes=grow(self.tape_bytes),
            resident_bytes_per_step=grow(self.resident_bytes_per_step),
            output_bytes=grow(self.output_bytes),
            workspace_bytes=fixed + math.ceil(ratio**2 * (self.workspace_bytes - fixed)),
            first_bytes=grow(self.first_bytes),
            forward_seconds=ratio * self.forward_seconds,
            record_seconds=ratio * self.record_seconds,
            backward_seconds=ratio * self.backward_seconds,
            once_bytes=grow(self.once_bytes),
            taken_bytes=0,
            scaled_by=ratio,
        )


def find_peak(plan: Plan, **sizes: int) -> int:
    """Return the local bytes that a plan takes with other sizes, by the fields of its workload."""
    case = Case(workload=plan.workload, profile=plan.profile).with_sizes(**sizes)
    return play(actions(plan), costs=case.costs).local_peak_bytes


class StaleSizesError(InputError):
    """A state or a tape is larger than was planned: a plan for its size is needed."""


@dataclass(kw_only=True)
class Survey:
    """What the steps of a call keep, under a plan for a limit.

    Arguments:
        measurement: what the first steps keep.
        plan: the plan that is executed.
        replan: returns the plan for other sizes. Raises InputError if none fits.
        keep: called with the sizes and the plan in the end.
        is_open: whether anything is watched: not in most calls after the first one.
        is_first: whether no such call has shown its sizes under this plan.
        probed: what is known of the steps, if the call runs at once.
    """

    measurement: Measurement
    plan: Plan
    replan: Callable[[Measurement], Plan]
    keep: Callable[[Measurement, Plan], object]
    is_open: bool
    is_first: bool = True
    probed: Any = None
    #: How often a sequence begins again with another plan.
    most_tries: ClassVar[int] = 3
    #: The largest bytes of a state and of a step's tape, each with the step where it was seen.
    _state: tuple[int, int] = field(default=(0, 0), init=False)
    _tape: tuple[int, int] = field(default=(0, 0), init=False)
    #: What the present plan was made for.
    _planned: Measurement = field(init=False)
    #: The sizes that the plan was last compared with.
    _compared: Measurement = field(init=False)
    #: The largest bytes when that was done.
    _looked: tuple[int, int] = field(default=(0, 0), init=False)
    _tries: int = field(default=0, init=False)
    #: The most bytes of checkpoints, tapes and gradients at a time.
    _held: int = field(default=0, init=False)
    #: Of each kind of action the seconds, the steps and the number.
    _seconds: dict[type[Action], tuple[float, int, int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._planned = self._compared = self.measurement

    def take_probed(self) -> Any:
        """Return what is known of the steps, once: they may change what they can reach."""
        found, self.probed = self.probed, None
        return found

    def list_samples(self, start: int, stop: int) -> Iterator[int]:
        """Yield the steps between two that are recorded to count their tapes."""
        steps = self.plan.steps
        # Not at equal distances, which a period may share.
        samples = {steps * number // (_SAMPLES + 1) + number % 3 for number in range(1, _SAMPLES + 1)}
        return (step for step in sorted(samples) if start <= step < min(stop, steps - 1))

    def see_state(self, step: int, size: int) -> None:
        """Take note of the state before a step."""
        self._state = max((size, step), self._state)

    def see_tape(self, start: int, stop: int, size: int) -> None:
        """Take note of the tape of recorded steps."""
        each = -(-(size - self.measurement.once_bytes) // (stop - start))
        # Of tapes that grow, it is that of the step in the middle.
        self._tape = max((each, (start + stop) // 2), self._tape)

    def see_held(self, held: int) -> None:
        """Take note of the bytes of checkpoints, tapes and gradients at a time."""
        self._held = max(held, self._held)

    def see_seconds(self, action: Action, seconds: float, *, tapes: int = 1) -> None:
        """Take note of the time of an action that recorded no samples, but perhaps several tapes."""
        spent, steps, runs = self._seconds.get(type(action), (0.0, 0, 0))
        match action:
            case Advance(start, stop) | Record(start, stop) | Backward(start, stop):
                self._seconds[type(action)] = spent + seconds, steps + stop - start, runs + tapes
            case Save(_, Tier.LOCAL) | Load(_, Tier.LOCAL):
                self._seconds[type(action)] = spent + seconds, steps, runs + 1

    def check(self) -> None:
        """Raise StaleSizesError if the plan does not stay within its limit with what was seen so far."""
        seen = self._state[0], self._tape[0]
        if seen == self._looked:
            return
        self._looked = seen
        sizes = self._correct(self._planned, extrapolates=True)
        if sizes in (self._planned, self._compared) or self._tries >= self.most_tries:
            return
        self._compared = sizes
        if self._find_excess(sizes) > 0:
            raise StaleSizesError(
                f"keeps states of up to {format_bytes(sizes.state_bytes)} and tapes of up to "
                f"{format_bytes(sizes.tape_bytes)} a step, more than the first steps did",
                field="cell",
                accepted="a larger limit, or a plan for these sizes",
            )

    def cut(self, record: Record) -> Iterator[tuple[int, int]]:
        """Yield the parts in which the last steps of a sweep are recorded."""
        # What each recording holds once, as weights in another type, each part would: a hundredth of the limit.
        once, room = self.measurement.once_bytes, self.plan.profile.local_bytes // 100
        parts = min(_PARTS, 1 + room // max(1, 2 * once)) if self.is_first else 1
        each = -(-(record.stop - record.start) // parts)
        for start in range(record.start, record.stop, each):
            # A step alone tells whether there is room for those after it.
            ends = (start + 1, min(start + each, record.stop))
            yield from (pair for pair in pairwise((start, *ends)) if pair[0] < pair[1])

    def plan_again(self) -> Plan | Schedule:
        """Return a plan for what was seen so far. Raises InputError if none fits."""
        self._tries += 1
        self._seconds.clear()
        seen, grown = (self._correct(self._planned, extrapolates=one) for one in (False, True))
        try:
            self._plan_for(grown)
        except InputError:
            # It may not go on growing.
            if seen == grown or self._tries == self.most_tries:
                raise
            self._plan_for(seen)
        return self.plan

    def _plan_for(self, sizes: Measurement) -> None:
        """Make the plan for some sizes. Raises InputError if none fits."""
        try:
            self._planned, self.plan = sizes, self.replan(sizes)
        except InputError as error:
            # Without the error that is handled now, which says that the sizes were others: no fault of a user.
            raise error from None

    def finish(self) -> None:
        """Keep sizes and times for later calls; warn if this one took more than its limit."""
        known = self.measurement
        sizes = replace(self._correct(known, extrapolates=False), taken_bytes=0)
        self.keep(self._retime(sizes), self.plan)
        # What a step works with is there beside a tape as it was planned; a larger one leaves as it is used.
        resident = self.plan.steps * self.plan.workload.resident_bytes_per_step
        taken, cause = 0, ""
        if sizes.state_bytes + sizes.tape_bytes > known.state_bytes + known.tape_bytes:
            taken = max(self._held + resident, self.plan.predicted.local_peak_bytes)
            cause = (
                f"later steps keep more than the first ones: states up to {format_bytes(sizes.state_bytes)}, "
                f"tapes up to {format_bytes(sizes.tape_bytes)} a step"
            )
        warn_of_excess(self.plan, cause, taken=taken, tried=known.taken_bytes)

    def _correct(self, planned: Measurement, *, extrapolates: bool) -> Measurement:
        """Return the sizes that were seen, if they are larger; to the end, if they may go on growing."""

        def grow(seen: tuple[int, int], before: int, first: int) -> int:
            size, step = seen
            if size <= (1 + _SHARE) * before:
                return before
            return size + (self._extrapolate(size - first, step) if extrapolates else 0)

        state = grow(self._state, planned.state_bytes, self.measurement.state_bytes)
        tape = grow(self._tape, planned.tape_bytes, self.measurement.tape_bytes)
        larger = state - planned.state_bytes
        more = larger + tape - planned.tape_bytes
        return replace(
            planned,
            state_bytes=state,
            tape_bytes=tape,
            workspace_bytes=planned.workspace_bytes + more,
            first_bytes=planned.first_bytes + larger,
        )

    def _retime(self, found: Measurement) -> Measurement:
        """Return a measurement with the times of this call, as far as it had actions of a kind."""
        if Record not in self._seconds or Backward not in self._seconds:
            return found
        # Half of what a run takes besides its steps is that of its backward pass.
        record = self._compare(Record, found.record_seconds, found.chunk_seconds / 2)
        backward = self._compare(Backward, found.backward_seconds, found.chunk_seconds / 2)
        advance = self._compare(Advance, found.forward_seconds) if Advance in self._seconds else record
        recorded = record * found.record_seconds
        saved, loaded = (self._seconds.get(kind) for kind in (Save, Load))
        return replace(
            found,
            # A recorded step does all that one without a tape does.
            forward_seconds=min(advance * found.forward_seconds, recorded),
            record_seconds=recorded,
            backward_seconds=backward * found.backward_seconds,
            chunk_seconds=(record + backward) / 2 * found.chunk_seconds,
            save_seconds=found.save_seconds if saved is None else saved[0] / saved[2],
            load_seconds=found.load_seconds if loaded is None else loaded[0] / loaded[2],
            retimed=True,
        )

    def _compare(self, kind: type[Action], step: float, run: float = 0.0) -> float:
        """Return how many times as long as told the actions of a kind took."""
        spent, steps, runs = self._seconds[kind]
        return spent / (steps * step + runs * run)

    def _find_excess(self, sizes: Measurement) -> int:
        """Return how many bytes more than its limit the plan takes with some sizes."""
        limit = self.plan.goal.local_bytes
        assert limit is not None  # noqa: S101 - it was made for a limit
        return self._find_peak(sizes, more=sizes.workspace_bytes - self._planned.workspace_bytes) - limit

    def _find_peak(self, sizes: Measurement, *, more: int) -> int:
        """Return what the plan takes with some sizes, and so many bytes more of workspace."""
        return find_peak(
            self.plan,
            state_bytes=sizes.state_bytes,
            tape_bytes=sizes.tape_bytes,
            workspace_bytes=self.plan.workload.workspace_bytes + more,
        )

    def _extrapolate(self, growth: int, step: int) -> int:
        """Return how much more a size may grow that grew so much since the counted steps: linearly."""
        return growth * (self.plan.steps - step) // max(1, step - self.measurement.counted)


def warn_of_excess(plan: Plan, cause: str = "", *, taken: int = 0, tried: int) -> None:
    """Warn if a call took more than its limit.

    Arguments:
        plan: its plan.
        cause: why it took more than planned, if it did.
        taken: its bytes, as far as they were counted.
        tried: the bytes at most while its first steps were tried, 0 if they were not.
    """
    most = (1 + KEPT) * plan.profile.local_bytes
    found = {
        cause: taken,
        f"trying the first steps took {format_bytes(tried)}, which later calls do not": tried,
    }
    causes = [one for one, size in found.items() if size > most]
    if causes:
        excess = format_bytes(max(taken, tried) - plan.profile.local_bytes)
        warnings.warn(
            f"{'; '.join(causes)}. This call took about {excess} more than its limit; the next one is planned "
            "for what was found",
            PlanMismatch,
            stacklevel=count_frames(),
        )


def count_frames() -> int:
    """Return the stack level of the caller's caller that is neither of ckptplan nor of PyTorch."""
    frame, level, own = sys._getframe(1), 1, {"ckptplan", "torch"}
    # Code that was compiled from a text may have no name.
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in own:
        frame, level = frame.f_back, level + 1
    return level
