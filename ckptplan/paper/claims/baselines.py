"""Claims of section V on Standard and Remote, the baselines of its study at T = 4096."""

from __future__ import annotations

from ckptplan.model.budget import Budget
from ckptplan.paper.claims.claim import (
    COMPUTE,
    MEMORY,
    TRANSFERS,
    UNAFFECTED,
    Claim,
    at_most,
    count_states,
    describe_point,
    exactly,
    make_claim,
)
from ckptplan.paper.figures.study import CHUNK_SIZES, STUDY_STEPS
from ckptplan.paper.setting import PaperSetting, nearest_root
from ckptplan.units import format_percent

#: The paper's strategies, except plain backpropagation.
_CHECKPOINTING = ("standard", "remote", "hierarchical", "double")


def standard_is_quickest(setting: PaperSetting) -> Claim:
    """Section V: why Standard is a baseline. It gets the memory it needs, more than a tile has."""
    there = setting.replace(steps=STUDY_STEPS)
    chunk = nearest_root(STUDY_STEPS)
    standard = there.evaluate("standard", chunk_size=chunk)
    allowed = Budget(local_bytes=standard.local_peak_bytes)
    fastest = there.best(*_CHECKPOINTING, budget=allowed)
    return make_claim(
        setting,
        name="standard-quickest",
        section="V",
        quote="Standard Checkpointing is the most computationally efficient method",
        subject=f"time of Standard at chunk_size {chunk} over the least of the four, in the same memory",
        unit="times",
        paper="least",
        reading=exactly(1),
        model=standard.seconds / fastest.seconds,
        inputs=(*COMPUTE, *TRANSFERS),
        why=f"The fastest is {describe_point(fastest)}.",
    )


def remote_is_smallest(setting: PaperSetting) -> Claim:
    """Section V: why Remote is the other baseline."""
    there = setting.replace(steps=STUDY_STEPS)
    remote = there.best("remote", objective="memory")
    smallest = there.best("base", *_CHECKPOINTING, objective="memory", budget=Budget())
    return make_claim(
        setting,
        name="remote-smallest",
        section="V",
        quote="Remote Checkpointing is optimal for memory usage",
        subject="least local peak of Remote over the least of the five",
        unit="times",
        paper="least",
        reading=exactly(1),
        model=remote.local_peak_bytes / smallest.local_peak_bytes,
        inputs=MEMORY,
        why=f"At chunk_size {remote.parameters['chunk_size']}, which costs "
        f"{format_percent(there.overhead(remote))} time.",
    )


def standard_chunk(setting: PaperSetting) -> Claim:
    """Section V: Standard's chunk is the square root of T."""
    there = setting.replace(steps=STUDY_STEPS)
    best = there.best("standard", objective="memory", budget=Budget())
    growing = there.best("growing", objective="memory", budget=Budget())
    return make_claim(
        setting,
        name="standard-chunk",
        section="V",
        quote="chunk_size = sqrt(T) = 64 ... optimally reduces memory usage",
        subject=f"chunk_size of Standard's least memory at T = {STUDY_STEPS:,}",
        unit="count",
        paper="64",
        reading=exactly(64),
        model=best.parameters["chunk_size"],
        equations=best.parameters["chunk_size"],
        why=f"The best of chunks of one length, {count_states(there, best):,.0f} states. Chunks that grow "
        f"towards the start (the strategy growing) need {count_states(there, growing):,.0f} states for the "
        "same recomputation.",
    )


def standard_chunk_and_time(setting: PaperSetting) -> Claim:
    """Section V: whether Standard's chunk matters for its time."""
    there = setting.replace(steps=STUDY_STEPS)
    points = there.evaluate_all("standard", [{"chunk_size": chunk} for chunk in CHUNK_SIZES])
    times = [point.seconds for point in points]
    return make_claim(
        setting,
        name="standard-chunk-time",
        section="V",
        quote="training times are unaffected by the choice of chunk size",
        subject=f"Standard's longest time over its shortest, chunk_size {CHUNK_SIZES[0]} to {CHUNK_SIZES[-1]}",
        unit="overhead",
        paper="unaffected",
        reading=at_most(UNAFFECTED),
        model=max(times) / min(times) - 1,
        equations=0.0,
        inputs=COMPUTE,
        why="A schedule does not recompute its last chunk, so longer chunks are slightly faster.",
    )


def remote_chunk(setting: PaperSetting) -> Claim:
    """Section V: Remote's chunk is the largest that fits."""
    there = setting.replace(steps=STUDY_STEPS)
    best = there.best("remote")
    fitting = [
        point.parameters["chunk_size"]
        for point in there.evaluate_all(
            "remote", [{"chunk_size": chunk} for chunk in range(1, STUDY_STEPS + 1)]
        )
        if point.fits
    ]
    return make_claim(
        setting,
        name="remote-chunk",
        section="V",
        quote="the largest size that can fit in local memory",
        subject=f"fastest chunk_size of Remote at T = {STUDY_STEPS:,}",
        unit="count",
        paper="the largest that fits",
        reading=exactly(max(fitting)),
        model=best.parameters["chunk_size"],
        inputs=MEMORY,
        why="A longer chunk never needs more checkpoints, and recomputes less.",
    )
