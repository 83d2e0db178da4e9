"""Models are frozen and validated; what they refuse is told with field, value and what is accepted."""

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import ckptplan
from ckptplan import HardwareProfile, InputError, Workload
from ckptplan.model.network import Network
from ckptplan.model.record import Parameters
from ckptplan.model.workload import ACTION_TIMES, TIMES, Basis, was_resized

PROFILE: dict[str, Any] = {
    "name": "p",
    "local_bytes": "624 KiB",
    "write_bytes_per_second": "20 GB/s",
    "read_bytes_per_second": "20 GB/s",
}
WORKLOAD: dict[str, Any] = {
    "name": "w",
    "steps": 10,
    "state_bytes": 8,
    "tape_bytes": 16,
    "forward_seconds": "3 us",
    "backward_seconds": "3 us",
    "recompute_seconds": "1 us",
}


def test_text_with_units_becomes_si() -> None:
    profile = HardwareProfile(**PROFILE)
    assert (profile.local_bytes, profile.write_bytes_per_second) == (638976, 2e10)
    assert Workload(**WORKLOAD).forward_seconds == 3e-6


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"local_bytes": "624 KB"}, "local_bytes: '624 KB' has the unknown unit 'KB'"),
        ({"local_bytes": 0}, "local_bytes: 0 is not accepted"),
        ({"local_bytes": -5}, "local_bytes: -5 is not accepted"),
        ({"local_bytes": 10**5000}, "local_bytes: an integer of about 5,000 digits"),
        ({"write_bytes_per_second": float("nan")}, "write_bytes_per_second: nan is not a finite number"),
        ({"write_bytes_per_second": "inf"}, "write_bytes_per_second"),
        ({"latency_seconds": "-1 us"}, "(accepted: a number from 0 to 1e+12, or text as '1.5 us')"),
        ({"latency_seconds": "1 KiB"}, "latency_seconds: '1 KiB' has the unknown unit 'KiB'"),
        ({"overlaps_compute": "yes"}, "input should be a valid boolean (accepted: true or false)"),
        ({"units": 1.5}, "valid integer (accepted: a whole number from 1 to 1e+09)"),
        ({"price_per_hour": "3 EUR"}, "(accepted: a number from 0 to 1e+12)"),
        ({"units": True}, "units: True is not accepted"),
        ({"local_byte": 5}, "local_byte: is not a field of a hardware profile. Did you mean 'local_bytes'"),
        ({"name": "../etc"}, "name"),
        ({"power_watts": "much"}, "power_watts"),
        ({"sources": {"locl_bytes": {"grade": "A", "source": "x"}}}, "Did you mean 'local_bytes'"),
        ({"sources": {"local_bytes": {"grade": "A"}}}, "grade A needs a source"),
        ({"sources": {"local_bytes": {"grade": "X"}}}, "grade X needs an assumption"),
        ({"sources": {"local_bytes": {"grade": "Z", "source": "x"}}}, "sources.local_bytes.grade"),
        ({"sources": {"local_bytes": {"grade": "A", "sauce": "x"}}}, "sources.local_bytes.sauce"),
    ],
)
def test_profiles_refuse(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        HardwareProfile(**{**PROFILE, **changes})
    assert told in str(caught.value)


def test_a_missing_field_says_what_it_is() -> None:
    with pytest.raises(
        InputError, match=r"local_bytes: is missing \(accepted: local memory of one unit, bytes\)"
    ):
        HardwareProfile(**{key: value for key, value in PROFILE.items() if key != "local_bytes"})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"steps": 0}, "steps: 0 is not accepted"),
        ({"steps": 1.0}, "steps: 1.0 is not accepted"),
        ({"steps": 10**13}, "steps"),
        ({"steps": 10**5000}, "steps"),
        ({"forward_seconds": 0}, "forward_seconds: 0 is not accepted"),
        ({"recompute_seconds": "-0.1 s"}, "recompute_seconds"),
        ({"tape_bytes": 0}, "tape_bytes"),
        ({"basis": {"state_bites": {"kind": "assumed", "why": "x"}}}, "Did you mean 'state_bytes'"),
        ({"basis": {"state_bytes": {"kind": "guessed", "why": "x"}}}, "basis.state_bytes.kind"),
        ({"network": {"neurons": 4, "batch": 2}}, "units: is missing: give the number of units"),
        (
            {"network": {"neurons": 4, "batch": 2}, "units": 2},
            "state_bytes: is given as 8, but the network gives 16",
        ),
        ({"network": {"neurons": 4}, "units": 2}, "network"),
        ({"network": {"neurons": 4, "batch": 0}, "units": 2}, "network"),
        ({"network": 7, "units": 2}, "network"),
    ],
)
def test_workloads_refuse(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        Workload(**{**WORKLOAD, **changes})
    assert told in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("field", ACTION_TIMES)
def test_actions_cost_nothing_unless_said(field: str) -> None:
    """An older workload has none of these; where they are 0, neither its document nor its hash has them."""
    workload = Workload(**WORKLOAD)
    assert getattr(workload, field) == 0.0
    assert field not in workload.model_dump()
    free, costly = (Workload(**{**WORKLOAD, field: seconds}) for seconds in (0, "5 us"))
    assert free.hash == workload.hash != costly.hash
    assert costly.model_dump()[field] == 5e-6
    assert Workload(**costly.model_dump()) == costly
    for wrong in (-1.0, "-5 us", None, "soon", float("nan")):
        with pytest.raises(InputError, match=field):
            Workload(**{**WORKLOAD, field: wrong})


def test_numpy_integers_are_integers() -> None:
    workload = Workload(**{**WORKLOAD, "steps": np.int64(300)})
    assert workload.with_steps(np.int64(7)).steps == 7  # type: ignore[arg-type]


def test_remote_memory_can_be_unbounded() -> None:
    assert HardwareProfile(**{**PROFILE, "remote_bytes": "unbounded"}).remote_bytes is None


def test_models_can_be_keys() -> None:
    assert len({HardwareProfile(**PROFILE), HardwareProfile(**PROFILE)}) == 1
    assert len({Workload(**WORKLOAD), Workload(**WORKLOAD)}) == 1


def test_models_are_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        HardwareProfile(**PROFILE).local_bytes = 5


def test_hashes_cover_the_numbers_only() -> None:
    profile = HardwareProfile(**PROFILE)
    renamed = HardwareProfile(**{**PROFILE, "name": "q", "description": "another text"})
    larger = HardwareProfile(**{**PROFILE, "local_bytes": 638977})
    assert profile.hash == renamed.hash != larger.hash
    workload = Workload(**WORKLOAD)
    assert workload.hash == Workload(**{**WORKLOAD, "name": "v"}).hash != workload.with_steps(11).hash


def network_workload() -> Workload:
    sizes = ("state_bytes", "tape_bytes")
    plain = {key: value for key, value in WORKLOAD.items() if key not in sizes}
    network: Any = {"neurons": 8, "layers": 2, "batch": 3, "activity": 0.1, "other_resident_bytes": "1 kB"}
    return Workload(**plain, units=2, network=network)


def test_a_network_derives_the_sizes() -> None:
    """3 samples x 4 neurons a unit x 4 B; spikes 12 x 0.1 x 4 B rounded up; weights 4 x (8/2) x 4 B."""
    workload = network_workload()
    assert (workload.state_bytes, workload.tape_bytes) == (48, 48)
    assert (workload.cache_bytes, workload.resident_bytes_per_step) == (5, 0)
    assert workload.resident_bytes == 64 + 1000
    assert workload.batch == 3


def test_binary_fractions_are_not_rounded_up() -> None:
    sizes = Network(neurons=2944, layers=3, batch=120, activity=0.1).sizes(units=1472)
    assert sizes["cache_bytes"] == 96


def test_batch_and_neurons_can_be_varied() -> None:
    workload = network_workload()
    assert workload.with_batch(6).state_bytes == 96
    assert workload.with_neurons(16).resident_bytes == 256 + 1000
    assert workload.with_batch(3) == workload
    varied = workload.with_batch(6)
    assert "carried over from batch = 3" in varied.basis["forward_seconds"].why
    assert varied.basis["state_bytes"].why == "from the network, with batch = 6"


def test_times_that_are_estimated_again_or_zero_need_no_rescaling() -> None:
    varied = network_workload().with_batch(6)
    assert was_resized(varied)
    again = {name: Basis(kind="estimated", why="a roofline") for name in TIMES if getattr(varied, name)}
    estimated = varied.replace(basis={**varied.basis, **again})
    assert "record_overhead_seconds" not in estimated.basis
    assert not was_resized(estimated)


def test_without_a_network_they_cannot() -> None:
    with pytest.raises(InputError, match="no network description"):
        Workload(**WORKLOAD).with_batch(5)


def test_a_network_is_spread_anew() -> None:
    spread = network_workload().spread_over(1)
    assert (spread.units, spread.state_bytes, spread.batch) == (1, 96, 3)
    assert spread.resident_bytes == 128 + 2000


def test_parameters_are_attributes_and_a_mapping() -> None:
    parameters = Parameters(chunk_size=16, remote_chunk_size=256)
    assert parameters.chunk_size == parameters["chunk_size"] == 16
    assert dict(parameters) == {"chunk_size": 16, "remote_chunk_size": 256}
    assert len({parameters, Parameters({"chunk_size": 16, "remote_chunk_size": 256})}) == 1
    assert repr(parameters) == "Parameters(chunk_size=16, remote_chunk_size=256)"
    assert copy.deepcopy(parameters) == pickle.loads(pickle.dumps(parameters)) == parameters  # noqa: S301
    assert len(parameters) == 2


def test_parameters_are_frozen_and_checked() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        Parameters(chunk_size=1).chunk_size = 2
    with pytest.raises(AttributeError, match="no parameter 'nb_local'"):
        _ = Parameters(chunk_size=1).nb_local
    for wrong in (0, -1, True, 1.5, "4", 10**13):
        with pytest.raises(InputError, match="chunk_size"):
            Parameters({"chunk_size": wrong})  # type: ignore[dict-item]


def test_a_time_below_an_attosecond_is_refused() -> None:
    """Ratios of times would not be finite: 10^12 seconds of recomputing over 10^-300 of a step."""
    numbers: dict[str, Any] = {
        "name": "x",
        "steps": 64,
        "state_bytes": 8,
        "tape_bytes": 8,
        "recompute_seconds": 1e12,
    }
    with pytest.raises(InputError, match="forward_seconds"):
        Workload(**numbers, forward_seconds=1e-300, backward_seconds=1.0)
    slow = Workload(**numbers, forward_seconds=1e-18, backward_seconds=1e-18)
    plan = ckptplan.optimize(slow, ckptplan.load_profile("ipu-mk2"), strategies=["standard"], local_bytes=300)
    assert math.isfinite(plan.predicted.overhead)
