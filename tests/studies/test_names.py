"""Names in place of workloads and profiles, and results in one line."""

import re
from pathlib import Path

import pytest

import ckptplan
from ckptplan import InputError


def test_names_and_paths_are_accepted_wherever_a_workload_or_a_profile_is(tmp_path: Path) -> None:
    workload, profile = ckptplan.load_workload("gru").with_steps(64), ckptplan.load_profile("nvidia-h200")
    ckptplan.save_workload(workload, tmp_path / "mine.toml")
    expected = ckptplan.optimize(workload, profile)
    named = ckptplan.optimize("gru", "nvidia-h200", steps=64)
    assert (named.workload, named.profile) == (expected.workload, expected.profile)
    assert named.predicted == expected.predicted
    assert ckptplan.optimize(tmp_path / "mine.toml", profile).workload.steps == 64
    assert ckptplan.compare("gru", "nvidia-h200", steps=64).keys() == ckptplan.compare(workload, profile).keys()
    assert len(ckptplan.pareto("gru", profile, steps=64)) == len(ckptplan.pareto(workload, profile))
    machines = ckptplan.compare_machines("gru", ["nvidia-h200", "ipu-bow"], steps=64).machines
    assert {machine.profile.name for machine in machines} == {"nvidia-h200", "ipu-bow"}
    assert ckptplan.sensitivity("gru", "nvidia-h200", steps=64).workload == workload
    assert ckptplan.largest("T", "gru", "ipu-bow").keys() == ckptplan.largest("T", workload, "ipu-bow").keys()
    (row,) = ckptplan.sweep({"T": [64]}, workloads="gru", profiles=["nvidia-h200"])
    assert row["strategy"] == expected.strategy


@pytest.mark.parametrize(
    ("workload", "profile", "message"),
    [
        ("paper-sn", "ipu-mk2", "there is no workload 'paper-sn'. Did you mean 'paper-snn'?"),
        ("paper-snn", "ipu", "there is no hardware profile 'ipu'"),
        (3, "ipu-mk2", "workload: 3 is not a Workload .* or a name or path of one"),
        ("paper-snn", None, "profile: None is not a HardwareProfile"),
    ],
)
def test_unknown_names_are_refused_with_those_that_exist(
    workload: object, profile: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ckptplan.optimize(workload, profile)  # type: ignore[arg-type]


def test_each_result_is_one_line() -> None:
    job = ("paper-snn", "ipu-mk2")
    wide = ckptplan.sweep({"T": [16, 32], "batch": [30, 60, 90]}, workloads=job[0], profiles=job[1])
    next(wide)
    results = [
        (ckptplan.optimize(*job, steps=64), r"<Plan base: paper-snn on ipu-mk2, T = 64; 460.8 us a batch, .*>"),
        (
            ckptplan.pareto(*job, steps=64),
            r"<ParetoFront of \d+ plans: paper-snn on ipu-mk2, T = 64, .* local>",
        ),
        (wide, r"<SweepResult of 6 rows over T, batch, \d of them planned>"),
        (ckptplan.largest("T", *job), r"<LargestValues of T: [\w-]+ [\d,]+, .*>"),
        (ckptplan.sensitivity(*job, steps=64), r"<Sensitivity of base, 460.8 us: .*T = 64, \d+ inputs>"),
        (
            ckptplan.compare_machines("gru", ["ipu-bow", "nvidia-h200"], steps=64),
            r"<MachineComparison of 2 machines for gru: quickest [\w-]+, .*>",
        ),
        (ckptplan.load_workload("gru"), "<Workload gru: GRU, 1 layer, 512 neurons, batch 32, float32>"),
        (ckptplan.load_profile("ipu-mk2"), "<HardwareProfile ipu-mk2: Graphcore Colossus Mk2 GC200: .*>"),
    ]
    for result, pattern in results:
        assert re.fullmatch(pattern, repr(result)), repr(result)
        assert len(str(result).splitlines()) <= 2


def test_sizes_in_a_line_have_the_units_of_the_memory_that_was_given() -> None:
    job = ckptplan.load_workload("paper-snn").with_steps(4096), "ipu-mk2"
    assert str(ckptplan.optimize(*job, local_bytes="2 MB")).endswith("over base; 1.999 MB local, 0 B remote")
    assert "MiB local" in str(ckptplan.optimize(*job, local_bytes="2 MiB"))
    assert " kB to 4.541 MB local" in str(ckptplan.pareto(*job, local_bytes="2 MB"))
