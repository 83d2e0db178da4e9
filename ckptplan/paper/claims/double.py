"""Claims of section V on Double, and of section VI on how its memory grows with T."""

from __future__ import annotations

import math
from itertools import pairwise

from ckptplan.model.budget import Budget
from ckptplan.paper.claims.claim import (
    COMPUTE,
    MEMORY,
    SLIGHT,
    TRANSFERS,
    Claim,
    at_most,
    between,
    count_checkpoints,
    count_states,
    describe_point,
    exactly,
    make_claim,
    more_than,
)
from ckptplan.paper.figures.study import STUDY_STEPS
from ckptplan.paper.setting import PaperSetting, Point, nearest_root
from ckptplan.units import format_percent, format_seconds

#: A chunk_size within the range of Figure 4, at which local checkpoints are added to Double.
_CHUNK = 16


def double_gains_from_local_checkpoints(setting: PaperSetting) -> Claim:
    """Section V: how Double differs from Hierarchical."""
    there = setting.replace(steps=STUDY_STEPS)
    few, many = (
        there.evaluate("double", chunk_size=_CHUNK, remote_chunk_size=_CHUNK * local) for local in (1, _CHUNK)
    )
    return make_claim(
        setting,
        name="double-gains",
        section="V",
        quote="did not improve for increasing number of local checkpoints, it does for Double Checkpointing",
        subject=f"time that {_CHUNK} chunks a segment save over 1, chunk_size {_CHUNK}, T = {STUDY_STEPS:,}",
        unit="overhead",
        paper="improves",
        reading=more_than(SLIGHT),
        model=1 - many.seconds / few.seconds,
        inputs=(*COMPUTE, *TRANSFERS),
        why=f"One remote checkpoint in {_CHUNK} remains, for {_CHUNK - 1} more states: "
        f"{format_seconds(few.seconds)} become {format_seconds(many.seconds)}.",
    )


def double_near_standard(setting: PaperSetting) -> Claim:
    """Section V: 'close' in memory and 'almost' in time, taken together."""
    there = setting.replace(steps=STUDY_STEPS)
    standard = there.evaluate("standard", chunk_size=nearest_root(STUDY_STEPS))
    double = there.best("double")
    least = there.best("remote", objective="memory")
    above = double.local_peak_bytes / least.local_peak_bytes - 1
    return make_claim(
        setting,
        name="double-near-standard",
        section="V",
        quote="low local memory requirements close to those of Remote Checkpointing while almost being as "
        "fast as Standard Checkpointing",
        subject=f"time of Double within the tile over that of Standard without limit, T = {STUDY_STEPS:,}",
        unit="overhead",
        paper="almost as fast",
        reading=at_most(SLIGHT),
        model=double.seconds / standard.seconds - 1,
        equations=there.evaluate_printed(double)[0] / there.evaluate_printed(standard)[0] - 1,
        inputs=(*COMPUTE, *TRANSFERS),
        why=f"{describe_point(double)}, with a local peak {format_percent(above)} above the least of Remote, "
        f"recomputes {_count_recomputed(there, double):.1f} steps per step of the sequence, Standard at most "
        "one.",
    )


def remote_chunk_of_double(setting: PaperSetting) -> Claim:
    """Section V: the best remote chunk is in the range 64 to 256."""
    there = setting.replace(steps=STUDY_STEPS)
    double = there.best("double")
    free = count_states(there, there.profile.local_bytes)
    return make_claim(
        setting,
        name="double-remote-chunk",
        section="V",
        quote="found to be remote_chunk_size between 64 and 256",
        subject=f"remote_chunk_size of the fastest Double within the tile, T = {STUDY_STEPS:,}",
        unit="count",
        paper="64 to 256",
        reading=between(64, 256),
        model=double.parameters["remote_chunk_size"],
        inputs=MEMORY,
        why=f"Memory decides: {free:.0f} states are free, as many as {describe_point(double)} takes.",
    )


def chunk_of_double(setting: PaperSetting) -> Claim:
    """Section V: Double's best chunk is the square root of its remote chunk."""
    there = setting.replace(steps=STUDY_STEPS)
    segment = 256
    points = there.evaluate_all(
        "double", [{"chunk_size": chunk, "remote_chunk_size": segment} for chunk in range(1, segment + 1)]
    )
    best = min(points, key=lambda point: point.local_peak_bytes)
    return make_claim(
        setting,
        name="double-chunk",
        section="V",
        quote="chunk_size = sqrt(remote_chunk_size) is optimal",
        subject=f"chunk_size of Double's least memory at remote_chunk_size {segment}",
        unit="count",
        paper=f"{nearest_root(segment)}",
        reading=exactly(nearest_root(segment)),
        model=best.parameters["chunk_size"],
        equations=nearest_root(segment),
        why=f"{count_states(there, best):,.0f} states, of all chunks from 1 to {segment}.",
    )


def larger_remote_chunks(setting: PaperSetting) -> Claim:
    """Section V and Figure 5: larger remote chunks are faster and need more memory."""
    there = setting.replace(steps=STUDY_STEPS)
    segments = [2**power for power in range(4, STUDY_STEPS.bit_length())]
    points = there.evaluate_all(
        "double",
        [{"chunk_size": nearest_root(segment), "remote_chunk_size": segment} for segment in segments],
    )
    confirmed = sum(
        two.seconds < one.seconds and two.local_peak_bytes > one.local_peak_bytes
        for one, two in pairwise(points)
    )
    return make_claim(
        setting,
        name="larger-remote-chunks",
        section="V",
        quote="resulting in faster training times but higher memory usage",
        subject=f"doublings of remote_chunk_size, {segments[0]} to {segments[-1]:,}, that are faster and "
        "need more memory",
        unit="count",
        paper="all",
        reading=exactly(len(points) - 1),
        model=confirmed,
        inputs=(*COMPUTE, *TRANSFERS),
        why="They save time of transfers, of which synchronisation is the smaller part.",
    )


def memory_growth(setting: PaperSetting) -> Claim:
    """Section VI: memory grows as the fourth root of T, 'even for purely on-chip memory scenarios'."""
    long = STUDY_STEPS**2
    states = {}
    for steps in (STUDY_STEPS, long):
        there = setting.replace(steps=steps)
        states[steps] = count_states(there, there.best("nested", objective="memory", budget=Budget()))
    there = setting.replace(steps=STUDY_STEPS)
    root = nearest_root(nearest_root(STUDY_STEPS))
    double = count_states(there, there.evaluate("double", chunk_size=root, remote_chunk_size=root * root))
    remote = count_checkpoints(root * root)
    least = 3 * STUDY_STEPS ** (1 / 3)
    return make_claim(
        setting,
        name="memory-growth",
        section="VI",
        quote="purely on-chip memory scenarios due to it's drastically reduced memory requirement, O(T^(1/4))",
        subject=f"exponent of T in the least states of Double all on chip, T = {STUDY_STEPS:,} to {long:,}",
        unit="exponent",
        paper="1/4",
        reading=at_most(0.25),
        model=math.log(states[long] / states[STUDY_STEPS]) / math.log(long / STUDY_STEPS),
        why=f"Double holds {double:.0f} states on chip at T = {STUDY_STEPS:,} because {remote} more are "
        "remote. With all on chip (the strategy nested) chunk_size + segment_size / chunk_size + T "
        f"/ segment_size is least at 3 T^(1/3) = {least:.0f}; counted exactly, "
        f"{states[STUDY_STEPS]:.0f} states. The spikes of all steps add to that, linearly in T.",
    )


def _count_recomputed(setting: PaperSetting, point: Point) -> float:
    """Return the steps recomputed per step of the sequence."""
    costs = setting.costs
    messages = 2 * count_checkpoints(point.parameters["remote_chunk_size"])
    transfers = messages * costs.message_seconds + messages / 2 * (costs.write_seconds + costs.read_seconds)
    return (point.seconds - costs.base_seconds - transfers) / costs.recompute_seconds / costs.steps
