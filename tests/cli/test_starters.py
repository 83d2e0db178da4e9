"""``ckptplan workloads new --kind`` and ``ckptplan profiles new``: files to start from, and questions."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

import ckptplan
from tests.support import run, started

LSTM = ("--kind", "lstm", "--inputs", "16", "--neurons", "64", "--layers", "2", "--batch", "8", "--T", "128")


def test_a_kind_of_network_becomes_a_commented_workload_to_plan_with(tmp_path: Path) -> None:
    done = run("workloads", "new", *LSTM, "-o", "mine.toml", cwd=tmp_path)
    assert done.returncode == 0
    assert "estimated for nvidia-a100-80gb" in done.stderr
    text = (tmp_path / "mine.toml").read_text()
    assert "steps = 128  # T, the number of time steps" in text
    assert "inputs = 16  # input values" in text
    workload = ckptplan.load_workload(tmp_path / "mine.toml")
    assert (workload.name, workload.steps, workload.batch) == ("mine", 128, 8)
    assert workload.is_estimated
    plan = ckptplan.optimize(workload, ckptplan.load_profile("nvidia-h200"), strategies=["base"])
    assert plan.workload.timed_on == "nvidia-h200"


def test_times_that_are_given_are_taken(tmp_path: Path) -> None:
    run("workloads", "new", *LSTM, "--forward-seconds", "80 us", "-o", "mine.toml", cwd=tmp_path)
    workload = ckptplan.load_workload(tmp_path / "mine.toml")
    assert (workload.forward_seconds, workload.backward_seconds) == (80e-6, 160e-6)
    assert workload.basis["forward_seconds"].kind == "assumed"


def test_a_profile_is_made_from_another_one(tmp_path: Path) -> None:
    done = run("profiles", "new", "--like", "nvidia-h200", "--price-per-hour", "3.5", "--local-bytes", "70 GB",
               "-o", "mine.toml", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0
    mine, like = ckptplan.load_profile(tmp_path / "mine.toml"), ckptplan.load_profile("nvidia-h200")
    assert (mine.name, mine.price_per_hour, mine.local_bytes) == ("mine", 3.5, 70 * 10**9)
    assert mine.float32_flops_per_second == like.float32_flops_per_second
    # A number that was replaced no longer has the source of the other one.
    assert set(mine.sources) == set(like.sources) - {"local_bytes"}
    assert "# price of an hour" in (tmp_path / "mine.toml").read_text()


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (("workloads", "new"), "--kind"),
        (("workloads", "new", "--kind", "gru", "--cell", "gru"), "--kind"),
        (("workloads", "new", "--kind", "convlstm"), "--height"),
        (("workloads", "new", "--kind", "gru", "--layers", "0"), "--layers"),
        (("workloads", "new", "--kind", "gru", "--profile", "cpu-nvme"), "--profile"),
        (("workloads", "new", "--kind", "gru", "--backward-seconds", "1 ms"), "--forward-seconds"),
        (("profiles", "new"), "--local-bytes"),
        (("profiles", "new", "--local-bytes", "24 GB"), "--write-bytes-per-second"),
        (("profiles", "new", "--like", "nvidia-h200", "--power-watts", "much"), "--power-watts"),
        (("profiles", "new", "--like", "h200"), "--like"),
    ],
)
def test_what_is_missing_or_wrong_is_named_by_its_option(
    command: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    done = run(*command, cwd=tmp_path, stdin="")
    assert done.returncode == 2
    assert named in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_questions_are_asked_on_a_terminal(tmp_path: Path) -> None:
    """An empty answer takes what is proposed."""
    mine, theirs = pty.openpty()
    command = ("-m", "ckptplan", "workloads", "new", "-o", "asked.toml")
    streams = {"stdin": theirs, "stdout": subprocess.PIPE, "stderr": theirs}
    with started(*command, **streams, cwd=tmp_path) as process:
        os.close(theirs)
        os.write(mine, b"lstm\n32\n\n\n256\n2\n\n")
        assert process.communicate()[0]
    os.close(mine)
    assert process.returncode == 0
    workload = ckptplan.load_workload(tmp_path / "asked.toml")
    assert workload.network is not None
    assert (workload.network.kind, workload.network.inputs, workload.network.layers) == ("lstm", 32, 2)
    assert (workload.batch, workload.steps) == (32, 256)


def test_tables_say_which_workload_was_planned_where_none_was_named() -> None:
    words = "Workload: paper-snn, as none was named; --workload NAME plans another"
    assert words in run("optimize", "--T", "64", "--strategies", "base").stdout
    assert words not in run("optimize", "--T", "64", "--strategies", "base", "--workload", "gru").stdout


def test_a_profile_without_optional_peaks_is_said_to_lack_them_for_estimates_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\nlocal_bytes = "1 GB"\nremote_bytes = 0\n')
    command = ("workloads", "new", "--kind", "gru", "--profile", "./mine.toml", "-o", "job.toml")
    refused = run(*command, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == (
        "ckptplan: --profile: mine has no float32_flops_per_second, local_bytes_per_second, launch_seconds, "
        "which a profile may leave out, but which step times are estimated from "
        "(accepted: a profile with these fields, or times of your own: --forward-seconds)\n"
    )
    assert run(*command, "--forward-seconds", "1 ms", cwd=tmp_path).returncode == 0
