"""Sets the threads of JAX on a processor, which are fixed when it is imported."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Literal

from ckptplan.calibration.host import usable_cores
from ckptplan.errors import InputError

#: The flag of XLA that keeps it to one thread.
_FLAG = "xla_cpu_multi_thread_eigen=false"
_ONE = f"--{_FLAG}"


def set_threads(count: int | None) -> int:
    """Set and return the number of threads. None keeps it.

    Raises InputError if JAX has already been imported with another number.
    """
    present = _read_threads()
    if count is None or count == present:
        return present
    if "jax" in sys.modules:
        raise InputError(
            f"JAX runs with {present} already, which cannot be changed any more",
            field="thread_count",
            value=count,
            accepted=f"{present}, or NPROC={count} in the environment before JAX is imported"
            + (f" together with XLA_FLAGS={_ONE}" if count == 1 else ""),
        )
    os.environ["NPROC"] = str(count)
    if count == 1:
        os.environ["XLA_FLAGS"] = " ".join((*os.environ.get("XLA_FLAGS", "").split(), _ONE))
    return count


def choose_jax_clock(threads: int) -> tuple[Callable[[], float], Literal["wall time", "processor time"]]:
    """Return the clock of runs: processor time with one thread, which others do not lengthen."""
    return (time.process_time, "processor time") if threads == 1 else (time.perf_counter, "wall time")


def _read_threads() -> int:
    if _ONE in os.environ.get("XLA_FLAGS", "").split():
        return 1
    given = os.environ.get("NPROC", "")
    return int(given) if given.isdecimal() and int(given) > 0 else usable_cores()
