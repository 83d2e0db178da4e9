"""The optimum on the command line: what is proved, what regularity costs, and what an interruption leaves."""

import csv
import io
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

import ckptplan
from ckptplan import HardwareProfile, Workload
from ckptplan.model.prediction import Bound
from ckptplan.report.formats import TEXT
from ckptplan.report.plan import view_plan
from tests.support import run, run_on_terminal

BUILT_IN = Path(__file__).parents[2] / "workloads" / "paper-snn.toml"


def test_the_table_says_what_is_proved_and_what_a_regular_schedule_costs() -> None:
    text = run("optimize", "--T", "4096").stdout
    assert "proof          no legal schedule is quicker" in text
    assert "schedule       irregular" in text
    assert "double  chunk_size 16, remote_chunk_size 256: 34.42 ms, +6.4 % time" in text


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["memory", "balanced"])
def test_a_bound_of_times_is_no_proof_of_anything_else(objective: str) -> None:
    """The bound stays in the data, where it says of what it is one."""
    options = ["optimize", "--T", "1000", "--objective", objective]
    assert "proof" not in run(*options).stdout
    assert json.loads(run(*options, "--format", "json").stdout)["bound"]["least_seconds"] > 0


def test_regular_plans_are_told_apart() -> None:
    document = json.loads(run("optimize", "--strategies", "regular", "--format", "json").stdout)
    assert document["regular"] is True
    assert document["bound"] is None
    assert document["goal"]["strategies"] == ["base", "standard", "remote", "hierarchical", "double", "nested"]
    document = json.loads(run("optimize", "--format", "json").stdout)
    assert document["regular"] is False
    assert document["bound"]["gap"] == pytest.approx(0.0, abs=1e-12)


def test_regret_as_a_table_and_as_data() -> None:
    text = run("compare", "--regret").stdout
    assert {"time /", "extra /"} <= {" ".join(words) for words in pairwise(text.split())}
    assert "1.064" in text
    rows = list(csv.DictReader(io.StringIO(run("compare", "--format", "csv").stdout)))
    least = {float(row["least_seconds"]) for row in rows if row["fits"] == "true"}
    assert len(least) == 1
    assert all(float(row["seconds"]) >= least.copy().pop() for row in rows if row["fits"] == "true")
    assert "No bound was proved" in run("compare", "--regret", "--strategies", "paper").stdout


def test_a_gap_is_told() -> None:
    text = run("optimize", "--T", "20000", "--local-bytes", "2.2 MB").stdout
    assert "of the least possible time" in text


def test_a_distance_from_the_least_time_is_a_share_of_the_least_time() -> None:
    """The gap of data is a share of the plan's own time: never more than 100 %."""
    workload = Workload(
        name="rn", steps=40, state_bytes=2, tape_bytes=2, forward_seconds=10, backward_seconds=10,
        recompute_seconds=5,
    )  # fmt: skip
    profile = HardwareProfile(
        name="m", local_bytes=2, remote_bytes=2, write_bytes_per_second=1, read_bytes_per_second=1
    )
    plan = ckptplan.optimize(workload, profile)
    assert plan.bound is not None
    times = plan.predicted.seconds / plan.bound.least_seconds
    assert times > 4
    text = "".join(TEXT.render(view_plan(plan, dict)))
    assert f"within {100 * (times - 1):.1f} % of the least possible time" in text
    beyond = plan.model_copy(update={"bound": Bound(least_seconds=0.0, gap=1.0)})
    assert "at an unknown distance from the least" in "".join(TEXT.render(view_plan(beyond, dict)))


def test_an_overlapping_profile_and_a_small_remote_memory_still_get_a_plan() -> None:
    for options in (["--profile", "nvidia-h200"], ["--remote-bytes", "1 MB"]):
        done = run(
            "optimize",
            "--T",
            "500",
            "--local-bytes",
            "400 MB" if "--profile" in options else "280 kB",
            *options,
        )
        assert done.returncode == 0, done.stderr


def test_one_strategy_without_a_schedule_does_not_lose_the_table() -> None:
    """Memory for a tape and not for the state that bptt-* keep beside it; the same reason in each format."""
    options = ["compare", "--T", "4096", "--strategies", "remote,bptt-msm", "--local-bytes", "611000"]
    assert "does not fit" in run(*options).stdout
    reason = json.loads(run(*options, "--format", "json").stdout)["strategies"]["bptt-msm"]
    assert reason == {"fits": False, "binding": "local_bytes", "need": 611136, "have": 611000}
    rows = list(csv.DictReader(io.StringIO(run(*options, "--format", "csv").stdout)))
    assert [row["need"] for row in rows] == ["", "611136"]


def test_a_sequence_that_is_too_long_for_a_strategy_is_said_to_be() -> None:
    options = ["--T", "20000", "--strategies", "bptt-msm", "--local-bytes", "4 MB"]
    assert "too long: about " in run("compare", *options).stdout
    done = run("optimize", *options)
    assert done.returncode == 3
    assert "is too long for it" in done.stderr
    assert "--strategies standard" in done.stderr


def test_suggestions_are_planned_with_the_strategy_asked_for() -> None:
    done = run("optimize", "--T", "4096", "--strategies", "bptt-msm", "--local-bytes", "610200")
    assert done.returncode == 3
    assert "needs at least 596.8 KiB (611,136 bytes)" in done.stderr
    assert "--local-bytes 614976  bptt-msm" in done.stderr
    assert "--remote-bytes" not in done.stderr


def test_long_sequences_beside_compute_have_the_strategies_that_move_nothing() -> None:
    options = ["--T", "200001", "--profile", "nvidia-h200", "--local-bytes", "29 GB", "--format", "json"]
    found = json.loads(run("compare", "--strategies", "periodic,disk-revolve", *options).stdout)["strategies"]
    assert all(one["fits"] and one["plan"]["predicted"]["remote_writes"] == 0 for one in found.values())


def test_an_interruption_leaves_the_best_plan_so_far() -> None:
    """Sent while the optimum is looked for."""
    job = ("--T", "30000", "--effort", "thorough", "--local-bytes", "3.3 MB", "--format", "json")
    code, output, said = run_on_terminal("optimize", *job, interrupt_at=r"\(optimal\)")
    assert code == 130
    assert re.search(r"only the best plan so far, without a bound\s+interrupted", said)
    document = json.loads(output)
    assert document["strategy"] != "optimal"
    assert document["bound"] is None


def test_effort_is_quick_or_thorough() -> None:
    done = run("optimize", "--effort", "some")
    assert done.returncode == 2
    assert "quick" in done.stderr


#: Optimal is predicted 0.016 % quicker than standard.
CLOSE = ("--T", "300", "--local-bytes", "290 kB", "--strategies", "standard,optimal")
REASON = "optimal is predicted 0.016 % quicker, which no calibration can tell; the simpler plan was taken"


def test_a_plan_chosen_for_its_simplicity_is_the_best_of_the_table() -> None:
    """It comes first and is marked, the others are measured by it, and the reason is told; no line twice."""
    done = run("optimize", *CLOSE, COLUMNS="160")
    assert (done.returncode, done.stderr) == (0, "")
    facts, table = done.stdout.split("\n\n")[1:3]
    assert facts.startswith("strategy           standard  chunk_size 12") or "standard  chunk_size" in facts
    assert "proof" in facts
    assert REASON in facts
    lines = {line.split()[0]: line.rstrip() for line in table.splitlines()[1:3]}
    assert list(lines) == ["standard", "optimal"]
    assert lines["standard"].endswith(" best")
    assert lines["optimal"].endswith("  -0.016 % time: too little")


def test_the_choice_is_the_same_in_each_format_and_command() -> None:
    document = json.loads(run("optimize", *CLOSE, "--format", "json").stdout)
    assert document["strategy"] == "standard"
    assert document["bound"]["gap"] == pytest.approx(0.00016, abs=1e-5)
    assert [entry["text"] for entry in document["estimate_basis"] if entry["field"] == "search"] == [REASON]
    (row,) = csv.DictReader(io.StringIO(run("optimize", *CLOSE, "--format", "csv").stdout))
    assert (row["strategy"], float(row["seconds"])) == ("standard", document["predicted"]["seconds"])
    compared = json.loads(run("compare", *CLOSE, "--format", "json").stdout)["strategies"]
    assert list(compared) == ["standard", "optimal"]
    assert compared["standard"]["plan"]["predicted"] == document["predicted"]
    assert compared["standard"]["same_schedule"] == []


def test_strategies_with_the_same_schedule_share_a_line() -> None:
    """It has the name of the simplest; programs find each strategy, with the others."""
    job = ("--T", "300", "--local-bytes", "290 kB", "--strategies", "standard,hierarchical,double,nested")
    lines = run("compare", *job).stdout.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("standard"))
    assert lines[place].split()[-1] == "best"
    assert lines[place + 1].split() == ["also:", "nested,", "hierarchical,", "double"]
    assert lines[place + 2] == ""
    found = json.loads(run("compare", *job, "--format", "json").stdout)["strategies"]
    assert found["double"]["same_schedule"] == ["standard", "nested", "hierarchical"]
