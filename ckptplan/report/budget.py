"""The local budget in words: what the headroom leaves of the memory, and a warning where nothing is left."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ckptplan.model.budget import find_memory
from ckptplan.model.goal import Goal
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.report.columns import wrap_lines
from ckptplan.units import format_bytes, format_share
from ckptplan.wording import Argument, Phrase, Wording, put_into_words

#: A plan that uses more than this share of the machine's local memory fills it.
_FULL = 0.95
#: The bytes of a workload that stay in local memory, or are scratch.
_BESIDE_SCHEDULE = ("resident_bytes", "resident_bytes_per_step", "workspace_bytes")


def format_headroom(memory: int, headroom: float) -> str:
    """Return '74.51 GiB less 10 % headroom'."""
    return f"{format_bytes(memory)} less {format_share(headroom)} headroom"


def describe_headroom(goal: Goal, profile: HardwareProfile) -> str:
    """Return what the local budget of a goal was taken from, '' if nothing is left free."""
    if not goal.headroom or goal.local_bytes is None:
        return ""
    return _format_rest(profile, budget=goal.local_bytes, headroom=goal.headroom)


def print_budget(console: Console, profile: HardwareProfile, *, budget: int | None, headroom: float) -> None:
    """Print the local budget if it has a headroom, where no other line of a table says so."""
    if headroom and budget is not None:
        where = " per unit" if profile.units > 1 else ""
        taken = _format_rest(profile, budget=budget, headroom=headroom)
        text = f"local budget: {format_bytes(budget)}{where}, {taken}"
        console.print(wrap_lines(text, width=console.width, style="dim"), soft_wrap=True)


def print_warning(console: Console, plan: Plan, *, wording: Wording = str) -> None:
    """Print a warning if a plan fills the memory of a machine, and all other bytes are taken to be none."""
    warning = warn_of_uncounted_bytes(plan, wording=wording)
    if warning:
        text = Text.assemble(("warning: ", "bold yellow"), warning)
        console.print(wrap_lines(text, width=console.width), soft_wrap=True)


def warn_of_uncounted_bytes(plan: Plan, *, wording: Wording = str) -> str:
    """Return the warning about weights, inputs and scratch memory that are not counted, '' if there is none."""
    share = plan.predicted.local_peak_bytes / plan.profile.local_bytes
    if share <= _FULL or any(getattr(plan.workload, field) for field in _BESIDE_SCHEDULE):
        return ""
    text = Phrase(
        f"the plan fills {format_share(share)} of local memory, but {', '.join(_BESIDE_SCHEDULE[:-1])} and "
        f"{_BESIDE_SCHEDULE[-1]} are 0: weights, inputs, gradients and optimizer are not counted; fill in "
        "these fields, let calibrate measure them, or leave room with ",
        Argument("headroom", "20%"),
    )
    return put_into_words(text, wording)


def _format_rest(profile: HardwareProfile, *, budget: int, headroom: float) -> str:
    return format_headroom(find_memory(budget, headroom, machine=profile.local_bytes), headroom)


def name_budget(budget: int, *, resident: int) -> str:
    """Return the name of a budget on an axis without what stays: what is left of it, '276 KiB of 512 KiB'."""
    if not resident:
        return f"budget {format_bytes(budget)}"
    return f"budget: {format_bytes(max(0, budget - resident))} of {format_bytes(budget)}"
