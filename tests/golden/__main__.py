"""Write the golden files anew: ``python -m tests.golden``. Read the difference before you commit it."""

import tempfile
from pathlib import Path

import ckptplan
from tests.support import run, small_plan

HERE = Path(__file__).parent
MAIN_JOB = ("optimize", "--T", "4096", "--profile", "ipu-mk2")

(HERE / "optimize.txt").write_text(run(*MAIN_JOB).stdout)
(HERE / "plan.json").write_text(run(*MAIN_JOB, "--format", "json", SOURCE_DATE_EPOCH="1700000000").stdout)
(HERE / "infeasible.txt").write_text(run("optimize", "--local-bytes", "500 KiB").stderr)
with tempfile.TemporaryDirectory() as folder:
    plan = Path(folder) / "plan.json"
    ckptplan.save_plan(small_plan(), plan)
    (HERE / "simulate.txt").write_text(run("simulate", str(plan)).stdout)
    for form in ("jsonl", "csv"):
        written = run("schedule", str(plan), "--format", form).stdout
        (HERE / f"schedule.{form}").write_text(written.replace(folder, ""))
    run("simulate", str(plan), "--trace", str(plan.with_name("trace.json")))
    (HERE / "trace.json").write_text(plan.with_name("trace.json").read_text().replace(folder, ""))
