"""Decides which plans differ: by their times, by their schedules, and from the bound of all schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice, zip_longest

from ckptplan.cost.arrays import COUNT_ROUNDING
from ckptplan.errors import CkptplanError
from ckptplan.model.calibration import Calibration
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import BasisEntry, Bound
from ckptplan.model.workload import Workload
from ckptplan.planning.playback import actions
from ckptplan.search.answer import Answer
from ckptplan.search.question import Question
from ckptplan.strategies.protocol import Strategy
from ckptplan.strategies.registry import strategy_of
from ckptplan.strategies.solved import Solved
from ckptplan.units import format_share

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
    if not math.isclose(one.predicted.seconds, other.predicted.seconds, rel_tol=COUNT_ROUNDING):
        return False
    pairs = zip_longest(actions(one), actions(other))
    # A further pair means that the schedules are longer than what is compared.
    return all(mine == others for mine, others in islice(pairs, _MOST_ACTIONS)) and next(pairs, None) is None


def list_proofs(answers: Sequence[Answer], question: Question) -> list[float | None]:
    """Return what the answers to a question prove, and that which made the search of others needless.

    ``answers`` are those of ``Question.rank_until_settled``.
    """
    unsearched = question.unsearched(answers[0]) if answers else ()
    known = [question.least_seconds] if any(map(_proves_bounds, unsearched)) else []
    return [*(answer.least_seconds for answer in answers), *known]


def _proves_bounds(strategy: Strategy) -> bool:
    return isinstance(strategy, Solved) and strategy.adopts_others


def derive_bound(proofs: Iterable[float | None], seconds: float) -> Bound | None:
    """Return the best of some lower bounds of every schedule, for a plan of ``seconds``; None if there is none.

    Raises CkptplanError if the plan is faster than the bound, except for rounding.
    """
    proved = [least for least in proofs if least is not None]
    if not proved:
        return None
    least = max(proved)
    # A bound above a plan's time is wrong, and must not be reported as a proof.
    if least > seconds * (1 + COUNT_ROUNDING):
        raise CkptplanError(
            f"the bound on all schedules is {least:.12g} s, but one takes {seconds:.12g} s: "
            "this is a fault of ckptplan, please report it"
        )
    least = min(least, seconds)
    return Bound(least_seconds=least, gap=0.0 if seconds == 0 else (seconds - least) / seconds)


#: The share of time below which no calibration has been seen to tell two plans apart.
RESOLUTION = 0.001
#: Of two plans of the same job, a difference above this share is real, however uncertain the times are.
_MOST = 0.01


def find_resolution(workload: Workload) -> float:
    """Return the share of time below which two plans of a workload cannot be told apart.

    Without a calibration, it is ``RESOLUTION``: measured times have not been known better than that, and given
    ones are hardly better than measured ones. With a calibration, it is the ``uncertainty`` of its times, but
    at least ``RESOLUTION`` and at most 1 %. Most of an uncertainty is common to all plans, which consist of the
    same actions, so a larger difference between two plans is real.
    """
    calibration = workload.calibration
    return RESOLUTION if calibration is None else min(max(calibration.uncertainty, RESOLUTION), _MOST)


def explain_choice(
    ranked: Sequence[Answer], question: Question, calibration: Calibration | None
) -> tuple[BasisEntry, ...]:
    """Return why the first answer was chosen if another one is predicted to be better, else nothing.

    ``ranked`` is as ``question.rank`` returns it.
    """
    if len(ranked) < 2 or ranked[0].key <= ranked[1].key:
        return ()
    chosen, better = ranked[:2]
    mine, least = (float(one.cost(question.costs, question.goal.model).seconds[0]) for one in (chosen, better))
    if question.goal.objective == "balanced":
        lead = "predicted to be the better balance by too little to tell"
        return (_note(f"{better.strategy.name} is {lead}; the simpler plan was taken"),)
    gain = 1 - least / mine if mine > 0 else 0.0
    if gain <= COUNT_ROUNDING:
        return ()
    if calibration is None or calibration.uncertainty <= RESOLUTION:
        teller = "no calibration can tell"
    else:
        teller = f"the calibration (known within {format_share(calibration.uncertainty)}) cannot tell"
    text = f"{better.strategy.name} is predicted {_format_gain(gain)} quicker, which {teller}"
    return (_note(f"{text}; the simpler plan was taken"),)


def _note(text: str) -> BasisEntry:
    return BasisEntry(field="search", kind="stated", text=text)


def _format_gain(gain: float) -> str:
    return "less than 0.01 %" if gain < 0.0001 else f"{gain * 100:.2g} %"
