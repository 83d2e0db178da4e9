"""Built-in profiles and workloads: found by name, complete, and true to their sources."""

from pathlib import Path

import jsonschema
import pytest

import ckptplan
from ckptplan import InputError
from ckptplan.model.profile import NUMBERS
from ckptplan.storage import library
from ckptplan.storage.files import parse_toml
from ckptplan.storage.plans import plan_document
from ckptplan.storage.schemas import file_schema
from tests.support import ROOT

PROFILES = library.list_names("hardware_profiles")


def test_all_profiles_are_there() -> None:
    assert PROFILES == [
        "amd-mi300x",
        "amd-xdna2",
        "aws-trainium2",
        "aws-trainium3",
        "cpu-nvme",
        "google-tpu-v5e",
        "ipu-bow",
        "ipu-mk1",
        "ipu-mk2",
        "laptop-cpu",
        "nvidia-a100-80gb",
        "nvidia-gh200",
        "nvidia-h100-sxm",
        "nvidia-h200",
        "nvidia-jetson-orin-nano",
        "raspberry-pi-5",
        "spinnaker2",
        "tenstorrent-blackhole-p150",
        "tenstorrent-wormhole-n300",
    ]


def test_the_page_on_machines_names_every_built_in_profile() -> None:
    page = (ROOT / "docs" / "machines.md").read_text()
    assert [name for name in PROFILES if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", PROFILES)
def test_every_number_given_has_a_source_or_an_assumption(name: str) -> None:
    profile = ckptplan.load_profile(name)
    assert profile.name == name
    given = {field for field in NUMBERS if field in profile.model_fields_set}
    assert given == set(profile.sources)
    assert all(source.date for source in profile.sources.values())


def test_what_nobody_published_is_graded_x() -> None:
    for name in ("ipu-mk1", "ipu-mk2", "ipu-bow"):
        sources = ckptplan.load_profile(name).sources
        for field in ("write_bytes_per_second", "read_bytes_per_second", "synchronisation_seconds"):
            assert sources[field].grade == "X"
    for name in ("nvidia-a100-80gb", "nvidia-h100-sxm", "nvidia-h200"):
        assert ckptplan.load_profile(name).sources["write_bytes_per_second"].grade == "X"
    npu = ckptplan.load_profile("amd-xdna2").sources
    for field in ("write_bytes_per_second", "read_bytes_per_second", "latency_seconds"):
        assert npu[field].grade == "X"


@pytest.mark.parametrize("name", PROFILES)
def test_profile_files_match_the_schema(name: str) -> None:
    text = (library.find_folder("hardware_profiles") / f"{name}.toml").read_text()
    document = parse_toml(text, source=name)
    for entry in document.values():
        if isinstance(entry, dict):
            entry["date"] = str(entry["date"])
    jsonschema.validate(document, file_schema("profile"))
    document["local_bite"] = 5
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, file_schema("profile"))


def test_workload_file_matches_the_schema() -> None:
    text = (library.find_folder("workloads") / "paper-snn.toml").read_text()
    document = parse_toml(text, source="paper-snn")
    jsonschema.validate(document, file_schema("workload"))
    del document["network"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, file_schema("workload"))


@pytest.mark.parametrize("steps", [400, 3000, 4096])
def test_plans_match_the_schema(steps: int) -> None:
    workload = ckptplan.load_workload("paper-snn").with_steps(steps)
    plan = ckptplan.optimize(workload, ckptplan.load_profile("ipu-mk2"))
    document = plan_document(plan)
    jsonschema.validate(document, file_schema("plan"))
    for broken in ({**document, "steps": 0}, {k: v for k, v in document.items() if k != "schema_version"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, file_schema("plan"))


def test_paper_snn_has_the_numbers_of_the_paper() -> None:
    workload = ckptplan.load_workload("paper-snn")
    assert (workload.state_bytes, workload.tape_bytes) == (960, 960)
    assert (workload.cache_bytes, workload.resident_bytes_per_step, workload.resident_bytes) == (96, 0, 216_000)
    assert workload.steps == 4096
    kinds = {field: basis.kind for field, basis in workload.basis.items()}
    assert {kind for field, kind in kinds.items() if field.endswith("_seconds")} == {"assumed"}


def test_names_are_looked_up_and_paths_are_paths(tmp_path: Path) -> None:
    text = (library.find_folder("hardware_profiles") / "ipu-mk2.toml").read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(text)
    assert ckptplan.load_profile(mine) == ckptplan.load_profile(str(mine)) == ckptplan.load_profile("ipu-mk2")


@pytest.mark.parametrize(
    ("name", "told"),
    [("ipu-mk3", "Did you mean 'ipu-mk"), ("gpu", "there is no hardware profile 'gpu'"), ("x" * 500, "xxx")],
)
def test_unknown_profiles_are_refused(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        ckptplan.load_profile(name)


def test_unknown_workloads_are_refused() -> None:
    with pytest.raises(InputError, match="Did you mean 'paper-snn'"):
        ckptplan.load_workload("paper-sn")


MINIMAL = 'name = "p"\nlocal_bytes = "1 MiB"\nwrite_bytes_per_second = 1\nread_bytes_per_second = 1\n'


def test_a_minimal_profile_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(MINIMAL + 'remote_bytes = "unbounded"')
    profile = ckptplan.load_profile(path)
    assert (profile.units, profile.remote_bytes, profile.sources) == (1, None, {})


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ("latency_seconds = inf", "latency_seconds: inf is not a finite number"),
        ("latency_seconds = nan", "latency_seconds: nan is not a finite number"),
        ("latency_seconds = -1", "latency_seconds: -1 is not accepted"),
        ("latncy_seconds = 1", "Did you mean 'latency_seconds'"),
        ("sources = {}", "sources: is not a field: give the source with each number"),
        ("schema_version = 2", "schema_version: this ckptplan does not read version 2"),
        ('[latency_seconds]\ngrade = "A"', "latency_seconds.value: is missing"),
        ("[latency_seconds]\nvalue = 1", "latency_seconds.grade: is missing"),
        ("[latency_seconds]\nvalu = 1", "latency_seconds.valu: is not a key of a number. Did you mean 'value'"),
        ('[latency_seconds]\nvalue = 1\ngrade = "X"', "latency_seconds: grade X needs an assumption"),
        ('[latency_seconds]\nvalue = 1\ngrade = "A"\ndate = 5', "latency_seconds.date: 5 is not a date"),
    ],
)
def test_wrong_profiles_are_refused_by_field(tmp_path: Path, extra: str, told: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(MINIMAL + extra)
    with pytest.raises(InputError) as caught:
        ckptplan.load_profile(path)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)


def test_wrong_workloads_are_refused_by_field(tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_text('name = "w"\nsteps = 0\n')
    with pytest.raises(InputError, match="steps"):
        ckptplan.load_workload(path)


def test_an_installed_package_finds_its_own_copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a project around it, the package looks beside its own modules."""
    monkeypatch.setattr(library, "__file__", str(tmp_path / "ckptplan" / "storage" / "library.py"))
    assert library.find_folder("workloads") == tmp_path / "ckptplan" / "workloads"
