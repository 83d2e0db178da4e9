"""Write the golden files anew: ``python -m tests.golden``. Read the difference before you commit it."""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import ckptplan
from tests.golden import public_names, snapshots
from tests.golden.jobs import JOBS
from tests.support import run, small_plan

HERE = Path(__file__).parent
MAIN_JOB = ("optimize", "--T", "4096", "--profile", "ipu-mk2")


def write_all(folder: Path, taken: Iterable[tuple[str, str]]) -> None:
    """Write snapshots to a folder, in place of those that it has."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in taken:
        (folder / f"{name}.txt").write_text(text)


def main() -> None:
    """Write all golden files."""
    (HERE / "optimize.txt").write_text(run(*MAIN_JOB).stdout)
    (HERE / "plan.json").write_text(run(*MAIN_JOB, "--format", "json", SOURCE_DATE_EPOCH="1700000000").stdout)
    (HERE / "infeasible.txt").write_text(run("optimize", "--local-bytes", "500 KiB", "--cache", "all").stderr)
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        ckptplan.save_plan(small_plan(), plan)
        run("simulate", str(plan), "--trace", str(plan.with_name("trace.json")))
        (HERE / "trace.json").write_text(plan.with_name("trace.json").read_text().replace(folder, ""))
    for job in JOBS:
        with tempfile.TemporaryDirectory() as folder:
            write_all(snapshots.FOLDER / job, snapshots.take_job(job, Path(folder)))
    for name, take_others in (("alone", snapshots.take_alone), ("measured", snapshots.take_measured)):
        with tempfile.TemporaryDirectory() as folder:
            write_all(snapshots.FOLDER / name, take_others(Path(folder)))
    write_all(public_names.FOLDER, ((name, public_names.list_names(name)) for name in public_names.PACKAGES))


if __name__ == "__main__":
    main()
