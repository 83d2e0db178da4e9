"""Bounds how far measured times may move a plan: the interval of its seconds, and whether the choice changes.

A calibration knows each time within an interval (docs/accuracy.md). The seconds of a plan
are a sum of these times, each multiplied by a count, so two plans differ by

    seconds(x) - seconds(y) = sum over times of (count in x - count in y) time.

A time with equal counts cancels. The difference is least if each time is at the end of its interval that its
sign picks. If even then x is not quicker than y by more than the resolution of the question, the choice of y
is certain.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckptplan.cost.arrays import COUNT_ROUNDING
from ckptplan.cost.case import Case
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import Totals
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import ACTION_TIMES, TIMES
from ckptplan.search.question import Question
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.registry import reader_of
from ckptplan.units import format_seconds

#: The least factor of a rate whose interval begins at zero: one over the largest factor of an interval.
_LEAST_RATE = 1e-9
#: Time -> the count that it is multiplied by; other times count equally often in every schedule.
_COUNTED = {
    "recompute_seconds": "recomputed_steps",
    "write_seconds": "remote_writes",
    "read_seconds": "remote_reads",
    "message_seconds": "messages",
    "advance_seconds": "advances",
    "chunk_seconds": "chunks",
    "save_seconds": "local_saves",
    "load_seconds": "local_loads",
}


def bound_costs(case: Case) -> tuple[StepCosts, StepCosts] | None:
    """Return the costs with all times as short, and as long, as their intervals allow; None without any."""
    calibration, costs = case.timed.calibration, case.costs
    if calibration is None or not any(measured.low is not None for measured in calibration.measured.values()):
        return None
    sources = case.profile.sources
    intervals = []
    for end in ("low", "high"):
        # Calibrations of early versions have no intervals: their times count as exact.
        given = {field: getattr(measured, end) for field, measured in calibration.measured.items()}
        factors = {field: 1.0 if factor is None else factor for field, factor in given.items()}
        changed = {field: getattr(costs, field) * factors.get(field, 1.0) for field in (*TIMES, *ACTION_TIMES)}
        for direction in ("write", "read"):
            source = sources.get(f"{direction}_bytes_per_second")
            # A high rate is a short time. If the rate may be zero, the time is as long as intervals allow.
            rate = None if source is None else source.high if end == "low" else source.low
            factor = 1.0 if rate is None else max(rate, _LEAST_RATE)
            for name in (f"{direction}_seconds", f"cache_{direction}_seconds"):
                changed[name] = getattr(costs, name) / factor
        latency = sources.get("latency_seconds")
        share = None if latency is None else getattr(latency, end)
        if share is not None:
            changed["message_seconds"] = costs.message_seconds + (share - 1) * case.profile.latency_seconds
        intervals.append(costs.model_copy(update=changed))
    return intervals[0], intervals[1]


def find_interval(plan: Plan) -> tuple[float, float] | None:
    """Return the least and the most seconds that a plan's measured times allow; None without intervals."""
    bounds = bound_costs(Case(workload=plan.workload, profile=plan.profile))
    if bounds is None:
        return None
    strategy = reader_of(plan.strategy, plan.splits)
    low, high = (strategy.totals(plan.parameters, costs=costs, splits=plan.splits).seconds for costs in bounds)
    return low, high


def describe_interval(plan: Plan) -> str:
    """Return the interval of a plan's seconds as text, '' without one."""
    interval = find_interval(plan)
    if interval is None:
        return ""
    low, high = map(format_seconds, interval)
    return f"{low} to {high} within the intervals of its times"


def find_undecided(answers: Sequence[Answer], question: Question, case: Case) -> tuple[list[str], float] | None:
    """Return the strategies that may be quicker than the first answer, and by which share of its time at most.

    A strategy is returned if it is quicker by more than the resolution of the question somewhere within the
    intervals of all times. The share is the largest of all other answers, also of those that are quicker by
    less. Return None if no time has an interval.
    """
    bounds = bound_costs(case)
    if bounds is None or question.goal.model != "exact":
        return None
    mine = answers[0].totals(question.costs)
    leads = {
        other.strategy.name: -_least_lead(other.totals(question.costs), mine, bounds) for other in answers[1:]
    }
    rivals = [name for name, seconds in leads.items() if seconds > question.resolution * mine.seconds]
    most = max(leads.values(), default=0.0)
    return rivals, max(0.0, most / mine.seconds) if mine.seconds > 0 else 0.0


def describe_undecided(
    chosen: str, rivals: Sequence[str], most: float, *, unsearched: Sequence[str] = ()
) -> str:
    """Return a text that says which strategies may be as quick as the chosen one, or quicker by how much.

    Arguments:
        chosen: the chosen strategy.
        rivals: the strategies that may be quicker, as ``find_undecided`` returns them.
        most: the share of time by which one may be quicker, as ``find_undecided`` returns it.
        unsearched: the strategies that were not searched. The text leaves them out: they are not quicker at
            the measured times.
    """
    share = "less than 0.01 %" if most < 0.0001 else f"up to {most * 100:.2g} %"
    if rivals:
        return f"{' or '.join(rivals)} may be just as quick as {chosen}, or quicker by {share}"
    if most > COUNT_ROUNDING:
        return f"another strategy may be quicker by {share}, which is too little to tell"
    return f"no other strategy{' that was searched' if unsearched else ''} may be quicker"


def _least_lead(other: Totals, mine: Totals, bounds: tuple[StepCosts, StepCosts]) -> float:
    """Return the least seconds by which another schedule takes longer, below zero if it may be quicker."""
    least: float = sum(
        min((getattr(other, count) - getattr(mine, count)) * getattr(costs, time) for costs in bounds)
        for time, count in _COUNTED.items()
    )
    return least
