"""Groups plans that are the same schedule under several names."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice, zip_longest

from ckptplan.model.plan import Plan
from ckptplan.planning.playback import actions
from ckptplan.strategies.registry import strategy_of

#: Schedules of more actions than this are not compared, so that a table does not take seconds.
_MOST_ACTIONS = 100_000
#: What equal schedules have in common, besides their seconds, which may differ by rounding.
_COUNTS = (
    "local_peak_bytes",
    "remote_peak_bytes",
    "recomputed_steps",
    "remote_writes",
    "remote_reads",
    "messages",
)
_ROUNDING = 1e-9


def group_same_schedules(plans: Iterable[Plan]) -> list[list[Plan]]:
    """Return plans in groups with the same actions, in the order given.

    Actions are compared one by one, and only if the predicted totals are equal. Plans of more than 100,000
    actions stay alone.
    """
    groups: list[list[Plan]] = []
    for plan in plans:
        same = next((group for group in groups if _is_same(group[0], plan)), None)
        if same is None:
            groups.append([plan])
        else:
            same.append(plan)
    return groups


def list_same_schedules(plans: Iterable[Plan]) -> dict[str, tuple[str, ...]]:
    """Return for each plan's strategy the other strategies that have the same schedule, the simplest first."""
    groups = (
        sorted((plan.strategy for plan in group), key=lambda name: strategy_of(name).simplicity)
        for group in group_same_schedules(plans)
    )
    return {name: tuple(other for other in group if other != name) for group in groups for name in group}


def _is_same(one: Plan, other: Plan) -> bool:
    if one.steps != other.steps or any(one.predicted[name] != other.predicted[name] for name in _COUNTS):
        return False
    if not math.isclose(one.predicted.seconds, other.predicted.seconds, rel_tol=_ROUNDING):
        return False
    pairs = zip_longest(actions(one), actions(other))
    # A further pair means that the schedules are longer than what is compared.
    return all(mine == others for mine, others in islice(pairs, _MOST_ACTIONS)) and next(pairs, None) is None
