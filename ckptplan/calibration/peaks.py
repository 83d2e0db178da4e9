"""Measures the peak rates of a machine: of products, of its local memory, and of starting kernels.

They are those of large products and copies, which real steps do not reach. The share that the steps of a cell
reach is its efficiency (``cost/roofline.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ckptplan.torch.clock import choose_clock

#: Rows of the square matrices whose product is timed, and bytes of the tensor that is copied.
_ROWS = {"cpu": 1024, "cuda": 8192}
_COPIED = {"cpu": 64 * 2**20, "cuda": 2**30}
#: Kernels that are started in a row.
_KERNELS = 1000
#: The quickest of several runs counts: a peak is what nothing disturbs.
_RUNS = 4


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peak rates, in SI base units."""

    flops_per_second: dict[str, float]
    local_bytes_per_second: float
    launch_seconds: float
    #: How each was measured.
    product: str
    copied: str
    started: str


def measure_peaks(device: torch.device, *, dtypes: tuple[str, ...]) -> Peaks:
    """Measure peak rates with PyTorch: of products in some types of numbers, of copies, of small kernels."""
    rows, size = _ROWS[device.type], _COPIED[device.type]
    rates = {}
    with torch.no_grad():
        for name in dtypes:
            factor = torch.ones(rows, rows, dtype=getattr(torch, name), device=device)
            out = torch.empty_like(factor)
            rates[name] = 2 * rows**3 / _time(lambda a=factor, b=out: torch.mm(a, a, out=b), device)  # type: ignore[misc]
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        copying = _time(lambda: target.copy_(source), device)
        one = torch.zeros(1, device=device)

        def start_many() -> None:
            for _ in range(_KERNELS):
                torch.add(one, one)

        starting = _time(start_many, device) / _KERNELS
    return Peaks(
        flops_per_second=rates,
        local_bytes_per_second=2 * size / copying,
        launch_seconds=starting,
        product=f"product of two matrices of {rows:,} x {rows:,}, the quickest of {_RUNS}",
        copied=f"copy of {size // 2**20:,} MiB, read and written, the quickest of {_RUNS}",
        started=f"a sum of two numbers, {_KERNELS:,} in a row, the quickest of {_RUNS}",
    )


def _time(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the quickest run after one that warms up."""
    clock = choose_clock(device)
    found = []
    for _ in range(_RUNS + 1):
        began = clock()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(clock() - began)
    return max(min(found[1:]), 1e-9)
