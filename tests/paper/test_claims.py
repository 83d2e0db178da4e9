"""Claims: the model's numbers, the verdict that follows from them, and that it follows both ways."""

from typing import Any

import pytest

from ckptplan.model.workload import Workload
from ckptplan.paper.claim import Claim, Reading
from ckptplan.paper.claims import make_claim, make_claims, network_ratio
from ckptplan.paper.setting import PaperSetting, find_largest, load_paper_setting, nearest_root
from tests.support import run

PAPER = load_paper_setting()
CLAIMS = {claim.name: claim for claim in make_claims(PAPER)}


def with_workload(**changes: Any) -> PaperSetting:
    """The paper's job with some of its numbers changed."""
    workload = PAPER.workload
    fields = {name: getattr(workload, name) for name in type(workload).model_fields}
    derived = ("state_bytes", "tape_bytes", "resident_bytes_per_step", "resident_bytes", "batch")
    kept = {name: value for name, value in fields.items() if name not in derived}
    return PaperSetting(workload=Workload(**{**kept, **changes}), profile=PAPER.profile)


def with_network(**changes: Any) -> PaperSetting:
    return with_workload(network={**dict(PAPER.workload.network or {}), **changes})


def with_profile(**changes: Any) -> PaperSetting:
    profile = PAPER.profile
    fields = {name: getattr(profile, name) for name in type(profile).model_fields}
    return PaperSetting(workload=PAPER.workload, profile=type(profile)(**{**fields, **changes}))


# The model's numbers


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("base-length", 400, 400),
        ("standard-length", 3200, 3300),
        ("remote-length", 4300, 4500),
        ("double-length", 4300, 4500),
        ("standard-time", 0.045, 0.05),
        ("remote-time", 0.5, 0.6),
        ("double-time", 0.10, 0.20),
        ("longer-sequences", 10.5, 11.5),
        ("larger-networks", 4.1, 4.3),
        ("recompute-30", 0.1, 0.1),
        ("communications", 6, 6),
        ("standard-chunk", 64, 64),
        ("double-chunk", 16, 16),
        ("double-remote-chunk", 256, 256),
        ("hierarchical-memory", 15, 15),
    ],
)
def test_the_models_number(name: str, low: float, high: float) -> None:
    assert low <= round(CLAIMS[name].model, 9) <= high


def test_standard_costs_5_percent_by_the_printed_equation() -> None:
    assert CLAIMS["standard-time"].equations == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("assumption", "double_ratio", "remote_ratio"),
    [
        ({}, 4.2, 4.4),
        ({"spikes_grow": False}, 5.0, 5.3),
        ({"spikes_grow": False, "weight_copies": 2}, 3.7, 3.9),
    ],
)
def test_larger_networks_rest_on_what_grows_with_them(
    assumption: dict[str, Any], double_ratio: float, remote_ratio: float
) -> None:
    assert network_ratio(PAPER, "double", **assumption) == pytest.approx(double_ratio, abs=0.05)
    assert network_ratio(PAPER, "remote", **assumption) == pytest.approx(remote_ratio, abs=0.05)


def test_all_on_chip_double_grows_as_the_third_root() -> None:
    """3 T^(1/3) = 48 at T = 4096, less the two checkpoints that a schedule does not need."""
    claim = CLAIMS["memory-growth"]
    assert claim.model == pytest.approx(1 / 3, abs=0.01)
    assert "3 T^(1/3) = 48; counted exactly, 46 states" in claim.why


# Verdicts


def test_disagreements_stay() -> None:
    disagreeing = {name for name, claim in CLAIMS.items() if not claim.agrees}
    assert disagreeing == {
        "recompute-30",
        "recompute-10",
        "communications",
        "double-time",
        "five-times-larger-networks",
        "hierarchical-same-chunk",
        "hierarchical-memory",
        "double-near-standard",
        "memory-growth",
    }


@pytest.mark.parametrize(
    ("reading", "admitted", "refused"),
    [
        (Reading("", "count", 64, 64), [64], [63, 65]),
        (Reading("", "times", 4, low_included=False), [4.01], [4, 3]),
        (Reading("", "share", high=0.1, high_included=False), [0.09], [0.1, 0.11, 0.36 / 3.6]),
        (Reading("", "overhead", high=0.1), [0.1, 0.1 + 1e-12, -1], [0.101]),
        (Reading("", "times", 5), [5, 6], [4.99]),
        (Reading("", "count", 64, 256), [64, 256], [63, 257]),
        (Reading("", "overhead", 0.05 - 0.005, 0.05 + 0.005), [0.045, 0.05, 0.055], [0.044, 0.056]),
        (Reading("", "steps", 400, 800, high_included=False), [400, 799], [399, 800]),
    ],
)
def test_a_reading_admits_a_range(reading: Reading, admitted: list[float], refused: list[float]) -> None:
    assert all(reading.admits(value) for value in admitted)
    assert not any(reading.admits(value) for value in refused)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("base-length", with_network(other_resident_bytes=300_000)),
        ("standard-length", with_network(activity=0.5)),
        ("standard-time", with_workload(recompute_seconds="1 us")),
        ("remote-time", with_workload(forward_seconds="9 us", backward_seconds="9 us")),
        ("larger-networks", with_network(activity=0.5)),
        ("standard-chunk-time", with_workload(recompute_seconds="3.6 us")),
        ("double-remote-chunk", with_profile(local_bytes="700 KiB")),
        ("bandwidth-binds", with_profile(synchronisation_seconds="100 us")),
        ("double-gains", with_profile(write_bytes_per_second="20 TB/s",
                                                                 read_bytes_per_second="20 TB/s")),
    ],
)  # fmt: skip
def test_an_agreeing_claim_disagrees_when_its_inputs_change(name: str, changed: PaperSetting) -> None:
    before, after = CLAIMS[name], make_claim(name, changed)
    assert before.agrees
    assert not after.agrees
    assert after.verdict == "disagrees"
    assert before.model != after.model


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("recompute-30", with_workload(recompute_seconds="1.08 us")),
        ("recompute-10", with_workload(recompute_seconds="0.3 us")),
        ("double-time", with_workload(recompute_seconds="0.1 us")),
        ("double-near-standard", with_workload(recompute_seconds="0.1 us")),
    ],
)
def test_a_disagreeing_claim_agrees_when_its_inputs_change(name: str, changed: PaperSetting) -> None:
    assert not CLAIMS[name].agrees
    assert make_claim(name, changed).agrees


# What a verdict is worth


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_a_claim_is_quoted_and_explained(claim: Claim) -> None:
    assert len(claim.quote.split()) >= 4
    assert claim.why.endswith(".")
    assert claim.section == "abstract" or claim.section.split(",")[0].rstrip("-ABCDE") in (
        "I",
        "III",
        "IV",
        "V",
        "VI",
    )


def test_claims_that_judge_an_input_are_named() -> None:
    """Their number is an input of the workload: the verdict tests the paper against itself."""
    judged = [number for number, claim in enumerate(CLAIMS.values(), start=1) if claim.judges_input]
    assert judged == [2, 3]
    share = PAPER.workload.recompute_seconds / PAPER.workload.forward_seconds
    assert all(claim.model == share for claim in CLAIMS.values() if claim.judges_input)
    assert "2 and 3: an input is judged, not a result" in run("paper").stdout
    assert "Claims 2 and 3 judge an input" in run("paper", "--markdown", "-").stdout


def test_what_is_assumed_is_said() -> None:
    assert "profile.synchronisation_seconds" in CLAIMS["double-time"].assumed
    assert "workload.forward_seconds" in CLAIMS["remote-time"].assumed
    assert "workload.network" in CLAIMS["larger-networks"].assumed
    assert CLAIMS["standard-chunk"].assumed == ()


def test_a_claim_that_an_input_was_chosen_for_agrees_by_fit_only() -> None:
    for name in ("base-length", "standard-time", "remote-time", "bandwidth-binds", "longer-sequences"):
        assert CLAIMS[name].verdict == "agrees by fit"
    assert CLAIMS["standard-chunk"].verdict == "agrees"


def test_the_largest_number_that_fits() -> None:
    for limit in (0, 1, 2, 7, 400):
        assert find_largest(lambda value, limit=limit: value <= limit) == limit  # type: ignore[misc]
    assert [nearest_root(number) for number in (1, 2, 3, 6, 7, 4096)] == [1, 1, 2, 2, 3, 64]
