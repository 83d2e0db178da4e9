"""Time and gap of the optimal schedule, its peers, and what it gains: python -m benchmarks.optimal.

States of one unit; a transfer takes ten forward steps each way unless a case says otherwise; f = r = 1,
b = 2. Each plan is complete: tables, backtracking and counts. The same run times the planners of the package
checkpoint_schedules 1.0.4 on the classical problem (8 states in RAM, as many on disk as there are steps, one
tape).

How far the paper's strategies are from the optimum is no timing: all machines give equal numbers. T = 4,096,
M_a = M_s. S is the local memory in units. In forward steps, x is the cost of a transfer each way and rho that
of running a step again. Results have the best of the paper's five strategies over the optimum, in total time
and in time added to base's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks.harness import Setting, main, spread
from ckptplan.cost.exact import Cost
from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.planning.request import make_goal
from ckptplan.recursion import classical, table_problem
from ckptplan.search.question import Question
from ckptplan.strategies.registry import all_strategies
from ckptplan.strategies.solved import Task

#: Name, strategy, steps, units, tape, effort, repeats.
CASES: list[tuple[str, str, int, int, int, str, int]] = [
    ("classical", "optimal", 1_000, 17, 9, "quick", 5),
    ("classical", "optimal", 4_096, 17, 9, "quick", 5),
    ("classical", "optimal", 100_000, 17, 9, "thorough", 1),
    ("classical", "disk-revolve", 1_000, 9, 1, "quick", 5),
    ("classical", "disk-revolve", 4_096, 9, 1, "quick", 5),
    ("classical", "disk-revolve", 100_000, 9, 1, "quick", 5),
    ("general", "optimal", 1_000, 30, 1, "quick", 5),
    ("general", "optimal", 4_096, 30, 1, "quick", 3),
    ("general", "optimal", 16_384, 30, 1, "thorough", 1),
    ("GRU", "optimal", 4_096, 400, 7, "thorough", 1),
    ("GRU", "optimal", 4_096, 400, 7, "quick", 3),
    ("beyond the tables", "optimal", 100_000, 30, 1, "thorough", 1),
    ("beyond the tables", "optimal", 1_000_000, 300, 1, "thorough", 1),
    ("beyond the tables", "optimal", 1_000_000, 30, 1, "thorough", 1),
    ("closed form", "periodic", 10**9, 30, 1, "quick", 5),
    ("closed form", "disk-revolve", 10**9, 30, 1, "quick", 5),
]
#: Of the paper's strategies beside the optimum: T, rho, the values of x, and the local memory in units.
STEPS, RHO, TRANSFERS, UNITS = 4096, 0.1, (1, 5, 20), (4, 8, 16, 32)


def first(cost: Cost) -> int:
    """Choose the quickest schedule; among equally quick ones, the smallest."""
    return int(np.lexsort((cost.local_peak_bytes, cost.seconds))[0])


def solved(name: str) -> Any:
    """Return a strategy that is solved decision by decision."""
    return all_strategies()[name]


def problem(steps: int, tape: int, *, rho: float = 1.0, transfer: float = 10.0) -> StepCosts:
    """Return the costs of a case."""
    return StepCosts(
        steps=steps,
        state_bytes=1,
        tape_bytes=tape,
        remote_state_bytes=1,
        forward_seconds=1.0,
        backward_seconds=2.0,
        recompute_seconds=rho,
        write_seconds=transfer,
        read_seconds=transfer,
    )


def timed(repeats: int, action: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Time an action several times, with caches cleared before each run."""
    times, result = [], None
    for _ in range(repeats):
        table_problem.clear_caches()
        classical.clear_caches()
        start = time.perf_counter()
        result = action()
        times.append(time.perf_counter() - start)
    return spread(times), result


def plan_cases(setting: Setting) -> list[dict[str, Any]]:
    """Plan each case."""
    results = []
    for case, name, steps, units, tape, effort, repeats in CASES[: setting.pick(2, None, None)]:
        costs = problem(steps, tape)
        task = Task(costs=costs, budget=Budget(local_bytes=units), choose=first, effort=effort)
        timing, solution = timed(repeats, partial(solved(name).solve, task))
        seconds, least = solution.totals(costs).seconds, solution.least_seconds
        results.append(
            {
                "case": case, "strategy": name, "steps": steps, "units": units, "tape": tape, "effort": effort,
                **timing, "seconds_of_the_plan": seconds,
                "gap": None if least is None else (seconds - least) / seconds,
            }
        )  # fmt: skip
    return results


def compare_peers(setting: Setting) -> list[dict[str, Any]]:
    """Plan the classical problem with checkpoint_schedules and with ckptplan, one after the other."""
    import checkpoint_schedules

    results = []
    makers: dict[str, Callable[[int], object]] = {
        "HRevolve": lambda n: checkpoint_schedules.HRevolve(n, 8, n, uf=1, ub=1, wd=10, rd=10),
        "DiskRevolve": lambda n: checkpoint_schedules.DiskRevolve(n, 8, uf=1, ub=1, wd=10, rd=10),
    }
    for steps in setting.pick((64,), (256, 1_000), (256, 1_000)):
        task = Task(costs=problem(steps, 9), budget=Budget(local_bytes=17), choose=first)
        for name, make in makers.items():
            theirs, _ = timed(1, partial(make, steps))
            mine, _ = timed(5, partial(solved("optimal").solve, task))
            results.append(
                {"peer": name, "steps": steps, "peer_seconds": theirs["median_seconds"],
                 "optimal_seconds": mine["median_seconds"],
                 "ratio": theirs["median_seconds"] / mine["median_seconds"]}
            )  # fmt: skip
    return results


def find_best(names: list[str], costs: StepCosts, *, units: int) -> tuple[str, float]:
    """Return the winner's name and its seconds."""
    goal = make_goal(strategies=names, effort="thorough").replace(local_bytes=units)
    winner = Question(costs=costs, goal=goal).best()
    if winner is None:
        raise ValueError("nothing fits")
    return winner.strategy.name, winner.key[0]


def find_regrets(setting: Setting) -> list[dict[str, Any]]:
    """Return, for each cell of the tables, the best of the paper's strategies over the optimum."""
    results = []
    steps = setting.pick(64, STEPS, STEPS)
    for transfer, units in product(TRANSFERS, UNITS):
        costs = problem(steps, 1, rho=RHO, transfer=transfer)
        name, paper = find_best(["paper"], costs, units=units)
        optimum = find_best(["optimal"], costs, units=units)[1]
        # Base's time may be the optimum's in short sequences.
        added = optimum - 3 * steps
        results.append(
            {
                "rho": RHO,
                "transfer": transfer,
                "units": units,
                "best_of_the_paper": name,
                "time_over_least": paper / optimum,
                "extra_over_least": (paper - 3 * steps) / added if added else 1.0,
            }
        )
    return results


def run(setting: Setting) -> dict[str, Any]:
    """Plan all cases, then beside the peers and the paper's strategies."""
    peers, regrets = compare_peers(setting), find_regrets(setting)
    return {"cases": plan_cases(setting), "peers": peers, "regrets": regrets}


def show_case(case: dict[str, Any]) -> list[str]:
    """Return a row of the table of docs/optimality.md."""
    gap = "" if case["gap"] is None else f"{case['gap']:.2%}" if case["gap"] else "0"
    numbers = (f"{case['steps']:,}", f"{case['units']}", f"{case['tape']}")
    took = f"{case['median_seconds'] * 1e3:,.1f} ms"
    return [case["case"], f"`{case['strategy']}`", *numbers, case["effort"], took, gap]


def show_regret(line: dict[str, Any]) -> str:
    """Return a cell of a table: both ratios, and the strategy."""
    return f"{line['time_over_least']:.3f} ({line['extra_over_least']:.2f}) {line['best_of_the_paper']}"


if __name__ == "__main__":
    main("optimal", run, {}, about=__doc__)
