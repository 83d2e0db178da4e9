"""Networks of four libraries, trained plainly, by ckptplan and by other tools: python -m benchmarks.networks.

The programs are those of examples/convert; what becomes of them with ``torch.utils.checkpoint`` and with
SpikingJelly's ``memopt`` is in benchmarks/peers, as lines that differ. Each row runs in two fresh processes of
one thread: one measures time and the growth of the process, one live tensors and gradients. ckptplan's limit is
15 % of what the plain loop has alive at most. Rows that the file of results has are not measured again: remove
it to begin anew.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import DOCS, MIB, RESULTS, ROOT, Setting, main, read, table, tabulate, write

CONVERTED, PEERS = ROOT / "examples/convert", ROOT / "benchmarks/peers"
SHARE, ROUNDS = 0.15, 3
#: Numbers of time steps. The page has rows for the last one, and a line for each of the others.
SHORT, SUMMARISED, LONG = 16, 256, 2048
LINES, GRADIENTS, GROWTH = 6, 1e-5, 0.25
BOUNDS = (
    f"at most {LINES} lines written, gradients within {GRADIENTS:g} of plain's, growth of the process at most "
    f"{GROWTH:g} of plain's"
)
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network, the program that trains it, and the constants that set its number of time steps.

    ``unit`` is the number of time steps that one of the constant ``steps`` stands for.
    """

    name: str
    program: str
    steps: str
    unit: int = 1
    constants: tuple[str, ...] = ()

    @property
    def plain(self) -> Path:
        """The program before the conversion."""
        return CONVERTED / f"{self.program}_before.py"

    @property
    def methods(self) -> dict[str, Path]:
        """The programs to compare with, by the name of the method."""
        files = {
            name: CONVERTED / f"{self.program}_{key}.py"
            if key.endswith("after")
            else PEERS / f"{self.program}_{key}.diff"
            for key, name in NAMES.items()
        }
        return {name: file for name, file in files.items() if file.exists()}


NETWORKS = (
    Network(name="snnTorch, convolutional", program="snntorch", steps="num_steps"),
    Network(name="SpikingJelly, sequential, with feedback", program="spikingjelly", steps="steps"),
    Network(name="Norse, memory task", program="norse", steps="seq_length", unit=8),
    # Pieces draw other masks of dropout than the whole sequence.
    Network(name="word_language_model", program="language", steps="seq_len", constants=("dropout=0.0",)),
)
NAMES = {
    "after": "ckptplan",
    "lstm_after": "ckptplan, wrap(nn.LSTM) alone",
    "checkpoint": "torch.utils.checkpoint",
    "memopt": "memopt, level 1",
    "memopt_chunks": "memopt, checkpoint_module in chunks",
}


_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+.* @@")


def read_program(file: Path) -> str:
    """Return the text of a program; of a file of differences, the plain program with these.

    Raises ValueError if the lines that are to go are not those of the plain program.
    """
    if file.suffix != ".diff":
        return file.read_text()
    before = (CONVERTED / f"{file.stem.partition('_')[0]}_before.py").read_text().splitlines(keepends=True)
    text, taken = "", 0
    for line in file.read_text().splitlines(keepends=True):
        hunk = _HUNK.match(line)
        if hunk:
            # A hunk that only adds lines stands behind the line that it names.
            start = int(hunk[1]) - (hunk[2] != "0")
            text, taken = text + "".join(before[taken:start]), start
        elif line[0] == "+":
            text += line[1:]
        elif before[taken] == line[1:]:
            taken += 1
        else:
            raise ValueError(f"{file.name}: line {taken + 1} of the plain program is not {line[1:]!r}")
    return text + "".join(before[taken:])


def list_differences(before: Path, after: Path) -> list[str]:
    """Return the lines of two programs that differ, - before those that go, + before those that come."""
    lines = [[line for line in read_program(file).splitlines() if line.strip()] for file in (before, after)]
    # Hunks as version control shows them; blank lines aside.
    changes = list(difflib.unified_diff(lines[0], lines[1], n=0, lineterm=""))[2:]
    return [line for line in changes if not line.startswith("@@")]


def count_lines(before: Path, after: Path) -> tuple[int, int]:
    """Return how many lines are written, be they new or other ones, and how many go."""
    marks = [line[0] for line in list_differences(before, after)]
    return marks.count("+"), marks.count("-")


class RefusedError(Exception):
    """The limit of memory is too small; ``least`` is enough."""

    def __init__(self, least: int) -> None:
        super().__init__(least)
        self.least = least


def run_program(
    file: Path, settings: list[str], *, steps: int, live: bool = False, memory: int | None = None
) -> dict[str, Any]:
    """Run some steps of training in a fresh process, and return what benchmarks.program measured."""
    with tempfile.TemporaryDirectory() as folder:
        program, out = Path(folder) / f"{file.stem}.py", Path(folder) / "out.pt"
        program.write_text(read_program(file))
        options = [option for setting in settings for option in ("--set", setting)]
        options += ["--memory", str(memory)] if memory is not None else []
        options += ["--live"] if live else []
        start = [sys.executable, "-m", "benchmarks.program"]
        command = [*start, str(program), str(out), f"--steps={steps}", *options]
        # Each process makes its own plans.
        alone = {**os.environ, "CKPTPLAN_CACHE": "0", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=alone)
        if done.returncode:
            least = re.search(r"accepted: at least .*?\(([\d,]+) bytes\)", done.stderr)
            if least is None:
                raise RuntimeError(done.stderr)
            raise RefusedError(int(least[1].replace(",", "")))
        found: dict[str, Any] = torch.load(out)
        return found


def compare_gradients(ones: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """Return the largest difference of a parameter's gradients, relative to its largest gradient.

    Where a gradient is not finite, both must be so; infinity is returned if one of them is finite.
    """
    largest = 0.0
    for one, other in zip(ones, others, strict=True):
        finite = other.isfinite()
        if not torch.equal(finite, one.isfinite()):
            return math.inf
        if finite.any():
            scale = other[finite].abs().max().clamp(min=1e-30)
            largest = max(largest, ((one[finite] - other[finite]).abs().max() / scale).item())
    return largest


def count_finite(gradients: list[torch.Tensor]) -> float:
    """Return the share of the gradients that are finite."""
    return sum(int(one.isfinite().sum()) for one in gradients) / sum(one.numel() for one in gradients)


def measure(
    network: Network, file: Path, steps: int, *, memory: int | None, plain: list[torch.Tensor] | None
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return the numbers of a row, and the gradients of the first step."""
    settings = [f"{network.steps}={steps // network.unit}", *network.constants]
    asked = memory
    try:
        alive = run_program(file, settings, steps=2, live=True, memory=memory)
    except RefusedError as error:
        memory = error.least
        alive = run_program(file, settings, steps=2, live=True, memory=memory)
    timed = run_program(file, settings, steps=ROUNDS, memory=memory)
    gradients: list[torch.Tensor] = alive["gradients"][0]
    written, gone = count_lines(network.plain, file)
    row = {
        "lines_written": written,
        "lines_gone": gone,
        "first_seconds": timed["seconds"][0],
        "median_seconds": statistics.median(timed["seconds"][1:]),
        "first_live_bytes": alive["live"][0],
        "live_bytes": alive["live"][1],
        "growth_bytes": timed["growth"],
        "asked_bytes": asked,
        "limit_bytes": memory,
        "finite_share": count_finite(gradients),
        "gradient_difference": None if plain is None else compare_gradients(gradients, plain),
    }
    return row, gradients


def compare(network: Network, steps: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each method; plain backpropagation is the first."""
    head = {"network": network.name, "steps": steps}
    first, gradients = measure(network, network.plain, steps, memory=None, plain=None)
    yield {**head, "method": "plain", **first}
    limit = int(SHARE * first["live_bytes"])
    for name, file in network.methods.items():
        memory = limit if name.startswith("ckptplan") else None
        row, _ = measure(network, file, steps, memory=memory, plain=gradients)
        yield {**head, "method": name, **row}


def run(setting: Setting) -> dict[str, Any]:
    """Measure all networks at each length, and keep what is there if the rest takes too long."""
    kept = not setting.small
    rows: list[Row] = read("networks")["rows"] if kept and (RESULTS / "networks.json").exists() else []
    for steps in (SHORT,) if setting.small else (SHORT, SUMMARISED, LONG):
        for network in NETWORKS[: setting.pick(1, None, None)]:
            if any((row["network"], row["steps"]) == (network.name, steps) for row in rows):
                continue
            rows += compare(network, steps)
            if kept:
                write("networks", {"rows": rows, "bounds": bounds(rows)})
    return {"rows": rows, "bounds": bounds(rows)}


def document(results: dict[str, Any]) -> str:
    """Return a table for each network at the greatest T, the bounds, and a line for each other T."""
    rows = [row for row in results["rows"] if row["steps"] == LONG]
    parts = []
    for name in dict.fromkeys(row["network"] for row in rows):
        of_network = [row for row in rows if row["network"] == name]
        changes = (
            f"{row['method']} +{row['lines_written']} -{row['lines_gone']}"
            for row in of_network
            if row["method"] != "plain"
        )
        parts.append(f"**{name}, T = {LONG:,}** ({'; '.join(changes)})\n\n{_tabulate_methods(of_network)}")
    missed = [one for one in results["bounds"] if not one["kept"]]
    count = len(results["bounds"])
    parts.append(
        f"ckptplan keeps {count - len(missed)} of {count} bounds ({BOUNDS})"
        + (". What it misses is bold." if missed else ".")
    )
    parts += [_describe_length(results["rows"], steps) for steps in (SUMMARISED, SHORT)]
    return "\n\n".join(parts) + "\n"


def _tabulate_methods(rows: list[Row]) -> str:
    """Return a row for each method, beside the plain loop, the first one; what misses a bound is bold."""
    plain = rows[0]

    def share(key: str, form: str, unit: int, row: Row) -> str:
        value = format(row[key] / unit, form)
        return value if row is plain else f"{value} ({row[key] / plain[key]:.2f})"

    def mark(bound: str, show: Callable[[Row], str], row: Row) -> str:
        missed = [one["what"].rpartition(", ")[2] for one in bounds([row, plain]) if not one["kept"]]
        return f"**{show(row)}**" if bound in missed else show(row)

    def compare(row: Row) -> str:
        difference, finite = row["gradient_difference"], row.get("finite_share", 1.0)
        text = "" if difference is None else f"{difference:.0e}" if difference else "equal"
        return text if finite == 1 else f"{text} ({finite:.0%} finite)".strip()

    return tabulate(
        rows,
        ("method", partial(mark, "lines", itemgetter("method"))),
        ("first step, s", "first_seconds", "{:.2f}"),
        ("later", partial(share, "median_seconds", ".2f", 1)),
        ("live tensors, MiB", partial(share, "live_bytes", ".1f", MIB)),
        ("growth, MiB", partial(mark, "growth", partial(share, "growth_bytes", ".1f", MIB))),
        ("gradients", partial(mark, "gradients", compare)),
    )


def _describe_length(rows: list[Row], steps: int) -> str:
    """Return the shares of ckptplan at a length without rows, and the number of bounds that it misses there."""
    ours = _ours(rows, steps)
    told = []
    for key in ("median_seconds", "live_bytes", "growth_bytes"):
        shares = sorted(row[key] / plain[key] for row, plain in ours)
        told.append(f"{shares[0]:.2g} to {shares[-1]:.2g}")
    missed = sum(not one["kept"] for pair in ours for one in bounds([*pair]))
    limit = "no plan fits 15 %. At the smallest possible limit, " if steps == SHORT else ""
    return (
        f"At T = {steps} {limit}ckptplan takes {told[0]} times the plain loop's time, {told[1]} times its live "
        f"tensors and {told[2]} times its growth of the process. It misses {missed} bounds there."
    )


def in_short(results: dict[str, Any]) -> str:
    """Return a table at the greatest T: live tensors and time of the plain loop, the rival and ckptplan."""
    rows = results["rows"]
    lines = []
    for row, plain in _ours(rows, LONG):
        kind = row["network"], LONG, _RIVAL
        rival = next(one for one in rows if (one["network"], one["steps"], one["method"]) == kind)
        cells = (
            f"{one['live_bytes'] / MIB:,.0f} MiB, {one['median_seconds']:.1f} s" for one in (plain, rival, row)
        )
        lines.append([f"{row['network']}{row['method'].removeprefix('ckptplan')}", *cells])
    return table(["network", "plain loop", f"`{_RIVAL}`", "ckptplan"], lines) + "\n"


#: The method that README compares with.
_RIVAL = "torch.utils.checkpoint"


def _ours(rows: list[Row], steps: int) -> list[tuple[Row, Row]]:
    """Return the rows of ckptplan at a length, each with that of the plain loop."""
    return [
        (row, _plain(rows, row))
        for row in rows
        if row["steps"] == steps and row["method"].startswith("ckptplan")
    ]


def bounds(rows: list[Row]) -> list[Row]:
    """Return the bounds for each row of ckptplan, and what was reached."""
    found = []
    for row in rows:
        if row["method"].startswith("ckptplan"):
            reached = {
                "lines": (row["lines_written"], LINES),
                "gradients": (row["gradient_difference"], GRADIENTS),
                "growth": (row["growth_bytes"] / _plain(rows, row)["growth_bytes"], GROWTH),
            }
            for what, (value, limit) in reached.items():
                where = f"{row['network']}, T = {row['steps']:,}, {row['method']}, {what}"
                found.append({"what": where, "at_most": limit, "reached": value, "kept": value <= limit})
    return found


def _plain(rows: list[Row], row: Row) -> Row:
    kind = row["network"], row["steps"], "plain"
    return next(one for one in rows if (one["network"], one["steps"], one["method"]) == kind)


PAGES = {DOCS / "measured.md": document, ROOT / "README.md": in_short}

if __name__ == "__main__":
    main("networks", run, PAGES, about=__doc__)
