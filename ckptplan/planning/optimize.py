"""Implements ``optimize``, which returns the best plan, and ``compare``, which plans every strategy.

Rows of tables have the columns of a plan, or of the reason why there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from ckptplan.cost.arrays import COUNT_ROUNDING
from ckptplan.cost.case import Case
from ckptplan.errors import Infeasible
from ckptplan.model.display import Displayed
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import BasisEntry, Bound, PaperPrediction, Predicted
from ckptplan.model.progress import Progress
from ckptplan.model.workload import Calibration
from ckptplan.planning.intervals import bound_costs, describe_interval, describe_undecided, find_undecided
from ckptplan.planning.request import RESOLUTION, AnyProfile, AnyWorkload, Request, derive_bound
from ckptplan.planning.suggestions import explain_infeasible
from ckptplan.search.question import Question, find_reason
from ckptplan.storage.tables import Columns, Row, Type
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.registry import all_parameters
from ckptplan.units import format_share

#: The field of the entry of a basis that says whether the choice depends on the intervals of times.
INTERVAL = "interval"


def optimize(
    workload: AnyWorkload,
    profile: AnyProfile,
    *,
    steps: int | None = None,
    strategies: Iterable[str] | str | None = None,
    objective: str = "time",
    model: str = "exact",
    max_overhead: float | str | None = None,
    local_bytes: int | str | None = None,
    headroom: float | str | None = None,
    remote_bytes: int | str | None = None,
    cache: str | None = None,
    effort: str = "quick",
    command: str = "ckptplan.optimize",
    progress: Progress | None = None,
) -> Plan:
    """Return the best plan for ``workload`` on ``profile``.

    Arguments:
        workload: the training job, or its name, or the path of its file.
        profile: the hardware, or its name, or the path of its file.
        steps: T, in place of the workload's.
        strategies: names or groups ('all', 'paper', 'regular', 'closed'); None searches all but those that
            another strategy always equals or beats.
        objective: 'time', 'memory' or 'balanced' (the knee of the front within the budget).
        model: 'exact', or 'paper' for the printed equations.
        max_overhead: limit on the time over base's, as 0.1 or '10%'.
        local_bytes: replaces the profile's local memory of one unit, in bytes or as text.
        headroom: share of local memory to leave free, as 0.1 or '10%'; replaces the profile's. A budget that
            ``local_bytes`` names has none unless it is given here.
        remote_bytes: replaces the profile's remote memory in total, in bytes or as text.
        cache: the caches that plans keep: of 'all' steps (implied by the strategies 'paper'), of the 'last'
            steps, of these and each 'segment' while it is reversed, or 'none' except of recorded steps. None
            takes the best (docs/cache.md).
        effort: 'quick' or 'thorough', how much work the search for optimal schedules may do
            (docs/optimality.md).
        progress: called with the work done and the total work.
        command: recorded in the plan's provenance.

    If several plans are equally fast within 0.1 %, or the uncertainty of a calibration up to 1 %, the simplest
    is returned. Its ``estimate_basis`` names the strategy predicted to be quickest (docs/finding-optima.md).

    Raises InputError, and Infeasible (need, have, binding limit, verified suggestions).
    """
    request = Request.of(
        workload,
        profile,
        steps=steps,
        strategies=strategies,
        objective=objective,
        model=model,
        max_overhead=max_overhead,
        local_bytes=local_bytes,
        headroom=headroom,
        remote_bytes=remote_bytes,
        cache=cache,
        effort=effort,
        command=command,
        progress=progress,
    )
    return rank_strategies(request, only_best=True).best()


def compare(
    workload: AnyWorkload,
    profile: AnyProfile,
    *,
    steps: int | None = None,
    strategies: Iterable[str] | str | None = None,
    objective: str = "time",
    model: str = "exact",
    max_overhead: float | str | None = None,
    local_bytes: int | str | None = None,
    headroom: float | str | None = None,
    remote_bytes: int | str | None = None,
    cache: str | None = None,
    effort: str = "quick",
    command: str = "ckptplan.compare",
    progress: Progress | None = None,
) -> Compared:
    """Return the best plan of each strategy, or the reason why it has none; the plan of ``optimize`` first.

    The result is a dict, which a notebook shows as a table.

    The other plans follow by prediction. Keyword arguments are those of ``optimize``. With the objective
    'balanced', the knee of all strategies together ranks each of them. Raises InputError.
    """
    request = Request.of(
        workload,
        profile,
        steps=steps,
        strategies=strategies,
        objective=objective,
        model=model,
        max_overhead=max_overhead,
        local_bytes=local_bytes,
        headroom=headroom,
        remote_bytes=remote_bytes,
        cache=cache,
        effort=effort,
        command=command,
        progress=progress,
    )
    return rank_strategies(request, every=True).by_strategy()


class Compared(Displayed, dict[str, Plan | Infeasible]):
    """The best plan of each strategy by its name, or why it has none; ``case`` is the planned job."""

    __slots__ = ("case",)

    def __init__(self, results: Mapping[str, Plan | Infeasible], case: Case) -> None:
        super().__init__(results)
        self.case = case

    def __reduce__(self) -> tuple[Any, ...]:
        return Compared, (dict(self), self.case)


def rank_strategies(
    request: Request,
    *,
    strategies: tuple[str, ...] | None = None,
    every: bool = False,
    only_best: bool = False,
    keeps_best: bool = False,
) -> Ranking:
    """Search the strategies of a request once; the use cases read their results from the ranking.

    ``strategies`` narrows the search; the goal of the plans still names all that were compared. Unless
    ``every`` strategy has to be searched, the search ends once no other strategy can be quicker than a plan. If
    ``only_best`` is needed, the search of a slower strategy ends early. With ``keeps_best``, Ctrl-C ends the
    search with the answers so far, and the ranking is ``interrupted``. Raises InputError.
    """
    question = request.question().replace(interruptions=[] if keeps_best else None)
    if strategies is not None:
        question = question.replace(strategies=strategies)
    # Within the intervals of measured times, a slower strategy may be the quicker one.
    quickest = only_best and bound_costs(request.case) is None
    if every:
        answers = question.rank()
    else:
        answers = question.rank_quickest() if quickest else question.rank_until_settled()
    return Ranking(request=request, question=question, answers=answers, every=every)


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The answers of the strategies that fit a request, the one to choose first (``Question.rank``).

    If not ``every`` strategy had to be searched, some may be ``unsearched``.
    """

    request: Request
    question: Question
    answers: list[Answer]
    every: bool

    @property
    def unsearched(self) -> tuple[str, ...]:
        """The strategies that were not searched, since none can be quicker than the plan to run."""
        if self.every or not self.answers:
            return ()
        return tuple(strategy.name for strategy in self.question.unsearched(self.answers[0]))

    @property
    def interrupted(self) -> bool:
        """Whether the search was interrupted, so that the answers are only the best so far."""
        return bool(self.question.interruptions)

    def best(self) -> Plan:
        """Return the plan to run.

        Raises Infeasible, with verified suggestions.
        """
        if self.answers:
            return self._plan(self.answers[0])
        raise explain_infeasible(self.request.replace(strategies=self.question.goal.strategies))

    def by_strategy(self) -> Compared:
        """Return the best plan of each strategy, the plan to run first, and why other strategies do not fit.

        Strategies that were not searched are left out.
        """
        plans = {answer.strategy.name: self._plan(answer) for answer in self.answers}
        reasons = {
            strategy.name: find_reason(
                self.question.for_strategy(strategy), subject=f"{strategy.name} does not fit"
            )
            for strategy in self.question.strategies
            if strategy.name not in (*plans, *self.unsearched)
        }
        return Compared({**plans, **reasons}, self.request.case)

    def _plan(self, answer: Answer) -> Plan:
        note = regular = None
        if answer is self.answers[0]:
            note = _explain_choice(self.answers, self.question, self.request.case.timed.calibration)
            # Regular strategies are searched before the others, so the best of their plans is here.
            regular = next((candidate for candidate in self.answers if candidate.is_regular), None)
        notes = [] if note is None else [BasisEntry(field="search", kind="stated", text=note)]
        proofs = list_proofs(self.answers, self.question)
        plan = self.request.plan(answer, *notes, proofs=proofs, regular=regular)
        interval = describe_interval(plan)
        if not interval or answer is not self.answers[0]:
            return plan
        undecided = find_undecided(self.answers, self.question, self.request.case)
        text = interval
        if undecided is not None:
            # Base holds every tape and moves nothing: no schedule is quicker, whatever the times are.
            unsearched = self.unsearched if answer.strategy.parameter_names else ()
            text += f"; {describe_undecided(plan.strategy, *undecided, unsearched=unsearched)}"
        entry = BasisEntry(field=INTERVAL, kind="measured", text=text)
        return plan.replace(estimate_basis=(*plan.estimate_basis, entry))


def list_proofs(answers: Sequence[Answer], question: Question) -> list[float | None]:
    """Return the lower bounds that answers prove, and the bound that made other searches needless; in seconds.

    ``answers`` are those of ``Question.rank_until_settled``.
    """
    unsearched = question.unsearched(answers[0]) if answers else ()
    proves = any(not strategy.is_closed_form for strategy in unsearched)
    return [*(answer.least_seconds for answer in answers), *([question.least_seconds] if proves else [])]


def _explain_choice(
    ranked: Sequence[Answer], question: Question, calibration: Calibration | None
) -> str | None:
    """Return why the first answer was chosen if another one is predicted to be better, else None.

    ``ranked`` is as ``question.rank`` returns it.
    """
    if len(ranked) < 2 or ranked[0].key <= ranked[1].key:
        return None
    chosen, better = ranked[:2]
    if question.goal.objective == "balanced":
        lead = "to be the better balance by too little to tell"
        return f"{better.strategy.name} is predicted {lead}; the simpler plan was taken"
    mine, least = (answer.seconds(question.costs, question.goal.model) for answer in (chosen, better))
    gain = 1 - least / mine if mine > 0 else 0.0
    if gain <= COUNT_ROUNDING:
        return None
    share = "less than 0.01 %" if gain < 0.0001 else f"{gain * 100:.2g} %"
    if calibration is None or calibration.uncertainty <= RESOLUTION:
        reason = "no calibration can tell"
    else:
        reason = f"the calibration (known within {format_share(calibration.uncertainty)}) cannot tell"
    return f"{better.strategy.name} is predicted {share} quicker, which {reason}; the simpler plan was taken"


#: Columns of the job.
JOB_COLUMNS: Columns = {"workload": "text", "profile": "text", "steps": "whole"}
_TYPES: Mapping[type, Type] = {str: "text", int: "whole", float: "number"}


def _list_columns(record: type) -> Columns:
    """Return a column for each number of a record."""
    hints = get_type_hints(record)
    return {name: _TYPES[hint] for name, hint in hints.items() if hint in _TYPES}


#: Columns of the prediction that every plan has.
_PREDICTED_COLUMNS = _list_columns(Predicted)
#: Columns of the bound and of the paper's prediction, which some plans have.
_BOUND_COLUMNS, _PAPER_COLUMNS = _list_columns(Bound), _list_columns(PaperPrediction)
#: Further columns that some plans have.
DETAIL_COLUMNS: Columns = {
    "regular": "truth",
    **_BOUND_COLUMNS,
    **{f"paper_{name}": type_ for name, type_ in _PAPER_COLUMNS.items()},
}
#: Columns of the reason why there is no plan.
REASON_COLUMNS: Columns = {"fits": "truth", "binding": "text", "need": "number", "have": "number"}


def parameter_columns() -> Columns:
    """Return a column for each parameter of any strategy, so that the columns do not depend on the plan."""
    return dict.fromkeys(all_parameters(), "whole")


def cost_columns() -> Columns:
    """Return the columns of an existing plan: strategy, parameters and costs."""
    return {"strategy": "text", **parameter_columns(), "cache": "text", **_PREDICTED_COLUMNS}


def plan_columns() -> Columns:
    """Return the columns of the answer to a question: a plan, or why there is none."""
    return {**cost_columns(), **DETAIL_COLUMNS, **REASON_COLUMNS}


def make_answer_row(question: Question) -> Row:
    """Return the row of the best plan, or of the reason why nothing fits."""
    if all(strategy.is_closed_form for strategy in question.strategies):
        best = question.best()
        answers = [] if best is None else [best]
    else:
        # A bound that any strategy proves also holds for the best plan.
        answers = question.rank_quickest()
    if not answers:
        reason = find_reason(question, subject="nothing fits")
        return {
            "fits": False,
            "binding": reason.binding,
            "need": float(reason.need),
            "have": float(reason.have),
        }
    predicted = answers[0].predicted(question.costs)
    bound = derive_bound(list_proofs(answers, question), predicted.seconds)
    return {**make_cost_row(answers[0].strategy.name, answers[0], predicted, bound), "fits": True}


def make_cost_row(strategy: str, of: Plan | Answer, predicted: Predicted, bound: Bound | None) -> Row:
    """Return the cells of a plan's costs; parameters that its strategy lacks are left out."""
    paper = dict(predicted.paper or {})
    return {
        "strategy": strategy,
        **of.parameters,
        "cache": of.cache,
        **{name: predicted[name] for name in _PREDICTED_COLUMNS},
        "regular": of.is_regular,
        **(dict.fromkeys(_BOUND_COLUMNS) if bound is None else bound),
        **{f"paper_{name}": paper.get(name) for name in _PAPER_COLUMNS},
    }
