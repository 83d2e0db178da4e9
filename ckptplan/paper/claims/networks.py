"""Claims of the abstract and of sections IV and VI on model size: the largest network that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.paper.claims.claim import MEMORY, Claim, Reading, at_least, less_than, make_claim, more_than
from ckptplan.paper.figures.content import two_level_setting
from ckptplan.paper.figures.growth import MODEL_SIZE_STEPS, make_figure_3
from ckptplan.paper.setting import PaperSetting, find_largest
from ckptplan.strategies.registry import closed_form_of


def larger_networks(setting: PaperSetting) -> Claim:
    """Abstract and section IV: how many times larger."""
    return _make_network_claim(
        setting,
        name="larger-networks",
        section="IV",
        quote="networks more than four times larger than what was achievable with the Base Implementation for "
        "T = 300",
        paper="more than 4",
        reading=more_than(4),
        why="Section VI says five; what grows with the network is assumed, as there.",
    )


def five_times_larger_networks(setting: PaperSetting) -> Claim:
    """Section VI: the same comparison with another number."""
    grow = NetworkSizes(setting=setting)
    stay = replace(grow, spikes_grow=False)
    twice = replace(stay, weight_copies=2)
    return _make_network_claim(
        setting,
        name="five-times-larger-networks",
        section="VI",
        quote="5x larger networks at minimal training time overhead",
        paper="5",
        reading=at_least(5),
        why="Section IV says four. What grows with the network is not published: "
        f"{grow.ratio('double'):.1f} times (Remote {grow.ratio('remote'):.1f}) if the spikes kept of "
        f"each step grow with the neurons; {stay.ratio('double'):.1f} (Remote {stay.ratio('remote'):.1f}) if "
        f"they do not, and then {twice.ratio('double'):.1f} (Remote {twice.ratio('remote'):.1f}) with a second "
        "copy of the weights.",
    )


def _make_network_claim(
    setting: PaperSetting, *, name: str, section: str, quote: str, paper: str, reading: Reading, why: str
) -> Claim:
    return make_claim(
        setting,
        name=name,
        section=section,
        quote=quote,
        subject=f"network of Double over that of Base at T = {MODEL_SIZE_STEPS}",
        unit="times",
        paper=paper,
        reading=reading,
        model=NetworkSizes(setting=setting).ratio("double"),
        inputs=(*MEMORY, "workload.network"),
        why=why,
    )


@dataclass(frozen=True, kw_only=True)
class NetworkSizes:
    """The largest networks at T = 300, by what is assumed to grow with the number of neurons.

    States always do. The model assumes that the spikes kept of each step do as well, and that each weight
    is stored once.
    """

    setting: PaperSetting
    spikes_grow: bool = True
    weight_copies: int = 1

    def ratio(self, strategy: str) -> float:
        """Return the largest network of ``strategy`` over that of Base."""
        return self.find_largest(strategy) / max(1, self.find_largest("base"))

    def find_largest(self, strategy: str) -> int:
        """Return the most neurons that fit, summed over all units."""
        smallest: dict[str, Mapping[str, int]] = {
            "base": {},
            "remote": {"chunk_size": 1},
            "double": two_level_setting(MODEL_SIZE_STEPS),
        }
        limit = self.setting.profile.local_bytes

        def fits(neurons: int) -> bool:
            cost = closed_form_of(strategy).cost(Parameters(smallest[strategy]), costs=self._costs(neurons))
            return bool(cost.local_peak_bytes[0] <= limit)

        return find_largest(fits)

    def _costs(self, neurons: int) -> StepCosts:
        here = self.setting.replace(steps=MODEL_SIZE_STEPS)
        there = here.replace(steps=MODEL_SIZE_STEPS, neurons=neurons)
        network = there.workload.network
        weights = there.workload.resident_bytes - (network.other_resident_bytes if network else 0)
        more = (self.weight_copies - 1) * weights
        if not self.spikes_grow:
            slope = there.workload.resident_bytes_per_step - here.workload.resident_bytes_per_step
            more -= slope * MODEL_SIZE_STEPS
        costs = there.costs
        return StepCosts(**{**dict(costs), "resident_bytes": costs.resident_bytes + more})


def memory_across_sizes(setting: PaperSetting) -> Claim:
    """Figure 3: the caption claims efficiency across model sizes; no number is given."""
    panels = make_figure_3(setting).panels
    ratios = [
        double.local_peak_bytes / base.local_peak_bytes
        for panel in panels
        for base, double in product(*(series.points for series in panel.series))
        if base.neurons_per_unit == double.neurons_per_unit
    ]
    return make_claim(
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
        f"{max(ratios):.2f} of what Base needs.",
    )
