"""``ckptplan optimize`` and ``compare`` as real processes: what is printed where, and the exit code."""

import csv
import fcntl
import io
import json
import re
import signal
import subprocess
import sys
import termios
from array import array
from pathlib import Path
from typing import IO, Any

import jsonschema
import pytest

import ckptplan
from ckptplan.storage.schemas import file_schema
from ckptplan.strategies.registry import select_strategies
from tests.support import leave_progress_out, run, run_process, started, wait_until

GOLDEN = Path(__file__).parent.parent / "golden"
MAIN_JOB = ("optimize", "--T", "4096", "--profile", "ipu-mk2")
PAPER = ("--strategies", "paper")


def test_the_table_is_as_in_the_golden_file() -> None:
    """What README shows; write it anew with: python -m tests.golden."""
    done = run(*MAIN_JOB)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (GOLDEN / "optimize.txt").read_text()


def test_the_plan_is_as_in_the_golden_file() -> None:
    """Other programs read it: any change of a name or a number must be seen."""
    done = run(*MAIN_JOB, "--format", "json", SOURCE_DATE_EPOCH="1700000000")
    document = json.loads(done.stdout)
    expected = json.loads((GOLDEN / "plan.json").read_text())
    document["provenance"]["version"] = expected["provenance"]["version"]
    assert document == expected
    jsonschema.validate(document, file_schema("plan"))


def test_a_plan_that_none_can_be_quicker_than_ends_the_search_and_says_so() -> None:
    """Plain backpropagation fits; ``compare`` plans every strategy, and has the same plan first."""
    job = ("--workload", "gru", "--profile", "nvidia-a100-80gb", "--T", "256")
    table = " ".join(run("optimize", *job).stdout.split())
    names = [one.name for one in select_strategies(None) if one.name != "base"]
    assert f"not searched, as none can be quicker: {', '.join(names)} (ckptplan compare" in table
    assert "proof no legal schedule is quicker" in table
    compared = json.loads(run("compare", *job, "--format", "json").stdout)["strategies"]
    assert set(compared) == {"base", *names}
    alone = json.loads(run("optimize", *job, "--format", "json").stdout)
    assert alone["bound"] == compared["base"]["plan"]["bound"]


def test_no_colour_codes_off_a_terminal() -> None:
    assert "\x1b" not in run(*MAIN_JOB, FORCE_COLOR="").stdout


def test_a_terminal_without_the_sign_of_less_or_equal_gets_two_characters() -> None:
    job = ("compare", "--profiles", "ipu-mk2,nvidia-h200", "--T", "512")
    assert "<= 0.69 J" in run_process(*job, PYTHONIOENCODING="latin-1").stdout


def test_a_terminal_that_cannot_show_blocks_gets_ascii() -> None:
    done = run_process(*MAIN_JOB, PYTHONIOENCODING="latin-1")
    assert done.returncode == 0
    assert "########" in done.stdout


def test_json_is_valid_and_names_the_command() -> None:
    document = json.loads(run(*MAIN_JOB, *PAPER, "--format", "json").stdout)
    assert document["kind"] == "ckptplan.plan"
    command = "ckptplan optimize --T 4096 --profile ipu-mk2 --strategies paper --format json"
    assert document["provenance"]["command"] == command
    assert document["predicted"]["paper"]["local_peak_bytes"] == 639_936


def test_csv_is_one_row_with_a_header() -> None:
    rows = list(csv.DictReader(io.StringIO(run(*MAIN_JOB, *PAPER, "--format", "csv").stdout)))
    assert len(rows) == 1
    assert (rows[0]["strategy"], rows[0]["chunk_size"], rows[0]["local_peak_bytes"]) == (
        "double",
        "16",
        "638976",
    )


def test_output_writes_the_plan_and_prints_the_table(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    done = run(*MAIN_JOB, "-o", str(path))
    assert done.stdout == (GOLDEN / "optimize.txt").read_text()
    assert done.stderr == f"plan written to {path}\n"
    assert ckptplan.load_plan(path).strategy == "optimal"


def test_output_dash_is_standard_output() -> None:
    assert json.loads(run(*MAIN_JOB, "-o", "-").stdout)["strategy"] == "optimal"


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_output_takes_every_format(tmp_path: Path, format_: str) -> None:
    path = tmp_path / "result"
    done = run(*MAIN_JOB, *PAPER, "--format", format_, "-o", str(path))
    assert (done.returncode, done.stdout) == (0, "")
    assert "double" in path.read_text()


def test_options_reach_the_planner() -> None:
    document = json.loads(
        run(
            *("optimize", "--T", "1000", "--batch", "60", "--neurons", "5888", "--profile", "ipu-bow"),
            *("--objective", "memory", "--max-overhead", "25%", "--strategies", "standard,double"),
            *("--local-bytes", "500 KiB", "--remote-bytes", "1 GB", "--format", "json"),
        ).stdout
    )
    assert document["goal"] == {
        "objective": "memory",
        "model": "exact",
        "max_overhead": 0.25,
        "local_bytes": 512_000,
        "remote_bytes": 10**9,
        "strategies": ["standard", "double"],
        "effort": "quick",
    }
    assert (document["steps"], document["workload"]["batch"]) == (1000, 60)
    assert document["workload"]["network"]["neurons"] == 5888
    assert document["predicted"]["overhead"] <= 0.25


def test_profile_and_workload_take_paths(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text(
        'name = "mine"\nlocal_bytes = "1 MiB"\n'
        'write_bytes_per_second = "1 GB/s"\nread_bytes_per_second = "2 GB/s"\n'
    )
    workload = tmp_path / "job.toml"
    workload.write_text(
        'name = "job"\nsteps = 100\nstate_bytes = "32 KiB"\ntape_bytes = "224 KiB"\n'
        'forward_seconds = "1 ms"\nbackward_seconds = "2 ms"\nrecompute_seconds = "1 ms"\n'
    )
    done = run("optimize", "--profile", str(profile), "--workload", str(workload))
    assert done.returncode == 0
    assert "job on mine, T = 100" in done.stdout
    assert "numbers given without" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--T", "0"], "--T: '0' is out of range"),
        (["--T", "-5"], "--T: '-5' is out of range"),
        (["--T", "4e3"], "--T: '4e3' is not a whole number"),
        (["--T", "4 KiB"], "--T: '4 KiB' is not a whole number"),
        (["--T", "9" * 5000], "--T: '9999"),
        (["--T", "٣"], "--T"),
        (["--T", "2000000000000"], "from 1 to 1,000,000,000,000"),
        (["--T", ""], "--T: '' is not a whole number"),
        (["--profile", "ipu-mk"], "--profile: there is no hardware profile 'ipu-mk'. Did you mean 'ipu-mk"),
        (["--max-overhead", "10"], "--max-overhead: '10' would be 1000%; say '10%'"),
        (["--local-bytes", "595.9 KiB"], "say 610201"),
        (["-o", ""], "an empty name is no file"),
        (["--workload", "paper_snn"], "Did you mean 'paper-snn'"),
        (["--profile", "none.toml"], "none.toml: cannot be read: No such file"),
        (["--local-bytes", "624 KB"], "--local-bytes: '624 KB' has the unknown unit 'KB'"),
        (["--local-bytes", "0"], "--local-bytes: '0' is not accepted: input should be greater than 0"),
        (["--local-bytes", "nan"], "--local-bytes: 'nan'"),
        (["--remote-bytes", "-1"], "--remote-bytes: -1 is not accepted"),
        (["--max-overhead", "inf"], "--max-overhead: 'inf'"),
        (["--strategies", "dubble"], "Did you mean 'double'"),
        (["--strategies", ""], "strategies"),
        (["--objective", "speed"], "--objective"),
        (["--format", "xml"], "--format"),
        (["--batch", "0"], "--batch: '0' is out of range"),
        (["--lokal-bytes", "1"], "--local-bytes"),
        (
            ["-o", "/nowhere/plan.json"],
            "--output: cannot be written: the folder of '/nowhere/plan.json' does not exist",
        ),
        (["--model", "paper", "--strategies", "nested"], "the paper prints no equation"),
    ],
)
def test_bad_input_is_one_clear_message(arguments: list[str], told: str) -> None:
    done = run("optimize", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 700


def test_errors_are_json_in_json_mode() -> None:
    for arguments in (["--T", "0"], ["--lokal-bytes", "1"]):
        done = run("optimize", "--format", "json", *arguments)
        assert done.returncode == 2
        document = json.loads(done.stdout)
        assert (document["kind"], document["exit_code"]) == ("ckptplan.error", 2)
        assert document["message"] in done.stderr
    assert json.loads(run("optimize", "--T", "0", "--format=json").stdout)["field"] == "--T"


def test_an_empty_command_line_shows_the_help() -> None:
    for arguments in ([], ["profiles"], ["workloads"]):
        done = run(*arguments)
        assert "Usage" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_output_never_replaces_an_input(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    text = 'name = "p"\nlocal_bytes = "1 GB"\nwrite_bytes_per_second = 9\nread_bytes_per_second = 9\n'
    profile.write_text(text)
    for command in ("optimize", "compare"):
        done = run(command, "--profile", str(profile), "-o", str(profile))
        assert done.returncode == 2
        assert "is read by this command and would be lost" in done.stderr
    assert profile.read_text() == text


def test_a_full_disk_behind_standard_output_is_told() -> None:
    for format_ in ("table", "json"):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "ckptplan", "optimize", "--format", format_],
                check=False,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert done.returncode == 2
        told = leave_progress_out(done.stderr)
        assert told == "ckptplan: standard output cannot be written: No space left on device\n"


def test_a_closed_standard_output_is_no_fault() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m ckptplan optimize >&-"],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, leave_progress_out(done.stderr)) == (0, "")


def test_csv_columns_do_not_depend_on_the_answer() -> None:
    headers = {
        run(command, "--T", steps, "--format", "csv").stdout.splitlines()[0]
        for command in ("optimize", "compare")
        for steps in ("100", "3000", "4096")
    }
    assert len(headers) == 2


def test_a_narrow_terminal_is_respected() -> None:
    lines = run(*MAIN_JOB, COLUMNS="60").stdout.splitlines()
    assert max(map(len, lines)) <= 60
    assert not any(line.endswith(" ") for line in lines)


def test_what_was_asked_for_is_shown() -> None:
    text = run("optimize", "--objective", "memory", "--max-overhead", "50%", "--batch", "60").stdout
    assert "least local memory, at most +50.0 % over base" in text
    assert "step times carried over, not rescaled" in text
    other = run("optimize", "--T", "256", "--profile", "cpu-nvme", "--strategies", "standard").stdout
    assert "step times carried over from ipu-mk2, not rescaled" in " ".join(other.split())
    assert "by the paper's equations" in run("optimize", "--model", "paper").stdout


def test_infeasible_says_need_have_and_what_helps() -> None:
    done = run("optimize", "--local-bytes", "500 KiB")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (GOLDEN / "infeasible.txt").read_text()


def test_infeasible_suggestions_work_as_printed() -> None:
    """Each line names one option; adding it to the command makes the command work."""
    command = ["optimize", "--local-bytes", "500 KiB"]
    lines = run(*command).stderr.splitlines()[4:]
    options = [match.groups() for line in lines if (match := re.match(r"  (--\S+) (\S+)  ", line))]
    assert 2 <= len(options) <= 4
    for option, value in options:
        assert run(*command, option, value).returncode == 0


def test_infeasible_in_json() -> None:
    done = run("optimize", "--local-bytes", "500 KiB", "--format", "json")
    document = json.loads(done.stdout)
    assert (document["error"], document["binding"], document["need"]) == ("infeasible", "local_bytes", 610_176)
    assert 2 <= len(document["suggestions"]) <= 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--max-overhead", "1%"], "--max-overhead 9.7%"),
        (["--remote-bytes", "0", "--strategies", "double"], "--remote-bytes 21196800"),
        (["--strategies", "base"], "--strategies revolve"),
        (
            ["--model", "paper", "--max-overhead", "4%", "--local-bytes", "1 GB", "--strategies", "standard"],
            "too small",
        ),
    ],
)
def test_other_limits_and_their_suggestions(arguments: list[str], told: str) -> None:
    done = run("optimize", *arguments)
    assert done.returncode == 3
    if told != "too small":
        assert told in done.stderr
    else:
        assert "no plan is quick enough" in done.stderr
        assert "+5.0 %" in done.stderr


def test_compare_prints_a_line_for_each_strategy() -> None:
    done = run("compare", "--T", "4096")
    lines = done.stdout.splitlines()
    for name in ("double", "remote", "hierarchical", "base", "standard", "nested"):
        assert any(line.startswith(name) for line in lines)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--objective", "memory", "--max-overhead", "100%"], "memory"),
        (["--objective", "balanced"], "farther from the knee"),
        (["--T", "100"], "also: standard, nested"),
        (["--model", "paper", "--max-overhead", "10%", "--local-bytes", "1 GB"], "too slow"),
        (["--model", "paper", "--remote-bytes", "1 kB", "--local-bytes", "1 GB"], "remote"),
        (["--profile", "nvidia-h200", "--basis"], "overlap compute"),
    ],
)
def test_compare_tells_why_not(arguments: list[str], told: str) -> None:
    done = run("compare", *arguments, COLUMNS="140")
    assert done.returncode == 0
    assert told in done.stdout


def test_compare_exits_3_where_nothing_fits() -> None:
    done = run("compare", "--strategies", "base,standard")
    assert done.returncode == 3
    assert done.stdout.count("does not fit") == 2


def test_compare_as_data() -> None:
    document = json.loads(run("compare", "--format", "json").stdout)
    assert document["strategies"]["double"]["plan"]["parameters"]["chunk_size"] == 16
    assert document["strategies"]["double"]["time_over_least"] == pytest.approx(1.0645, abs=1e-4)
    assert document["strategies"]["standard"] == {
        "fits": False,
        "binding": "local_bytes",
        "need": 731_136,
        "have": 638_976,
    }
    rows = list(csv.DictReader(io.StringIO(run("compare", "--format", "csv").stdout)))
    assert [row["fits"] for row in rows] == ["true"] * 8 + ["false"] * 4


def test_compare_writes_its_table_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    assert run("compare", "-o", str(path)).stdout == ""
    assert "hierarchical" in path.read_text()


def count_unread(pipe: IO[bytes]) -> int:
    """Return how many bytes of a pipe its reader has not taken yet."""
    found = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]


def test_ctrl_c_exits_130_without_a_traceback() -> None:
    """Interrupted while it waits for the rest of its input, of which it has taken what there was."""
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with started("-m", "ckptplan", "profiles", "show", "-", **pipes) as process:
        assert process.stdin is not None
        process.stdin.write(b"name")
        process.stdin.flush()
        pipe = process.stdin
        wait_until(lambda: count_unread(pipe) == 0, what="a program that reads its input")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors == b"interrupted\n"


def test_a_closed_pipe_ends_quietly() -> None:
    with started(
        "-m", "ckptplan", "profiles", "list", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
        process.wait()
    assert process.returncode == 141
    assert errors == b""


def test_an_internal_fault_exits_1_and_says_how_to_see_more(tmp_path: Path) -> None:
    """A fault is provoked from outside: a numpy that cannot be imported."""
    (tmp_path / "numpy.py").write_text("raise RuntimeError('broken numpy')")
    done = run_process("optimize", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("ckptplan: RuntimeError: broken numpy (a fault in ckptplan")
    assert "Traceback" in run_process("optimize", PYTHONPATH=str(tmp_path), CKPTPLAN_DEBUG="1").stderr


INVENTED_PROFILE = """
name = "box"
local_bytes = "1 MiB"
write_bytes_per_second = "1 GB/s"
read_bytes_per_second = "1 GB/s"
"""
INVENTED_WORKLOAD = """
name = "net"
steps = 64
state_bytes = 4096
tape_bytes = 8192
forward_seconds = "1 ms"
backward_seconds = "2 ms"
recompute_seconds = "1 ms"
"""


def test_invented_numbers_are_counted_and_named(tmp_path: Path) -> None:
    """A machine and a job without a source for anything assume nothing, and prove nothing."""
    (tmp_path / "box.toml").write_text(INVENTED_PROFILE)
    (tmp_path / "net.toml").write_text(INVENTED_WORKLOAD)
    job = ("optimize", "--profile", str(tmp_path / "box.toml"), "--workload", str(tmp_path / "net.toml"))
    invented = [
        "profile.local_bytes",
        "profile.write_bytes_per_second",
        "profile.read_bytes_per_second",
        "workload.state_bytes",
        "workload.tape_bytes",
        "workload.forward_seconds",
        "workload.backward_seconds",
        "workload.recompute_seconds",
    ]
    assert ", 8 without a source; --basis lists all\n" in run(*job).stdout
    table = run(*job, "--basis", COLUMNS="80").stdout
    _, _, told = table.partition("Inputs: yours, without a source\n")
    assert [word.rstrip(",") for word in told.split() if "." in word] == invented
    assert told.count("given without a source") == 1
    assert all(len(line) <= 80 for line in table.splitlines())
    basis = json.loads(run(*job, "--format", "json").stdout)["estimate_basis"]
    assert [entry["field"] for entry in basis if entry["text"] == "given without a source"] == invented
