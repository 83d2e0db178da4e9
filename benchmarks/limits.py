"""How much of their limit of memory calls take: python -m benchmarks.limits.

For each cell of the tests, the least limit is the one that a refusal names. The first, second and third call
run at this limit and at 2.5 times it, with a new cell of which nothing is known. Bytes are those of the tensors
that a call makes, at most at a time.
"""

from __future__ import annotations

import statistics
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.harness import DOCS, Setting, main, pivot
from ckptplan import InputError
from ckptplan.torch.device.meters import LiveBytes
from tests.torch.limited_cells import CELLS, Job
from tests.torch.support import forget_measurements, read_least

#: Limits, as multiples of the least one, and the calls at each.
SHARES, CALLS = (1.0, 2.5), 3


def make(name: str) -> Job:
    """Return a call as the first one of a process."""
    forget_measurements()
    torch.manual_seed(0)
    return CELLS[name]()


def measure(name: str) -> dict[str, Any]:
    """Return the least limit of a cell, and the peaks of its calls as shares of their limits."""
    try:
        make(name).run("1 B")
        raise RuntimeError("a limit of one byte was not refused")
    except InputError as error:
        least = read_least(error)
    found: dict[str, Any] = {"least_bytes": least, "shares": {}}
    for share in SHARES:
        job, limit, peaks = make(name), int(share * least), []
        for _ in range(CALLS):
            with LiveBytes() as live:
                job.run(limit)
                peaks.append((live.peak - job.beside) / limit)
        found["shares"][str(share)] = peaks
    return found


def run(setting: Setting) -> dict[str, Any]:
    """Measure each cell."""
    results: dict[str, Any] = {}
    for name in setting.pick([*CELLS][:3], [*CELLS], [*CELLS]):
        results[name] = setting.attempt(name, partial(measure, name))
        setting.save(results)
    return results


def document(results: dict[str, Any]) -> str:
    """Return the median and the largest share of the limit, over all cells, as a table for a page."""
    measured = [found["shares"] for found in results.values() if "shares" in found]

    def show(share: float, call: int) -> str:
        peaks = [shares[str(share)][call] for shares in measured]
        return f"{statistics.median(peaks):.2f}, {max(peaks):.2f}"

    text = pivot(
        f"median and largest of {len(measured)} cells",
        (
            (f"{share:g} times the least", f"call {call + 1}", show(share, call))
            for share, call in product(SHARES, range(CALLS))
        ),
    )
    failed = [f"{name}: {found['status']}" for name, found in results.items() if "shares" not in found]
    return "\n\n".join([text, *failed]) + "\n"


PAGES = {DOCS / "measured.md": document}

if __name__ == "__main__":
    main("limits", run, PAGES, about=__doc__)
