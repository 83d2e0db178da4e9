"""Lists, simulates, saves and compares the schedules of plans."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, get_args

from ckptplan.cost.arrays import COUNT_ROUNDING
from ckptplan.cost.case import Case
from ckptplan.errors import refuse
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import STATED
from ckptplan.model.progress import Progress
from ckptplan.model.record import Parameters
from ckptplan.schedule.actions import Action, Advance, Backward, Record
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.simulator import IllegalAction, Trace, play
from ckptplan.schedule.timeline import Sink
from ckptplan.storage.files import replace_file
from ckptplan.storage.schedules import KIND, ScheduleFormat, load_schedule, schedule_lines
from ckptplan.storage.versions import WRITTEN
from ckptplan.strategies.registry import reader_of, strategy_of
from ckptplan.version import __version__

#: Actions between two reports of progress, which take some milliseconds.
_PAUSE = 4096
#: Schedules of more actions than this are not compared, so that a table does not take seconds.
_MOST_COMPARED = 100_000
#: The totals that equal schedules have in common. Their seconds may differ by rounding.
_COUNTS = tuple(name for name in STATED if name != "seconds")


def actions(plan: Plan) -> Iterator[Action]:
    """Return an iterator over the actions of a plan's schedule (docs/schedule-format.md).

    Raises InputError for a strategy or parameters that this version does not have.
    """
    _check(plan)
    strategy = reader_of(plan.strategy, plan.splits)
    # Check the names here, so that the error is raised now and not with the first action.
    strategy.check_names(plan.parameters)
    parameters = strategy.clamp(plan.parameters, steps=plan.steps)
    return strategy.actions(parameters, steps=plan.steps, splits=plan.splits)


def schedule_of(plan: Plan) -> Schedule:
    """Return a plan's schedule for a runtime; an unknown strategy raises only when the actions are read."""
    _check(plan)
    return Schedule(
        steps=plan.steps,
        actions=partial(actions, plan),
        chunk_size=plan.parameters.get("chunk_size", plan.parameters.get("block_size", 1)),
        overlaps=plan.profile.overlaps_compute,
        local_states=max(1, plan.predicted.local_peak_bytes // max(1, plan.workload.state_bytes)),
    )


def make_schedule(strategy: str, *, steps: int, **parameters: int) -> Schedule:
    """Return the schedule of a closed-form strategy with the given parameters, without planning.

    Raises InputError.
    """
    closed_form = strategy_of(strategy)
    given = Parameters(parameters)
    closed_form.check(given, steps=steps)
    return Schedule(
        steps=steps,
        actions=partial(closed_form.actions, given, steps=steps, splits=None),
        chunk_size=given.get("chunk_size", 1),
    )


def simulate(
    plan: Plan,
    *,
    schedule: Iterable[Action] | str | Path | None = None,
    sink: Sink | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Simulate a plan's schedule, or another schedule at the plan's costs, and return its cost.

    ``schedule`` is an iterable of actions, or the name of a schedule file ('-' for standard input). The memory
    needed grows with the number of checkpoints stored at a time, not with the length. ``sink`` receives each
    event of the timeline as it occurs. Raises IllegalAction for the first action that breaks a law or exceeds
    the plan's budget, and InputError.
    """
    _check(plan)
    source = None
    if isinstance(schedule, (str, Path)):
        source = "standard input" if str(schedule) == "-" else str(schedule)
        schedule = load_schedule(schedule, steps=plan.steps)
    played = actions(plan) if schedule is None else schedule
    try:
        return play(
            played if progress is None else _watch(played, plan, progress),
            costs=Case(workload=plan.workload, profile=plan.profile).costs,
            # A plan by the printed equations keeps its budget by these equations, not in the simulation.
            budget=plan.goal.budget if plan.goal.model == "exact" else None,
            sink=sink,
        )
    except IllegalAction as error:
        raise (error if source is None else error.in_file(source)) from None


def save_schedule(
    plan: Plan,
    path: str | Path,
    *,
    format: ScheduleFormat | None = None,  # noqa: A002 - what users call it
    progress: Progress | None = None,
    command: str = "ckptplan.save_schedule",
) -> int:
    """Write a plan's schedule for trainers in any language; return the number of actions.

    ``format`` is 'jsonl' or 'csv'; by default it follows the file name, and is 'jsonl' for other endings. The
    path '-' is standard output. The file is written as a stream and replaced atomically. Raises InputError.
    """
    _check(plan)
    chosen = format or ("csv" if str(path).lower().endswith(".csv") else "jsonl")
    if chosen not in get_args(ScheduleFormat):
        raise refuse(chosen, "is not a schedule format", field="format", accepted="jsonl, csv")
    streamed = actions(plan)
    lines = schedule_lines(
        streamed if progress is None else _watch(streamed, plan, progress),
        head=make_schedule_head(plan, command=command),
        format_=chosen,
    )
    count = -1  # the head
    with replace_file(path) as file:
        for line in lines:
            file.write(line)
            count += 1
    return count


def make_schedule_head(plan: Plan, *, command: str) -> dict[str, Any]:
    """Return the first line of a schedule file as data: the kind of file and the plan it belongs to."""
    return {
        "kind": KIND,
        "schema_version": WRITTEN["schedule"],
        "version": __version__,
        "command": command,
        **identify_plan(plan),
    }


def identify_plan(plan: Plan) -> dict[str, Any]:
    """Return the strategy, the parameters and the job of a plan, to identify it in a document."""
    return {
        "strategy": plan.strategy,
        "parameters": dict(plan.parameters),
        "steps": plan.steps,
        "workload": plan.workload.identify(),
        "profile": plan.profile.identify(),
    }


def _check(plan: object) -> None:
    if not isinstance(plan, Plan):
        raise refuse(
            plan,
            "is not a Plan",
            field="plan",
            accepted="a Plan, as ckptplan.optimize or ckptplan.load_plan returns",
        )


def _watch(actions: Iterable[Action], plan: Plan, progress: Progress) -> Iterator[Action]:
    """Yield the actions and report progress: each step runs once, runs again as predicted, and is reversed."""
    total = 2 * plan.steps + plan.predicted.recomputed_steps
    done = 0
    for number, action in enumerate(actions, start=1):
        yield action
        if isinstance(action, (Advance, Record, Backward)):
            done += action.stop - action.start
        if number % _PAUSE == 0:
            progress(done, total)
    progress(done, total)


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


def _is_same(plan: Plan, other: Plan) -> bool:
    if plan.steps != other.steps or any(plan.predicted[name] != other.predicted[name] for name in _COUNTS):
        return False
    if not math.isclose(plan.predicted.seconds, other.predicted.seconds, rel_tol=COUNT_ROUNDING):
        return False
    pairs = zip_longest(actions(plan), actions(other))
    # A further pair means that the schedules are longer than what is compared.
    return all(left == right for left, right in islice(pairs, _MOST_COMPARED)) and next(pairs, None) is None
