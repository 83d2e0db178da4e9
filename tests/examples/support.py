"""Examples as processes of their own, each with a time limit: a hang is a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
#: Adapters of libraries of JAX; they need no PyTorch.
JAX_CELLS = [EXAMPLES / "adapters" / f"{name}_cells.py" for name in ("equinox", "flax", "spyx")]


def python(*arguments: str | Path, seconds: float = 120, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python in ``cwd`` with ckptplan to import, on one core: tests run side by side."""
    # Processes meet on the loopback interface, whatever else a machine has, or lacks.
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment,
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # Asked to, torchrun ends its workers; killed, it would leave them behind.
            process.terminate()
            try:
                process.communicate(timeout=40)
            finally:
                process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def losses(text: str) -> list[list[float]]:
    """Return the losses that an example printed, a list for each training."""
    found: list[list[float]] = []
    for line in text.splitlines():
        step, *rest = line.split()
        if step == "0":
            found.append([])
        if len(rest) == 2 and rest[0] == "loss":
            assert int(step) == len(found[-1])
            found[-1].append(float(rest[1]))
    return found
