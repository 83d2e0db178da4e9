"""Claims of section V, the hyperparameter study at T = 4096, and of the discussion on memory's growth."""

from __future__ import annotations

import math
from itertools import pairwise

from ckptplan.model.budget import Budget
from ckptplan.replication.claim import (
    COMPUTE,
    MEMORY,
    SLIGHT,
    TRANSFERS,
    UNAFFECTED,
    Claim,
    at_most,
    between,
    claim,
    exactly,
    less_than,
    more_than,
)
from ckptplan.replication.figures import CHUNK_SIZES, STUDY_STEPS
from ckptplan.replication.setting import Point, Setting, nearest_root
from ckptplan.units import format_bytes, format_percent, format_seconds

#: The strategies of the paper that checkpoint.
_CHECKPOINTING = ("standard", "remote", "hierarchical", "double")
#: A chunk within the range of Figure 4, where Double's and Hierarchical's local checkpoints are compared.
_CHUNK = 16


def standard_is_quickest(setting: Setting) -> Claim:
    """Section V: why Standard is a baseline; asked without a memory limit, as it needs more than there is."""
    there = setting.changed(steps=STUDY_STEPS)
    chunk = nearest_root(STUDY_STEPS)
    standard = there.point("standard", chunk_size=chunk)
    allowed = Budget(local_bytes=standard.local_peak_bytes)
    quickest = there.best(*_CHECKPOINTING, budget=allowed)
    return claim(
        setting,
        name="standard-quickest",
        section="V",
        quote="Standard Checkpointing is the most computationally efficient method",
        subject=f"time of Standard at chunk_size {chunk} over the least of the four, in the same memory",
        unit="times",
        paper="least",
        reading=exactly(1),
        model=standard.seconds / quickest.seconds,
        inputs=(*COMPUTE, *TRANSFERS),
        why=f"The quickest is {_at(quickest)}.",
    )


def remote_is_smallest(setting: Setting) -> Claim:
    """Section V: why Remote is the other baseline."""
    there = setting.changed(steps=STUDY_STEPS)
    remote = there.best("remote", objective="memory")
    smallest = there.best("base", *_CHECKPOINTING, objective="memory", budget=Budget())
    return claim(
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


def standard_chunk(setting: Setting) -> Claim:
    """Section V: the square root of T."""
    there = _study(setting)
    best = there.best("standard", objective="memory", budget=Budget())
    growing = there.best("growing", objective="memory", budget=Budget())
    return claim(
        setting,
        name="standard-chunk",
        section="V",
        quote="chunk_size = sqrt(T) = 64, for the given T = 4096, optimally reduces memory usage",
        subject=f"chunk_size of Standard's least memory at T = {STUDY_STEPS:,}",
        unit="count",
        paper="64",
        reading=exactly(64),
        model=best.parameters["chunk_size"],
        equations=best.parameters["chunk_size"],
        why=f"The best of chunks of one length, {_states(there, best):,.0f} states. Chunks that grow towards "
        f"the start (the strategy growing) need {_states(there, growing):,.0f} states for the same "
        "recomputation.",
    )


def standard_chunk_and_time(setting: Setting) -> Claim:
    """Section V: whether Standard's chunk matters for its time."""
    there = _study(setting)
    points = there.points("standard", [{"chunk_size": chunk} for chunk in CHUNK_SIZES])
    times = [point.seconds for point in points]
    return claim(
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
        why="Equation (5) has no chunk_size. A schedule does not recompute its last chunk, so that longer "
        "chunks are a little quicker.",
    )


def remote_chunk(setting: Setting) -> Claim:
    """Section V: the largest chunk that fits."""
    there = _study(setting)
    best = there.best("remote")
    fitting = [
        point.parameters["chunk_size"]
        for point in there.points("remote", [{"chunk_size": chunk} for chunk in range(1, STUDY_STEPS + 1)])
        if point.fits
    ]
    return claim(
        setting,
        name="remote-chunk",
        section="V",
        quote="the optimal chunk_size is the largest size that can fit in local memory",
        subject=f"quickest chunk_size of Remote at T = {STUDY_STEPS:,}",
        unit="count",
        paper="the largest that fits",
        reading=exactly(max(fitting)),
        model=best.parameters["chunk_size"],
        inputs=MEMORY,
        why=f"A longer chunk never has more checkpoints, and recomputes less. {max(fitting)} is the largest "
        f"that fits {format_bytes(there.profile.local_bytes)}.",
    )


def hierarchical_in_the_same_memory(setting: Setting) -> Claim:
    """Section V, read as a choice within a budget."""
    there = _study(setting)
    remote, hierarchical = there.best("remote"), there.best("hierarchical")
    return claim(
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
        equations=1 - there.printed(hierarchical)[0] / there.printed(remote)[0],
        inputs=(*MEMORY, *COMPUTE, *TRANSFERS),
        why=f"A local checkpoint takes the place of a step of the chunk, and saves less: {_at(hierarchical)} "
        f"against {_at(remote)}.",
    )


def hierarchical_at_the_same_chunk(setting: Setting) -> Claim:
    """Section V, read as Figure 4 (top) shows it: the chunk stays, local checkpoints come on top."""
    there = _study(setting)
    chunk = nearest_root(STUDY_STEPS)
    local = chunk // 2
    remote = there.point("remote", chunk_size=chunk)
    hierarchical = there.point("hierarchical", chunk_size=chunk, nb_local=local)
    more = format_bytes(hierarchical.local_peak_bytes - remote.local_peak_bytes)
    return claim(
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
        equations=1 - there.printed(hierarchical)[0] / there.printed(remote)[0],
        why=f"A checkpoint that stays local is not transferred: with {local} of {_checkpoints(chunk)} at "
        f"home {100 * local / _checkpoints(chunk):.0f} % of the transfers go, for {more} more. With all of "
        "them at home Hierarchical is Standard.",
    )


def hierarchical_memory(setting: Setting) -> Claim:
    """Section V says it both ways, in consecutive sentences."""
    there = _study(setting)
    chunk = nearest_root(STUDY_STEPS)
    few, many = (there.point("hierarchical", chunk_size=chunk, nb_local=local) for local in (1, 16))
    model = (many.local_peak_bytes - few.local_peak_bytes) / there.costs.state_bytes
    equations = (there.printed(many)[1] - there.printed(few)[1]) / there.costs.state_bytes
    return claim(
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
        "usage', and so does equation (8), where each local checkpoint is a state.",
    )


def bandwidth_binds(setting: Setting) -> Claim:
    """Section V: bandwidth rather than synchronisation."""
    costs = setting.costs
    both = costs.write_seconds + costs.read_seconds
    model = 2 * costs.message_seconds / (both + 2 * costs.message_seconds)
    return claim(
        setting,
        name="bandwidth-binds",
        section="V",
        quote="the limited memory bandwidth, rather than synchronization, becomes the primary bottleneck",
        subject="share of synchronisation in the time of a transfer",
        unit="share",
        paper="less than bandwidth's",
        reading=less_than(0.5),
        model=model,
        inputs=TRANSFERS,
        fitted=("profile.synchronisation_seconds",),
        why=f"T_s ({format_seconds(costs.message_seconds)}) and the bandwidth behind T_c "
        f"({format_seconds(both / 2)} a state, one way) are both unpublished; T_s was taken small because of "
        "this sentence.",
    )


def double_gains_from_local_checkpoints(setting: Setting) -> Claim:
    """Section V: what sets Double apart from Hierarchical."""
    there = _study(setting)
    few, many = (
        there.point("double", chunk_size=_CHUNK, remote_chunk_size=_CHUNK * local) for local in (1, _CHUNK)
    )
    return claim(
        setting,
        name="double-gains",
        section="V",
        quote="while the training time for Hierachical Checkpointing did not improve for increasing number "
        "of local checkpoints, it does for Double Checkpointing",
        subject=f"time that {_CHUNK} chunks a segment save over 1, chunk_size {_CHUNK}, T = {STUDY_STEPS:,}",
        unit="overhead",
        paper="improves",
        reading=more_than(SLIGHT),
        model=1 - many.seconds / few.seconds,
        inputs=(*COMPUTE, *TRANSFERS),
        why=f"One remote checkpoint in {_CHUNK} is left, for {_CHUNK - 1} more states: "
        f"{format_seconds(few.seconds)} become {format_seconds(many.seconds)}.",
    )


def double_near_standard(setting: Setting) -> Claim:
    """Section V: the two 'close' and 'almost' taken together."""
    there = _study(setting)
    standard = there.point("standard", chunk_size=nearest_root(STUDY_STEPS))
    double = there.best("double")
    least = there.best("remote", objective="memory")
    above = double.local_peak_bytes / least.local_peak_bytes - 1
    return claim(
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
        equations=there.printed(double)[0] / there.printed(standard)[0] - 1,
        inputs=(*COMPUTE, *TRANSFERS),
        why=f"{_at(double)}, with a local peak {format_percent(above)} above the least of Remote, runs "
        f"{_again(there, double):.1f} steps again for each of the sequence, Standard one at most. 'Almost' "
        "is read as a tenth.",
    )


def remote_chunk_of_double(setting: Setting) -> Claim:
    """Section V: the range of the optimum."""
    there = _study(setting)
    double, knee = there.best("double"), there.best("double", objective="balanced")
    free = _states(there, there.profile.local_bytes)
    return claim(
        setting,
        name="double-remote-chunk",
        section="V",
        quote="the optimal configuration was found to be remote_chunk_size between 64 and 256",
        subject=f"remote_chunk_size of the quickest Double within the tile, T = {STUDY_STEPS:,}",
        unit="count",
        paper="64 to 256",
        reading=between(64, 256),
        model=double.parameters["remote_chunk_size"],
        inputs=MEMORY,
        why=f"The memory decides: {free:.0f} states are free, which is what {_at(double)} takes; the "
        "resident bytes behind that were chosen for the largest T. The paper does not define the best "
        "trade-off: the knee of time and memory (--objective balanced) is at remote_chunk_size "
        f"{knee.parameters['remote_chunk_size']}, {format_percent(there.overhead(knee))} time.",
    )


def chunk_of_double(setting: Setting) -> Claim:
    """Section V: the square root of the remote chunk."""
    there = _study(setting)
    segment = 256
    points = there.points(
        "double", [{"chunk_size": chunk, "remote_chunk_size": segment} for chunk in range(1, segment + 1)]
    )
    best = min(points, key=lambda point: point.local_peak_bytes)
    return claim(
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
        why=f"{_states(there, best):,.0f} states, of all chunks from 1 to {segment}.",
    )


def larger_remote_chunks(setting: Setting) -> Claim:
    """Section V and Figure 5: quicker, and larger."""
    there = _study(setting)
    segments = [2**power for power in range(4, STUDY_STEPS.bit_length())]
    points = there.points(
        "double",
        [{"chunk_size": nearest_root(segment), "remote_chunk_size": segment} for segment in segments],
    )
    held = sum(
        two.seconds < one.seconds and two.local_peak_bytes > one.local_peak_bytes
        for one, two in pairwise(points)
    )
    return claim(
        setting,
        name="larger-remote-chunks",
        section="V",
        quote="Larger remote chunk sizes minimize synchronization overhead, resulting in faster training "
        "times but higher memory usage",
        subject=f"doublings of remote_chunk_size, {segments[0]} to {segments[-1]:,}, that are quicker and "
        "larger",
        unit="count",
        paper="all",
        reading=exactly(len(points) - 1),
        model=held,
        inputs=(*COMPUTE, *TRANSFERS),
        why=f"All would be {len(points) - 1}. What they save is the time of transfers; synchronisation is "
        "the smaller part of it.",
    )


def memory_growth(setting: Setting) -> Claim:
    """Section VI: the fourth root of T, 'even for purely on-chip memory scenarios'."""
    long = STUDY_STEPS**2
    states = {}
    for steps in (STUDY_STEPS, long):
        there = setting.changed(steps=steps)
        states[steps] = _states(there, there.best("nested", objective="memory", budget=Budget()))
    there = _study(setting)
    root = nearest_root(nearest_root(STUDY_STEPS))
    double = _states(there, there.point("double", chunk_size=root, remote_chunk_size=root * root))
    away = _checkpoints(root * root)
    least = 3 * STUDY_STEPS ** (1 / 3)
    return claim(
        setting,
        name="memory-growth",
        section="VI",
        quote="even for purely on-chip memory scenarios due to it's drastically reduced memory requirement, "
        "O(T^(1/4))",
        subject=f"exponent of T in the least states of Double all on chip, T = {STUDY_STEPS:,} to {long:,}",
        unit="exponent",
        paper="1/4",
        reading=at_most(0.25),
        model=math.log(states[long] / states[STUDY_STEPS]) / math.log(long / STUDY_STEPS),
        why=f"Double holds {double:.0f} states on chip at T = {STUDY_STEPS:,} because {away} more are "
        "elsewhere. With all on chip (the strategy nested) chunk_size + segment_size / chunk_size + T / "
        f"segment_size is least at 3 T^(1/3) = {least:.0f}; counted exactly, "
        f"{states[STUDY_STEPS]:.0f} states. The spikes of all steps come on top: they grow with T itself.",
    )


def _study(setting: Setting) -> Setting:
    return setting.changed(steps=STUDY_STEPS)


def _states(setting: Setting, held: Point | int) -> float:
    """Return what is beside the resident bytes, in states."""
    local = held if isinstance(held, int) else held.local_peak_bytes
    return (local - setting.costs.resident_bytes) / setting.costs.state_bytes


def _checkpoints(chunk: int) -> int:
    return -(-STUDY_STEPS // chunk) - 1


def _again(setting: Setting, point: Point) -> float:
    """Return the steps run again, for each step of the sequence."""
    costs = setting.costs
    messages = 2 * _checkpoints(point.parameters["remote_chunk_size"])
    moving = messages * costs.message_seconds + messages / 2 * (costs.write_seconds + costs.read_seconds)
    return (point.seconds - costs.base_seconds - moving) / costs.recompute_seconds / costs.steps


def _at(point: Point) -> str:
    """Return 'Double with chunk_size 16, remote_chunk_size 256 (34.42 ms)'."""
    parameters = ", ".join(f"{name} {value}" for name, value in point.parameters.items())
    return f"{point.strategy.capitalize()} with {parameters} ({format_seconds(point.seconds)})"


CLAIMS = (
    standard_is_quickest,
    remote_is_smallest,
    standard_chunk,
    standard_chunk_and_time,
    remote_chunk,
    hierarchical_in_the_same_memory,
    hierarchical_at_the_same_chunk,
    hierarchical_memory,
    bandwidth_binds,
    double_gains_from_local_checkpoints,
    double_near_standard,
    remote_chunk_of_double,
    chunk_of_double,
    larger_remote_chunks,
    memory_growth,
)
