"""Plans that can be chosen on a page: each with its numbers, its schedule and its file, within bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ckptplan.cost.case import Case
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.report.fields import format_parameters
from ckptplan.report.html.charts.look import Chart
from ckptplan.report.html.charts.schedule import chart_schedule
from ckptplan.report.html.page import Download, ShownPlan
from ckptplan.report.html.sketch import Detail, TooLongToDraw, sketch_schedule
from ckptplan.schedule.simulator import IllegalAction
from ckptplan.storage.plans import plan_text
from ckptplan.studies.pareto import ParetoFront
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds

#: Points of a front whose schedules are on the page, besides those that have a name.
_POINTS = 24
#: Events that are read for all points together, and characters of all their files.
_EVENTS, _CHARACTERS = 200_000, 700_000
#: Characters of a plan's file that a page may hold.
_LARGEST_FILE = 1_000_000
#: How finely a plan of its own is drawn, and one of many.
WHOLE, ONE_OF_MANY = Detail(), Detail(bars=500, intervals=120, events=50_000)


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A plan and what it is called."""

    label: str
    plan: Plan
    detail: Detail = ONE_OF_MANY


def show_plans(plans: Iterable[Labelled]) -> tuple[ShownPlan, ...]:
    """Return plans for a page; those whose schedules or files are too long for it say so."""
    events, characters = _EVENTS, _CHARACTERS
    shown = []
    for one in plans:
        most = one.detail.events if one.detail is WHOLE else min(one.detail.events, events)
        chart, note, seen = _draw(one, most)
        content: str | None = plan_text(one.plan)
        if len(content or "") > characters:
            content = None
        characters -= len(content or "")
        events -= 0 if one.detail is WHOLE else seen
        shown.append(
            ShownPlan(label=one.label, facts=list_facts(one.plan), chart=chart, note=note, content=content)
        )
    return tuple(shown)


def _draw(one: Labelled, most: int) -> tuple[Chart | None, str, int]:
    """Return the chart of a plan's schedule, or None and why; and the number of events that were read."""
    plan = one.plan
    detail = Detail(bars=one.detail.bars, intervals=one.detail.intervals, events=most)
    resident = Case(workload=plan.workload, profile=plan.profile).costs.resident_bytes
    try:
        sketch = sketch_schedule(plan, resident_bytes=resident, detail=detail)
    except TooLongToDraw as error:
        read = f"its first {format_count(error.events)} actions were" if error.events else "nothing of it was"
        return None, f"The schedule is too long to be drawn here: {read} read.", error.events
    except IllegalAction as error:
        return None, f"The schedule breaks a law: {error}", 0
    except InputError as error:
        return None, f"There is no schedule: {error}", 0
    return chart_schedule(plan, sketch), "", sketch.actions


def list_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return the numbers of a plan, the same for every plan."""
    predicted = plan.predicted
    return (
        ("strategy", plan.strategy),
        ("parameters", format_parameters(plan) or "none"),
        ("time", format_seconds(predicted.seconds)),
        ("over base", format_percent(predicted.overhead)),
        ("local memory", format_bytes(predicted.local_peak_bytes)),
        ("remote memory", format_bytes(predicted.remote_peak_bytes)),
        ("steps run again", format_count(predicted.recomputed_steps)),
    )


def choose_places(front: ParetoFront) -> list[int]:
    """Return the places of a front whose plans are shown: its ends, the best, the knee, and some between."""
    if not len(front):
        return []
    free = np.log(np.maximum(1, front.local_peak_bytes - front.resident_bytes))
    wanted = np.clip(np.linspace(free[0], free[-1], _POINTS), free[0], free[-1])
    between = np.searchsorted(free, wanted).tolist()
    named = [place for place in (front.place_within(front.budget_bytes), front.knee_place) if place is not None]
    return sorted({0, len(front) - 1, *named, *between})


def label_places(front: ParetoFront, places: Sequence[int]) -> list[Labelled]:
    """Return the plans of places of a front, with what distinguishes them."""
    best, knee = front.place_within(front.budget_bytes), front.knee_place
    found = []
    for place in places:
        local = format_bytes(int(front.local_peak_bytes[place]))
        role = "quickest within the budget" if place == best else "the knee" if place == knee else ""
        if place == best == knee:
            role += ", and the knee"
        text = f"{front.strategies[place]} in {local}"
        found.append(Labelled(label=f"{text} ({role})" if role else text, plan=front[place]))
    return found


def offer_plan(plan: Plan, *, text: str = "Download the plan (JSON)") -> tuple[Download, ...]:
    """Return a plan's file for a page, nothing if it is too large for one."""
    content = plan_text(plan)
    if len(content) > _LARGEST_FILE:
        return ()
    return (Download(text=text, file_name="plan.json", content=content),)
