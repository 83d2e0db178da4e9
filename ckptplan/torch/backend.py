"""Runs a network of PyTorch under a plan or a schedule: its time, timeline, memory or gradients.

Each measurement is a separate run. Meters take time, and inspecting graphs for their bytes slows the backward
pass down, so nothing is timed while anything else is measured.
"""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir
from time import perf_counter
from typing import Any

import numpy.typing as npt
import torch
from torch.utils._pytree import tree_leaves

from ckptplan.errors import CkptplanError, InputError
from ckptplan.execution.backend import (
    Backend,
    Counted,
    Environment,
    Gradient,
    Pace,
    Program,
    Report,
    describe_remote,
)
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Transfer
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import READ, WRITE
from ckptplan.storage.memory import host_memory_bytes
from ckptplan.studies.workers import processor_name
from ckptplan.torch import Compile, PlanMismatch, bptt
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.device.memory import available_bytes
from ckptplan.torch.device.meters import Clock, choose_clock, make_meter, name_clock
from ckptplan.torch.run.executor import Observer
from ckptplan.torch.run.inputs import Inputs
from ckptplan.torch.run.timeline import Timeline
from ckptplan.torch.state.nests import count_bytes, flatten, map_leaves

#: How many times more memory a ``ChunkCell`` keeps under autograd, where it runs step by step.
_PLAIN_MEMORY_FACTOR = 4
#: The steps of the run that measures the pace. If the first step takes more than ``_LONG_STEP`` seconds, it
#: alone gives the pace.
_PACE_STEPS, _LONG_STEP = 16, 0.1
#: The seconds that counting live tensors adds to a step: the dispatch of its operations.
_METER_SECONDS = 1.5e-3


@dataclass(frozen=True, kw_only=True)
class TorchNetwork:
    """A cell with its initial state, and inputs of any length, which are reproducible by the seed."""

    cell: Any
    state: Any
    device: torch.device
    make_inputs: Callable[[int], Any]
    seed: int
    #: K, if a step is a compiled piece of K steps.
    piece: int | None = None
    #: The folder of remote checkpoints; None for host memory.
    remote_dir: Path | None = None

    @property
    def clock(self) -> Clock:
        """The clock of runs. Processor time leaves out waiting for a disk."""
        return choose_clock(self.device) if self.remote_dir is None else perf_counter

    @property
    def state_bytes(self) -> int:
        """The bytes of the tensors of a state."""
        return count_bytes(flatten(self.state)[0])

    @property
    def parameters(self) -> tuple[torch.nn.Parameter, ...]:
        """The parameters that are trained; none if the cell is a function."""
        is_module = isinstance(self.cell, torch.nn.Module)
        return tuple(leaf for leaf in self.cell.parameters() if leaf.requires_grad) if is_module else ()

    @property
    def fixed_bytes(self) -> int:
        """The bytes of buffers and of parameters, including frozen ones."""
        is_module = isinstance(self.cell, torch.nn.Module)
        return count_bytes((*self.cell.parameters(), *self.cell.buffers()) if is_module else ())

    def inputs(self, steps: int) -> Any:
        """Return inputs for ``steps`` steps, or pieces, time first. Raises InputError if it fails."""
        torch.manual_seed(self.seed + 1)
        return self.make_inputs(steps * (self.piece or 1))

    @contextmanager
    def in_double(self) -> Iterator[TorchNetwork]:
        """Yield a copy whose parameters, state and inputs have double precision."""
        yield replace(
            self,
            cell=copy.deepcopy(self.cell).double(),
            state=_to_double(self.state),
            make_inputs=lambda steps: _to_double(self.make_inputs(steps)),
        )

    def run_step(self) -> None:
        """Run a step or a piece with its losses, without a tape."""
        with torch.no_grad():
            TorchProgram(self, None, steps=1).run_plain_loop()


def compute_loss(_: int, output: Any) -> torch.Tensor:
    """Return the loss of a step: a mean of squares, which takes negligible time."""
    # PyTorch's compiler can compile this loss as a whole.
    values: torch.Tensor = tree_leaves(output)[0]
    return (values if values.is_floating_point() else values.float()).square().mean()


def _to_double(tensors: Any) -> Any:
    return map_leaves(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, tensors)


class TorchProgram(Program):
    """A network under a plan or a schedule; without one, under plain BPTT in PyTorch alone.

    Arguments:
        network: the cell.
        plan: the plan or schedule to execute; None for a plain loop.
        inputs: the inputs; None for the inputs of the network.
        steps: T, if there is no plan.
    """

    def __init__(
        self, network: TorchNetwork, plan: Plan | Schedule | None, *, inputs: Any = None, steps: int = 0
    ) -> None:
        self._network, self._plan = network, plan
        self._steps = steps if plan is None else plan.steps
        self._inputs = network.inputs(self._steps) if inputs is None else inputs

    def time(self, *, by_action: bool = False) -> Report:
        """Return the seconds of a whole forward and backward pass, by the clock of the network."""
        clock = self._network.clock
        timeline = Timeline(self._network.device, counts_bytes=False, clock=clock) if by_action else None
        _prepare(self._network)
        began = clock()
        self._run(timeline)
        _wait(self._network)
        return Report(seconds=clock() - began, events=timeline.events if timeline else ())

    def observe(self, observer: Observer) -> None:
        """Run and call ``observer`` after each action."""
        _prepare(self._network)
        self._run(observer)
        _wait(self._network)

    def count(self) -> Counted:
        """Run the program, and count the bytes that it keeps in real storages, its steps and its messages.

        Raises InputError.
        """
        timeline = Timeline(self._network.device)
        self.observe(timeline)
        if not timeline.events:
            raise InputError(
                "has nothing that requires a gradient, so there is nothing to plan",
                field="cell",
                accepted="a cell with parameters",
            )
        moved = [
            (event.track, len(event.action.states) if isinstance(event.action, Transfer) else 1)
            for event in timeline.events
            if event.track in (WRITE, READ)
        ]
        return Counted(
            state_bytes=self._network.state_bytes,
            local_bytes=max(event.local_bytes for event in timeline.events),
            remote_bytes=max(event.remote_bytes for event in timeline.events),
            counts={
                "recomputed_steps": sum(event.recomputed_steps for event in timeline.events),
                "remote_writes": sum(states for way, states in moved if way == WRITE),
                "remote_reads": sum(states for way, states in moved if way == READ),
                "messages": len(moved),
            },
            events=timeline.events,
            saved_bytes=timeline.saved_bytes,
        )

    def peak_bytes(self) -> int:
        """Return the peak bytes of tensors, including those that existed before the run.

        On a CPU, storages are counted one by one; on a CUDA device, and for compiled pieces, PyTorch's
        allocators count them.
        """
        network, cuda = self._network, self._network.device.type == "cuda"
        _prepare(network)
        # On a CPU, remote memory would be counted as well, so remote checkpoints are kept in files.
        folder = None if cuda else network.remote_dir or Path(gettempdir())
        with make_meter(network.device, is_compiled=network.piece is not None) as meter:
            self._run(remote_dir=folder)
        before = network.fixed_bytes + network.state_bytes + count_bytes(flatten(self._inputs)[0])
        return before + meter.peak

    def gradients(self) -> list[Gradient]:
        """Run the program, and return the gradients of the parameters; a missing gradient is zero."""
        _prepare(self._network)
        # A cell draws the same random numbers in each run, e.g. for dropout.
        torch.manual_seed(self._network.seed + 2)
        self._run()
        gradients = [
            (
                _to_numpy(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad),
                torch.finfo(parameter.dtype).eps,
            )
            for parameter in self._network.parameters
        ]
        _prepare(self._network)
        return gradients

    def _run(self, observer: Observer | None = None, *, remote_dir: Path | None = None) -> None:
        if self._plan is None:
            self.run_plain_loop().backward()
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
            # A validation checks the sizes itself.
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
                # The compilation was announced before.
                compile=None
                if network.piece is None
                else Compile(steps=network.piece, progress=lambda *_: None),
            )
        if network.piece is not None and result.piece is None:
            raise InputError(
                f"is {network.piece}, but the steps ran as they are written",
                field="compile",
                value=network.piece,
                accepted="a cell that PyTorch's compiler takes as a whole, or no compile",
            )
        if result.loss.requires_grad:
            result.loss.backward()

    def run_plain_loop(self, note: Callable[[int], None] = lambda _: None) -> torch.Tensor:
        """Return the loss of a plain loop, without ckptplan; ``note(step)`` is called before each step."""
        network = self._network
        state, total = network.state, torch.zeros((), device=network.device)
        for step, x in enumerate(Inputs(self._inputs, self._steps * (network.piece or 1)).iterate_all()):
            note(step)
            state, output = network.cell(state, x)
            total = total + compute_loss(step, output)
        return total

    def _blame_cell(self, error: Exception) -> None:
        """Raise InputError if the cell raises the same kind of error in a plain loop, without ckptplan."""
        begun: list[int] = []
        try:
            self.run_plain_loop(begun.append)
        except type(error) as again:
            raise InputError(
                f"its step {len(begun):,} raised {type(again).__name__}: {again}",
                field="cell",
                accepted="a cell that runs any number of steps",
            ) from again


def _to_numpy(gradient: torch.Tensor) -> npt.NDArray[Any]:
    double = torch.promote_types(gradient.dtype, torch.float64)
    array: npt.NDArray[Any] = gradient.detach().to("cpu", double, copy=True).to_dense().numpy()
    return array


def _prepare(network: TorchNetwork) -> None:
    """Start every run in the same state: without gradients and garbage."""
    for parameter in network.parameters:
        parameter.grad = None
    gc.collect()
    _wait(network)


def _wait(network: TorchNetwork) -> None:
    if network.device.type == "cuda":
        torch.cuda.synchronize(network.device)


class TorchBackend(Backend):
    """PyTorch on a device. Raises InputError.

    Arguments:
        device: 'cpu' or 'cuda'.
        thread_count: the number of threads; None to keep the current number.
        remote_dir: the folder that is remote memory; None for host memory.
    """

    def __init__(
        self, *, device: str = "cpu", thread_count: int | None = None, remote_dir: Path | None = None
    ) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise InputError("no CUDA device is available", field="device", value=device, accepted="cpu")
        self.device, self.remote_dir = torch.device(device), remote_dir
        self._threads = thread_count or torch.get_num_threads()

    @property
    def environment(self) -> Environment:
        """PyTorch with its version, and the machine. Times from machines with equal names can be compared."""
        cuda = self.device.type == "cuda"
        return Environment(
            machine=torch.cuda.get_device_name(self.device) if cuda else processor_name(),
            device="cuda" if cuda else "cpu",
            threads=self._threads,
            clock=name_clock(self.device) if self.remote_dir is None else "wall time",
            versions={"torch": torch.__version__},
            memory_bytes=(
                int(torch.cuda.get_device_properties(self.device).total_memory) if cuda else host_memory_bytes()
            ),
            **describe_remote(
                self.remote_dir,
                memory="pinned host memory" if cuda else "a copy",
                messages="messages of 1, 2, 4 and 8 states of {state}, in the middle of a schedule",
            ),
        )

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """Set PyTorch's number of threads, and exclude existing objects from garbage collection.

        Each run begins with a garbage collection, which would take a tenth of a second for all loaded modules.
        """
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        exclude_loaded_objects()
        try:
            yield
        finally:
            gc.unfreeze()
            torch.set_num_threads(before)

    def choose_threads(self, network: TorchNetwork) -> None:
        """Use one thread from now on if a step is then quicker, as when other programs keep threads waiting.

        Compiled pieces keep their threads, since their code is made for a number of threads.
        """
        if self.device.type == "cuda" or network.piece is not None or self._threads == 1:
            return
        seconds = _time_step(network, network.clock)
        torch.set_num_threads(1)
        if seconds > _LONG_STEP or _time_step(network, network.clock) > seconds:
            torch.set_num_threads(self._threads)
        self._threads = torch.get_num_threads()

    def program(
        self, network: TorchNetwork, plan: Plan | Schedule | None, *, steps: int = 0, inputs: Any = None
    ) -> TorchProgram:
        """Return the program of a plan; without one, of ``steps`` steps of a plain loop."""
        return TorchProgram(network, plan, inputs=inputs, steps=steps)

    def time_steps(self, network: TorchNetwork, *, most: int | None = None) -> Pace:
        """Time a few steps by the wall clock, which also warms up the machine. Raises InputError.

        If the first step takes long, the pace is estimated from its forward pass alone, assuming that a
        backward pass takes twice as long.
        """
        first = _time_step(network, perf_counter)
        if first > _LONG_STEP:
            return Pace(step_seconds=3 * first, meter_seconds=_METER_SECONDS)
        steps = _PACE_STEPS if most is None else min(_PACE_STEPS, most)
        schedule = make_schedule("standard", steps=steps, chunk_size=min(4, steps))
        program = self.program(network, schedule)
        # The first count of live tensors loads modules, whose objects each later collection would go through.
        program.peak_bytes()
        exclude_loaded_objects()
        seconds = []
        for _ in range(2):
            began = perf_counter()
            program.time()
            seconds.append(perf_counter() - began)
        unit = Pace(step_seconds=1.0).run(schedule)
        return Pace(step_seconds=min(seconds) / unit, meter_seconds=_METER_SECONDS)

    def free_bytes(self) -> int | None:
        """Return the bytes of free memory, None if the system does not report them."""
        return available_bytes(self.device)

    def plain_factor(self, network: TorchNetwork) -> int:
        """Return the memory of a plain loop, as a multiple of the memory of the strategy ``base``."""
        return _PLAIN_MEMORY_FACTOR if isinstance(network.cell, ChunkCell) else 1


def exclude_loaded_objects() -> None:
    """Exclude all objects from garbage collection, until ``TorchBackend.prepare`` ends."""
    gc.collect()
    gc.freeze()


def _time_step(network: TorchNetwork, clock: Clock) -> float:
    """Return the seconds of a forward step: the smaller of two times."""
    seconds = []
    for _ in range(2):
        began = clock()
        network.run_step()
        seconds.append(clock() - began)
    return min(seconds)
