"""Decides which differences of time count, and says where a plan was passed over."""

from __future__ import annotations

from collections.abc import Sequence

from ckptplan.model.calibration import Calibration
from ckptplan.model.prediction import BasisEntry
from ckptplan.model.workload import Workload
from ckptplan.search.answer import Answer
from ckptplan.search.question import Question
from ckptplan.units import format_share

#: The share of time below which no calibration has been seen to tell two plans apart.
RESOLUTION = 0.001
#: Of two plans of the same job, a difference above this share is real, however uncertain the times are.
_MOST = 0.01
#: Relative difference of times that another order of summation can cause.
_ROUNDING = 1e-9


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
    if gain <= _ROUNDING:
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
