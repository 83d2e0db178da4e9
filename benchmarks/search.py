"""Time of the search over the paper's strategies and nested: python -m benchmarks.search.

States and tapes have 960 bytes each, nothing is resident per step, and budgets are in states. Times of the
elementary actions are those of paper-snn on ipu-mk2.
"""

from __future__ import annotations

from benchmarks.record import median_of, write
from ckptplan.model.goal import ObjectiveName
from ckptplan.model.step_costs import StepCosts
from ckptplan.planning.request import make_goal
from ckptplan.search.question import Question

STATE = 960
OBJECTIVES: tuple[ObjectiveName, ...] = ("time", "memory", "balanced")


def question(steps: int, states: int | None, objective: ObjectiveName) -> Question:
    """Return the problem of one line of the table."""
    return Question(
        costs=StepCosts(
            steps=steps,
            state_bytes=STATE,
            tape_bytes=STATE,
            remote_state_bytes=STATE * 1472,
            forward_seconds=3.6e-6,
            backward_seconds=3.6e-6,
            recompute_seconds=0.36e-6,
            write_seconds=70.656e-6,
            read_seconds=70.656e-6,
            message_seconds=1.5e-6,
        ),
        goal=make_goal(
            strategies=["paper", "nested"],
            local_bytes=None if states is None else states * STATE,
            objective=objective,
        ),
    )


def main() -> None:
    """Print a line for each length, budget and objective."""
    results = []
    question(64, 31, "time").rank()
    print(f"{'T':>14} {'budget':>10} {'objective':>10} {'median':>9} {'most':>9}  best")
    for steps in (4096, 10**6, 10**9):
        for states in (31, 10**4, None):
            for objective in OBJECTIVES:
                asked = question(steps, states, objective)
                timing = median_of(7, asked.rank)
                winner = asked.best()
                best = "nothing fits" if winner is None else f"{winner.strategy.name} {dict(winner.parameters)}"
                budget = "unbounded" if states is None else f"{states:,}"
                print(
                    f"{steps:>14,} {budget:>10} {objective:>10} {timing['median_seconds'] * 1e3:6.1f} ms "
                    f"{timing['most'] * 1e3:6.1f} ms  {best}"
                )
                results.append(
                    {"steps": steps, "states": states, "objective": objective, **timing, "best": best}
                )
    write("search", results)


if __name__ == "__main__":
    main()
