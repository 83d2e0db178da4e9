"""What the searches proved of every schedule, as a plan states it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckptplan.errors import CkptplanError
from ckptplan.model.prediction import Bound
from ckptplan.search.answer import Answer
from ckptplan.search.question import Question
from ckptplan.strategies.protocol import Strategy
from ckptplan.strategies.solved import Solved

#: Share of a time that sums of floats, formed in another order, may differ by.
_ROUNDING = 1e-9


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
    if least > seconds * (1 + _ROUNDING):
        raise CkptplanError(
            f"the bound on all schedules is {least:.12g} s, but one takes {seconds:.12g} s: "
            "this is a fault of ckptplan, please report it"
        )
    least = min(least, seconds)
    return Bound(least_seconds=least, gap=0.0 if seconds == 0 else (seconds - least) / seconds)
