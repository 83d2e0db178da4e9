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
from typing import Any, Self, TypedDict, TypeVar, Unpack

from ckptplan.cost.case import Case, replace_numbers
from ckptplan.errors import Infeasible, InputError, quote_value
from ckptplan.model.budget import take_headroom
from ckptplan.model.checked import MOST_JOINED
from ckptplan.model.goal import Goal
from ckptplan.model.plan import Plan, Provenance
from ckptplan.model.prediction import BasisEntry
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress
from ckptplan.model.workload import Workload
from ckptplan.planning.basis import collect_basis
from ckptplan.planning.resolution import derive_bound, find_resolution
from ckptplan.search.answer import Answer
from ckptplan.search.infeasibility import find_reason
from ckptplan.search.question import Question
from ckptplan.strategies.registry import select_strategies
from ckptplan.units import parse_bytes, parse_headroom
from ckptplan.version import __version__
from ckptplan.wording import escape_controls


def make_provenance(command: str) -> Provenance:
    """Return the provenance of a plan that ``command`` makes now.

    The date is in UTC; SOURCE_DATE_EPOCH fixes it, so that builds of documents are reproducible.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    seconds = int(epoch) if epoch.isascii() and epoch.isdecimal() and len(epoch) < 11 else time.time()
    date = datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
    # A name of a file on the command line may hold any character.
    return Provenance(version=__version__, command=escape_controls(command)[:MOST_JOINED], date=date)


_Number = TypeVar("_Number", int, float)


class Wishes(TypedDict, total=False):
    """The options of a plan, as in ``ckptplan.optimize``."""

    strategies: Iterable[str] | str | None
    objective: str
    model: str
    max_overhead: float | str | None
    local_bytes: int | str | None
    headroom: float | str | None
    remote_bytes: int | str | None
    effort: str


def make_goal(*, unless_named: str | None = None, **wishes: Unpack[Wishes]) -> Goal:
    """Return a caller's wishes as a goal: validated, in SI units, with the strategies by name.

    ``unless_named`` is the group of strategies to use if none is named; None means those that are searched by
    default. Raises InputError.
    """
    named = wishes.pop("strategies", None)
    chosen = select_strategies(unless_named if named is None else named)
    if named is None and wishes.get("model") == "paper":
        chosen = [strategy for strategy in chosen if strategy.printed is not None]
    numbers: dict[str, Any] = {**wishes}
    return Goal(strategies=tuple(strategy.name for strategy in chosen), **numbers)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A case and the goal of a plan for it. Budgets of the goal that are None are unbounded."""

    case: Case
    goal: Goal
    provenance: Provenance
    #: Called with the work done and the total work of a long search.
    progress: Progress | None = None
    #: Whether Ctrl-C returns the best answers so far instead of raising.
    keeps_best: bool = True
    #: Whether the local budget is the plan's own peak, as for a point of a front.
    own_budget: bool = False
    #: Whether the caller named the headroom, which then holds for every memory.
    names_headroom: bool = False

    @classmethod
    def of(
        cls,
        workload: Workload,
        profile: HardwareProfile,
        *,
        command: str,
        unless_named: str | None = None,
        progress: Progress | None = None,
        **wishes: Unpack[Wishes],
    ) -> Self:
        """Return a caller's request; budgets default to those of the profile, less its headroom.

        A local budget that the caller names has no headroom, unless ``headroom`` is named, too.
        ``command`` is recorded in the provenance; ``unless_named`` is as in ``make_goal``. Raises InputError.
        """
        check_kind(workload, Workload, name="workload", load="load_workload")
        check_kind(profile, HardwareProfile, name="profile", load="load_profile")
        names_headroom = wishes.get("headroom") is not None
        wishes |= _read_local_budget(profile, wishes.get("local_bytes"), wishes.get("headroom"))
        if wishes.get("remote_bytes") is None:
            wishes["remote_bytes"] = profile.remote_bytes
        return cls(
            case=Case(workload=workload, profile=profile),
            goal=make_goal(unless_named=unless_named, **wishes),
            provenance=make_provenance(command),
            progress=progress,
            names_headroom=names_headroom,
        )

    @classmethod
    def of_plan(cls, plan: Plan, *, command: str, progress: Progress | None = None) -> Self:
        """Return the request that a plan answers: its case and its goal.

        A goal that names no strategies asks for those that are searched by default. Raises InputError if it
        names one that is unknown.
        """
        asked = tuple(one.name for one in select_strategies(list(plan.goal.strategies) or None))
        return cls(
            case=Case(workload=plan.workload, profile=plan.profile),
            goal=plan.goal.model_copy(update={"strategies": asked}),
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
            keeps_best=self.keeps_best,
        )

    def plan(self, answer: Answer, *notes: BasisEntry, proofs: Iterable[float | None] | None = None) -> Plan:
        """Return an answer as a plan; ``notes`` are added to its ``estimate_basis``.

        ``proofs`` are lower bounds of the time of every schedule; None is that of the answer alone.
        """
        workload, profile = self.case.timed, self.case.profile
        predicted = answer.predicted(self.case.costs)
        searched = (BasisEntry(field="search", kind="stated", text=note) for note in answer.notes)
        return Plan(
            strategy=answer.strategy.name,
            parameters=answer.parameters,
            steps=workload.steps,
            goal=self.goal,
            predicted=predicted,
            splits=answer.splits,
            regular=answer.regular,
            bound=derive_bound([answer.least_seconds] if proofs is None else proofs, predicted.seconds),
            workload=workload,
            profile=profile,
            estimate_basis=(
                *collect_basis(workload, profile, self.goal, own_budget=self.own_budget),
                *searched,
                *notes,
            ),
            provenance=self.provenance,
        )

    def infeasible(self, subject: str) -> Infeasible:
        """Return why nothing fits, as an error that begins with ``subject``."""
        return find_reason(self.question(), subject=subject)

    def for_case(self, case: Case) -> Request:
        """Return the same request for another case, with the budgets of that case's profile."""
        profile = case.profile
        return dataclasses.replace(self, case=case).replace(
            local_bytes=profile.local_budget_bytes,
            headroom=profile.headroom,
            remote_bytes=profile.remote_bytes,
        )

    def for_workload(self, workload: Workload) -> Request:
        """Return the same request, with the same budgets, for another workload on the same profile."""
        return dataclasses.replace(self, case=Case(workload=workload, profile=self.case.profile))

    def replace(self, **wishes: Any) -> Request:
        """Return the request with other values of the goal's fields, which are not validated."""
        return dataclasses.replace(self, goal=self.goal.model_copy(update=wishes))


def replace_memory(
    profile: HardwareProfile,
    *,
    local_bytes: int | str | None = None,
    headroom: float | str | None = None,
    remote_bytes: int | str | None = None,
) -> HardwareProfile:
    """Return a profile whose memory gives the budgets that a caller named, for studies that vary its memory.

    As in ``Request.of``, a local budget without a named headroom has none. Raises InputError.
    """
    named = {"local_bytes": local_bytes, "headroom": headroom, "remote_bytes": remote_bytes}
    if local_bytes is not None and headroom is None:
        named["headroom"] = 0.0
    return replace_numbers(profile, {name: value for name, value in named.items() if value is not None})


def _read_local_budget(
    profile: HardwareProfile, local_bytes: int | str | None, headroom: float | str | None
) -> Wishes:
    """Return the local budget and its headroom as a goal has them. Raises InputError."""
    named = _read("local_bytes", parse_bytes, local_bytes)
    share = _read("headroom", parse_headroom, headroom)
    if named is not None and (named <= 0 or not share):
        # The goal checks the number.
        return {"local_bytes": named, "headroom": 0.0}
    share = profile.headroom if share is None else share
    memory = profile.local_bytes if named is None else named
    return {"local_bytes": take_headroom(memory, share), "headroom": share}


def _read(field: str, parse: Callable[[object], _Number], value: object) -> _Number | None:
    """Return the number that a caller gave for a field, None if there is none. Raises InputError."""
    try:
        return None if value is None else parse(value)
    except InputError as error:
        raise error.inside(prefix=field) from None


def check_kind(value: object, kind: type, *, name: str, load: str) -> None:
    """Raise InputError unless a value is what ``ckptplan.<load>`` returns."""
    if not isinstance(value, kind):
        raise InputError(
            f"{quote_value(value)} is not a {kind.__name__}",
            field=name,
            value=value,
            accepted=f"a {kind.__name__}, as ckptplan.{load} returns",
        )
