"""Runs a network under a plan or a schedule, and measures its time, timeline, memory or gradients.

Each measurement is a separate run. Meters take time, and inspecting graphs for their bytes slows the backward
pass down, so nothing is timed while anything else is measured.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from signal import SIGINT, default_int_handler, getsignal, signal
from tempfile import gettempdir
from threading import current_thread, main_thread
from time import perf_counter
from typing import Any

import torch

from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.errors import CkptplanError, InputError
from ckptplan.execution.execute import Frontier, track_of
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Action, Tier
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import Event
from ckptplan.torch import Compile, PlanMismatch, bptt
from ckptplan.torch.compiling.steps import CompileFallback
from ckptplan.torch.engine import Observer
from ckptplan.torch.executor import Executor
from ckptplan.torch.inputs import iterate_steps, make_sequence
from ckptplan.torch.meters import Clock, LiveBytes, choose_clock, measure_allocated


class Timeline:
    """An observer of ``bptt`` and ``unroll`` that records, as events, when each action began and ended.

    Actions are measured one by one: on a device, each is waited for, so that copies do not overlap compute
    while they are measured. Time between the forward and the backward pass is excluded. Without
    ``counts_bytes``, no bytes are counted, since inspecting a recorded graph slows its backward pass down.
    Times are those of ``choose_clock`` unless a clock is given.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        resident_bytes: int = 0,
        counts_bytes: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.clock = clock or choose_clock(device)
        self._device, self._resident, self._counts = device, resident_bytes, counts_bytes
        self._frontier = Frontier()
        self._elapsed = 0.0

    def __call__(self, action: Action, executor: Executor) -> None:
        """Record an action that is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        start, self._elapsed = self._elapsed, self._elapsed + self.clock() - executor.began
        local = remote = 0
        if self._counts:
            local = executor.stores[Tier.LOCAL].bytes + sum(tape.bytes for tape in executor.tapes)
            remote = executor.stores[Tier.REMOTE].bytes
        self.events.append(
            Event(
                start=start,
                end=self._elapsed,
                track=track_of(action),
                action=action,
                held_at=self._elapsed,
                local_bytes=self._resident + local,
                remote_bytes=remote,
                recomputed_steps=self._frontier.pass_over(action),
            )
        )


#: Called after each action of a run that is not timed.
Tick = Callable[[], None]
_COMPILED = "a cell that PyTorch's compiler takes as a whole, or no compile"


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """A run whose actions were timed one by one."""

    events: list[Event]
    #: Seconds of the whole run, its actions and what is before, between and after them.
    seconds: float


def compile_pieces(network: MeasuredNetwork) -> None:
    """Compile the pieces of a network, if its steps are pieces. Raises InputError with the reason."""
    if network.piece is None:
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _execute(network, network.inputs(1), plan=make_schedule("base", steps=1))
        except InputError as error:
            reasons = [str(one.message) for one in caught if issubclass(one.category, CompileFallback)]
            if error.field != "compile" or not reasons:
                raise
            raise InputError(
                f"is {network.piece}, but {reasons[-1]}",
                field="compile",
                value=network.piece,
                accepted=_COMPILED,
            ) from None
    _prepare(network)


def measure_seconds(network: MeasuredNetwork, inputs: Any, *, plan: Plan | Schedule) -> float:
    """Return the seconds of a whole forward and backward pass, by ``choose_clock``."""
    clock = choose_clock(network.device)
    _prepare(network)
    began = clock()
    _execute(network, inputs, plan=plan)
    _wait(network)
    return clock() - began


def record_timeline(network: MeasuredNetwork, inputs: Any, *, plan: Plan | Schedule) -> list[Event]:
    """Return the timeline of a run, without bytes."""
    return time_actions(network, inputs, plan=plan).events


def time_actions(
    network: MeasuredNetwork, inputs: Any, *, plan: Plan | Schedule, clock: Clock | None = None
) -> TimedRun:
    """Return the timeline of a run, without bytes, and the seconds of the same run.

    Without a ``clock``, they are those of ``choose_clock``.
    """
    clock = clock or choose_clock(network.device)
    _prepare(network)
    observer = Timeline(network.device, counts_bytes=False, clock=clock)
    began = clock()
    _execute(network, inputs, plan=plan, observer=observer)
    _wait(network)
    return TimedRun(events=observer.events, seconds=clock() - began)


def observe_actions(
    network: MeasuredNetwork, inputs: Any, *, plan: Plan | Schedule, observer: Observer
) -> None:
    """Run a network and call ``observer`` after each action."""
    _prepare(network)
    _execute(network, inputs, plan=plan, observer=observer)
    _wait(network)


class HeldObserver:
    """An observer that records the bytes held after each action."""

    def __init__(self, device: torch.device, *, tick: Tick | None = None) -> None:
        self._timeline, self._tick = Timeline(device), tick
        #: Peak bytes of the outputs that the cell saves for the whole sequence.
        self.saved_bytes = 0

    def __call__(self, action: Action, executor: Executor) -> None:
        """Record an action that is done."""
        self._timeline(action, executor)
        self.saved_bytes = max(self.saved_bytes, executor.engine.saved_bytes)
        if self._tick is not None:
            self._tick()

    @property
    def events(self) -> list[Event]:
        """The events of the actions, with the bytes of checkpoints and tapes in real storages."""
        return self._timeline.events

    @property
    def local_bytes(self) -> int:
        """The peak bytes of local checkpoints and tapes."""
        return max(event.local_bytes for event in self.events)

    @property
    def remote_bytes(self) -> int:
        """The peak bytes of remote checkpoints."""
        return max(event.remote_bytes for event in self.events)


def measure_held(
    network: MeasuredNetwork, inputs: Any, *, plan: Plan | Schedule, tick: Tick | None = None
) -> HeldObserver:
    """Return the bytes held after each action, counted in real storages. Raises InputError."""
    _prepare(network)
    observer = HeldObserver(network.device, tick=tick)
    _execute(network, inputs, plan=plan, observer=observer)
    if not observer.events:
        raise InputError(
            "has nothing that requires a gradient, so there is nothing to plan",
            field="cell",
            accepted="a cell with parameters",
        )
    return observer


def measure_live_peak(
    network: MeasuredNetwork, inputs: Any, *, plan: Plan | Schedule, tick: Tick | None = None
) -> int:
    """Return the peak bytes of tensors, including those that existed before the run.

    On a CPU, storages are counted one by one; on a CUDA device, and of compiled pieces, PyTorch's allocators
    count them.
    """
    _prepare(network)
    before = network.bytes_before(inputs)
    if network.device.type == "cuda":
        present = torch.cuda.memory_allocated(network.device)
        torch.cuda.reset_peak_memory_stats(network.device)
        _execute(network, inputs, plan=plan, observer=_ticking(tick))
        return before + torch.cuda.max_memory_allocated(network.device) - present
    # On a CPU, remote memory would be counted as well, so remote checkpoints are kept in files.
    with (
        _interrupts_between_actions(tick) as observer,
        # Inside compiled graphs, no operation is dispatched.
        LiveBytes() if network.piece is None else measure_allocated(network.device) as meter,
    ):
        _execute(network, inputs, plan=plan, observer=observer, remote_dir=gettempdir())
    return before + meter.peak


def compute_gradients(
    network: MeasuredNetwork,
    inputs: Any,
    *,
    steps: int,
    plan: Plan | Schedule | None,
    tick: Tick | None = None,
) -> list[torch.Tensor]:
    """Return the gradients of the parameters: under a plan, or by plain BPTT in PyTorch if it is None."""
    _prepare(network)
    # A cell draws the same random numbers in both, e.g. for dropout.
    torch.manual_seed(network.seed + 2)
    if plan is None:
        _run_plain(network, inputs, steps=steps)
    else:
        _execute(network, inputs, plan=plan, observer=_ticking(tick))
    found = [
        torch.zeros_like(one) if one.grad is None else one.grad.detach().clone() for one in network.parameters
    ]
    _prepare(network)
    return found


def measure_plain_seconds(network: MeasuredNetwork, inputs: Any, *, steps: int) -> float:
    """Return the seconds of wall time of plain BPTT in PyTorch alone."""
    _prepare(network)
    began = perf_counter()
    _run_plain(network, inputs, steps=steps)
    _wait(network)
    seconds = perf_counter() - began
    _prepare(network)
    return seconds


def _run_plain(network: MeasuredNetwork, inputs: Any, *, steps: int) -> None:
    leaves, structure = make_sequence(inputs, steps=steps).piece(0, steps)
    state, total = network.state, torch.zeros((), device=network.device)
    for step, x in enumerate(iterate_steps(leaves, structure, steps)):
        state, output = network.cell(state, x)
        total = total + network.loss(step, output)
    total.backward()


def _execute(
    network: MeasuredNetwork,
    inputs: Any,
    *,
    plan: Plan | Schedule,
    observer: Observer | None = None,
    remote_dir: str | None = None,
) -> None:
    try:
        with warnings.catch_warnings():
            # Whether sizes are right is what a validation finds out itself.
            warnings.simplefilter("ignore", PlanMismatch)
            result = bptt(
                network.cell,
                inputs,
                network.state,
                network.loss,
                plan=plan,
                parameters=network.parameters,
                observer=observer,
                remote_dir=remote_dir,
                # A step of the plan is a piece already. That it is compiled was said before.
                compile=None if network.piece is None else Compile(steps=1, progress=lambda *_: None),
            )
        if network.piece is not None and result.piece is None:
            raise InputError(
                f"is {network.piece}, but the steps ran as they are written",
                field="compile",
                value=network.piece,
                accepted=_COMPILED,
            )
        if result.loss.requires_grad:
            result.loss.backward()
    except CkptplanError:
        raise
    except Exception as error:
        _blame_cell(network, inputs, steps=plan.steps, error=error)
        raise


def _blame_cell(network: MeasuredNetwork, inputs: Any, *, steps: int, error: Exception) -> None:
    """Raise InputError if the cell raises the same kind of error in a plain loop, without ckptplan."""
    leaves, structure = make_sequence(inputs, steps=steps).piece(0, steps)
    state, step = network.state, 0
    try:
        for step, x in enumerate(iterate_steps(leaves, structure, steps)):
            state, output = network.cell(state, x)
            network.loss(step, output)
    except type(error) as again:
        raise InputError(
            f"its step {step + 1:,} raised {type(again).__name__}: {again}",
            field="cell",
            accepted="a cell that runs any number of steps",
        ) from again


def _ticking(tick: Tick | None) -> Observer | None:
    return None if tick is None else lambda *_: tick()


@contextmanager
def _interrupts_between_actions(tick: Tick | None) -> Iterator[Observer]:
    """Keep Ctrl-C until the present action is done; pressed twice, it ends it.

    The meter is called when a storage is gone. Python ignores exceptions there, KeyboardInterrupt included.
    """
    pressed: list[int] = []

    def press(number: int, _: object) -> None:
        pressed.append(number)
        if len(pressed) > 1:
            raise KeyboardInterrupt

    def observe(*_: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        if tick is not None:
            tick()

    if current_thread() is not main_thread() or getsignal(SIGINT) is not default_int_handler:
        yield observe
        return
    signal(SIGINT, press)
    try:
        yield observe
    finally:
        signal(SIGINT, default_int_handler)
    if pressed:
        raise KeyboardInterrupt


def _prepare(network: MeasuredNetwork) -> None:
    """Start every run in the same state: without gradients and garbage."""
    for parameter in network.parameters:
        parameter.grad = None
    gc.collect()
    _wait(network)


def _wait(network: MeasuredNetwork) -> None:
    if network.device.type == "cuda":
        torch.cuda.synchronize(network.device)
