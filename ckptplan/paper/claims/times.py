"""Claims of section IV on time: each strategy's overhead at the largest T reported for it."""

from __future__ import annotations

from ckptplan.paper.claims.claim import COMPUTE, SLIGHT, TRANSFERS, Claim, about, at_most, make_claim, more_than
from ckptplan.paper.claims.lengths import REMOTE_STEPS, STANDARD_STEPS
from ckptplan.paper.setting import PaperSetting, Point, nearest_root
from ckptplan.units import format_percent


def standard_time(setting: PaperSetting) -> Claim:
    """Section IV: Standard's overhead at the largest T reported for it."""
    there = setting.replace(steps=STANDARD_STEPS)
    chunk = nearest_root(STANDARD_STEPS)
    point = there.evaluate("standard", chunk_size=chunk)
    return make_claim(
        setting,
        name="standard-time",
        section="IV",
        quote="with only a minimal increase in training time of approximately 5%",
        subject=f"overhead of Standard at T = {STANDARD_STEPS:,}, chunk_size {chunk}",
        unit="overhead",
        paper="approximately 5 %",
        reading=about(0.05, digit=0.01),
        model=there.overhead(point),
        equations=_printed_overhead(there, point),
        inputs=COMPUTE,
        fitted=("workload.recompute_seconds",),
        why="The exact model recomputes all chunks but the last, equation (5) counts all of them.",
    )


def remote_time(setting: PaperSetting) -> Claim:
    """Section IV: Remote's overhead."""
    there = setting.replace(steps=REMOTE_STEPS)
    point = there.best("remote")
    return make_claim(
        setting,
        name="remote-time",
        section="IV",
        quote="increasing training time by more then 50%",
        subject=f"overhead of Remote at T = {REMOTE_STEPS:,}, chunk_size {point.parameters['chunk_size']}",
        unit="overhead",
        paper="more than 50 %",
        reading=more_than(0.50),
        model=there.overhead(point),
        equations=_printed_overhead(there, point),
        inputs=(*COMPUTE, *TRANSFERS),
        fitted=("workload.forward_seconds",),
        why="No step time is published. It was chosen at the largest chunk that fits, the fastest.",
    )


def double_time(setting: PaperSetting) -> Claim:
    """Section IV: Double's overhead is 'not significant'; the paper gives no number."""
    there = setting.replace(steps=REMOTE_STEPS)
    point, costs = there.best("double"), there.costs
    twice = 2 * costs.recompute_seconds * costs.steps / costs.base_seconds
    remote = there.overhead(there.best("remote"))
    chunk, segment = point.parameters["chunk_size"], point.parameters["remote_chunk_size"]
    return make_claim(
        setting,
        name="double-time",
        section="IV",
        quote="achieved this scalability without significant time increases",
        subject=f"overhead of Double at T = {REMOTE_STEPS:,}, chunk_size {chunk}, remote_chunk_size {segment}",
        unit="overhead",
        paper="not significant",
        reading=at_most(SLIGHT),
        model=there.overhead(point),
        equations=_printed_overhead(there, point),
        inputs=(*COMPUTE, *TRANSFERS),
        why=f"By equation (12) recomputing every step twice adds {format_percent(twice)}, and transfers add "
        "to that; the paper calls the +5 % of Standard minimal. The sentence compares Double with "
        f"Remote, which adds {format_percent(remote)}.",
    )


def _printed_overhead(setting: PaperSetting, point: Point) -> float:
    """Return the overhead by the paper's equations."""
    seconds, _ = setting.evaluate_printed(point)
    return seconds / setting.costs.base_seconds - 1
