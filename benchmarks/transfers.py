"""A device as a profile: calibrated rates, transfers of pinned and pageable memory, and their overlap.

Run: python -m benchmarks.transfers
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness import MIB, Setting, main, table, wait
from ckptplan.calibration.calibrate import calibrate
from ckptplan.calibration.cell_spec import CellSpec

ROUNDS = 7
_SIZES = (2**16, MIB, 16 * MIB, 256 * MIB)


def run(setting: Setting) -> dict[str, Any]:
    """Measure the transfers, then the profile that plans use."""
    found: dict[str, Any] = {"transfers": measure_transfers(setting)}
    setting.save(found)
    if setting.on_gpu:
        found["overlap"] = measure_overlap(setting)
        setting.save(found)
    spec = CellSpec.parse(
        setting.pick("gru(inputs=8, neurons=32)", "gru(inputs=64, neurons=256)", "gru(inputs=64, neurons=1024)")
    )
    calibrated = calibrate(
        spec,
        batch=setting.pick(4, 32, 256),
        steps=256,
        device=setting.device,
        quick=setting.small,
        max_seconds=setting.pick(None, None, 50),
    )
    return {**found, "profile": calibrated.profile.model_dump(mode="json", exclude_none=True)}


def _time(setting: Setting, action: Callable[[], object]) -> float:
    """Return the median seconds of an action."""
    times = []
    for _ in range(ROUNDS + 1):
        wait(setting)
        began = time.perf_counter()
        action()
        wait(setting)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def measure_transfers(setting: Setting) -> list[dict[str, Any]]:
    """Return the rates of copies between host and device, by size and kind of host memory."""
    found = []
    for size in setting.pick((2**16, MIB), _SIZES, _SIZES):
        there = torch.empty(size, dtype=torch.uint8, device=setting.device)
        for pinned in (False, True) if setting.on_gpu else (False,):
            here = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
            write = _time(setting, lambda: here.copy_(there, non_blocking=True))  # noqa: B023 - called at once
            read = _time(setting, lambda: there.copy_(here, non_blocking=True))  # noqa: B023 - called at once
            found.append(
                {
                    "bytes": size,
                    "pinned": pinned,
                    "write_bytes_per_second": size / write,
                    "read_bytes_per_second": size / read,
                }
            )
    return found


def measure_overlap(setting: Setting) -> dict[str, float]:
    """Return the seconds of compute, of copies, and of both at once on two streams."""
    side = torch.cuda.Stream(setting.device)
    matrix = torch.randn(4096, 4096, device=setting.device)
    there = torch.empty(64 * MIB, dtype=torch.uint8, device=setting.device)
    here = torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True)

    def compute() -> None:
        for _ in range(20):
            matrix @ matrix

    def copy() -> None:
        with torch.cuda.stream(side):
            for _ in range(8):
                here.copy_(there, non_blocking=True)

    def both() -> None:
        copy()
        compute()

    one, other, together = (_time(setting, action) for action in (compute, copy, both))
    return {
        "compute_seconds": one,
        "copy_seconds": other,
        "both_seconds": together,
        #: 1 if the shorter of the two is hidden, 0 if one waits for the other.
        "hidden_share": (one + other - together) / min(one, other),
    }


def document(results: dict[str, Any]) -> str:
    """Return the tables of a page."""
    rows = [
        [
            f"{one['bytes'] / MIB:g} MiB",
            "pinned" if one["pinned"] else "pageable",
            f"{one['write_bytes_per_second'] / 1e9:.2f} GB/s",
            f"{one['read_bytes_per_second'] / 1e9:.2f} GB/s",
        ]
        for one in results["transfers"]
    ]
    parts = [table(["copy of", "host memory", "to the host", "to the device"], rows)]
    if overlap := results.get("overlap"):
        parts.append(
            f"Copies beside compute: {overlap['compute_seconds'] * 1e3:.1f} ms of products and "
            f"{overlap['copy_seconds'] * 1e3:.1f} ms of copies take {overlap['both_seconds'] * 1e3:.1f} ms "
            f"together: {overlap['hidden_share']:.0%} of the shorter is hidden."
        )
    if profile := results.get("profile"):
        fields = (
            "local_bytes",
            "write_bytes_per_second",
            "read_bytes_per_second",
            "latency_seconds",
            "overlaps_compute",
        )
        rows = [
            [name, f"{profile[name]}", profile["sources"].get(name, {}).get("grade", "")] for name in fields
        ]
        parts.append(table(["field of the calibrated profile", "value", "grade"], rows))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main("transfers", run, document, about=__doc__)
