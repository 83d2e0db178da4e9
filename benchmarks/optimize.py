"""Time and memory of ``optimize``, beside those of planning every strategy: python -m benchmarks.optimize.

Each case runs once, in a process of its own: ``optimize`` ends its search with a plan that no other
strategy can be quicker than, and ``compare`` plans every strategy, as ``optimize`` did before.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from benchmarks.record import write

#: Workload, profile, steps.
CASES = (
    ("gru", "nvidia-a100-80gb", 4096),
    ("gru", "nvidia-a100-80gb", 10**5),
    ("gru", "nvidia-a100-80gb", 10**6),
    ("paper-snn", "nvidia-h200", 10**5),
    ("paper-snn", "ipu-mk2", 4096),
)
_PLAN = """
import json, resource, sys, time
import ckptplan
name, workload, profile, steps = sys.argv[1:]
job = ckptplan.load_workload(workload).with_steps(int(steps)), ckptplan.load_profile(profile)
start = time.perf_counter()
found = getattr(ckptplan, name)(*job)
seconds = time.perf_counter() - start
plan = found if name == "optimize" else next(iter(found.values()))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "peak_bytes": peak, "strategy": plan.strategy}))
"""


def plan(name: str, workload: str, profile: str, steps: int) -> dict[str, Any]:
    """Plan a case in a new process; return its seconds, its peak memory in bytes, and the best strategy."""
    command = [sys.executable, "-c", _PLAN, name, workload, profile, str(steps)]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return found


def main() -> None:
    """Print a line for each case."""
    results = []
    print(f"{'workload':<10} {'profile':<17} {'T':>10} {'optimize':>18} {'compare':>18}  best")
    for workload, profile, steps in CASES:
        quick, every = (plan(name, workload, profile, steps) for name in ("optimize", "compare"))
        shown = [f"{one['seconds']:>8.2f} s {one['peak_bytes'] / 2**20:>4.0f} MiB" for one in (quick, every)]
        print(f"{workload:<10} {profile:<17} {steps:>10,} {'  '.join(shown)}  {quick['strategy']}", flush=True)
        results.append(
            {"workload": workload, "profile": profile, "steps": steps, "optimize": quick, "compare": every}
        )
    write("optimize", results)


if __name__ == "__main__":
    main()
