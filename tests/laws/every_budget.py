"""Compares fronts with the plans of random budgets: python -m tests.laws.every_budget [BUDGETS].

A front of the strategies that are compared by default must not be above the quickest plan that is found for any
budget alone, nor its bound below the one that this plan proves. All sizes are whole units of memory, so budgets
between the same two units have the same plans, and these are searched once.
"""

import math
import random
import sys
from math import gcd

import numpy as np

import ckptplan
from ckptplan.cost.case import Case
from ckptplan.search.question import Question
from ckptplan.strategies.registry import select_strategies
from tests.support import ask

#: Workload, profile, T.
CASES = [
    ("paper-snn", "ipu-mk2", 132), ("paper-snn", "ipu-mk2", 512), ("paper-snn", "ipu-mk2", 1000),
    ("paper-snn", "tenstorrent-wormhole-n300", 700), ("paper-snn", "nvidia-a100-80gb", 300),
    ("paper-snn", "cpu-nvme", 400), ("paper-snn", "laptop-cpu", 64), ("gru", "nvidia-a100-80gb", 132),
    ("gru", "nvidia-gh200", 90), ("gru", "ipu-mk1", 200), ("gru", "ipu-mk2", 60), ("gru", "laptop-cpu", 50),
    ("gru", "tenstorrent-wormhole-n300", 150), ("lstm-stack", "ipu-mk2", 40), ("lstm-stack", "ipu-bow", 700),
    ("lstm-stack", "nvidia-h200", 80), ("snn-shd", "ipu-mk2", 1000), ("snn-shd", "raspberry-pi-5", 250),
    ("snn-shd", "google-tpu-v5e", 200), ("convlstm", "amd-mi300x", 100),
]  # fmt: skip


def draw_levels(question: Question, count: int, *, chance: random.Random) -> list[int]:
    """Return the unit of memory of each of ``count`` random budgets, half of them even in the logarithm."""
    costs = question.costs
    unit = gcd(costs.state_bytes, costs.tape_bytes)
    least, most = costs.tape_bytes // unit, costs.steps * costs.tape_bytes // unit
    even = [chance.randint(least, most) for _ in range(count - count // 2)]
    logs = [round(math.exp(chance.uniform(math.log(least), math.log(most)))) for _ in range(count // 2)]
    return [*even, *logs]


def compare(workload: str, profile: str, steps: int, *, count: int) -> tuple[int, int, int, float]:
    """Return the budgets, the memories that were searched, those above their plan, and the worst share."""
    job, machine = ckptplan.load_workload(workload).with_steps(steps), ckptplan.load_profile(profile)
    front = ckptplan.pareto(job, machine)
    costs = Case(workload=job, profile=machine).costs
    names = [one.name for one in select_strategies(None)]
    question = ask(costs=costs, strategies=names, remote_bytes=machine.remote_bytes)
    unit = gcd(costs.state_bytes, costs.tape_bytes)
    levels = draw_levels(question, count, chance=random.Random(steps))  # noqa: S311 - no secrets
    above, worst = 0, 0.0
    for level in sorted(set(levels)):
        budget = costs.resident_bytes + level * unit
        answers = question.replace(local_bytes=budget).rank()
        if not answers:
            continue
        least = min(answer.totals(costs).seconds for answer in answers)
        place = front.place_within(budget)
        share = math.inf if place is None else float(front.seconds[place]) / least - 1
        proved = max((answer.least_seconds or 0.0 for answer in answers), default=0.0)
        weaker = float(front.bounds.within(np.array([budget]))[0]) < proved * (1 - 1e-12)
        above += (share > 1e-12) + weaker
        worst = max(worst, share)
    return count, len(set(levels)), above, worst


def main() -> None:
    """Print a line for each case."""
    count = (int(sys.argv[1]) if len(sys.argv) > 1 else 100_000) // len(CASES)
    for workload, profile, steps in CASES:
        budgets, searched, above, worst = compare(workload, profile, steps, count=count)
        sys.stdout.write(
            f"{workload:<11} {profile:<26} {steps:>5,}: {budgets:>6,} budgets, {searched:>4} memories, "
            f"{above} above, worst {worst:+.1e}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
