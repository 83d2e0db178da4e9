"""Chooses the clock by which runs are timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch

#: Returns seconds; only differences mean something.
Clock: TypeAlias = Callable[[], float]
#: Processor time is used where it is at least as fine as this, in seconds: on some systems it is not.
_FINE = 1e-5


def choose_clock(device: torch.device) -> Clock:
    """Return the clock for runs on a device.

    With one thread on a processor it is the processor time of this process, which other programs on the machine
    do not lengthen; otherwise wall time.
    """
    fine = time.get_clock_info("process_time").resolution <= _FINE
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone and fine else time.perf_counter


def name_clock(device: torch.device) -> Literal["wall time", "processor time"]:
    """Return what ``choose_clock`` measures, as text."""
    return "wall time" if choose_clock(device) is time.perf_counter else "processor time"
