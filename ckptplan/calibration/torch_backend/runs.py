"""Runs a network of PyTorch under a plan or a schedule: its time, timeline, memory or gradients.

Each measurement is a separate run. Meters take time, and inspecting graphs for their bytes slows the backward
pass down, so nothing is timed while anything else is measured.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT, default_int_handler, getsignal, signal
from tempfile import gettempdir
from threading import current_thread, main_thread
from typing import Any

import numpy.typing as npt
import torch

from ckptplan.calibration.backend import Counted, Gradient, Program, Tick, TimedRun
from ckptplan.calibration.torch_backend.cells import MeasuredNetwork, compute_loss
from ckptplan.errors import CkptplanError, InputError
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Action, Tier, Transfer
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import READ, WRITE, Event, Frontier, track_of
from ckptplan.torch import Compile, CompileFallback, PlanMismatch, bptt
from ckptplan.torch.device.meters import Clock, LiveBytes, choose_clock, measure_allocated
from ckptplan.torch.run.executor import Executor, Observer
from ckptplan.torch.run.inputs import Inputs
from ckptplan.torch.state.nests import count_bytes, flatten


class Timeline:
    """An observer of ``bptt`` and ``unroll`` that records, as events, when each action began and ended.

    Actions are measured one by one: on a device, each is waited for, so that copies do not overlap compute
    while they are measured. Time between the forward and the backward pass is excluded. Without
    ``counts_bytes``, no bytes are counted, since inspecting a recorded graph slows its backward pass down.
    Times are those of ``choose_clock`` unless a clock is given; ``tick`` is called after each action.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        counts_bytes: bool = True,
        clock: Clock | None = None,
        tick: Tick | None = None,
    ) -> None:
        self.events: list[Event] = []
        #: Peak bytes of the outputs that the cell saves for the whole sequence.
        self.saved_bytes = 0
        self.clock = clock or choose_clock(device)
        self._device, self._counts = device, counts_bytes
        self._frontier, self._tick = Frontier(), tick
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
            self.saved_bytes = max(self.saved_bytes, executor.steps.saved_bytes)
        self.events.append(
            Event(
                start=start,
                end=self._elapsed,
                track=track_of(action),
                action=action,
                held_at=self._elapsed,
                local_bytes=local,
                remote_bytes=remote,
                recomputed_steps=self._frontier.pass_over(action),
            )
        )
        if self._tick is not None:
            self._tick()


#: The pieces of the sequence for which they are compiled.
_COMPILED_PIECES = 4
_COMPILED = "a cell that PyTorch's compiler takes as a whole, or no compile"


def compile_pieces(network: MeasuredNetwork) -> None:
    """Compile the pieces of a network, if its steps are pieces. Raises InputError with the reason."""
    if network.piece is None:
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            TorchProgram(network, make_schedule("base", steps=_COMPILED_PIECES)).observe(lambda *_: None)
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


class TorchProgram(Program):
    """A network under a plan or a schedule; without one, under plain BPTT in PyTorch alone.

    Arguments:
        network: the cell.
        plan: what to execute.
        inputs: those of the network, unless they are given.
        steps: T, if there is no plan.
    """

    def __init__(
        self, network: MeasuredNetwork, plan: Plan | Schedule | None, *, inputs: Any = None, steps: int = 0
    ) -> None:
        self._network, self._plan = network, plan
        self._steps = steps if plan is None else plan.steps
        self._inputs = network.inputs(self._steps) if inputs is None else inputs

    def seconds(self) -> float:
        """Return the seconds of a whole forward and backward pass, by the clock of the network."""
        return self._time(self._network.clock)

    def timed(self, clock: Clock | None = None) -> TimedRun:
        """Return the timeline of a run, without bytes, and the seconds of the same run.

        Without a ``clock``, they are those of the network's.
        """
        clock = clock or self._network.clock
        observer = Timeline(self._network.device, counts_bytes=False, clock=clock)
        seconds = self._time(clock, observer)
        return TimedRun(events=observer.events, seconds=seconds)

    def observe(self, observer: Observer) -> None:
        """Run and call ``observer`` after each action."""
        self._time(self._network.clock, observer)

    def _time(self, clock: Clock, observer: Observer | None = None) -> float:
        _prepare(self._network)
        began = clock()
        self._run(observer)
        _wait(self._network)
        return clock() - began

    def counted(self, tick: Tick | None = None) -> Counted:
        """Run it and count what it keeps, in real storages, and does. Raises InputError."""
        held = Timeline(self._network.device, tick=tick)
        self.observe(held)
        if not held.events:
            raise InputError(
                "has nothing that requires a gradient, so there is nothing to plan",
                field="cell",
                accepted="a cell with parameters",
            )
        moved = [
            (event.track, len(event.action.states) if isinstance(event.action, Transfer) else 1)
            for event in held.events
            if event.track in (WRITE, READ)
        ]
        return Counted(
            state_bytes=count_bytes(flatten(self._network.state)[0]),
            local_bytes=max(event.local_bytes for event in held.events),
            remote_bytes=max(event.remote_bytes for event in held.events),
            counts={
                "recomputed_steps": sum(event.recomputed_steps for event in held.events),
                "remote_writes": sum(states for way, states in moved if way == WRITE),
                "remote_reads": sum(states for way, states in moved if way == READ),
                "messages": len(moved),
            },
            events=held.events,
            saved_bytes=held.saved_bytes,
        )

    def peak_bytes(self, tick: Tick | None = None) -> int:
        """Return the peak bytes of tensors, including those that existed before the run.

        On a CPU, storages are counted one by one; on a CUDA device, and of compiled pieces, PyTorch's
        allocators count them.
        """
        network, cuda = self._network, self._network.device.type == "cuda"
        _prepare(network)
        # On a CPU, remote memory would be counted as well, so remote checkpoints are kept in files.
        folder = None if cuda else network.remote_dir or Path(gettempdir())
        with (
            _interrupts_between_actions(tick) as observer,
            # Inside compiled graphs, no operation is dispatched.
            measure_allocated(network.device) if cuda or network.piece is not None else LiveBytes() as meter,
        ):
            self._run(observer, remote_dir=folder)
        return network.bytes_before(self._inputs) + meter.peak

    def gradients(self, tick: Tick | None = None) -> list[Gradient]:
        _prepare(self._network)
        # A cell draws the same random numbers in each run, e.g. for dropout.
        torch.manual_seed(self._network.seed + 2)
        self._run(_ticking(tick))
        found = [
            (_to_numpy(torch.zeros_like(one) if one.grad is None else one.grad), torch.finfo(one.dtype).eps)
            for one in self._network.parameters
        ]
        _prepare(self._network)
        return found

    def _run(self, observer: Observer | None = None, *, remote_dir: Path | None = None) -> None:
        if self._plan is None:
            self._walk().backward()
            return
        try:
            self._execute(observer, remote_dir or self._network.remote_dir)
        except CkptplanError:
            raise
        except Exception as error:
            self._blame_cell(error)
            raise

    def _execute(self, observer: Observer | None, remote_dir: Path | None) -> None:
        network = self._network
        with warnings.catch_warnings():
            # Whether sizes are right is what a validation finds out itself.
            warnings.simplefilter("ignore", PlanMismatch)
            result = bptt(
                network.cell,
                self._inputs,
                network.state,
                compute_loss,
                plan=self._plan,
                parameters=network.parameters,
                observer=observer,
                remote_dir=remote_dir,
                # That it is compiled was said before.
                compile=None
                if network.piece is None
                else Compile(steps=network.piece, progress=lambda *_: None),
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

    def _walk(self, note: Callable[[int], None] = lambda _: None) -> torch.Tensor:
        """Return the loss of a plain loop, without ckptplan; ``note`` is called with each step before it."""
        network = self._network
        state, total = network.state, torch.zeros((), device=network.device)
        for step, x in enumerate(Inputs(self._inputs, self._steps * (self._network.piece or 1)).iterate_all()):
            note(step)
            state, output = network.cell(state, x)
            total = total + compute_loss(step, output)
        return total

    def _blame_cell(self, error: Exception) -> None:
        """Raise InputError if the cell raises the same kind of error in a plain loop, without ckptplan."""
        begun: list[int] = []
        try:
            self._walk(begun.append)
        except type(error) as again:
            raise InputError(
                f"its step {len(begun):,} raised {type(again).__name__}: {again}",
                field="cell",
                accepted="a cell that runs any number of steps",
            ) from again


def _to_numpy(gradient: torch.Tensor) -> npt.NDArray[Any]:
    double = torch.promote_types(gradient.dtype, torch.float64)
    found: npt.NDArray[Any] = gradient.detach().to("cpu", double, copy=True).to_dense().numpy()
    return found


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
