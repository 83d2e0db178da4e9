"""Claims of section IV and the abstract on sequence length: the most steps that fit."""

from __future__ import annotations

from ckptplan.paper.claims.claim import FITTED_MEMORY, MEMORY, Claim, largest_on_a_grid, make_claim, more_than
from ckptplan.paper.setting import PaperSetting, Point, find_largest
from ckptplan.units import format_count, format_percent

#: The largest T that section IV reports for Base, for Standard, and for Remote and Double.
BASE_STEPS, STANDARD_STEPS, REMOTE_STEPS = 400, 2000, 4000


def base_length(setting: PaperSetting) -> Claim:
    """Section IV: how far plain backpropagation goes."""
    return _make_length_claim(
        setting,
        "base",
        BASE_STEPS,
        quote="could only fit sequences of length T = 400",
        why="The resident bytes were chosen so that this many steps fit and one more does not.",
    )


def standard_length(setting: PaperSetting) -> Claim:
    """Section IV: how far local checkpoints go."""
    return _make_length_claim(
        setting,
        "standard",
        STANDARD_STEPS,
        quote="the ability to scale up to sequences of length 2000",
        why=f"The spikes kept of each step ({setting.workload.resident_bytes_per_step} B a tile) "
        "were chosen to meet all three largest T; Base alone fixes the rest of the resident bytes.",
    )


def remote_length(setting: PaperSetting) -> Claim:
    """Section IV: how far remote checkpoints go."""
    longest = setting.find_largest_steps("remote")
    there = setting.replace(steps=longest)
    overhead = there.overhead(there.best("remote"))
    return _make_length_claim(
        setting,
        "remote",
        REMOTE_STEPS,
        quote="were able to scale up to sequences of length T = 4000",
        why="The limit is the spikes of all steps, which stay local. At the largest T chunks are single steps, "
        f"at {format_percent(overhead)} time.",
    )


def double_length(setting: PaperSetting) -> Claim:
    """Section IV: how far Double goes; at its largest T it coincides with Remote."""
    advised = find_largest(lambda steps: _evaluate_double(setting, steps, 8, 64).fits)
    return _make_length_claim(
        setting,
        "double",
        REMOTE_STEPS,
        quote="were able to scale up to sequences of length T = 4000",
        why="The largest T needs chunk_size = remote_chunk_size = 1, where Double is Remote. At "
        f"remote_chunk_size 64, as section V recommends, and chunk_size 8 it is {format_count(advised)}.",
    )


def _make_length_claim(setting: PaperSetting, strategy: str, steps: int, *, quote: str, why: str) -> Claim:
    return make_claim(
        setting,
        name=f"{strategy}-length",
        section="IV",
        quote=quote,
        subject=f"largest T of {strategy.capitalize()}",
        unit="steps",
        paper=f"{steps:,}",
        reading=largest_on_a_grid(steps),
        model=setting.find_largest_steps(strategy),
        equations=setting.find_largest_steps(strategy, model="paper"),
        inputs=MEMORY,
        fitted=FITTED_MEMORY,
        why=why,
    )


def longer_sequences(setting: PaperSetting) -> Claim:
    """Abstract: how many times longer."""
    base, double = setting.find_largest_steps("base"), setting.find_largest_steps("double")
    reported = REMOTE_STEPS / BASE_STEPS
    return make_claim(
        setting,
        name="longer-sequences",
        section="abstract",
        quote="enabling training on sequences over 10 times longer",
        subject="largest T of Double over that of Base",
        unit="times",
        paper="over 10",
        reading=more_than(10),
        model=double / max(1, base),
        equations=setting.find_largest_steps("double", model="paper")
        / max(1, setting.find_largest_steps("base")),
        inputs=MEMORY,
        fitted=FITTED_MEMORY,
        why=f"The lengths of section IV give {reported:.0f} times, not more.",
    )


def _evaluate_double(setting: PaperSetting, steps: int, chunk: int, segment: int) -> Point:
    return setting.replace(steps=steps).evaluate("double", chunk_size=chunk, remote_chunk_size=segment)
