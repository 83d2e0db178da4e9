"""Plans as earlier programs wrote them, with their schedules: of version 1, and with decisions that went."""

import json
from pathlib import Path

import pytest

import ckptplan
from ckptplan import InputError
from ckptplan.schedule.actions import Record
from ckptplan.storage.plans import plan_document

HERE = Path(__file__).parent / "version_1"
#: Plans of ``optimal`` that took over a closed form, and of closed forms that listed their decisions.
DECIDED = sorted((Path(__file__).parent / "version_2").glob("*.json"))
#: nested called the length of its segments remote_chunk_size; double still does.
PARAMETERS = {
    "nested": {"chunk_size": 4, "segment_size": 16},
    "double": {"chunk_size": 6, "remote_chunk_size": 18},
}
names = pytest.mark.parametrize("name", sorted(PARAMETERS))


@names
def test_a_plan_of_version_1_is_read_as_one_of_version_3(name: str, tmp_path: Path) -> None:
    plan = ckptplan.load_plan(HERE / f"{name}.json")
    assert (plan.schema_version, plan.strategy, dict(plan.parameters)) == (3, name, PARAMETERS[name])
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["schema_version"] == 3
    assert ckptplan.load_plan(tmp_path / "plan.json") == plan


@names
def test_it_says_what_it_said(name: str) -> None:
    """All but the version and the name; all caches are kept, and spikes stay resident."""
    document = json.loads((HERE / f"{name}.json").read_text())
    assert document["schema_version"] == 1
    assert list(document["parameters"].values()) == list(PARAMETERS[name].values())
    translated = {
        **document,
        "schema_version": 3,
        "parameters": PARAMETERS[name],
        "cache": "all",
        "predicted": {**document["predicted"], "recomputed_without_cache": 0},
    }
    network = document["workload"]["network"]
    if network is not None and network["activity"]:
        translated["workload"] = {**document["workload"], "network": {**network, "spikes": "resident"}}
    plan = ckptplan.load_plan(HERE / f"{name}.json")
    assert plan.is_regular == translated.pop("regular")
    document = plan_document(plan)
    del document["regular"]
    assert document == translated


@names
def test_it_has_the_schedule_that_it_had_and_costs_what_it_predicts(name: str) -> None:
    plan = ckptplan.load_plan(HERE / f"{name}.json")
    assert list(ckptplan.actions(plan)) == list(ckptplan.load_schedule(HERE / f"{name}.csv"))
    trace = ckptplan.simulate(plan)
    assert trace.seconds == pytest.approx(plan.predicted.seconds, rel=1e-12)
    for field in ("local_peak_bytes", "remote_peak_bytes", "recomputed_steps", "remote_writes", "messages"):
        assert getattr(trace, field) == plan.predicted[field]


@pytest.mark.parametrize(
    ("version", "parameters"),
    [
        (1, {"chunk_size": 4}),
        (1, {"chunk_size": 4, "remote_chunk_size": 16, "segment_size": 16}),
        (2, {"chunk_size": 4, "remote_chunk_size": 16}),
    ],
)
def test_parameters_that_no_version_had_are_refused(
    version: int, parameters: dict[str, int], tmp_path: Path
) -> None:
    document = json.loads((HERE / "nested.json").read_text())
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**document, "schema_version": version, "parameters": parameters}))
    with pytest.raises(InputError, match="parameters: nested takes chunk_size, segment_size"):
        ckptplan.load_plan(path)


@pytest.mark.parametrize("version", [0, 4, "1", None])
def test_other_versions_are_refused_with_those_that_are_read(version: object, tmp_path: Path) -> None:
    document = json.loads((HERE / "nested.json").read_text())
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**document, "schema_version": version}))
    with pytest.raises(InputError, match="this ckptplan does not read version") as caught:
        ckptplan.load_plan(path)
    assert (caught.value.field, caught.value.accepted) == ("schema_version", "1 or 2 or 3")


def test_version_1_of_profiles_and_schedules_has_no_successor(tmp_path: Path) -> None:
    """What did not change keeps its version: older programs still read it."""
    ckptplan.save_schedule(ckptplan.load_plan(HERE / "nested.json"), tmp_path / "schedule.jsonl")
    head = json.loads((tmp_path / "schedule.jsonl").read_text().splitlines()[0])
    assert head["schema_version"] == 1
    assert head["parameters"] == PARAMETERS["nested"]
    ckptplan.save_profile(ckptplan.load_profile("ipu-mk2"), tmp_path / "profile.toml")
    assert "schema_version = 1\n" in (tmp_path / "profile.toml").read_text()


def test_a_workload_of_version_1_keeps_the_spikes_of_all_steps(tmp_path: Path) -> None:
    workload = ckptplan.load_workload("paper-snn")
    ckptplan.save_workload(workload, tmp_path / "workload.toml")
    text = (tmp_path / "workload.toml").read_text()
    assert "schema_version = 2\n" in text
    earlier = text.replace("schema_version = 2", "schema_version = 1").replace(
        "[basis.cache_bytes]", "[basis.resident_bytes_per_step]"
    )
    (tmp_path / "workload.toml").write_text(earlier)
    before = ckptplan.load_workload(tmp_path / "workload.toml")
    assert (before.cache_bytes, before.resident_bytes_per_step) == (0, 96)
    assert (workload.cache_bytes, workload.resident_bytes_per_step) == (96, 0)
    ckptplan.save_workload(before, tmp_path / "workload.toml")
    assert ckptplan.load_workload(tmp_path / "workload.toml") == before


@pytest.mark.parametrize("path", DECIDED, ids=lambda path: path.stem)
def test_a_plan_with_decisions_that_went_is_loaded_simulated_and_executed(path: Path, tmp_path: Path) -> None:
    plan = ckptplan.load_plan(path)
    strategy = path.stem.removeprefix("optimal-").removesuffix("-overlap")
    assert plan.strategy == strategy
    assert (plan.splits is None) == path.stem.startswith("optimal-")
    assert list(ckptplan.actions(plan)) == list(ckptplan.load_schedule(path.with_suffix(".csv")))
    trace = ckptplan.simulate(plan)
    assert trace.seconds == pytest.approx(plan.predicted.seconds, rel=1e-12)
    assert trace.local_peak_bytes == plan.predicted.local_peak_bytes
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    assert ckptplan.load_plan(tmp_path / "plan.json") == plan
    # Executed: every step is recorded once, after the steps before it have run.
    recorded = [action for action in ckptplan.actions(plan) if isinstance(action, Record)]
    assert sorted(step for action in recorded for step in range(action.start, action.stop)) == list(range(61))
