"""Implements ``compare_machines``: the best plan of a workload on each of several machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ckptplan.cost.roofline import belongs_elsewhere, find_missing
from ckptplan.errors import Infeasible, InputError, refuse
from ckptplan.model.display import DrawnOnAxes
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress, StagedProgress
from ckptplan.model.workload import ACTION_TIMES, TIMES, Workload
from ckptplan.planning.optimize import Ranking, rank_strategies
from ckptplan.planning.request import (
    AnyProfile,
    AnyWorkload,
    Request,
    Wishes,
    read_argument,
    read_deadline,
    read_workload,
)
from ckptplan.planning.suggestions import name_reason
from ckptplan.studies.largest import find_longest
from ckptplan.studies.sweep import list_several
from ckptplan.units import format_duration, format_things, parse_fraction

#: Where the step times of a workload come from: measured on this machine; given by a workload that names no
#: machine; estimated with a roofline; or measured on another machine, so that they say nothing about this one.
Times: TypeAlias = Literal["own", "given", "estimated", "carried over"]
#: The limit on overhead in the search for the largest T if the caller gives none: twice base's time.
REACH_OVERHEAD = 1.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The cost of a workload on one machine, for a run of ``batches`` batches."""

    profile: HardwareProfile
    result: Plan | Infeasible
    times: Times
    #: The numbers that an estimate of the times would need, as 'profile.launch_seconds'.
    missing: tuple[str, ...]
    #: The least and the most seconds of a batch with the same plan, if the times are estimated.
    interval: tuple[float, float] | None
    #: The longest sequence that fits, and the strategy for it; 0 and '' if none does.
    largest_steps: int
    largest_strategy: str
    batches: int

    @property
    def price_per_hour(self) -> float | None:
        """The price of an hour, in the currency of the profile or of the caller."""
        return self.profile.price_per_hour

    @property
    def plan(self) -> Plan | None:
        """The best plan, None if nothing fits."""
        return self.result if isinstance(self.result, Plan) else None

    @property
    def seconds(self) -> float | None:
        """The time of a batch; None without a plan, or without step times of this machine."""
        return None if self.plan is None or self.times == "carried over" else self.plan.predicted.seconds

    @property
    def run_seconds(self) -> float | None:
        """The time of the run."""
        return None if self.seconds is None else self.seconds * self.batches

    @property
    def run_ends(self) -> tuple[float, float]:
        """The least and the most time of the run, equal unless it is estimated; 0 if no time is known."""
        if self.interval is not None:
            return self.interval[0] * self.batches, self.interval[1] * self.batches
        seconds = self.run_seconds or 0.0
        return seconds, seconds

    @property
    def run_price(self) -> float | None:
        """The price of the run, in the currency of the price of an hour."""
        if self.run_seconds is None or self.price_per_hour is None:
            return None
        return self.run_seconds / 3600 * self.price_per_hour

    @property
    def most_joules(self) -> float | None:
        """The energy of the run at the power under load. This is an upper bound, since a machine also waits."""
        if self.run_seconds is None or self.profile.power_watts is None:
            return None
        return self.run_seconds * self.profile.power_watts

    def meets(self, deadline: float) -> bool:
        """Return whether the run is predicted to take at most ``deadline`` seconds."""
        return self.run_seconds is not None and self.run_seconds <= deadline

    def surely_meets(self, deadline: float) -> bool:
        """Return whether the run meets the deadline even at the upper end of an estimated time."""
        return self.meets(deadline) and self.run_ends[1] <= deadline


@dataclass(frozen=True, kw_only=True)
class MachineComparison(DrawnOnAxes):
    """Machines side by side, the quickest first; machines without a known time come last."""

    workload: Workload
    machines: tuple[Machine, ...]
    batches: int
    deadline: float | None
    #: The overhead that bounds the largest T, None for no limit.
    reach_overhead: float | None

    def __repr__(self) -> str:
        """Return the number of machines and the quickest machine, in one line."""
        quickest, machines = self.quickest, format_things(len(self.machines), "machine")
        answer = "no time is known"
        if quickest is not None and quickest.run_seconds is not None:
            answer = f"quickest {quickest.profile.name}, {format_duration(quickest.run_seconds)}"
        return f"<MachineComparison of {machines} for {self.workload.name}: {answer}>"

    @property
    def fits(self) -> bool:
        """Whether any machine has a plan."""
        return any(machine.plan is not None for machine in self.machines)

    @property
    def quickest(self) -> Machine | None:
        """The machine with the least time, None if no time is known."""
        first = self.machines[0]
        return None if first.run_seconds is None else first

    @property
    def cheapest(self) -> Machine | None:
        """The cheapest machine that meets the deadline, None if no price is known."""
        priced = [
            (machine.run_price, machine.run_seconds or 0.0, place, machine)
            for place, machine in enumerate(self.machines)
            if machine.run_price is not None and (self.deadline is None or machine.meets(self.deadline))
        ]
        return min(priced)[-1] if priced else None


def compare_machines(
    workload: AnyWorkload,
    profiles: Iterable[AnyProfile],
    *,
    steps: int | None = None,
    batches: int = 1,
    prices: Mapping[str, float] | float | None = None,
    deadline: float | str | None = None,
    strategies: Iterable[str] | str | None = None,
    objective: str = "time",
    model: str = "exact",
    max_overhead: float | str | None = None,
    local_bytes: int | str | None = None,
    headroom: float | str | None = None,
    remote_bytes: int | str | None = None,
    cache: str | None = None,
    effort: str = "quick",
    command: str = "ckptplan.compare_machines",
    progress: Progress | None = None,
) -> MachineComparison:
    """Return the best plan of ``workload`` on each profile, as ``optimize`` returns it.

    Arguments:
        workload: the training job, or its name, or the path of its file.
        profiles: the machines, or their names or paths. Their names must differ.
        steps: T, in place of the workload's T.
        batches: the number of batches in the run, at least 1. Time, price and energy are those of the run.
        prices: price of an hour, for all machines or by name; replaces the price in a profile.
        deadline: time that the run may take, in seconds or with a unit, as '8 h'.
        strategies, objective, model, max_overhead, local_bytes, headroom, remote_bytes, effort: as in
            ``optimize``.
        command: recorded in the provenance of the plans.
        progress: called with the work done and the total work.

    The largest T of a machine is found as in ``largest`` with the same limits, by default up to twice base's
    time. A machine on which nothing fits has the reason, without suggestions. Raises InputError.
    """
    workload = read_workload(workload, steps=steps)
    machines = list_several(profiles, HardwareProfile, "profiles")
    priced = _put_prices(machines, prices)
    count: object = batches
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise refuse(batches, "is out of range", field="batches", accepted="a whole number from 1")
    deadline_seconds = None if deadline is None else read_deadline(deadline)
    limit = REACH_OVERHEAD
    if max_overhead is not None:
        limit = read_argument("max_overhead", parse_fraction, max_overhead)
    wishes = Wishes(
        strategies=strategies,
        objective=objective,
        model=model,
        max_overhead=max_overhead,
        local_bytes=local_bytes,
        headroom=headroom,
        remote_bytes=remote_bytes,
        cache=cache,
        effort=effort,
    )
    any_plan = wishes | Wishes(objective="time", model="exact", max_overhead=limit)
    stages = StagedProgress(progress, stages=len(machines))
    compared: list[Machine] = []
    for place, (profile, priced_profile) in enumerate(zip(machines, priced, strict=True)):
        stages.begin(place)
        stages.report_share(0.0, next_share=0.9)
        report = None if progress is None else stages.report_solve
        request = Request.of(workload, profile, command=command, progress=report, **wishes)
        ranking = rank_strategies(request, only_best=True)
        times = _find_origin(request)
        # No suggestions are searched for: the other machines are the alternatives.
        result: Plan | Infeasible = ranking.best() if ranking.answers else name_reason(request)
        steps, strategy = find_longest(
            Request.of(workload, profile, command=command, unless_named="closed", **any_plan)
        )
        if isinstance(result, Plan) and result.steps > steps:
            # A solved strategy may reach further than the closed forms, which alone were searched.
            steps, strategy = result.steps, result.strategy
        compared.append(
            Machine(
                profile=priced_profile,
                result=result,
                times=times,
                missing=find_missing(workload, profile) if times == "carried over" else (),
                interval=_find_interval(ranking) if isinstance(result, Plan) and times == "estimated" else None,
                largest_steps=steps,
                largest_strategy=strategy,
                batches=batches,
            )
        )
    stages.end()
    return MachineComparison(
        workload=workload,
        machines=tuple(
            sorted(
                compared,
                key=lambda machine: (machine.plan is None, machine.seconds is None, machine.seconds or 0.0),
            )
        ),
        batches=batches,
        deadline=deadline_seconds,
        reach_overhead=limit,
    )


def _put_prices(
    machines: Sequence[HardwareProfile], prices: Mapping[str, float] | float | None
) -> list[HardwareProfile]:
    """Return the machines with the prices that the caller gave. Raises InputError."""
    names = [profile.name for profile in machines]
    named = prices if isinstance(prices, Mapping) else {} if prices is None else dict.fromkeys(names, prices)
    for name, price in named.items():
        if name not in names:
            raise refuse(name, "is not among the machines", field="prices", accepted=", ".join(names))
        if price is None:
            raise refuse(price, "is not a price", field="prices", accepted="a number from 0")
    try:
        return [
            profile.replace(price_per_hour=named[profile.name]) if profile.name in named else profile
            for profile in machines
        ]
    except InputError as error:
        raise error.inside(field="prices") from None


def _find_origin(request: Request) -> Times:
    timed = request.case.timed
    if belongs_elsewhere(timed, request.case.profile):
        # This includes times estimated for another machine, if this one lacks the rates for an estimate.
        return "carried over"
    if timed.is_estimated:
        return "estimated"
    return "given" if timed.timed_on is None else "own"


def _find_interval(ranking: Ranking) -> tuple[float, float] | None:
    """Return the least and the most seconds of the best plan within the intervals of estimated times."""
    case = ranking.request.case
    basis = case.timed.basis
    names = [name for name in (*TIMES, *ACTION_TIMES) if name in basis and basis[name].high is not None]
    if not names:
        return None

    def predict(end: str) -> float:
        costs = case.with_workload(**{name: getattr(basis[name], end) for name in names}).costs
        return ranking.answers[0].seconds(costs, ranking.request.goal.model)

    return predict("low"), predict("high")
