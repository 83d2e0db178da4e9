"""How far the paper's strategies are from the optimum: python -m benchmarks.regret.

T = 4,096, b = 2 f, M_a = M_s. S is the local memory in units. In forward steps, x is the cost of a transfer
each way and rho the cost of running a step again. Each cell has the best of the paper's five strategies over
the optimum, in total time and in time added to base's. These are not timings: all machines give equal numbers.
"""

from __future__ import annotations

from benchmarks.harness import write
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


def main() -> None:
    """Print a table of Markdown for each rho."""
    results = []
    for rho in RHOS:
        print(f"\n| rho = {rho:g} | " + " | ".join(f"S = {units}" for units in UNITS) + " |")
        print("|---" * (len(UNITS) + 1) + "|")
        for transfer in TRANSFERS:
            cells = []
            for units in UNITS:
                name, paper = best(["paper"], units=units, transfer=transfer, rho=rho)
                _, optimum = best(["optimal"], units=units, transfer=transfer, rho=rho)
                total, extra = paper / optimum, (paper - 3 * STEPS) / (optimum - 3 * STEPS)
                cells.append(f"{total:.3f} ({extra:.2f}) {name}")
                results.append(
                    {"rho": rho, "transfer": transfer, "units": units, "best_of_the_paper": name,
                     "time_over_least": total, "extra_over_least": extra}
                )  # fmt: skip
            print(f"| x = {transfer} | " + " | ".join(cells) + " |", flush=True)
    write("regret", results)


if __name__ == "__main__":
    main()
