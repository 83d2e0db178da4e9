"""Networks of four libraries, trained plainly, by ckptplan and by other tools: python -m benchmarks.networks.

The programs are those of examples/convert; the same with ``torch.utils.checkpoint`` and with SpikingJelly's
``memopt`` are in benchmarks/peers. Each row runs in two fresh processes of one thread: one measures time and
the growth of the process, one live tensors and gradients. ckptplan's limit is 15 % of what the plain loop has
alive at most. T = 16 and 256; ``--full`` adds 2,048, and continues with what the file of results lacks.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import RESULTS, write
from benchmarks.networks_report import bounds, document, write_document

ROOT = Path(__file__).parent.parent
CONVERTED, PEERS = ROOT / "examples/convert", ROOT / "benchmarks/peers"
SHARE, ROUNDS = 0.15, 3
QUICK, FULL = (16, 256), (16, 256, 2048)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network, the program that trains it, and the constants that set its number of time steps.

    ``unit`` is the number of time steps that one of the constant ``steps`` stands for. ``methods`` are the
    programs to compare with, by the name of the method.
    """

    name: str
    program: str
    steps: str
    unit: int = 1
    constants: tuple[str, ...] = ()
    methods: dict[str, Path]

    def settings(self, steps: int) -> list[str]:
        """Return what the program is to be changed to."""
        return [f"{self.steps}={steps // self.unit}", *self.constants]

    @property
    def plain(self) -> Path:
        """The program before the conversion."""
        return CONVERTED / f"{self.program}_before.py"


def list_networks() -> list[Network]:
    """Return the networks."""
    return [
        Network(
            name="snnTorch, convolutional", program="snntorch", steps="num_steps", methods=_find("snntorch")
        ),
        Network(
            name="SpikingJelly, sequential, with feedback",
            program="spikingjelly",
            steps="steps",
            methods=_find("spikingjelly"),
        ),
        Network(name="Norse, memory task", program="norse", steps="seq_length", unit=8, methods=_find("norse")),
        Network(
            name="word_language_model",
            program="language",
            steps="seq_len",
            # Pieces draw other masks of dropout than the whole sequence.
            constants=("dropout=0.0",),
            methods=_find("language"),
        ),
    ]


NAMES = {
    "after": "ckptplan",
    "lstm_after": "ckptplan, wrap(nn.LSTM) alone",
    "checkpoint": "torch.utils.checkpoint",
    "memopt": "memopt, level 1",
    "memopt_chunks": "memopt, checkpoint_module in chunks",
}


def _find(program: str) -> dict[str, Path]:
    folders = {"after": CONVERTED, "lstm_after": CONVERTED}
    files = {name: folders.get(key, PEERS) / f"{program}_{key}.py" for key, name in NAMES.items()}
    return {name: file for name, file in files.items() if file.exists()}


def list_differences(before: Path, after: Path) -> list[str]:
    """Return the lines of two programs that differ, - before those that go, + before those that come."""
    lines = [[line for line in file.read_text().splitlines() if line.strip()] for file in (before, after)]
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
        out = Path(folder) / "out.pt"
        options = [option for setting in settings for option in ("--set", setting)]
        options += ["--memory", str(memory)] if memory is not None else []
        options += ["--live"] if live else []
        program = [sys.executable, "-m", "benchmarks.program"]
        command = [*program, str(file), str(out), f"--steps={steps}", *options]
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
    settings = network.settings(steps)
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


def main() -> None:
    """Measure, print the table, and write it into docs/networks.md if it is the full one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true", help="also T = 2,048, and write the results")
    full = parser.parse_args().full
    rows = _read_rows() if full else []
    for steps in FULL if full else QUICK:
        for network in list_networks():
            if any((row["network"], row["steps"]) == (network.name, steps) for row in rows):
                continue
            rows += compare(network, steps)
            if full:
                # What is there is not lost if the rest takes too long.
                write("networks", {"rows": rows, "bounds": bounds(rows)})
    results = {"rows": rows, "bounds": bounds(rows)}
    print(document(results))
    if full:
        write_document(results)


def _read_rows() -> list[dict[str, Any]]:
    file = RESULTS / "networks.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["results"]["rows"] if file.exists() else []
    return rows


if __name__ == "__main__":
    main()
