"""All claims, in the order of the paper's sections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise, product

from ckptplan.cost import paper
from ckptplan.model.budget import Budget
from ckptplan.paper.claim import (
    CLAIMS,
    COMPUTE,
    FITTED_MEMORY,
    MEMORY,
    SLIGHT,
    TRANSFERS,
    UNAFFECTED,
    Claim,
    Finding,
    Reading,
    about,
    at_most,
    exactly,
    largest_on_a_grid,
    less_than,
    more_than,
    says,
)
from ckptplan.paper.figures import (
    CHUNK_SIZES,
    MODEL_SIZE_STEPS,
    SEGMENTS,
    STUDY_STEPS,
    make_figure_3,
    two_level_setting,
)
from ckptplan.paper.setting import PaperSetting, Point, find_largest, nearest_root
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds


def make_claims(setting: PaperSetting) -> tuple[Claim, ...]:
    """Return every claim with the model's number, computed for ``setting``."""
    return tuple(make(setting) for make in CLAIMS.values())


# Sections I and III: the cost of recomputation, and equation (10)


@says(
    "I",
    "typically induces a roughly 30% overhead in training time",
    about(0.30, "overhead", "roughly 30 %", digit=0.10),
)
def usual_overhead(setting: PaperSetting) -> Finding:
    """Find the overhead of recomputing the whole forward pass."""
    steps, forward = setting.workload.steps, setting.workload.forward_seconds
    added = (steps - nearest_root(steps)) / steps * forward
    equal = added / (forward + forward)
    return Finding(
        subject=f"overhead of an extra forward pass, b = 2 f, T = {steps:,}",
        model=added / (forward + 2 * forward),
        equations=forward / (3 * forward),
        inputs=("workload.backward_seconds",),
        why="A backward pass of twice the forward pass is usual. At b = f, as paper-snn assumes for the IPU, "
        f"an extra forward pass would cost {format_percent(equal)}.",
    )


@says(
    "III-B",
    "making the re-execution of the forward pass approximately 30% of the original cost",
    about(0.30, "share", "approximately 30 %", digit=0.10),
)
def recompute_30(setting: PaperSetting) -> Finding:
    """Find rho, of which the paper has two values: the first."""
    return _find_recompute_share(
        setting,
        why="The paper contradicts itself: 'less than 10%' stands in the same section. 30 % would make "
        f"Standard cost {format_percent(0.30 / _count_passes(setting))} where +5 % is reported.",
    )


@says(
    "III-B",
    "T_refwd constitutes less than 10% of the total forward pass computation",
    less_than(0.10, "share", "less than 10 %"),
)
def recompute_10(setting: PaperSetting) -> Finding:
    """Find rho, compared with the second value."""
    return _find_recompute_share(
        setting,
        why=f"The reported +5 % of Standard is {100 * 0.05 * _count_passes(setting):.0f} % of a forward where "
        f"a backward takes as long as assumed here, and {100 * 0.05 * 3:.0f} % where it takes twice a forward. "
        "The input equals the bound.",
    )


def _find_recompute_share(setting: PaperSetting, *, why: str) -> Finding:
    return Finding(
        subject="recomputing a step, as a share of its first forward",
        model=setting.workload.recompute_seconds / setting.workload.forward_seconds,
        inputs=("workload.forward_seconds", "workload.recompute_seconds"),
        judges_input=True,
        why=why,
    )


def _count_passes(setting: PaperSetting) -> float:
    """Return base's time in forward passes."""
    costs = setting.costs
    return costs.base_seconds / (costs.steps * costs.forward_seconds)


@says(
    "III-D",
    "N_c = 2 (nb_checkpoints / nb_local - nb_local), the number of communications",
    exactly(2 * (64 / 16 - 16), "count", "-24, by eq. (10)"),
)
def communications(_: PaperSetting) -> Finding:
    """Evaluate equation (10) where its mixed dimensions matter."""
    checkpoints, local = 64, 16
    corrected = paper.communications_hierarchical(nb_checkpoints=checkpoints, nb_local=local)
    most = next(number for number in range(1, checkpoints + 1) if checkpoints / number < number)
    return Finding(
        subject=f"communications of Hierarchical, {checkpoints} checkpoints, {local} of them local",
        model=corrected,
        why="It subtracts a number of checkpoints from a number of batches, "
        f"and from nb_local = {most} on the result is negative. The text keeps the last nb_local checkpoints "
        f"local, which is one batch: 2 (ceil({checkpoints} / {local}) - 1) = {corrected}.",
    )


# Section IV, with statements of the abstract and section VI on the same subjects: the most steps that fit, the
# overhead at the largest T reported for a strategy, and the largest network that fits

#: The largest T that section IV reports for Base, for Standard, and for Remote and Double.
_BASE_STEPS, _STANDARD_STEPS, _REMOTE_STEPS = 400, 2000, 4000


@says("IV", "could only fit sequences of length T = 400", largest_on_a_grid(_BASE_STEPS))
def base_length(setting: PaperSetting) -> Finding:
    """Find how far plain backpropagation goes."""
    why = "The resident bytes were chosen so that this many steps fit and one more does not."
    return _find_length(setting, "base", why=why)


@says("IV", "the ability to scale up to sequences of length 2000", largest_on_a_grid(_STANDARD_STEPS))
def standard_length(setting: PaperSetting) -> Finding:
    """Find how far local checkpoints go."""
    why = (
        f"The spikes kept of each step ({setting.workload.resident_bytes_per_step} B a tile) "
        "were chosen to meet all three largest T; Base alone fixes the rest of the resident bytes."
    )
    return _find_length(setting, "standard", why=why)


@says(
    "IV",
    "with only a minimal increase in training time of approximately 5%",
    about(0.05, "overhead", "approximately 5 %", digit=0.01),
    steps=_STANDARD_STEPS,
)
def standard_time(there: PaperSetting) -> Finding:
    """Find Standard's overhead at the largest T reported for it."""
    point = there.evaluate("standard", chunk_size=nearest_root(_STANDARD_STEPS))
    return _find_overhead(
        point,
        inputs=COMPUTE,
        fitted=("workload.recompute_seconds",),
        why="The exact model recomputes all chunks but the last, equation (5) counts all of them.",
    )


@says("IV", "were able to scale up to sequences of length T = 4000", largest_on_a_grid(_REMOTE_STEPS))
def remote_length(setting: PaperSetting) -> Finding:
    """Find how far remote checkpoints go."""
    there = setting.replace(steps=setting.find_largest_steps("remote"))
    why = (
        "The limit is the spikes of all steps, which stay local. At the largest T chunks are single steps, "
        f"at {format_percent(there.best('remote').overhead)} time."
    )
    return _find_length(setting, "remote", why=why)


@says(
    "IV",
    "increasing training time by more then 50%",
    more_than(0.50, "overhead", "more than 50 %"),
    steps=_REMOTE_STEPS,
)
def remote_time(there: PaperSetting) -> Finding:
    """Find Remote's overhead."""
    return _find_overhead(
        there.best("remote"),
        fitted=("workload.forward_seconds",),
        why="No step time is published. It was chosen at the largest chunk that fits, the fastest.",
    )


@says("IV", "were able to scale up to sequences of length T = 4000", largest_on_a_grid(_REMOTE_STEPS))
def double_length(setting: PaperSetting) -> Finding:
    """Find how far Double goes; at its largest T it coincides with Remote."""

    def fits(steps: int) -> bool:
        return setting.replace(steps=steps).evaluate("double", chunk_size=8, remote_chunk_size=64).fits

    why = (
        "The largest T needs chunk_size = remote_chunk_size = 1, where Double is Remote. At remote_chunk_size "
        f"64, as section V recommends, and chunk_size 8 it is {format_count(find_largest(fits))}."
    )
    return _find_length(setting, "double", why=why)


@says(
    "IV",
    "achieved this scalability without significant time increases",
    at_most(SLIGHT, "overhead", "not significant"),
    steps=_REMOTE_STEPS,
)
def double_time(there: PaperSetting) -> Finding:
    """Find Double's overhead, which is 'not significant': the paper gives no number."""
    costs = there.costs
    twice = 2 * costs.recompute_seconds * costs.steps / costs.base_seconds
    remote = there.best("remote").overhead
    return _find_overhead(
        there.best("double"),
        why=f"By equation (12) recomputing every step twice adds {format_percent(twice)}, and transfers add "
        "to that; the paper calls the +5 % of Standard minimal. The sentence compares Double with "
        f"Remote, which adds {format_percent(remote)}.",
    )


@says("abstract", "enabling training on sequences over 10 times longer", more_than(10, "times", "over 10"))
def longer_sequences(setting: PaperSetting) -> Finding:
    """Find how many times longer sequences may be."""
    base = max(1, setting.find_largest_steps("base"))
    return Finding(
        subject="largest T of Double over that of Base",
        model=setting.find_largest_steps("double") / base,
        equations=setting.find_largest_steps("double", model="paper") / base,
        inputs=MEMORY,
        fitted=FITTED_MEMORY,
        why=f"The lengths of section IV give {_REMOTE_STEPS / _BASE_STEPS:.0f} times, not more.",
    )


def _find_length(setting: PaperSetting, strategy: str, *, why: str) -> Finding:
    return Finding(
        subject=f"largest T of {strategy.capitalize()}",
        model=setting.find_largest_steps(strategy),
        equations=setting.find_largest_steps(strategy, model="paper"),
        inputs=MEMORY,
        fitted=FITTED_MEMORY,
        why=why,
    )


def _find_overhead(
    point: Point,
    *,
    inputs: tuple[str, ...] = (*COMPUTE, *TRANSFERS),
    fitted: tuple[str, ...] = (),
    why: str,
) -> Finding:
    return Finding(
        subject=f"overhead of {point.strategy.capitalize()} at T = {point.setting.workload.steps:,}, "
        f"{point.parameters_text}",
        model=point.overhead,
        equations=point.printed.seconds[0] / point.setting.costs.base_seconds - 1,
        inputs=inputs,
        fitted=fitted,
        why=why,
    )


@says(
    "IV",
    "networks more than four times larger than what was achievable with the Base Implementation for T = 300",
    more_than(4, "times", "more than 4"),
)
def larger_networks(setting: PaperSetting) -> Finding:
    """Find how many times larger networks may be."""
    why = "Section VI says five; what grows with the network is assumed, as there."
    return _find_network(setting, why=why)


@says("VI", "5x larger networks at minimal training time overhead", Reading(words="5", unit="times", low=5))
def five_times_larger_networks(setting: PaperSetting) -> Finding:
    """Find the same ratio, compared with another number."""

    def ratios(*, spikes_grow: bool, weight_copies: int = 1) -> str:
        double, remote = (
            network_ratio(setting, strategy, spikes_grow=spikes_grow, weight_copies=weight_copies)
            for strategy in ("double", "remote")
        )
        return f"{double:.1f}{' times' if spikes_grow else ''} (Remote {remote:.1f})"

    return _find_network(
        setting,
        why="Section IV says four. What grows with the network is not published: "
        f"{ratios(spikes_grow=True)} if the spikes kept of each step grow with the neurons; "
        f"{ratios(spikes_grow=False)} if they do not, and then "
        f"{ratios(spikes_grow=False, weight_copies=2)} with a second copy of the weights.",
    )


def _find_network(setting: PaperSetting, *, why: str) -> Finding:
    return Finding(
        subject=f"network of Double over that of Base at T = {MODEL_SIZE_STEPS}",
        model=network_ratio(setting, "double"),
        inputs=(*MEMORY, "workload.network"),
        why=why,
    )


def network_ratio(
    setting: PaperSetting, strategy: str, *, spikes_grow: bool = True, weight_copies: int = 1
) -> float:
    """Return the largest network of ``strategy`` at T = 300 over that of Base.

    States grow with the number of neurons. The model assumes that the spikes kept of each step do as well, and
    that each weight is stored once.
    """
    slope = setting.workload.resident_bytes_per_step

    def find_most_neurons(name: str, smallest: Mapping[str, int]) -> int:
        def fits(neurons: int) -> bool:
            there = setting.replace(steps=MODEL_SIZE_STEPS, neurons=neurons)
            workload = there.workload
            weights = workload.resident_bytes - (
                workload.network.other_resident_bytes if workload.network else 0
            )
            held = there.evaluate(name, smallest).local_peak_bytes + (weight_copies - 1) * weights
            if not spikes_grow:
                held -= (workload.resident_bytes_per_step - slope) * MODEL_SIZE_STEPS
            return held <= setting.profile.local_bytes

        return find_largest(fits)

    smallest = {"remote": {"chunk_size": 1}, "double": two_level_setting(MODEL_SIZE_STEPS)}
    return find_most_neurons(strategy, smallest[strategy]) / max(1, find_most_neurons("base", {}))


@says(
    "IV, Figure 3",
    "Memory Efficiency of Double Checkpointing Across Model Sizes and Configurations",
    less_than(1, "times", "less than Base"),
)
def memory_across_sizes(setting: PaperSetting) -> Finding:
    """Compare the curves of Figure 3, whose caption claims efficiency across model sizes without a number."""
    panels = make_figure_3(setting).panels
    ratios = [
        double.local_peak_bytes / base.local_peak_bytes
        for panel in panels
        for base, double in product(*(series.points for series in panel.series))
        if base.setting.neurons == double.setting.neurons
    ]
    return Finding(
        subject="largest ratio of Double's local peak to Base's, where both fit",
        model=max(ratios),
        inputs=(*MEMORY, "workload.network"),
        why=f"At {len(ratios)} sizes in {len(panels)} configurations Double needs {min(ratios):.2f} to "
        f"{max(ratios):.2f} of what Base needs.",
    )


# Section V, a study at one length, and section VI on the growth of memory

_study = partial(says, "V", steps=STUDY_STEPS)
#: Standard's chunk_size at the length of the study.
_ROOT = nearest_root(STUDY_STEPS)
#: The paper's strategies, except plain backpropagation.
_CHECKPOINTING = ("standard", "remote", "hierarchical", "double")


@_study("Standard Checkpointing is the most computationally efficient method", exactly(1, "times", "least"))
def standard_quickest(there: PaperSetting) -> Finding:
    """Find why Standard is a baseline. It gets the memory it needs, more than a tile has."""
    standard = there.evaluate("standard", chunk_size=_ROOT)
    fastest = there.best(*_CHECKPOINTING, budget=Budget(local_bytes=standard.local_peak_bytes))
    return Finding(
        subject=f"time of Standard at chunk_size {_ROOT} over the least of the four, in the same memory",
        model=standard.seconds / fastest.seconds,
        inputs=(*COMPUTE, *TRANSFERS),
        why=f"The fastest is {fastest}.",
    )


@_study("Remote Checkpointing is optimal for memory usage", exactly(1, "times", "least"))
def remote_smallest(there: PaperSetting) -> Finding:
    """Find why Remote is the other baseline."""
    remote = there.best("remote", objective="memory")
    smallest = there.best("base", *_CHECKPOINTING, objective="memory", budget=Budget())
    return Finding(
        subject="least local peak of Remote over the least of the five",
        model=remote.local_peak_bytes / smallest.local_peak_bytes,
        inputs=MEMORY,
        why=f"At {remote.parameters_text}, which costs {format_percent(remote.overhead)} time.",
    )


@_study("chunk_size = sqrt(T) = 64 ... optimally reduces memory usage", exactly(64, "count", "64"))
def standard_chunk(there: PaperSetting) -> Finding:
    """Find Standard's chunk of least memory, the square root of T."""
    best, growing = (
        there.best(strategy, objective="memory", budget=Budget()) for strategy in ("standard", "growing")
    )
    return Finding(
        subject=f"chunk_size of Standard's least memory at T = {STUDY_STEPS:,}",
        model=best.parameters["chunk_size"],
        equations=best.parameters["chunk_size"],
        why=f"The best of chunks of one length, {best.states:,.0f} states. Chunks that grow "
        f"towards the start (the strategy growing) need {growing.states:,.0f} states for the "
        "same recomputation.",
    )


@_study(
    "training times are unaffected by the choice of chunk size", at_most(UNAFFECTED, "overhead", "unaffected")
)
def standard_chunk_time(there: PaperSetting) -> Finding:
    """Find whether Standard's chunk matters for its time."""
    times = [there.evaluate("standard", chunk_size=chunk).seconds for chunk in CHUNK_SIZES]
    return Finding(
        subject=f"Standard's longest time over its shortest, chunk_size {CHUNK_SIZES[0]} to {CHUNK_SIZES[-1]}",
        model=max(times) / min(times) - 1,
        equations=0.0,
        inputs=COMPUTE,
        why="A schedule does not recompute its last chunk, so longer chunks are slightly faster.",
    )


def _read_largest_that_fits(there: PaperSetting) -> Reading:
    largest = find_largest(
        lambda chunk: chunk <= STUDY_STEPS and there.evaluate("remote", chunk_size=chunk).fits
    )
    return exactly(largest, "count", "the largest that fits")


@_study("the largest size that can fit in local memory", _read_largest_that_fits)
def remote_chunk(there: PaperSetting) -> Finding:
    """Find Remote's fastest chunk, and the largest that fits."""
    return Finding(
        subject=f"fastest chunk_size of Remote at T = {STUDY_STEPS:,}",
        model=there.best("remote").parameters["chunk_size"],
        inputs=MEMORY,
        why="A longer chunk never needs more checkpoints, and recomputes less.",
    )


@_study(
    "it does not significantly improve training time compared to Remote Checkpointing",
    at_most(SLIGHT, "overhead", "not significant"),
)
def hierarchical_same_memory(there: PaperSetting) -> Finding:
    """Read the sentence as a choice within a budget."""
    remote, hierarchical = there.best("remote"), there.best("hierarchical")
    return _find_saving(
        remote,
        hierarchical,
        subject="time that Hierarchical saves over Remote, each at its best within the tile",
        inputs=(*MEMORY, *COMPUTE, *TRANSFERS),
        why="A local checkpoint takes the memory of one step of the chunk, and saves less time: "
        f"{hierarchical} against {remote}.",
    )


@_study(
    "increasing the number of local checkpoints ... does not significantly improve training time compared to "
    "Remote Checkpointing",
    at_most(SLIGHT, "overhead", "not significant"),
)
def hierarchical_same_chunk(there: PaperSetting) -> Finding:
    """Read the sentence as Figure 4 (top) shows it: local checkpoints are added at a fixed chunk."""
    local, checkpoints = _ROOT // 2, _count_checkpoints(_ROOT)
    remote = there.evaluate("remote", chunk_size=_ROOT)
    hierarchical = there.evaluate("hierarchical", chunk_size=_ROOT, nb_local=local)
    more = format_bytes(hierarchical.local_peak_bytes - remote.local_peak_bytes)
    return _find_saving(
        remote,
        hierarchical,
        subject=f"time that nb_local {local} saves over Remote, both at chunk_size {_ROOT}",
        inputs=(*COMPUTE, *TRANSFERS),
        why=f"A checkpoint that stays local is not transferred: with {local} of {checkpoints} "
        f"local, {100 * local / checkpoints:.0f} % of the transfers are saved for {more} more memory.",
    )


def _find_saving(before: Point, after: Point, *, subject: str, inputs: tuple[str, ...], why: str) -> Finding:
    return Finding(
        subject=f"{subject}, T = {STUDY_STEPS:,}",
        model=1 - after.seconds / before.seconds,
        equations=1 - after.printed.seconds[0] / before.printed.seconds[0],
        inputs=inputs,
        why=why,
    )


@_study(
    "increasing the number of local checkpoints effectively reduces memory usage",
    less_than(0, "states", "reduces"),
)
def hierarchical_memory(there: PaperSetting) -> Finding:
    """Count what local checkpoints add; the paper claims both directions, in consecutive sentences."""
    few, many = (there.evaluate("hierarchical", chunk_size=_ROOT, nb_local=local) for local in (1, 16))
    printed = many.printed.local_peak_bytes[0] - few.printed.local_peak_bytes[0]
    return Finding(
        subject=f"states that nb_local 16 adds to nb_local 1, chunk_size {_ROOT}, T = {STUDY_STEPS:,}",
        model=(many.local_peak_bytes - few.local_peak_bytes) / there.costs.state_bytes,
        equations=printed / there.costs.state_bytes,
        why="The paper contradicts itself: the next sentence says 'effectively increases local memory "
        "usage', and so does equation (8), where each local checkpoint adds a state.",
    )


@says(
    "V",
    "memory bandwidth, rather than synchronization, becomes the primary bottleneck",
    less_than(0.5, "share", "less than bandwidth's"),
)
def bandwidth_binds(setting: PaperSetting) -> Finding:
    """Compare synchronisation with bandwidth."""
    costs = setting.costs
    both = costs.write_seconds + costs.read_seconds
    return Finding(
        subject="share of synchronisation in the time of a transfer",
        model=2 * costs.message_seconds / (both + 2 * costs.message_seconds),
        inputs=TRANSFERS,
        fitted=("profile.synchronisation_seconds",),
        why=f"T_s ({format_seconds(costs.message_seconds)}) and the bandwidth behind T_c "
        f"({format_seconds(both / 2)} a state, one way) are both unpublished.",
    )


@_study(
    "did not improve for increasing number of local checkpoints, it does for Double Checkpointing",
    more_than(SLIGHT, "overhead", "improves"),
)
def double_gains(there: PaperSetting) -> Finding:
    """Find how Double differs from Hierarchical, at a chunk_size within the range of Figure 4."""
    chunk = 16
    few, many = (
        there.evaluate("double", chunk_size=chunk, remote_chunk_size=chunk * local) for local in (1, chunk)
    )
    return Finding(
        subject=f"time that {chunk} chunks a segment save over 1, chunk_size {chunk}, T = {STUDY_STEPS:,}",
        model=1 - many.seconds / few.seconds,
        inputs=(*COMPUTE, *TRANSFERS),
        why=f"One remote checkpoint in {chunk} remains, for {chunk - 1} more states: "
        f"{format_seconds(few.seconds)} become {format_seconds(many.seconds)}.",
    )


@_study(
    "low local memory requirements close to those of Remote Checkpointing while almost being as fast as "
    "Standard Checkpointing",
    at_most(SLIGHT, "overhead", "almost as fast"),
)
def double_near_standard(there: PaperSetting) -> Finding:
    """Take 'close' in memory and 'almost' in time together."""
    standard = there.evaluate("standard", chunk_size=_ROOT)
    double = there.best("double")
    least = there.best("remote", objective="memory")
    above = double.local_peak_bytes / least.local_peak_bytes - 1
    costs = there.costs
    messages = 2 * _count_checkpoints(double.parameters["remote_chunk_size"])
    transfers = messages * costs.message_seconds + messages / 2 * (costs.write_seconds + costs.read_seconds)
    recomputed = (double.seconds - costs.base_seconds - transfers) / costs.recompute_seconds / costs.steps
    return Finding(
        subject=f"time of Double within the tile over that of Standard without limit, T = {STUDY_STEPS:,}",
        model=double.seconds / standard.seconds - 1,
        equations=double.printed.seconds[0] / standard.printed.seconds[0] - 1,
        inputs=(*COMPUTE, *TRANSFERS),
        why=f"{double}, with a local peak {format_percent(above)} above the least of Remote, "
        f"recomputes {recomputed:.1f} steps per step of the sequence, Standard at most one.",
    )


@_study(
    "found to be remote_chunk_size between 64 and 256",
    Reading(words="64 to 256", unit="count", low=64, high=256),
)
def double_remote_chunk(there: PaperSetting) -> Finding:
    """Find the best remote chunk."""
    double = there.best("double")
    free = (there.profile.local_bytes - there.costs.resident_bytes) / there.costs.state_bytes
    return Finding(
        subject=f"remote_chunk_size of the fastest Double within the tile, T = {STUDY_STEPS:,}",
        model=double.parameters["remote_chunk_size"],
        inputs=MEMORY,
        why=f"Memory decides: {free:.0f} states are free, as many as {double} takes.",
    )


@_study(
    "chunk_size = sqrt(remote_chunk_size) is optimal",
    exactly(16, "count", "16"),
)
def double_chunk(there: PaperSetting) -> Finding:
    """Find Double's best chunk for a remote chunk."""
    segment = 256
    points = [
        there.evaluate("double", chunk_size=chunk, remote_chunk_size=segment) for chunk in range(1, segment + 1)
    ]
    best = min(points, key=lambda point: point.local_peak_bytes)
    return Finding(
        subject=f"chunk_size of Double's least memory at remote_chunk_size {segment}",
        model=best.parameters["chunk_size"],
        equations=nearest_root(segment),
        why=f"{best.states:,.0f} states, of all chunks from 1 to {segment}.",
    )


@_study(
    "resulting in faster training times but higher memory usage", exactly(len(SEGMENTS) - 2, "count", "all")
)
def larger_remote_chunks(there: PaperSetting) -> Finding:
    """Count the larger remote chunks of Figure 5 that are faster and need more memory."""
    segments = SEGMENTS[1:]
    points = [
        there.evaluate("double", chunk_size=nearest_root(segment), remote_chunk_size=segment)
        for segment in segments
    ]
    confirmed = sum(
        two.seconds < one.seconds and two.local_peak_bytes > one.local_peak_bytes
        for one, two in pairwise(points)
    )
    return Finding(
        subject=f"doublings of remote_chunk_size, {segments[0]} to {segments[-1]:,}, that are faster and need "
        "more memory",
        model=confirmed,
        inputs=(*COMPUTE, *TRANSFERS),
        why="They save time of transfers, of which synchronisation is the smaller part.",
    )


@says(
    "VI",
    "purely on-chip memory scenarios due to it's drastically reduced memory requirement, O(T^(1/4))",
    at_most(0.25, "exponent", "1/4"),
)
def memory_growth(setting: PaperSetting) -> Finding:
    """Find how memory grows, which is as the fourth root of T, 'even for purely on-chip memory scenarios'."""
    long = STUDY_STEPS**2
    there, far = (setting.replace(steps=steps) for steps in (STUDY_STEPS, long))
    few, many = (one.best("nested", objective="memory", budget=Budget()).states for one in (there, far))
    levels = two_level_setting(STUDY_STEPS)
    double = there.evaluate("double", levels).states
    return Finding(
        subject=f"exponent of T in the least states of Double all on chip, T = {STUDY_STEPS:,} to {long:,}",
        model=math.log(many / few) / math.log(long / STUDY_STEPS),
        why=f"Double holds {double:.0f} states on chip at T = {STUDY_STEPS:,} because "
        f"{_count_checkpoints(levels['remote_chunk_size'])} more are remote. With all on chip (the strategy "
        "nested) chunk_size + segment_size / chunk_size + T / segment_size is least at 3 T^(1/3) = "
        f"{3 * STUDY_STEPS ** (1 / 3):.0f}; counted exactly, {few:.0f} states. The spikes of all steps add to "
        "that, linearly in T.",
    )


def _count_checkpoints(chunk: int) -> int:
    """Return the number of checkpoints for chunks of ``chunk`` steps: one before each chunk but the first."""
    return -(-STUDY_STEPS // chunk) - 1
