"""Whether calls stay within their limit of memory: python -m benchmarks.limits.

For each of some forty cells, the least limit is the one that the refusal of ``memory="1 B"`` names. The first,
second and third call run at this limit and at 2.5 times it, with a new cell of which nothing is known.
Bytes are those of the tensors that a call makes, at most at a time.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.harness import DOCS, Setting, main, tabulate
from benchmarks.limited_cells import CELLS, Train
from ckptplan import InputError
from ckptplan.torch.device.meters import LiveBytes
from ckptplan.torch.fit.limited import forget_sizes
from ckptplan.torch.pieces.length import forget_lengths
from ckptplan.torch.run_call import forget_calls

#: Limits, as multiples of the least one, and the calls at each.
SHARES, CALLS = (1.0, 2.5), 3
_LIMIT = re.compile(r"\(([\d,]+) bytes\)")


def forget() -> None:
    """Forget what earlier calls showed."""
    forget_calls()
    forget_sizes()
    forget_lengths()


def find_least(make: Callable[[], Train]) -> int:
    """Return the least limit that a refusal names, in bytes."""
    forget()
    torch.manual_seed(0)
    try:
        make()("1 B")
    except InputError as error:
        named = _LIMIT.search(str(error))
        if named is None:
            raise
        return int(named[1].replace(",", ""))
    raise RuntimeError("a limit of one byte was not refused")


def measure(make: Callable[[], Train]) -> dict[str, Any]:
    """Return the least limit of a cell, and the peaks of its calls as shares of their limits."""
    least = find_least(make)
    found: dict[str, Any] = {"least_bytes": least, "shares": {}}
    for share in SHARES:
        forget()
        torch.manual_seed(0)
        train, limit, peaks = make(), int(share * least), []
        for _ in range(CALLS):
            with LiveBytes() as live:
                train(limit)
                peaks.append(live.peak / limit)
        found["shares"][str(share)] = peaks
    return found


def run(setting: Setting) -> dict[str, Any]:
    """Measure each cell."""
    named = set(setting.parts)
    cells = CELLS[:3] if setting.small else [make for make in CELLS if make.__name__ in named]
    results = {}
    for make in cells:
        results[make.__name__] = setting.attempt(make.__name__, partial(measure, make))
        setting.save(results)
    return results


def _tell_limit(row: dict[str, Any]) -> str:
    return f"{row['least_bytes'] / 1e3:,.0f}" if "least_bytes" in row else row["status"]


def document(results: dict[str, Any]) -> str:
    """Return the median and the largest share of the limit, over all cells, as a table for a page."""
    rows = []
    for share in SHARES:
        row = {"limit": f"{share:g} times the least"}
        for call in range(CALLS):
            peaks = [found["shares"][str(share)][call] for found in results.values() if "shares" in found]
            row[f"{call}"] = f"{statistics.median(peaks):.2f}, {max(peaks):.2f}"
        rows.append(row)
    failed = [f"{name}: {found['status']}" for name, found in results.items() if "shares" not in found]
    count = len(results) - len(failed)
    calls = ((f"call {call + 1}", f"{call}") for call in range(CALLS))
    text = tabulate(rows, (f"median and largest of {count} cells", "limit"), *calls)
    return "\n\n".join([text, *failed]) + "\n"


def document_all(results: dict[str, Any]) -> str:
    """Return a row for each cell."""
    rows: list[dict[str, Any]] = []
    for name, found in results.items():
        row = {"cell": name.replace("_", " "), **found}
        for share, peaks in found.get("shares", {}).items():
            row |= {f"{share}, {number}": peak for number, peak in enumerate(peaks)}
        rows.append(row)
    return tabulate(
        rows,
        ("cell", "cell"),
        ("least limit, kB", _tell_limit),
        *(
            (f"{share:g} x, call {call + 1}", f"{share}, {call}", "{:.2f}")
            for share in SHARES
            for call in range(CALLS)
        ),
    )


if __name__ == "__main__":
    names = [make.__name__ for make in CELLS]
    main("limits", run, document, about=__doc__, page=DOCS / "measured.md", parts=names, shown=document_all)
