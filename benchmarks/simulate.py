"""Time and memory of playing, exporting and tracing a schedule: python -m benchmarks.simulate.

Double has chunks of 16 steps and segments of 4,096. Remote has chunks of one step, so it stores every state.
Memory is the peak that Python holds in addition to the plan (tracemalloc), measured in a separate run.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable

import ckptplan
from benchmarks.record import median_of, write
from ckptplan.model.plan import Plan
from ckptplan.model.record import Parameters
from ckptplan.report.chrome_trace import ChromeTrace


def planned(steps: int, strategy: str, **parameters: int) -> Plan:
    """Return a plan with these parameters, on a machine with unlimited memory."""
    plan = ckptplan.optimize(
        ckptplan.load_workload("paper-snn").with_steps(steps),
        ckptplan.load_profile("ipu-mk2"),
        strategies=[strategy],
        local_bytes="1 PB",
        remote_bytes="unbounded",
    )
    return plan.model_copy(update={"parameters": Parameters(parameters)})


def jobs(plan: Plan) -> dict[str, Callable[[], object]]:
    """Return the jobs to measure; files go to the null device."""

    def trace() -> None:
        with open(os.devnull, "w", encoding="utf-8") as file:  # noqa: PTH123 - a device
            chrome = ChromeTrace(file, process="benchmark", about={}, resident_bytes=0)
            ckptplan.simulate(plan, sink=chrome.add)
            chrome.close()

    return {
        "simulate": lambda: ckptplan.simulate(plan),
        "schedule jsonl": lambda: ckptplan.save_schedule(plan, os.devnull, format="jsonl"),
        "schedule csv": lambda: ckptplan.save_schedule(plan, os.devnull, format="csv"),
        "simulate --trace": trace,
    }


def peak_of(action: Callable[[], object]) -> int:
    """Return the peak bytes that Python held in addition to what it held before."""
    tracemalloc.start()
    action()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def main() -> None:
    """Print a line for each job and length."""
    results = []
    cases: dict[str, dict[str, int]] = {
        "double": {"chunk_size": 16, "remote_chunk_size": 4096},
        "remote": {"chunk_size": 1},
    }
    ckptplan.simulate(planned(64, "remote", chunk_size=1))
    print(f"{'strategy':<9} {'job':<18} {'T':>10} {'actions':>9} {'median':>9} {'most':>9} {'memory':>11}")
    for strategy, parameters in cases.items():
        for steps in (10**4, 10**5, 10**6) if strategy == "double" else (10**4, 10**5):
            plan = planned(steps, strategy, **parameters)
            actions = ckptplan.simulate(plan).actions
            for name, job in jobs(plan).items():
                timing = median_of(3, job)
                peak = peak_of(job)
                print(
                    f"{strategy:<9} {name:<18} {steps:>10,} {actions:>9,} {timing['median_seconds']:>7.3f} s "
                    f"{timing['most']:>7.3f} s {peak / 1024:>7,.0f} KiB"
                )
                case = {"strategy": strategy, "job": name, "steps": steps, "actions": actions}
                results.append({**case, **timing, "peak_bytes": peak})
    write("simulate", results)


if __name__ == "__main__":
    main()
