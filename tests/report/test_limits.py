"""Each limit that can be in a plan's way is named in every report, with what is needed and what there is."""

from __future__ import annotations

import csv
import io
import json
import shlex
from typing import Any, get_args

import pytest

from ckptplan.errors import Limit
from tests.support import run

#: Limit -> options with which it is in the way, and what a table says.
LIMITS: dict[str, tuple[str, str]] = {
    "local_bytes": ("64 --strategies double --local-bytes 200kB", "does not fit: needs 217.1 kB"),
    "remote_bytes": (
        "64 --strategies remote --remote-bytes 1kB --local-bytes 225KiB",
        "needs 5.391 MiB of remote memory",
    ),
    "max_overhead": ("64 --strategies disk-revolve --max-overhead 0", "too slow: +4.9 % at best"),
    "steps": ("20000 --strategies bptt-msm --local-bytes 4MB", "too long: about 2,573 steps at most"),
}


def rows_of(line: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(run(*shlex.split(line), "--format", "csv").stdout)))


@pytest.mark.parametrize("limit", get_args(Limit))
def test_comparisons_and_sweeps_have_the_same_reason_as_the_message(limit: str) -> None:
    """What the message says is in tests/cli/test_refusals.py."""
    options, words = LIMITS[limit]
    document: dict[str, Any] = json.loads(run("optimize", "--T", *options.split(), "--format", "json").stdout)
    for line in (f"compare --T {options}", f"sweep --over headroom=0 --jobs 1 --over T={options}"):
        (row,) = rows_of(line)
        assert words in run(*line.split(), COLUMNS="200").stdout
        assert (row["fits"], row["binding"], document["binding"]) == ("false", limit, limit)
        assert (float(row["need"]), float(row["have"])) == (document["need"], document["have"])


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        (
            "--strategies remote,base --max-overhead 60% --cache all",
            {"remote": "max_overhead", "base": "local_bytes"},
        ),
        (
            "--strategies remote,standard --remote-bytes 1MB",
            {"standard": "local_bytes", "remote": "remote_bytes"},
        ),
    ],
)
def test_the_largest_value_of_each_strategy_names_what_bounds_it(options: str, limits: dict[str, str]) -> None:
    assert {row["strategy"]: row["bound_by"] for row in rows_of(f"largest T {options}")} == limits


def test_a_quantity_without_a_limit_is_said_to_have_none() -> None:
    """Caches of the last steps, and states in remote memory without an end."""
    printed = run("largest", "T", "--strategies", "remote,standard", "--remote-bytes", "1000000 TB").stdout
    [row] = [line for line in printed.splitlines() if line.startswith("remote ")]
    assert "no limit" in row
    assert "--deadline limits the time" in " ".join(printed.split())
