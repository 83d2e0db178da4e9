"""How far the paper's strategies are from the optimum: python -m benchmarks.regret.

T = 4,096, b = 2 f, M_a = M_s. S is the local memory in units. In forward steps, x is the cost of a transfer
each way and rho the cost of running a step again. Each cell has the best of the paper's five strategies over
the optimum, in total time and in time added to base's. These are not timings: all machines give equal numbers.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from benchmarks.harness import Setting, main, table
from ckptplan.model.step_costs import StepCosts
from ckptplan.planning.request import make_goal
from ckptplan.search.question import Question

STEPS = 4096
RHOS, TRANSFERS, UNITS = (0.1, 0.3, 1.0), (1, 5, 20), (4, 8, 16, 32)


def best(names: list[str], *, units: int, transfer: float, rho: float) -> tuple[str, float]:
    """Return the winner's name and its seconds."""
    costs = StepCosts(
        steps=STEPS,
        state_bytes=1,
        tape_bytes=1,
        remote_state_bytes=1,
        forward_seconds=1.0,
        backward_seconds=2.0,
        recompute_seconds=rho,
        write_seconds=transfer,
        read_seconds=transfer,
    )
    question = Question(
        costs=costs,
        goal=make_goal(strategies=names, effort="thorough").replace(local_bytes=units),
    )
    winner = question.best()
    if winner is None:
        raise ValueError("nothing fits")
    return winner.strategy.name, winner.key[0]


def run(_: Setting) -> list[dict[str, Any]]:
    """Return a line for each cell of the tables."""
    results = []
    for rho, transfer, units in product(RHOS, TRANSFERS, UNITS):
        name, paper = best(["paper"], units=units, transfer=transfer, rho=rho)
        optimum = best(["optimal"], units=units, transfer=transfer, rho=rho)[1]
        results.append(
            {
                "rho": rho,
                "transfer": transfer,
                "units": units,
                "best_of_the_paper": name,
                "time_over_least": paper / optimum,
                "extra_over_least": (paper - 3 * STEPS) / (optimum - 3 * STEPS),
            }
        )
    return results


def show_cell(line: dict[str, Any]) -> str:
    """Return a cell of a table: both ratios, and the strategy."""
    return f"{line['time_over_least']:.3f} ({line['extra_over_least']:.2f}) {line['best_of_the_paper']}"


def document(results: list[dict[str, Any]]) -> str:
    """Return a table for each rho."""
    parts = []
    for rho in RHOS:
        rows = []
        for transfer in TRANSFERS:
            lines = [one for one in results if (one["rho"], one["transfer"]) == (rho, transfer)]
            rows.append([f"x = {transfer}", *map(show_cell, lines)])
        parts.append(table([f"rho = {rho:g}", *(f"S = {units}" for units in UNITS)], rows))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main("regret", run, document, about=__doc__)
