"""Claims of the abstract, of section IV and of the discussion: lengths, sizes and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.paper.claim import (
    COMPUTE,
    FITTED_MEMORY,
    MEMORY,
    SLIGHT,
    TRANSFERS,
    Claim,
    Reading,
    about,
    at_least,
    at_most,
    claim,
    largest_on_a_grid,
    less_than,
    more_than,
)
from ckptplan.paper.figures import MODEL_SIZE_STEPS, figure_3, two_level_setting
from ckptplan.paper.setting import Point, Setting, largest, nearest_root
from ckptplan.strategies.registry import strategy_of
from ckptplan.units import format_count, format_percent

#: The lengths that section IV reports.
BASE_STEPS, STANDARD_STEPS, REMOTE_STEPS = 400, 2000, 4000


def base_length(setting: Setting) -> Claim:
    """Section IV: how far plain backpropagation goes."""
    return _length(
        setting,
        "base",
        BASE_STEPS,
        quote="the Base Implementation could only fit sequences of length T = 400",
        why="The resident bytes were chosen so that this many steps fit and one more does not: no test of "
        "the model.",
    )


def standard_length(setting: Setting) -> Claim:
    """Section IV: how far local checkpoints go."""
    return _length(
        setting,
        "standard",
        STANDARD_STEPS,
        quote="Standard Checkpointing demonstrated the ability to scale up to sequences of length 2000",
        why=f"The spikes that stay of each step ({setting.workload.resident_bytes_per_step} B on a tile) "
        "were chosen in the range that meets all three largest T, with the rest of the resident bytes fixed "
        "by Base alone.",
    )


def remote_length(setting: Setting) -> Claim:
    """Section IV: how far remote checkpoints go."""
    longest = setting.largest_steps("remote")
    there = setting.changed(steps=longest)
    overhead = there.overhead(there.best("remote"))
    return _length(
        setting,
        "remote",
        REMOTE_STEPS,
        quote="Remote Checkpointing and Double Checkpointing strategies were able to scale up to sequences "
        "of length T = 4000",
        why="The states of all but one step are away; what ends the sequence is the spikes of all steps, "
        f"which stay. At the very end chunks are of one step, at {format_percent(overhead)} time.",
    )


def double_length(setting: Setting) -> Claim:
    """Section IV: how far Double goes; its very last steps need it to be Remote."""
    smallest = largest(lambda steps: _double(setting, steps, 8, 64).fits)
    return _length(
        setting,
        "double",
        REMOTE_STEPS,
        quote="Remote Checkpointing and Double Checkpointing strategies were able to scale up to sequences "
        "of length T = 4000",
        why="The largest T needs chunk_size = remote_chunk_size = 1, where Double is Remote. With "
        "remote_chunk_size between 64 and 256, as section V advises, it reaches T = "
        f"{format_count(smallest)} (chunk_size 8, remote_chunk_size 64).",
    )


def _length(setting: Setting, strategy: str, steps: int, *, quote: str, why: str) -> Claim:
    return claim(
        setting,
        name=f"{strategy}-length",
        section="IV",
        quote=quote,
        subject=f"largest T of {strategy.capitalize()}",
        unit="steps",
        paper=f"{steps:,}",
        reading=largest_on_a_grid(steps),
        model=setting.largest_steps(strategy),
        equations=setting.largest_steps(strategy, model="paper"),
        inputs=MEMORY,
        fitted=FITTED_MEMORY,
        why=why,
    )


def standard_time(setting: Setting) -> Claim:
    """Section IV: what Standard costs at the largest T reported for it."""
    there = setting.changed(steps=STANDARD_STEPS)
    chunk = nearest_root(STANDARD_STEPS)
    point = there.point("standard", chunk_size=chunk)
    return claim(
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
        why="The cost of recomputing a step was chosen so that this holds. The exact model recomputes all "
        "chunks but the last, equation (5) all.",
    )


def remote_time(setting: Setting) -> Claim:
    """Section IV: the penalty of Remote."""
    there = setting.changed(steps=REMOTE_STEPS)
    point = there.best("remote")
    return claim(
        setting,
        name="remote-time",
        section="IV",
        quote="the communication overhead for Remote Checkpointing caused noticeable time penalties, "
        "increasing training time by more then 50%",
        subject=f"overhead of Remote at T = {REMOTE_STEPS:,}, chunk_size {point.parameters['chunk_size']}",
        unit="overhead",
        paper="more than 50 %",
        reading=more_than(0.50),
        model=there.overhead(point),
        equations=_printed_overhead(there, point),
        inputs=(*COMPUTE, *TRANSFERS),
        fitted=("workload.forward_seconds",),
        why="No step time is published. It was chosen so that this holds at the largest chunk that fits, "
        "the quickest.",
    )


def double_time(setting: Setting) -> Claim:
    """Section IV and abstract: the word is 'significant', a number is not given."""
    there = setting.changed(steps=REMOTE_STEPS)
    point, costs = there.best("double"), there.costs
    twice = 2 * costs.recompute_seconds * costs.steps / costs.base_seconds
    remote = there.overhead(there.best("remote"))
    chunk, segment = point.parameters["chunk_size"], point.parameters["remote_chunk_size"]
    return claim(
        setting,
        name="double-time",
        section="IV",
        quote="Double Checkpointing, however, achieved this scalability without significant time increases",
        subject=f"overhead of Double at T = {REMOTE_STEPS:,}, chunk_size {chunk}, remote_chunk_size {segment}",
        unit="overhead",
        paper="not significant",
        reading=at_most(SLIGHT),
        model=there.overhead(point),
        equations=_printed_overhead(there, point),
        inputs=(*COMPUTE, *TRANSFERS),
        why=f"By equation (12) recomputing alone, twice a forward, is {format_percent(twice)}, against the "
        "+5 % that the paper calls minimal for Standard; transfers come on top. Remote adds "
        f"{format_percent(remote)}, to which the sentence compares it.",
    )


def longer_sequences(setting: Setting) -> Claim:
    """Abstract: how many times longer."""
    base, double = setting.largest_steps("base"), setting.largest_steps("double")
    reported = REMOTE_STEPS / BASE_STEPS
    advised = largest(lambda steps: _double(setting, steps, 8, 64).fits)
    return claim(
        setting,
        name="longer-sequences",
        section="abstract",
        quote="enabling training on sequences over 10 times longer",
        subject="largest T of Double over that of Base",
        unit="times",
        paper="over 10",
        reading=more_than(10),
        model=double / max(1, base),
        equations=setting.largest_steps("double", model="paper") / max(1, setting.largest_steps("base")),
        inputs=MEMORY,
        fitted=FITTED_MEMORY,
        why=f"The lengths that section IV reports give {reported:.0f} times, not over it. At "
        f"remote_chunk_size 64 the model gives {advised / max(1, base):.1f} times.",
    )


def larger_networks(setting: Setting) -> Claim:
    """Abstract and section IV: how many times larger."""
    return _larger(
        setting,
        name="larger-networks",
        section="IV",
        quote="both Double Checkpointing and Remote Checkpointing enabled the training of networks more "
        "than four times larger than what was achievable with the Base Implementation for T = 300",
        paper="more than 4",
        reading=more_than(4),
    )


def five_times_larger_networks(setting: Setting) -> Claim:
    """Section VI: the same comparison with another number."""
    return _larger(
        setting,
        name="five-times-larger-networks",
        section="VI",
        quote="more than 10x longer sequence lengths or 5x larger networks at minimal training time overhead",
        paper="5",
        reading=at_least(5),
    )


def _larger(setting: Setting, *, name: str, section: str, quote: str, paper: str, reading: Reading) -> Claim:
    grow = Sizes(setting=setting)
    stay = replace(grow, spikes_grow=False)
    twice = replace(stay, weight_copies=2)
    ratio = grow.ratio("double")
    return claim(
        setting,
        name=name,
        section=section,
        quote=quote,
        subject=f"network of Double over that of Base at T = {MODEL_SIZE_STEPS}",
        unit="times",
        paper=paper,
        reading=reading,
        model=ratio,
        inputs=(*MEMORY, "workload.network"),
        why="The abstract and section IV say four, the discussion five. What grows with the network is not "
        f"published: {ratio:.1f} times (Remote {grow.ratio('remote'):.1f}) if the spikes kept of each step "
        f"grow with the neurons; {stay.ratio('double'):.1f} (Remote {stay.ratio('remote'):.1f}) if they do "
        f"not, and then {twice.ratio('double'):.1f} (Remote {twice.ratio('remote'):.1f}) with a second copy "
        f"of the weights. Double is at {_shown(two_level_setting(MODEL_SIZE_STEPS))}, Remote at chunk_size "
        "1.",
    )


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The largest networks at T = 300, by what is assumed to grow with the neurons besides the states.

    The model's own assumption is that the spikes kept of each step do, and that each weight is stored once.
    """

    setting: Setting
    spikes_grow: bool = True
    weight_copies: int = 1

    def ratio(self, strategy: str) -> float:
        """Return the largest network of ``strategy`` over that of Base."""
        return self.largest(strategy) / max(1, self.largest("base"))

    def largest(self, strategy: str) -> int:
        """Return the most neurons that fit, all units together."""
        smallest: dict[str, Mapping[str, int]] = {
            "base": {},
            "remote": {"chunk_size": 1},
            "double": two_level_setting(MODEL_SIZE_STEPS),
        }
        limit = self.setting.profile.local_bytes

        def fits(neurons: int) -> bool:
            cost = strategy_of(strategy).cost(Parameters(smallest[strategy]), costs=self._costs(neurons))
            return bool(cost.local_peak_bytes[0] <= limit)

        return largest(fits)

    def _costs(self, neurons: int) -> StepCosts:
        here = self.setting.changed(steps=MODEL_SIZE_STEPS)
        there = here.changed(steps=MODEL_SIZE_STEPS, neurons=neurons)
        network = there.workload.network
        weights = there.workload.resident_bytes - (network.other_resident_bytes if network else 0)
        more = (self.weight_copies - 1) * weights
        if not self.spikes_grow:
            slope = there.workload.resident_bytes_per_step - here.workload.resident_bytes_per_step
            more -= slope * MODEL_SIZE_STEPS
        costs = there.costs
        return StepCosts(**{**dict(costs), "resident_bytes": costs.resident_bytes + more})


def memory_across_sizes(setting: Setting) -> Claim:
    """Figure 3: the caption claims efficiency across model sizes; no number is given."""
    panels = figure_3(setting).panels
    ratios = [
        double.local_peak_bytes / base.local_peak_bytes
        for panel in panels
        for base, double in product(*(series.points for series in panel.series))
        if base.neurons_per_unit == double.neurons_per_unit
    ]
    return claim(
        setting,
        name="memory-across-sizes",
        section="IV, Figure 3",
        quote="Memory Efficiency of Double Checkpointing Across Model Sizes and Configurations",
        subject="largest ratio of Double's local peak to Base's, where both fit",
        unit="times",
        paper="less than Base",
        reading=less_than(1),
        model=max(ratios),
        inputs=(*MEMORY, "workload.network"),
        why=f"At {len(ratios)} sizes in {len(panels)} configurations Double needs {min(ratios):.2f} to "
        f"{max(ratios):.2f} of what Base does. Code, buffers, weights and spikes are in both.",
    )


def _double(setting: Setting, steps: int, chunk: int, segment: int) -> Point:
    return setting.changed(steps=steps).point("double", chunk_size=chunk, remote_chunk_size=segment)


def _printed_overhead(setting: Setting, point: Point) -> float:
    """Return the overhead by the paper's equations."""
    seconds, _ = setting.printed(point)
    return seconds / setting.costs.base_seconds - 1


def _shown(parameters: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in parameters.items())


CLAIMS = (
    base_length,
    standard_length,
    standard_time,
    remote_length,
    remote_time,
    double_length,
    double_time,
    longer_sequences,
    larger_networks,
    five_times_larger_networks,
    memory_across_sizes,
)
