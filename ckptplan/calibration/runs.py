"""Runs a network under a plan or a schedule, and measures its time, timeline, memory or gradients.

Each measurement is a separate run. Meters take time, and inspecting graphs for their bytes slows the backward
pass down, so nothing is timed while anything else is measured.
"""

from __future__ import annotations

import gc
import warnings
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.errors import CkptplanError, InputError
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Action
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import Event
from ckptplan.torch import PlanMismatch, bptt
from ckptplan.torch.executor import Executor, Observer
from ckptplan.torch.inputs import iterate_steps, make_sequence
from ckptplan.torch.meters import LiveBytes
from ckptplan.torch.timeline import Timeline


def measure_seconds(network: MeasuredNetwork, inputs: Any, *, plan: Plan | Schedule) -> float:
    """Return the seconds of a whole forward and backward pass."""
    _prepare(network)
    began = perf_counter()
    _execute(network, inputs, plan=plan)
    _wait(network)
    return perf_counter() - began


def record_timeline(network: MeasuredNetwork, inputs: Any, *, plan: Plan | Schedule) -> list[Event]:
    """Return the timeline of a run, without bytes."""
    _prepare(network)
    observer = Timeline(network.device, counts_bytes=False)
    _execute(network, inputs, plan=plan, observer=observer)
    return observer.events


class HeldObserver:
    """An observer that records the bytes held after each action."""

    def __init__(self, device: torch.device) -> None:
        self._timeline = Timeline(device)
        #: Peak bytes of the outputs that the cell saves for the whole sequence.
        self.saved_bytes = 0

    def __call__(self, action: Action, executor: Executor) -> None:
        """Record an action that is done."""
        self._timeline(action, executor)
        self.saved_bytes = max(self.saved_bytes, executor.engine.saved_bytes)

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


def measure_held(network: MeasuredNetwork, inputs: Any, *, plan: Plan | Schedule) -> HeldObserver:
    """Return the bytes held after each action, counted in real storages. Raises InputError."""
    _prepare(network)
    observer = HeldObserver(network.device)
    _execute(network, inputs, plan=plan, observer=observer)
    if not observer.events:
        raise InputError(
            "has nothing that requires a gradient, so there is nothing to plan",
            field="cell",
            accepted="a cell with parameters",
        )
    return observer


def measure_live_peak(network: MeasuredNetwork, inputs: Any, *, plan: Plan | Schedule) -> int:
    """Return the peak bytes of tensors, including those that existed before the run.

    On a CPU, storages are counted one by one; on a CUDA device, PyTorch's allocator counts them.
    """
    _prepare(network)
    before = network.bytes_before(inputs)
    if network.device.type == "cuda":
        present = torch.cuda.memory_allocated(network.device)
        torch.cuda.reset_peak_memory_stats(network.device)
        _execute(network, inputs, plan=plan)
        return before + torch.cuda.max_memory_allocated(network.device) - present
    meter = LiveBytes()
    # On a CPU, remote memory would be counted as well, so remote checkpoints are kept in files.
    with meter, TemporaryDirectory(prefix="ckptplan-") as folder:
        _execute(network, inputs, plan=plan, remote_dir=folder)
    return before + meter.peak


def compute_gradients(
    network: MeasuredNetwork, inputs: Any, *, steps: int, plan: Plan | Schedule | None
) -> list[torch.Tensor]:
    """Return the gradients of the parameters: under a plan, or by plain BPTT in PyTorch if it is None."""
    _prepare(network)
    # A cell draws the same random numbers in both, e.g. for dropout.
    torch.manual_seed(network.seed + 2)
    if plan is None:
        _run_plain(network, inputs, steps=steps)
    else:
        _execute(network, inputs, plan=plan)
    found = [
        torch.zeros_like(one) if one.grad is None else one.grad.detach().clone() for one in network.parameters
    ]
    _prepare(network)
    return found


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


def _prepare(network: MeasuredNetwork) -> None:
    """Start every run in the same state: without gradients and garbage."""
    for parameter in network.parameters:
        parameter.grad = None
    gc.collect()
    _wait(network)


def _wait(network: MeasuredNetwork) -> None:
    if network.device.type == "cuda":
        torch.cuda.synchronize(network.device)
