"""What the searches proved of every schedule, as a plan states it."""

from __future__ import annotations

from collections.abc import Iterable

from ckptplan.errors import CkptplanError
from ckptplan.model.prediction import Bound
from ckptplan.search.answer import Answer

#: Share of a time that sums of floats, formed in another order, may differ by.
_ROUNDING = 1e-9


def derive_bound(answers: Iterable[Answer], seconds: float) -> Bound | None:
    """Return the best lower bound for every schedule, for a plan of ``seconds``; None if there is none.

    Raises CkptplanError if the plan is faster than the bound, except for rounding.
    """
    proved = [answer.least_seconds for answer in answers if answer.least_seconds is not None]
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
