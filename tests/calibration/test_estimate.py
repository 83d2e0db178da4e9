"""Times from rounds that other programs disturb are those of an idle machine, as far as rounds show them.

The machine is simulated: each round measures the same things in turn, and its noise is drawn from a seed.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.calibration.estimate import Estimate, estimate_rounds

#: Seconds of things on an idle machine: from a save to a whole backward pass.
IDLE = np.array([3e-5, 9e-5, 1e-4, 2.5e-4, 1e-3, 4e-3, 9e-3, 2e-2, 3e-2])
ROUNDS, MACHINES = 12, 40
Noise = Callable[[np.random.Generator], npt.NDArray[np.float64]]


def quiet(random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Half a percent, either way."""
    return 1 + 0.005 * random.standard_normal((ROUNDS, len(IDLE)))


def bursts(random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Other programs lengthen a third of all runs, by up to four times."""
    hit = random.random((ROUNDS, len(IDLE))) < 1 / 3
    return quiet(random) * np.where(hit, 1 + random.exponential(1, hit.shape).clip(0.05, 3), 1)


def steps(random: np.random.Generator) -> npt.NDArray[np.float64]:
    """The clock falls by a quarter within one of the rounds, and rises within a later one."""
    places = np.sort(random.integers(len(IDLE), ROUNDS * len(IDLE), 2))
    pace = np.ones(ROUNDS * len(IDLE))
    pace[places[0] : places[1]] = 1.33
    return quiet(random) * pace.reshape(ROUNDS, len(IDLE))


def drifts(random: np.random.Generator) -> npt.NDArray[np.float64]:
    """The machine gets slower by a fifth from the first run to the last, as one that gets warm."""
    return quiet(random) * np.linspace(1, 1.2, ROUNDS * len(IDLE)).reshape(ROUNDS, len(IDLE))


def all_of_it(random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Bursts while the clock changes and drifts."""
    return bursts(random) * steps(random) * drifts(random)


def off(noise: Noise, estimate: Callable[[npt.NDArray[np.float64]], list[float]]) -> float:
    """How far ratios between any two things are off, in 95 % of all machines."""
    worst = []
    for seed in range(MACHINES):
        taken = IDLE * noise(np.random.default_rng(seed))
        shares = np.array(estimate(taken)) / IDLE
        worst.append(shares.max() / shares.min() - 1)
    return float(np.quantile(worst, 0.95))


def ours(taken: npt.NDArray[np.float64]) -> list[float]:
    return [one.value for one in estimate_rounds(taken.tolist())]


@pytest.mark.parametrize(
    ("noise", "most"), [(quiet, 0.02), (bursts, 0.02), (steps, 0.02), (drifts, 0.03), (all_of_it, 0.06)]
)
def test_ratios_are_those_of_an_idle_machine(noise: Noise, most: float) -> None:
    """Plans depend on ratios: whatever disturbs the rounds, they are right within some percent."""
    assert off(noise, ours) < most


@pytest.mark.parametrize("other", [np.median, np.mean, np.min])
def test_medians_means_and_minima_are_moved_more(other: Callable[..., npt.NDArray[np.float64]]) -> None:
    """Why the lower quartile at equal pace."""
    assert off(all_of_it, lambda taken: other(taken, axis=0).tolist()) > 2 * off(all_of_it, ours)


@pytest.mark.parametrize(
    ("noise", "pace"), [(quiet, 1), (bursts, 1), (steps, 1), (drifts, 1.05), (all_of_it, 1.05)]
)
def test_intervals_have_the_time_of_the_idle_machine(noise: Noise, pace: float) -> None:
    """In nine of ten cases; that of a machine that drifts is the time of its quicker quarter."""
    inside = []
    for seed in range(MACHINES):
        taken = IDLE * noise(np.random.default_rng(seed))
        found = estimate_rounds(taken.tolist())
        inside += [one.low <= pace * idle <= one.high for one, idle in zip(found, IDLE, strict=True)]
    assert np.mean(inside) >= 0.9


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=20))
def test_an_estimate_is_within_its_interval(values: list[float]) -> None:
    """From the least to the median; of ratios, between the quartiles."""
    for found in (Estimate.of(values), Estimate.of_ratios(values)):
        assert min(values) <= found.low <= found.value <= found.high
    assert Estimate.of(values).low == min(values)
    assert Estimate.of_ratios(values).high <= max(values)


def test_a_number_is_known_to_within_the_farthest_end_of_its_interval() -> None:
    """Other programs only lengthen runs: the upper end is farther, and half of the interval would be less."""
    assert Estimate(low=155.3, value=167.3, high=255.8).farthest == pytest.approx(255.8 / 167.3 - 1)
    assert Estimate(low=50.0, value=100.0, high=110.0).farthest == 0.5
    assert Estimate.exactly(0.0).farthest == 0


def test_a_round_that_is_slower_as_a_whole_moves_no_ratio() -> None:
    found = estimate_rounds([[1.0, 2.0], [2.0, 4.0], [1.5, 3.0]])
    assert found[1].value == pytest.approx(2 * found[0].value)


def test_a_number_of_zero_has_no_factors() -> None:
    assert Estimate.exactly(0.0).factors == (1.0, 1.0)
    assert Estimate.exactly(0.0).spread == 0
