"""The use cases: one plan, and all strategies side by side."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ckptplan.basis import estimate_basis
from ckptplan.cost import paper
from ckptplan.cost.derive import step_costs
from ckptplan.cost.exact import overhead
from ckptplan.errors import CkptplanError, Infeasible, InputError, shown
from ckptplan.model.budget import Budget
from ckptplan.model.calibration import Calibration
from ckptplan.model.plan import BasisEntry, Bound, Goal, PaperPrediction, Plan, Predicted, Provenance
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import Workload
from ckptplan.schedule.simulator import Trace
from ckptplan.search.question import Answer, Question
from ckptplan.strategies.protocol import Strategy
from ckptplan.strategies.registry import named
from ckptplan.strategies.solved import Progress
from ckptplan.units import format_percent
from ckptplan.version import __version__

#: Share of a time that sums of floats, formed in another order, may differ by.
_ROUNDING = 1e-9


def optimize(
    workload: Workload,
    profile: HardwareProfile,
    *,
    strategies: Iterable[str] | None = None,
    objective: str = "time",
    model: str = "exact",
    max_overhead: float | str | None = None,
    local_bytes: int | str | None = None,
    remote_bytes: int | str | None = None,
    effort: str = "quick",
    progress: Progress | None = None,
    command: str = "ckptplan.optimize",
) -> Plan:
    """Return the best plan for ``workload`` on ``profile``.

    ``strategies`` are names or groups ('all', 'paper', 'regular', 'closed'), None for all. ``objective``
    is 'time', 'memory' or 'balanced' (the knee of the front within the budget). ``model`` is 'exact', or
    'paper' for the printed equations. ``local_bytes`` (one unit) and ``remote_bytes`` (in all) replace the
    profile's; ``max_overhead`` bounds the time over base's, as 0.1 or '10%'. ``effort`` is 'quick' or
    'thorough': how much work the search for optimal schedules may be (docs/optimality.md); ``progress`` is
    told the work done and the work in all. ``command`` is noted in the plan's provenance.

    A calibrated workload has times known within an uncertainty. Where least time is asked for, and the model
    is 'exact', the quickest regular plan that it cannot tell from the quickest is then returned instead, and
    its ``estimate_basis`` says so (docs/search.md).

    Raises InputError, and Infeasible (need, have, binding limit, verified suggestions).
    """
    return ranking(
        workload,
        profile,
        strategies=strategies,
        objective=objective,
        model=model,
        max_overhead=max_overhead,
        local_bytes=local_bytes,
        remote_bytes=remote_bytes,
        effort=effort,
        progress=progress,
        command=command,
    ).best()


def compare(
    workload: Workload, profile: HardwareProfile, *, command: str = "ckptplan.compare", **wishes: Any
) -> dict[str, Plan | Infeasible]:
    """Return the best plan of each strategy, or why it has none; the best first.

    Keyword arguments are those of ``optimize``. With the objective 'balanced', each strategy is judged
    by the knee of all. The order is that of the predictions, whatever a calibration says of their
    uncertainty. Raises InputError.
    """
    return ranking(workload, profile, command=command, **wishes).by_strategy()


def ranking(
    workload: Workload,
    profile: HardwareProfile,
    *,
    command: str,
    strategies: Iterable[str] | None = None,
    local_bytes: int | str | None = None,
    remote_bytes: int | str | None = None,
    progress: Progress | None = None,
    **wishes: Any,
) -> Ranking:
    """Search all strategies once; what ``optimize`` and ``compare`` return is read off the result.

    Arguments are those of ``optimize``. Raises InputError.
    """
    goal, question, provenance = asked(
        workload,
        profile,
        command=command,
        strategies=strategies,
        local_bytes=local_bytes,
        remote_bytes=remote_bytes,
        progress=progress,
        **wishes,
    )
    return Ranking(
        workload=workload,
        profile=profile,
        goal=goal,
        question=question,
        answers=question.answers(),
        provenance=provenance,
    )


def asked(
    workload: Workload,
    profile: HardwareProfile,
    *,
    command: str,
    strategies: Iterable[str] | None = None,
    local_bytes: int | str | None = None,
    remote_bytes: int | str | None = None,
    progress: Progress | None = None,
    **wishes: Any,
) -> tuple[Goal, Question, Provenance]:
    """Return what a plan is chosen for, as data and as a question. Raises InputError."""
    check_kind(workload, Workload, name="workload", load="load_workload")
    check_kind(profile, HardwareProfile, name="profile", load="load_profile")
    chosen = named(strategies)
    if strategies is None and wishes.get("model") == "paper":
        chosen = [strategy for strategy in chosen if strategy.printed]
    budgets: dict[str, Any] = {
        "local_bytes": profile.local_bytes if local_bytes is None else local_bytes,
        "remote_bytes": profile.remote_bytes if remote_bytes is None else remote_bytes,
    }
    goal = Goal(strategies=tuple(strategy.name for strategy in chosen), **budgets, **wishes)
    question = Question(
        costs=step_costs(workload, profile),
        budget=Budget(local_bytes=goal.local_bytes, remote_bytes=goal.remote_bytes),
        strategies=tuple(chosen),
        objective=goal.objective,
        model=goal.model,
        max_overhead=goal.max_overhead,
        effort=goal.effort,
        progress=progress,
    )
    return goal, question, Provenance(version=__version__, command=command, date=_now())


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The strategies that fit, the best by prediction first, and how to make plans of them."""

    workload: Workload
    profile: HardwareProfile
    goal: Goal
    question: Question
    answers: list[Answer]
    provenance: Provenance
    #: Whether the local budget is the peak of the plan itself, as for a point of a front.
    own_budget: bool = False

    @property
    def interrupted(self) -> bool:
        """Whether somebody interrupted the search, so that the best so far is what there is."""
        return bool(self.question.interruptions)

    def best(self) -> Plan:
        """Return the plan to run: the first, or a regular one that a calibration cannot tell from it.

        Raises Infeasible, with suggestions that were each found to fit.
        """
        calibration = self.workload.calibration
        times_decide = (self.goal.objective, self.goal.model) == ("time", "exact")
        if calibration is None or not times_decide or not self.answers:
            return self.first()
        return self._best_within(calibration)

    def first(self) -> Plan:
        """Return the best plan by its prediction alone.

        Raises Infeasible, with suggestions that were each found to fit.
        """
        if self.answers:
            return self._plan(self.answers[0])
        from ckptplan.suggestions import with_suggestions  # needed in this case only

        raise with_suggestions(
            self.question.infeasible(subject=self._nothing_fits()),
            question=self.question,
            workload=self.workload,
            profile=self.profile,
        )

    def _best_within(self, calibration: Calibration) -> Plan:
        """Return the best regular plan whose time cannot be told from the least, else the quickest.

        Executed, each chunk has a cost of its own, which no model here counts, and irregular schedules have
        many chunks. So a gain that is within the error of the measurements is no reason to take one. Of
        regular plans that is the quickest when its chunks are charged with what the calibration found.
        """
        first, steps = self.answers[0], self.workload.steps
        most = (1 + calibration.uncertainty) * first.best.key[0]
        close = [one for one in self.answers if one.best.key[0] <= most and one.regular(steps=steps)]

        def charged(answer: Answer) -> float:
            chunks = -(-steps // dict(answer.best.parameters).get("chunk_size", steps))
            return answer.best.key[0] + chunks * calibration.chunk_overhead_seconds

        chosen = min(close, key=charged, default=first)
        if chosen is first:
            return self._plan(first)
        return self._plan(
            chosen,
            _not_told_apart(
                first, chosen, uncertainty=calibration.uncertainty, regular=first.regular(steps=steps)
            ),
        )

    def _nothing_fits(self) -> str:
        asked = self.question.strategies
        if len(asked) == 1:
            return f"{asked[0].name} does not fit"
        if len(asked) < len(named(None)):
            return f"none of {', '.join(strategy.name for strategy in asked)} fits"
        return "no strategy fits"

    def by_strategy(self) -> dict[str, Plan | Infeasible]:
        """Return the best plan of each strategy, best first, then those that do not fit and why."""
        result: dict[str, Plan | Infeasible] = {
            answer.strategy.name: self._plan(answer) for answer in self.answers
        }
        for strategy in self.question.strategies:
            if strategy.name not in result:
                alone = self.question.changed(strategies=(strategy,))
                result[strategy.name] = alone.infeasible(subject=f"{strategy.name} does not fit")
        return result

    def _plan(self, answer: Answer, *notes: BasisEntry) -> Plan:
        parameters, solution = answer.best.parameters, answer.best.solution
        predicted = (
            predict(answer.strategy, parameters, costs=self.question.costs)
            if solution is None
            else predicted_by(solution.trace, costs=self.question.costs)
        )
        return Plan(
            strategy=answer.strategy.name,
            parameters=parameters,
            steps=self.workload.steps,
            goal=self.goal,
            predicted=predicted,
            splits=None if solution is None else solution.splits,
            regular=answer.regular(steps=self.workload.steps),
            bound=self._bound(predicted.seconds),
            workload=self.workload,
            profile=self.profile,
            estimate_basis=(
                *estimate_basis(self.workload, self.profile, self.goal, own_budget=self.own_budget),
                *_unproved(answer),
                *notes,
            ),
            provenance=self.provenance,
        )

    def _bound(self, seconds: float) -> Bound | None:
        """Return what is proved of every schedule, if anything is; no plan can beat it, but for rounding."""
        proved = [
            answer.best.solution.least_seconds
            for answer in self.answers
            if answer.best.solution is not None and answer.best.solution.least_seconds is not None
        ]
        if not proved:
            return None
        least = max(proved)
        # A bound above a plan is no bound: nobody must read it as a proof.
        if least > seconds * (1 + _ROUNDING):
            raise CkptplanError(
                f"no schedule was said to take less than {least:.12g} s, but one takes {seconds:.12g} s: "
                "this is a fault of ckptplan, please report it"
            )
        least = min(least, seconds)
        return Bound(least_seconds=least, gap=0.0 if seconds == 0 else (seconds - least) / seconds)


def _unproved(answer: Answer) -> Iterator[BasisEntry]:
    for note in answer.best.solution.notes if answer.best.solution else ():
        yield BasisEntry(field="search", kind="stated", text=note)
    if answer.best.gap:
        yield BasisEntry(
            field="search",
            kind="stated",
            text=f"thousands of settings tie; this one is proved within {answer.best.gap:.1g} of the best",
        )


def _not_told_apart(first: Answer, chosen: Answer, *, uncertainty: float, regular: bool) -> BasisEntry:
    """Return why a regular plan is taken, where another one is predicted to be better."""
    gain = 1 - first.best.key[0] / chosen.best.key[0]
    known = format_percent(uncertainty).lstrip("+")
    told = (
        f"{format_percent(gain).lstrip('+')} quicker, which the calibration (known within {known}) cannot tell"
        if gain > _ROUNDING
        else "as quick"
    )
    # A regular plan gives way only to one whose chunks cost less.
    what = "regular plan of fewer chunks" if regular else "quickest regular plan"
    return BasisEntry(
        field="search",
        kind="stated",
        text=f"{first.strategy.name} is predicted {told}, so that the {what} was taken",
    )


def predict(strategy: Strategy, parameters: Parameters, *, costs: StepCosts) -> Predicted:
    """Return what one setting will cost, by the exact model and by the printed equations."""
    point = strategy.point(parameters, steps=costs.steps)
    counts = strategy.counts(low=point, high=point, steps=costs.steps)
    cost = strategy.cost(parameters, costs=costs)
    seconds = float(cost.seconds[0])
    return Predicted(
        seconds=seconds,
        overhead=float(overhead(seconds, costs.base_seconds)),
        local_peak_bytes=int(cost.local_peak_bytes[0]),
        remote_peak_bytes=int(cost.remote_peak_bytes[0]),
        recomputed_steps=int(counts.recomputed_steps[0]),
        remote_writes=int(counts.states_written[0]),
        remote_reads=int(counts.states_read[0]),
        messages=int(counts.messages[0]),
        paper=_paper_prediction(strategy, parameters, costs=costs) if strategy.printed else None,
    )


def predicted_by(trace: Trace, *, costs: StepCosts) -> Predicted:
    """Return what a schedule that was solved for will cost."""
    return Predicted(
        seconds=trace.seconds,
        overhead=max(0.0, float(overhead(trace.seconds, costs.base_seconds))),
        local_peak_bytes=trace.local_peak_bytes,
        remote_peak_bytes=trace.remote_peak_bytes,
        recomputed_steps=trace.recomputed_steps,
        remote_writes=trace.remote_writes,
        remote_reads=trace.remote_reads,
        messages=trace.messages,
    )


def _paper_prediction(strategy: Strategy, parameters: Parameters, *, costs: StepCosts) -> PaperPrediction:
    cost = strategy.cost(parameters, costs=costs, model="paper")
    seconds = float(cost.seconds[0])
    return PaperPrediction(
        seconds=seconds,
        overhead=float(overhead(seconds, paper.base_seconds(costs))),
        local_peak_bytes=int(cost.local_peak_bytes[0]),
    )


def check_kind(value: object, kind: type, *, name: str, load: str) -> None:
    """Raise InputError unless a value is what ``ckptplan.<load>`` returns."""
    if not isinstance(value, kind):
        raise InputError(
            f"{shown(value)} is not a {kind.__name__}",
            field=name,
            value=value,
            accepted=f"a {kind.__name__}, as ckptplan.{load} returns",
        )


def _now() -> str:
    """Return the time in UTC; SOURCE_DATE_EPOCH fixes it, so that builds of documents can be repeated."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    seconds = int(epoch) if epoch.isdecimal() and len(epoch) < 11 else time.time()
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
