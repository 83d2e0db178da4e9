"""Measures cells in PyTorch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from ckptplan.calibration.backend import (
    Announce,
    Backend,
    CountedSizes,
    Environment,
    Extent,
    PilotTimes,
    Roofline,
    RunCounter,
    describe_remote,
)
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.fit import Fit, Times
from ckptplan.calibration.host import processor_name
from ckptplan.calibration.torch_backend import footprint
from ckptplan.calibration.torch_backend.cells import MeasuredNetwork, build_network, check_device
from ckptplan.calibration.torch_backend.rounds import (
    TorchExtent,
    TorchRounds,
    assume_steps,
    choose_threads,
    exclude_loaded_objects,
    make_message_schedules,
    time_few_steps,
)
from ckptplan.calibration.torch_backend.runs import TorchProgram, compile_pieces
from ckptplan.calibration.torch_backend.work import count_work
from ckptplan.cost.roofline import name_peak
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.memory import host_memory_bytes
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.device.memory import available_bytes
from ckptplan.torch.device.meters import choose_clock, name_clock
from ckptplan.units import format_threads

#: Rows of the square matrices whose product is timed, and bytes of the tensor that is copied.
_ROWS = {"cpu": 1024, "cuda": 8192}
_COPIED = {"cpu": 64 * 2**20, "cuda": 2**30}
#: Kernels that are started in a row.
_KERNELS = 1000
#: The quickest of several runs counts: a peak is what nothing disturbs.
_RUNS = 4
#: How many times more memory a ``ChunkCell`` keeps under autograd, where it runs step by step.
_UNDER_AUTOGRAD = 4


class TorchBackend(Backend):
    """Measures cells in PyTorch on a device. Raises InputError.

    Arguments:
        device: 'cpu' or 'cuda'.
        thread_count: the number of threads; None keeps it.
        remote_dir: the folder that is remote memory; None for host memory.
        states: how many states may be there at once.
    """

    def __init__(
        self,
        *,
        device: str = "cpu",
        thread_count: int | None = None,
        remote_dir: Path | None = None,
        states: int = 1,
    ) -> None:
        check_device(device)
        self.device = torch.device(device)
        self._threads = thread_count or torch.get_num_threads()
        self._folder, self._states = remote_dir, states

    @property
    def environment(self) -> Environment:
        cuda = self.device.type == "cuda"
        return Environment(
            # Times from machines with equal names can be compared.
            machine=torch.cuda.get_device_name(self.device) if cuda else processor_name(),
            device="cuda" if cuda else "cpu",
            threads=self._threads,
            clock=name_clock(self.device) if self._folder is None else "wall time",
            versions={"torch": torch.__version__},
            memory_bytes=(
                int(torch.cuda.get_device_properties(self.device).total_memory) if cuda else host_memory_bytes()
            ),
            **describe_remote(
                self._folder,
                memory="pinned host memory" if cuda else "a copy",
                messages="messages of 1, 2, 4 and 8 states of {state}, in the middle of a schedule",
            ),
        )

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """Set PyTorch's number of threads, and exclude existing objects from garbage collection.

        Each run begins with a collection, which would take a tenth of a second for all loaded modules.
        """
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        exclude_loaded_objects()
        try:
            yield
        finally:
            gc.unfreeze()
            torch.set_num_threads(before)

    def build(
        self, spec: CellSpec, *, batch: int, seed: int, announce: Announce | None = None
    ) -> MeasuredNetwork:
        network = build_network(spec, batch=batch, device=self.device.type, seed=seed)
        if network.piece is not None and announce is not None:
            announce(f"compiling pieces of {network.piece} steps, besides the time below")
        compile_pieces(network)
        return replace(network, remote_dir=self._folder)

    def choose_threads(self, network: MeasuredNetwork) -> None:
        choose_threads(network)
        self._threads = torch.get_num_threads()

    def pilot(self, network: MeasuredNetwork, *, most: int | None = None) -> Iterator[PilotTimes]:
        return time_few_steps(network, most=most)

    def choose(self, pilot: PilotTimes, *, rounds: int, quick: bool = False) -> TorchExtent:
        return TorchExtent.choose(pilot, rounds=rounds, quick=quick, moves=self._folder is None)

    def sizes(self, network: MeasuredNetwork, runs: Callable[[], tuple[Extent, RunCounter]]) -> CountedSizes:
        extent, counter = runs()
        found = footprint.measure(network, counter=counter, runs=cast("TorchExtent", extent).size_runs)
        here = self.environment
        clock = f"{here.clock} on {format_threads(here.threads)}"
        assumed = assume_steps(network, extent.pilot, clock=clock)
        return replace(found, assumed=assumed, timed_on=here.machine)

    def rounds(self, network: MeasuredNetwork, extent: Extent, sizes: CountedSizes) -> TorchRounds:
        return TorchRounds(network, extent.schedules, states=self._states)

    def program(
        self, network: MeasuredNetwork, plan: Plan | Schedule | None, *, inputs: Any, steps: int
    ) -> TorchProgram:
        return TorchProgram(network, plan, inputs=inputs, steps=steps)

    def messages(self, network: MeasuredNetwork, counter: RunCounter, *, rounds: int) -> Times:
        schedules = make_message_schedules() if self._folder is None else []
        timing = TorchRounds(network, schedules, states=self._states)
        timing.start(RunCounter())
        return Fit([counter.run(partial(timing.run, RunCounter())) for _ in range(rounds)]).times

    def meter_seconds(self, seconds: float, *, steps: int) -> tuple[float, float]:
        return footprint.estimate_meters(seconds, steps=steps)

    def free_bytes(self) -> int | None:
        return available_bytes(self.device)

    def plain_factor(self, network: MeasuredNetwork) -> int:
        return _UNDER_AUTOGRAD if isinstance(network.cell, ChunkCell) else 1

    def roofline(self, network: MeasuredNetwork, pilot: PilotTimes) -> Roofline:
        """Measure the peaks of the machine and count the operations of a step.

        The peaks are those of large products and copies, which real steps do not reach. The share that the
        steps of a cell reach is its efficiency (``cost/roofline.py``).
        """
        operations, why = count_work(network, pilot=pilot)
        dtypes = {"float32"} if operations is None else {operations.dtype, "float32"}
        rows, size = _ROWS[self.device.type], _COPIED[self.device.type]
        peaks = {}
        with torch.no_grad():
            for name in sorted(dtypes):
                factor = torch.ones(rows, rows, dtype=getattr(torch, name), device=self.device)
                out = torch.empty_like(factor)
                rate = 2 * rows**3 / self._time(lambda a=factor, b=out: torch.mm(a, a, out=b))  # type: ignore[misc]
                peaks[name_peak(name)] = rate, f"product of two matrices of {rows:,} x {rows:,}"
            source = torch.zeros(size, dtype=torch.uint8, device=self.device)
            target = torch.empty_like(source)
            rate = 2 * size / self._time(lambda: target.copy_(source))
            peaks["local_bytes_per_second"] = rate, f"copy of {size // 2**20:,} MiB, read and written"
            one = torch.zeros(1, device=self.device)

            def start_many() -> None:
                for _ in range(_KERNELS):
                    torch.add(one, one)

            starting = self._time(start_many) / _KERNELS
            peaks["launch_seconds"] = starting, f"a sum of two numbers, {_KERNELS:,} in a row"
        told = {field: (peak, f"{how}, the quickest of {_RUNS}") for field, (peak, how) in peaks.items()}
        return Roofline(peaks=told, operations=operations, why=why)

    def _time(self, run: Callable[[], object]) -> float:
        """Return the seconds of the quickest run after one that warms up."""
        clock = choose_clock(self.device)
        found = []
        for _ in range(_RUNS + 1):
            began = clock()
            run()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            found.append(clock() - began)
        return max(min(found[1:]), 1e-9)
