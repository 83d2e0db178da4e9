"""``ckptplan optimize`` and ``compare``: which plan is chosen, what is known of it, and the files written.

What they print on ten jobs is in tests/golden, which lines they refuse in test_refusals.py.
"""

from __future__ import annotations

import csv
import io
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import ckptplan
from ckptplan import HardwareProfile, Workload
from ckptplan.model.prediction import Bound
from ckptplan.storage.schemas import file_schema
from ckptplan.strategies.registry import select_strategies
from tests.support import run, run_on_terminal

GOLDEN = Path(__file__).parent.parent / "golden"
MAIN_JOB = ("optimize", "--T", "4096", "--profile", "ipu-mk2")


def as_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--format", "json").stdout)


def as_rows(*arguments: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(run(*arguments, "--format", "csv").stdout)))


def test_the_table_is_that_of_the_readme_and_the_file_is_the_plan(tmp_path: Path) -> None:
    """Write the golden file anew with: python -m tests.golden."""
    done = run(*MAIN_JOB, "-o", "plan.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "plan written to plan.json\n")
    assert done.stdout == run(*MAIN_JOB).stdout == (GOLDEN / "optimize.txt").read_text()
    assert ckptplan.load_plan(tmp_path / "plan.json").strategy == "optimal"


def test_the_plan_is_as_in_the_golden_file() -> None:
    """Other programs read it: any change of a name or a number must be seen."""
    document = json.loads(run(*MAIN_JOB, "--format", "json", SOURCE_DATE_EPOCH="1700000000").stdout)
    expected = json.loads((GOLDEN / "plan.json").read_text())
    document["provenance"]["version"] = expected["provenance"]["version"]
    assert document == expected
    jsonschema.validate(document, file_schema("plan"))


def test_the_message_that_the_documents_show_is_printed_where_nothing_fits() -> None:
    done = run("optimize", "--local-bytes", "500 KiB", "--cache", "all")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (GOLDEN / "infeasible.txt").read_text()


@pytest.mark.parametrize("command", ["optimize", "compare"])
@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_file_takes_every_format(command: str, form: str, tmp_path: Path) -> None:
    asked = (command, "--T", "64", "--strategies", "double", "--format", form)
    done = run(*asked, "-o", "result", cwd=tmp_path, SOURCE_DATE_EPOCH="1700000000")
    assert (done.returncode, done.stdout) == (0, "")
    printed = run(*asked, SOURCE_DATE_EPOCH="1700000000").stdout
    assert (tmp_path / "result").read_text().replace(" -o result", "") == printed


def test_neurons_and_another_machine_reach_the_planner() -> None:
    """Other options are in the goals of tests/golden."""
    document = as_json("optimize", "--T", "1000", "--neurons", "5888", "--profile", "ipu-bow")
    assert (document["workload"]["network"]["neurons"], document["profile"]["name"]) == (5888, "ipu-bow")


def test_csv_columns_do_not_depend_on_the_answer() -> None:
    headers = {
        run(command, "--T", steps, "--format", "csv").stdout.splitlines()[0]
        for command in ("optimize", "compare")
        for steps in ("100", "3000", "4096")
    }
    assert len(headers) == 2


def test_invented_numbers_are_counted_and_named(tmp_path: Path) -> None:
    """A machine and a job without a source for anything assume nothing, and prove nothing."""
    machine = {"local_bytes": 2**20, "write_bytes_per_second": 10**9, "read_bytes_per_second": 10**9}
    times = {"forward_seconds": 0.001, "backward_seconds": 0.002, "recompute_seconds": 0.001}
    job = {"state_bytes": 4096, "tape_bytes": 8192, **times}
    for name, fields in (("box", machine), ("net", {"steps": 64, **job})):
        lines = (f"{field} = {value}\n" for field, value in fields.items())
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\n{"".join(lines)}')
    asked = ("optimize", "--profile", str(tmp_path / "box.toml"), "--workload", str(tmp_path / "net.toml"))
    invented = [*(f"profile.{field}" for field in machine), *(f"workload.{field}" for field in job)]
    table = run(*asked, "--basis", COLUMNS="80").stdout
    assert "8 without a source" in run(*asked).stdout
    assert [word.rstrip(",") for word in table.split() if word.rstrip(",") in invented] == invented
    assert all(len(line) <= 80 for line in table.splitlines())
    basis = as_json(*asked)["estimate_basis"]
    assert [entry["field"] for entry in basis if entry["text"] == "given without a source"] == invented


def test_the_search_ends_with_a_plan_that_none_can_be_quicker_than() -> None:
    """Plain backpropagation fits; ``compare`` plans every strategy, and has the same plan first."""
    job = ("--workload", "gru", "--profile", "nvidia-a100-80gb", "--T", "256")
    table = " ".join(run("optimize", *job).stdout.split())
    names = [strategy.name for strategy in select_strategies(None) if strategy.name != "base"]
    assert f": {', '.join(names)} (ckptplan compare" in table
    compared = as_json("compare", *job)["strategies"]
    assert set(compared) == {"base", *names}
    assert as_json("optimize", *job)["bound"] == compared["base"]["plan"]["bound"]


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["memory", "balanced"])
def test_a_bound_of_times_is_no_proof_of_anything_else(objective: str) -> None:
    """The bound stays in the data, which says that it bounds times."""
    options = ("optimize", "--T", "1000", "--objective", objective)
    assert "proof" not in run(*options).stdout
    assert as_json(*options)["bound"]["least_seconds"] > 0


def test_regular_plans_are_told_apart() -> None:
    document = as_json("optimize", "--strategies", "regular")
    assert (document["regular"]["parameters"], document["bound"]) == (document["parameters"], None)
    assert document["goal"]["strategies"] == ["base", "standard", "remote", "hierarchical", "double", "nested"]
    document = as_json("optimize")
    assert document["regular"]["parameters"] != document["parameters"]
    assert document["bound"]["gap"] == pytest.approx(0.0041, abs=1e-4)


def test_regret_is_the_time_over_the_least_that_is_possible() -> None:
    text = run("compare", "--regret", COLUMNS="120").stdout
    assert {"time /", "extra /"} <= {" ".join(words) for words in pairwise(text.split())}
    assert f"{as_json('compare')['strategies']['double']['time_over_least']:.3f}" in text
    rows = [row for row in as_rows("compare") if row["fits"] == "true"]
    (least,) = {float(row["least_seconds"]) for row in rows}
    assert all(float(row["seconds"]) >= least for row in rows)


def test_a_distance_from_the_least_time_is_a_share_of_the_least_time(tmp_path: Path) -> None:
    """The gap of data is a share of the plan's own time: at most 100 %. A least time of 0 is shown, too."""
    workload = Workload(
        name="rn", steps=40, state_bytes=2, tape_bytes=2, forward_seconds=10, backward_seconds=10,
        recompute_seconds=5,
    )  # fmt: skip
    profile = HardwareProfile(
        name="m", local_bytes=2, remote_bytes=2, write_bytes_per_second=1, read_bytes_per_second=1
    )
    ckptplan.save_workload(workload, tmp_path / "rn.toml")
    ckptplan.save_profile(profile, tmp_path / "m.toml")
    done = run("optimize", "--workload", "./rn.toml", "--profile", "./m.toml", cwd=tmp_path)
    plan = ckptplan.optimize(workload, profile)
    assert plan.bound is not None
    times = plan.predicted.seconds / plan.bound.least_seconds
    assert times > 4
    assert f"{100 * (times - 1):.1f} %" in done.stdout
    beyond = plan.model_copy(update={"bound": Bound(least_seconds=0.0, gap=1.0)})
    ckptplan.save_plan(beyond, tmp_path / "plan.json")
    assert run("report", "plan.json", "-o", "page.html", cwd=tmp_path).returncode == 0


def test_an_interruption_leaves_the_best_plan_so_far() -> None:
    """Sent while the optimum is looked for."""
    job = ("--T", "30000", "--effort", "thorough", "--local-bytes", "600 kB", "--format", "json")
    status, output, shown = run_on_terminal("optimize", *job, interrupt_at=r"\(optimal\)")
    assert status == 130
    assert re.search(r"only the best plan so far, without a bound\s+interrupted", shown)
    document = json.loads(output)
    assert document["strategy"] != "optimal"
    assert document["bound"] is None


#: Growing is predicted 0.016 % quicker than standard.
CLOSE = ("--T", "300", "--local-bytes", "300 kB", "--strategies", "standard,growing")
REASON = "growing is predicted 0.016 % quicker, which no calibration can tell; the simpler plan was taken"


def test_the_simpler_of_two_plans_as_quick_is_the_best_in_each_format_and_command() -> None:
    """It comes first and is marked, and the reason is given."""
    done = run("optimize", *CLOSE, COLUMNS="160")
    assert (done.returncode, done.stderr) == (0, "")
    assert REASON in done.stdout
    first, second = (line for line in done.stdout.splitlines() if line.startswith(("standard ", "growing ")))
    assert (first.split()[0], first.split()[-1]) == ("standard", "best")
    assert (second.split()[0], "-0.016 %" in second) == ("growing", True)
    document = as_json("optimize", *CLOSE)
    assert document["strategy"] == "standard"
    assert [entry["text"] for entry in document["estimate_basis"] if entry["field"] == "search"] == [REASON]
    (row,) = as_rows("optimize", *CLOSE)
    assert (row["strategy"], float(row["seconds"])) == ("standard", document["predicted"]["seconds"])
    compared = as_json("compare", *CLOSE)["strategies"]
    assert list(compared) == ["standard", "growing"]
    assert compared["standard"]["plan"]["predicted"] == document["predicted"]
    assert compared["standard"]["same_schedule"] == []
