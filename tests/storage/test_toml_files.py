"""Workloads and profiles are written, and read back as equal, by the core alone."""

from pathlib import Path

from tests.installed import run_installed

ROUND_TRIP = """
import ckptplan
workload, profile = ckptplan.load_workload("paper-snn"), ckptplan.load_profile("ipu-mk2")
ckptplan.save_workload(workload, "w.toml")
ckptplan.save_profile(profile, "p.toml")
assert ckptplan.load_workload("./w.toml") == workload
assert ckptplan.load_profile("./p.toml") == profile
assert "torch" not in sys.modules
"""


def test_workloads_and_profiles_are_written_without_an_extra(tmp_path: Path) -> None:
    """In a process that has what a plain install brings: no torch, and nothing that comes with it."""
    done = run_installed(ROUND_TRIP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["p.toml", "w.toml"]
