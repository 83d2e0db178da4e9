"""Measures the memory of tensors in bytes of real storages: the current amount and the peak.

Counters of allocators include the memory of compiled graphs. ``choose_clock`` returns the clock for a device.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Self, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

#: Returns seconds; only differences mean something.
Clock: TypeAlias = Callable[[], float]
#: Processor time is used only if its resolution is at most this, in seconds.
_MAX_RESOLUTION = 1e-5


def choose_clock(device: torch.device) -> Clock:
    """Return the clock for runs on a device.

    With one thread on a processor it is the processor time of this process, which other programs on the machine
    do not lengthen; otherwise wall time.
    """
    fine = time.get_clock_info("process_time").resolution <= _MAX_RESOLUTION
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone and fine else time.perf_counter


def name_clock(device: torch.device) -> Literal["wall time", "processor time"]:
    """Return the name of the time that ``choose_clock`` measures."""
    return "wall time" if choose_clock(device) is time.perf_counter else "processor time"


class AllocatedBytes(AbstractContextManager["AllocatedBytes"]):
    """The current and the peak bytes that the allocator of a CUDA device gives inside the context.

    They include the workspaces of kernels, which ``LiveBytes`` does not see.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._before = device, 0
        #: The current and the peak bytes at the end, once the context is left.
        self._ended: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        torch.cuda.synchronize(self._device)
        self._before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize(self._device)
        self._ended = self.now, self.peak

    @property
    def now(self) -> int:
        """The current bytes."""
        return self._ended[0] if self._ended else torch.cuda.memory_allocated(self._device) - self._before

    @property
    def peak(self) -> int:
        """The most bytes since the context began, or since ``forget``."""
        return self._ended[1] if self._ended else torch.cuda.max_memory_allocated(self._device) - self._before

    def forget(self) -> None:
        """Reset the peak to the current bytes."""
        torch.cuda.reset_peak_memory_stats(self._device)


class AllocatedPeak(AbstractContextManager["AllocatedPeak"]):
    """Counts the peak of the bytes that the block allocates on a CPU, which is known afterwards.

    The bytes of compiled code count, too. The current bytes are not known, and are zero.
    """

    now = peak = 0

    def __enter__(self) -> Self:
        # Not torch.profiler, which writes lines of its own to standard error.
        kind: Any = torch._C._profiler
        settings = kind.ProfilerConfig(
            kind.ProfilerState.CPU, False, True, False, False, False, kind._ExperimentalConfig()
        )
        legacy: Any = torch.autograd
        legacy._enable_profiler_legacy(settings)
        return self

    def __exit__(self, *_: object) -> None:
        legacy: Any = torch.autograd
        records = legacy._disable_profiler_legacy()
        # Count from zero, since the bytes at the beginning are not known.
        now = 0
        for event in (record for thread in records for record in thread if record.kind() == "memory_alloc"):
            now += event.cpu_memory_usage()
            self.peak = max(self.peak, now)

    def forget(self) -> None:
        """Do nothing, since the peak is known only at the end of the block."""


class _Tracked(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a storage, with its address and the bytes that count."""

    key: int
    size: int


class LiveBytes(TorchDispatchMode):
    """Counts each storage that operations create inside the context, for as long as it exists.

    Storages created before are not counted. Operations take several times as long, so do not measure time
    inside.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._live = 0
        #: The storages by their addresses; those that were created outside have size 0.
        self._tracked: dict[int, _Tracked] = {}
        #: Storages that were freed since bytes were added up. Their callback runs no Python code, in which
        #: Python would ignore a KeyboardInterrupt.
        self._freed: list[Any] = []

    @property
    def now(self) -> int:
        """The current bytes."""
        while self._freed:
            tracked = self._freed.pop()
            self._live -= tracked.size
            del self._tracked[tracked.key]
        return self._live

    def forget(self) -> None:
        """Reset the peak to the current bytes."""
        self.peak = self.now

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation and count the storages that it returns."""
        # Storages of the arguments were created outside, unless they are already counted.
        for value in tree_iter((args, kwargs)):
            for storage in _list_storages(value):
                self._track(storage, 0)
        if func is torch.ops.aten.add.Tensor and _grows(args[0]):
            # Under a mode, autograd would add to a copy.
            func = torch.ops.aten.add_.Tensor
            torch.autograd.graph.increment_version(args[0])
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            for storage in _list_storages(value):
                # Tensors without memory stand for layouts.
                self._track(storage, 0 if storage.device.type == "meta" else storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _track(self, storage: torch.UntypedStorage, size: int) -> None:
        """Count a storage with ``size`` bytes, unless it is known."""
        # A new storage may have the address of one that was freed.
        live, key = self.now, storage._cdata
        if key not in self._tracked:
            tracked = self._tracked[key] = _Tracked(storage, self._freed.append)
            tracked.key, tracked.size = key, size
            self._live = live + size


def _grows(total: object) -> bool:
    """Return whether autograd adds to a sum that it alone holds."""
    return torch._C._current_graph_task_id() != -1 and getattr(total, "grows_in_place", False)


def _list_storages(value: object) -> list[torch.UntypedStorage]:
    """Return the storages of a tensor, or of the parts of a sparse tensor; forward-mode zeros have none."""
    if not isinstance(value, torch.Tensor):
        return []
    if value.layout is torch.sparse_coo:
        return [part.untyped_storage() for part in (value._indices(), value._values())]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [part.untyped_storage() for part in (value.crow_indices(), value.col_indices(), value.values())]
    dense = value.layout is torch.strided and not value._is_zerotensor()
    return [value.untyped_storage()] if dense else []


#: A counter of the current and of the peak bytes of tensors on a device.
Meter: TypeAlias = AllocatedBytes | AllocatedPeak | LiveBytes


def make_meter(device: torch.device, *, is_compiled: bool = False) -> Meter:
    """Return a context that counts the bytes of tensors on a device.

    Inside compiled code, no operation is dispatched, so that allocators count there.
    """
    if device.type == "cuda":
        return AllocatedBytes(device)
    return AllocatedPeak() if is_compiled else LiveBytes()
