"""Claims of section V on Hierarchical, and on what bounds the time of transfers."""

from __future__ import annotations

from ckptplan.paper.claims.claim import (
    COMPUTE,
    MEMORY,
    SLIGHT,
    TRANSFERS,
    Claim,
    at_most,
    count_checkpoints,
    describe_point,
    less_than,
    make_claim,
)
from ckptplan.paper.figures.study import STUDY_STEPS
from ckptplan.paper.setting import PaperSetting, nearest_root
from ckptplan.units import format_bytes, format_seconds


def hierarchical_in_the_same_memory(setting: PaperSetting) -> Claim:
    """Section V, read as a choice within a budget."""
    there = setting.replace(steps=STUDY_STEPS)
    remote, hierarchical = there.best("remote"), there.best("hierarchical")
    return make_claim(
        setting,
        name="hierarchical-same-memory",
        section="V",
        quote="it does not significantly improve training time compared to Remote Checkpointing",
        subject="time that Hierarchical saves over Remote, each at its best within the tile, T = "
        f"{STUDY_STEPS:,}",
        unit="overhead",
        paper="not significant",
        reading=at_most(SLIGHT),
        model=1 - hierarchical.seconds / remote.seconds,
        equations=1 - there.evaluate_printed(hierarchical)[0] / there.evaluate_printed(remote)[0],
        inputs=(*MEMORY, *COMPUTE, *TRANSFERS),
        why="A local checkpoint takes the memory of one step of the chunk, and saves less time: "
        f"{describe_point(hierarchical)} against {describe_point(remote)}.",
    )


def hierarchical_at_the_same_chunk(setting: PaperSetting) -> Claim:
    """Section V, read as Figure 4 (top) shows it: local checkpoints are added at a fixed chunk."""
    there = setting.replace(steps=STUDY_STEPS)
    chunk = nearest_root(STUDY_STEPS)
    local = chunk // 2
    remote = there.evaluate("remote", chunk_size=chunk)
    hierarchical = there.evaluate("hierarchical", chunk_size=chunk, nb_local=local)
    more = format_bytes(hierarchical.local_peak_bytes - remote.local_peak_bytes)
    return make_claim(
        setting,
        name="hierarchical-same-chunk",
        section="V",
        quote="increasing the number of local checkpoints ... does not significantly improve training time "
        "compared to Remote Checkpointing",
        subject=f"time that nb_local {local} saves over Remote, both at chunk_size {chunk}, T = "
        f"{STUDY_STEPS:,}",
        unit="overhead",
        paper="not significant",
        reading=at_most(SLIGHT),
        model=1 - hierarchical.seconds / remote.seconds,
        inputs=(*COMPUTE, *TRANSFERS),
        equations=1 - there.evaluate_printed(hierarchical)[0] / there.evaluate_printed(remote)[0],
        why=f"A checkpoint that stays local is not transferred: with {local} of {count_checkpoints(chunk)} "
        f"local, {100 * local / count_checkpoints(chunk):.0f} % of the transfers are saved for {more} more "
        "memory.",
    )


def hierarchical_memory(setting: PaperSetting) -> Claim:
    """Section V claims both directions, in consecutive sentences."""
    there = setting.replace(steps=STUDY_STEPS)
    chunk = nearest_root(STUDY_STEPS)
    few, many = (there.evaluate("hierarchical", chunk_size=chunk, nb_local=local) for local in (1, 16))
    model = (many.local_peak_bytes - few.local_peak_bytes) / there.costs.state_bytes
    equations = (there.evaluate_printed(many)[1] - there.evaluate_printed(few)[1]) / there.costs.state_bytes
    return make_claim(
        setting,
        name="hierarchical-memory",
        section="V",
        quote="increasing the number of local checkpoints effectively reduces memory usage",
        subject=f"states that nb_local 16 adds to nb_local 1, chunk_size {chunk}, T = {STUDY_STEPS:,}",
        unit="states",
        paper="reduces",
        reading=less_than(0),
        model=model,
        equations=equations,
        why="The paper contradicts itself: the next sentence says 'effectively increases local memory "
        "usage', and so does equation (8), where each local checkpoint adds a state.",
    )


def bandwidth_binds(setting: PaperSetting) -> Claim:
    """Section V: bandwidth rather than synchronisation."""
    costs = setting.costs
    both = costs.write_seconds + costs.read_seconds
    model = 2 * costs.message_seconds / (both + 2 * costs.message_seconds)
    return make_claim(
        setting,
        name="bandwidth-binds",
        section="V",
        quote="memory bandwidth, rather than synchronization, becomes the primary bottleneck",
        subject="share of synchronisation in the time of a transfer",
        unit="share",
        paper="less than bandwidth's",
        reading=less_than(0.5),
        model=model,
        inputs=TRANSFERS,
        fitted=("profile.synchronisation_seconds",),
        why=f"T_s ({format_seconds(costs.message_seconds)}) and the bandwidth behind T_c "
        f"({format_seconds(both / 2)} a state, one way) are both unpublished.",
    )
