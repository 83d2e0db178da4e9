"""What every stage is given: the device, how much to measure, and where results go."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from ckptplan.torch.memory import OutOfMemory
from ckptplan.torch.meters import LiveBytes

_T = TypeVar("_T")
MIB, GIB = 2**20, 2**30
#: What a stage says in place of results that only a GPU can give.
NEEDS_CUDA = "needs a CUDA device"


class NeedsCudaError(Exception):
    """A stage measures nothing without a CUDA device."""

    def __init__(self) -> None:
        super().__init__(NEEDS_CUDA)


class ExhaustedError(Exception):
    """A run did not fit the memory."""


@dataclass(kw_only=True)
class Setting:
    """What a stage is given.

    Arguments:
        device: where networks run.
        small: whether sizes are so small that everything runs in seconds, to see that it runs.
        seconds: how long the stage may take; what it has saved by then is kept.
        folder: for files beside the results, such as traces.
        save: writes what was measured so far.
    """

    device: torch.device
    small: bool
    seconds: float
    folder: Path
    save: Callable[[Any], None]
    began: float = field(default_factory=time.monotonic)
    #: What failed; the stage went on.
    failures: list[str] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether networks run on a GPU."""
        return self.device.type == "cuda"

    @property
    def seconds_left(self) -> float:
        """The seconds until the stage is stopped."""
        return self.seconds - (time.monotonic() - self.began)

    def pick(self, small: _T, large: _T) -> _T:
        """Return one of two sizes."""
        return small if self.small else large

    def wait(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def attempt(self, what: str, action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what an action measures, or why it failed: the other measurements go on."""
        try:
            found = action()
        except ExhaustedError as error:
            found = {"status": str(error)}
        except Exception as error:
            # Whatever it is, it is written down and shown.
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            self.failures.append(f"{what}: {text}")
            found = {"status": f"failed: {text}"}
        else:
            found = {"status": "measured", **found}
        clean(self)
        return found


def clean(setting: Setting) -> None:
    """Release what earlier runs left."""
    gc.collect()
    if setting.on_gpu:
        torch.cuda.empty_cache()


def run_once(setting: Setting, variant: Callable[[], torch.Tensor], *, limit: int | None) -> dict[str, float]:
    """Return the seconds and the peak bytes of a forward and a backward pass. Raises ExhaustedError.

    On a GPU, peaks are those of the allocator, which also enforces a limit (``set_limit``). On a CPU, live
    tensors are counted in a run of their own, and the limit is compared with their peak.
    """
    clean(setting)
    try:
        if setting.on_gpu:
            setting.wait()
            before = torch.cuda.memory_allocated(setting.device)
            torch.cuda.reset_peak_memory_stats(setting.device)
            seconds = time_run(setting, variant)
            return {
                "seconds": seconds,
                "peak_bytes": torch.cuda.max_memory_allocated(setting.device) - before,
                "reserved_bytes": torch.cuda.max_memory_reserved(setting.device),
            }
        with LiveBytes() as live:
            variant().backward()
    except (torch.OutOfMemoryError, OutOfMemory):
        raise ExhaustedError("out of memory") from None
    if limit is not None and live.peak > limit:
        raise ExhaustedError("out of memory")
    return {"seconds": time_run(setting, variant), "peak_bytes": live.peak}


def time_run(setting: Setting, variant: Callable[[], torch.Tensor]) -> float:
    """Return the seconds of a forward and a backward pass, by the wall clock."""
    setting.wait()
    began = time.perf_counter()
    variant().backward()
    setting.wait()
    return time.perf_counter() - began


def set_limit(setting: Setting, limit: int | None) -> None:
    """Let PyTorch's allocator take so many bytes of the GPU in all, or everything."""
    if setting.on_gpu:
        total = torch.cuda.get_device_properties(setting.device).total_memory
        share = 1.0 if limit is None else min(1.0, limit / total)
        torch.cuda.set_per_process_memory_fraction(share, setting.device)


def find_largest(fits: Callable[[int], bool], *, start: int, most: int, share: float = 0.05) -> int:
    """Return the largest number that fits, to ``share``; 0 if ``start`` does not fit.

    Arguments:
        fits: whether a number fits; larger ones fit less.
        start: where to begin.
        most: the largest number of interest.
        share: how far apart the last number that fits and the first that does not may be.
    """
    if not fits(start):
        return 0
    low, high = start, start
    while high == low:
        high = min(2 * low, most)
        if high == low:
            return low
        if fits(high):
            low = high
    while high - low > max(1, share * low):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
