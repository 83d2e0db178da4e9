"""Defines a request, which is a case and a goal; every use case searches and plans through it.

A plan records which version of the program made it, with which command, and when.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias, TypedDict, TypeVar, Unpack

from ckptplan.cost.arrays import COUNT_ROUNDING
from ckptplan.cost.case import Case
from ckptplan.errors import CkptplanError, InputError, refuse
from ckptplan.model.checked import MOST_JOINED
from ckptplan.model.goal import Goal
from ckptplan.model.plan import Plan, Provenance, RegularPlan
from ckptplan.model.prediction import BasisEntry, Bound
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress
from ckptplan.model.workload import Workload
from ckptplan.planning.basis import collect_basis
from ckptplan.search.question import Question
from ckptplan.storage.toml_files import load_profile, load_workload
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.registry import select_strategies
from ckptplan.units import parse_duration
from ckptplan.version import __version__
from ckptplan.wording import escape_controls

#: The share of time below which no calibration has been seen to tell two plans apart.
RESOLUTION = 0.001
#: Of two plans of the same job, a difference above this share is real, however uncertain the times are.
_MOST = 0.01


#: A workload or a profile, or its name, or the path of its file.
AnyWorkload: TypeAlias = "Workload | str | Path"
AnyProfile: TypeAlias = "HardwareProfile | str | Path"


class Wishes(TypedDict, total=False):
    """The keyword arguments of use cases, as ``ckptplan.optimize`` documents them; each has its own part.

    If an argument about memory is None, the memory of the profile counts.
    """

    strategies: Iterable[str] | str | None
    objective: str
    model: str
    max_overhead: float | str | None
    local_bytes: int | str | None
    headroom: float | str | None
    remote_bytes: int | str | None
    cache: str | None
    effort: str


def make_goal(*, unless_named: str | None = None, **wishes: Unpack[Wishes]) -> Goal:
    """Return a caller's keyword arguments as a validated goal, without budgets, and with strategies by name.

    ``unless_named`` is the group of strategies to use if none is named; None means the strategies that are
    searched by default. Strategies that cannot keep the caches that a caller asks for are left out. Raises
    InputError, also if none is left.
    """
    named = wishes.pop("strategies", None)
    chosen = select_strategies(unless_named if named is None else named)
    if named is None and wishes.get("model") == "paper":
        chosen = [strategy for strategy in chosen if strategy.printed is not None]
    if wishes.get("cache") is None and (named == "paper" or wishes.get("model") == "paper"):
        # The paper keeps the caches of all steps.
        wishes["cache"] = "all"
    fields: dict[str, Any] = {name: wish for name, wish in wishes.items() if name not in MEMORY_WISHES}
    goal = Goal(strategies=tuple(strategy.name for strategy in chosen), **fields)
    names = tuple(strategy.name for strategy in chosen if strategy.allows(goal.cache))
    if not names:
        problem, others = "is kept by none of the strategies", "another choice, or other strategies"
        raise refuse(goal.cache, problem, field="cache", accepted=others)
    return goal.model_copy(update={"strategies": names})


def make_provenance(command: str) -> Provenance:
    """Return the provenance of a plan that ``command`` makes now.

    The date is in UTC; SOURCE_DATE_EPOCH fixes it, so that builds of documents are reproducible.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    seconds = int(epoch) if epoch.isascii() and epoch.isdecimal() and len(epoch) < 11 else time.time()
    date = datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
    # A name of a file on the command line may hold any character.
    return Provenance(version=__version__, command=escape_controls(command)[:MOST_JOINED], date=date)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A case and the goal of a plan for it. Budgets of the goal that are None are unbounded."""

    case: Case
    goal: Goal
    provenance: Provenance
    #: Called with the work done and the total work of a long search.
    progress: Progress | None = None
    #: Whether the caller named the headroom, which then holds for every memory.
    names_headroom: bool = False

    @classmethod
    def of(
        cls,
        workload: AnyWorkload,
        profile: AnyProfile,
        *,
        command: str,
        steps: int | None = None,
        unless_named: str | None = None,
        progress: Progress | None = None,
        **wishes: Unpack[Wishes],
    ) -> Self:
        """Return a caller's request; budgets default to the memory of the profile, less its headroom.

        ``command`` is recorded in the provenance; ``steps`` replaces T of the workload; ``unless_named`` is as
        in ``make_goal``. Raises InputError.
        """
        workload, profile = read_workload(workload, steps=steps), read_profile(profile)
        goal = make_goal(unless_named=unless_named, **wishes)
        return cls(
            case=Case(workload=workload, profile=profile),
            goal=goal.model_copy(update=list_budgets(replace_memory(profile, wishes))),
            provenance=make_provenance(command),
            progress=progress,
            names_headroom=wishes.get("headroom") is not None,
        )

    @classmethod
    def of_plan(cls, plan: Plan, *, command: str, progress: Progress | None = None) -> Self:
        """Return the request that a plan answers: its case and its goal.

        A goal that names no strategies asks for those that are searched by default. Raises InputError if it
        names an unknown strategy.
        """
        names = tuple(strategy.name for strategy in select_strategies(list(plan.goal.strategies) or None))
        return cls(
            case=Case(workload=plan.workload, profile=plan.profile),
            goal=plan.goal.model_copy(update={"strategies": names}),
            provenance=make_provenance(command),
            progress=progress,
        )

    def question(self) -> Question:
        """Return the question for the search. Raises InputError if the case cannot be counted exactly."""
        return Question(
            costs=self.case.costs,
            goal=self.goal,
            resolution=find_resolution(self.case.timed),
            progress=self.progress,
        )

    def plan(
        self,
        answer: Answer,
        *notes: BasisEntry,
        proofs: Iterable[float | None] | None = None,
        regular: Answer | None = None,
        own_budget: bool = False,
    ) -> Plan:
        """Return an answer as a plan; ``notes`` are added to its ``estimate_basis``.

        ``proofs`` are lower bounds of the time of every schedule; None takes the bound of the answer alone.
        ``regular`` is the best answer that loops with fixed strides can run, unless it is the answer itself.
        ``own_budget`` says that the local budget is the plan's own peak, as for a point of a front.
        """
        workload, profile = self.case.timed, self.case.profile
        predicted = answer.predicted(self.case.costs)
        searched = (BasisEntry(field="search", kind="stated", text=note) for note in answer.notes)
        # No validation: each part is valid, and building the validator of a plan takes as long as a search.
        return Plan.model_construct(
            strategy=answer.strategy.name,
            parameters=answer.parameters,
            cache=answer.cache,
            steps=workload.steps,
            goal=self.goal,
            predicted=predicted,
            splits=answer.splits,
            regular=self._make_regular(answer if answer.is_regular else regular),
            bound=derive_bound([answer.least_seconds] if proofs is None else proofs, predicted.seconds),
            workload=workload,
            profile=profile,
            estimate_basis=(
                *collect_basis(workload, profile, self.goal, own_budget=own_budget),
                *searched,
                *notes,
            ),
            provenance=self.provenance,
        )

    def _make_regular(self, answer: Answer | None) -> RegularPlan | None:
        """Return the part of a plan that describes its best regular schedule."""
        if answer is None:
            return None
        return RegularPlan.model_construct(
            strategy=answer.strategy.name,
            parameters=answer.parameters,
            cache=answer.cache,
            predicted=answer.predicted(self.case.costs),
        )

    def resize(self, quantity: str, value: int) -> Request:
        """Return the same request, with the same budgets, for another 'steps', 'batch' or 'neurons'.

        Raises InputError.
        """
        workload = self.case.workload
        change = {
            "steps": workload.with_steps,
            "batch": workload.with_batch,
            "neurons": workload.with_neurons_from,
        }[quantity]
        return dataclasses.replace(self, case=Case(workload=change(value), profile=self.case.profile))

    def replace(self, **wishes: Any) -> Request:
        """Return the request with other values of the goal's fields, which are not validated."""
        return dataclasses.replace(self, goal=self.goal.model_copy(update=wishes))


#: The keyword arguments that replace the memory of a profile.
MEMORY_WISHES = ("local_bytes", "headroom", "remote_bytes")


def replace_memory(profile: HardwareProfile, wishes: Wishes) -> HardwareProfile:
    """Return a profile whose memory gives the budgets that a caller named.

    A named local budget has no headroom, unless one is named, too. Raises InputError.
    """
    named = {name: value for name in MEMORY_WISHES if (value := wishes.get(name)) is not None}
    if "local_bytes" in named:
        named.setdefault("headroom", 0.0)
    return profile.replace_numbers(**named) if named else profile


def list_budgets(profile: HardwareProfile) -> dict[str, Any]:
    """Return the budgets that the memory of a profile gives, as a goal has them."""
    return {
        "local_bytes": profile.local_budget_bytes,
        "headroom": profile.headroom,
        "remote_bytes": profile.remote_bytes,
    }


def ask_within_memory(case: Case, goal: Goal) -> Question:
    """Return the question of a study that varies the memory of a profile, which then gives the budgets.

    Raises InputError.
    """
    return Question(
        costs=case.costs,
        goal=goal.model_copy(update=list_budgets(case.profile)),
        resolution=find_resolution(case.timed),
    )


#: Why a study leaves out solved strategies.
WHY_LEFT_OUT = "solving a schedule for each value takes too long"


def list_left_out(strategies: Iterable[str] | str | None, goal: Goal) -> dict[str, str]:
    """Return the strategies that ``optimize`` compares and a goal does not, each with the reason.

    ``strategies`` are those that the caller named. If there are any, none is left out.
    """
    if strategies is not None:
        return {}
    by_default = make_goal(model=goal.model).strategies
    return dict.fromkeys((name for name in by_default if name not in goal.strategies), WHY_LEFT_OUT)


_Number = TypeVar("_Number", int, float)


def read_argument(
    name: str,
    parse: Callable[[object], _Number],
    value: object,
    *,
    allows: Callable[[_Number], bool] = lambda _: True,
    accepted: str | None = None,
) -> _Number:
    """Return the number that a caller gave for an argument; ``allows`` says whether it is in range.

    Raises InputError that names the argument.
    """
    try:
        number = parse(value)
    except InputError as error:
        named = error.inside(prefix=name)
        raise InputError(
            named.message, field=named.field, value=named.value, accepted=accepted or named.accepted
        ) from None
    if not allows(number):
        raise refuse(value, "is out of range", field=name, accepted=accepted)
    return number


def read_workload(given: AnyWorkload, *, steps: int | None = None, name: str = "workload") -> Workload:
    """Return a workload, loaded if a name or a path is given, with other ``steps`` if given. Raises InputError.

    ``name`` is the argument that errors name.
    """
    workload = load_workload(given) if isinstance(given, str | Path) else given
    _check_kind(workload, Workload, name=name)
    return workload if steps is None else workload.with_steps(steps)


def read_profile(given: AnyProfile, *, name: str = "profile") -> HardwareProfile:
    """Return a profile, loaded if a name or a path is given. Raises InputError that names the argument."""
    profile = load_profile(given) if isinstance(given, str | Path) else given
    _check_kind(profile, HardwareProfile, name=name)
    return profile


def _check_kind(value: object, kind: type, *, name: str) -> None:
    """Raise InputError unless a value is a workload or a profile."""
    noun = "workload" if kind is Workload else "profile"
    if not isinstance(value, kind):
        raise refuse(
            value,
            f"is not a {kind.__name__}",
            field=name,
            accepted=f"a {kind.__name__}, as ckptplan.load_{noun} returns, or a name or path of one",
        )


def derive_bound(proofs: Iterable[float | None], seconds: float) -> Bound | None:
    """Return the best lower bound of ``proofs`` for a plan that takes ``seconds``; None if there is none.

    Raises CkptplanError if the plan is faster than the bound, except for rounding.
    """
    least = max((least for least in proofs if least is not None), default=None)
    if least is None:
        return None
    # A bound above a plan's time is wrong, and must not be reported as a proof.
    if least > seconds * (1 + COUNT_ROUNDING):
        raise CkptplanError(
            f"the bound on all schedules is {least:.12g} s, but one takes {seconds:.12g} s: "
            "this is a fault of ckptplan, please report it"
        )
    least = min(least, seconds)
    return Bound(least_seconds=least, gap=0.0 if seconds == 0 else (seconds - least) / seconds)


def find_resolution(workload: Workload) -> float:
    """Return the share of time below which two plans of a workload cannot be told apart.

    Without a calibration, it is ``RESOLUTION``: measured times have not been known better than that, and given
    ones are hardly better than measured ones. With a calibration, it is the ``uncertainty`` of its times, but
    at least ``RESOLUTION`` and at most 1 %. Most of an uncertainty is common to all plans, which consist of the
    same actions, so a larger difference between two plans is real.
    """
    calibration = workload.calibration
    return RESOLUTION if calibration is None else min(max(calibration.uncertainty, RESOLUTION), _MOST)


def read_deadline(deadline: float | str) -> float:
    """Return a deadline in seconds. Raises InputError unless it is above zero."""
    seconds: float = read_argument(
        "deadline",
        parse_duration,
        deadline,
        allows=lambda given: given > 0,
        accepted="more than 0 s, as '45 min' or '8 h'",
    )
    return seconds
