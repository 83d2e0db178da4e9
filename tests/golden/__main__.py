"""Write the golden files anew: ``python -m tests.golden``. Read the difference before you commit it."""

from pathlib import Path

from tests.support import run

HERE = Path(__file__).parent
MAIN_JOB = ("optimize", "--T", "4096", "--profile", "ipu-mk2")

(HERE / "optimize.txt").write_text(run(*MAIN_JOB).stdout)
(HERE / "plan.json").write_text(run(*MAIN_JOB, "--format", "json", SOURCE_DATE_EPOCH="1700000000").stdout)
(HERE / "infeasible.txt").write_text(run("optimize", "--local-bytes", "500 KiB").stderr)
