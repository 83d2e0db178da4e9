"""``ckptplan sweep``: what it writes, and that no interruption spoils it.

Which lines, files and parts it refuses is in test_refusals.py.
"""

from __future__ import annotations

import csv
import io
import json
import random
import shlex
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.support import count_bytes, dask_cluster, is_alive, leave_progress_out, run, started, wait_until

ROOT = Path(__file__).parent.parent.parent
#: Small, with base, irregular and infeasible points, and quick.
GRID = (
    *("--over", "T=256:8192:x2", "--over", "local-bytes=300KiB:624KiB:n10"),
    *("--over", "bandwidth=5GB/s,40GB/s"),
)
ROWS = 6 * 10 * 2
#: A sweep of hours, which is ended.
ENDLESS = ("sweep", "--over", "T=2000:90000:+1")
FORMATS = ("csv", "jsonl", "parquet")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of sweeps that nothing interrupted, by format; one process writes the lines."""
    folder = tmp_path_factory.mktemp("whole")
    files = {name: folder / f"sweep.{name}" for name in FORMATS}
    for name, file in files.items():
        jobs = ("--jobs", "1" if name == "jsonl" else "2")
        assert run("sweep", *GRID, "-o", str(file), *jobs).returncode == 0
    return files


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both halves of a sweep, as CSV and as JSON lines."""
    folder = tmp_path_factory.mktemp("parts")
    for number in (1, 2):
        for name in ("csv", "jsonl"):
            file = folder / f"part-{number}.{name}"
            assert run("sweep", *GRID, "--shard", f"{number}/2", "-o", str(file)).returncode == 0
    return folder


# Rows


def test_a_row_says_what_was_varied_and_what_is_best(whole: dict[str, Path]) -> None:
    points = rows(whole["csv"].read_text())
    assert len(points) == ROWS
    assert {row["sweep"] for row in points} == {points[0]["sweep"]}
    assert [int(row["steps"]) for row in points[:: ROWS // 6]] == [256, 512, 1024, 2048, 4096, 8192]
    assert [row["bandwidth_bytes_per_second"] for row in points[:2]] == ["5000000000.0", "40000000000.0"]
    last = points[-1]
    assert (last["fits"], last["strategy"], last["cache"]) == ("true", "growing", "last")
    assert 0 < int(last["cached_steps"]) < 8192


def test_rows_are_the_same_in_every_format_and_from_any_number_of_processes(whole: dict[str, Path]) -> None:
    lines = [json.loads(line) for line in whole["jsonl"].read_text().splitlines()]
    assert pyarrow.parquet.read_table(whole["parquet"]).to_pylist() == lines
    for row, cells in zip(lines, rows(whole["csv"].read_text()), strict=True):
        expected = {True: "true", False: "false", None: ""}
        assert cells == {
            name: expected[value] if isinstance(value, bool) or value is None else str(value)
            for name, value in row.items()
        }


def test_a_profile_from_standard_input_is_read_once_for_several_workloads(tmp_path: Path) -> None:
    """Options hold for each workload."""
    profile = (ROOT / "hardware_profiles/ipu-mk1.toml").read_text()
    other = (ROOT / "workloads/paper-snn.toml").read_text().replace('name = "paper-snn"', 'name = "other"')
    (tmp_path / "other.toml").write_text(other)
    line = "sweep --over batch=60,120 --T 300 --profile - --workload paper-snn,./other.toml --format csv"
    points = rows(run(*line.split(), stdin=profile, cwd=tmp_path).stdout)
    assert [(row["workload"], row["batch"], row["steps"]) for row in points] == [
        (name, batch, "300") for name in ("paper-snn", "other") for batch in ("60", "120")
    ]


def test_rows_stream_to_standard_output_in_the_units_of_their_fields() -> None:
    over = "--over recompute-ratio=0.1,1 --over transfer-seconds=1us --over 'remote-bytes=16 GiB,unbounded'"
    done = run(*shlex.split(f"sweep {over} --profile ipu-mk1,ipu-mk2 --format jsonl"))
    points = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.stderr == ""
    assert [(row["profile"], row["recompute_ratio"], row["remote_bytes"]) for row in points] == [
        (profile, ratio, size)
        for profile in ("ipu-mk1", "ipu-mk2") for ratio in (0.1, 1.0) for size in (2**34, None)
    ]  # fmt: skip
    assert {row["transfer_seconds"] for row in points} == {1e-6}


def test_without_a_file_there_is_a_short_table() -> None:
    done = run("sweep", "--over", "T=64:110:+1")
    assert done.returncode == 0
    assert "7 more rows; -o FILE.csv" in done.stdout
    assert "best of 47: base 47" in done.stdout


@pytest.mark.parametrize(("package", "extra", "file"), [
    ("pyarrow", "parquet", "s.parquet"), ("distributed", "dask", "s.csv --engine dask://a:1"),
])  # fmt: skip
def test_a_missing_package_is_named_with_the_extra_that_installs_it(
    package: str, extra: str, file: str, tmp_path: Path
) -> None:
    line = f"sweep --over T=64,128 -o {file}".split()
    script = f"import sys\nsys.modules[{package!r}] = None\nfrom ckptplan.cli.main import main\nmain({line})\n"
    program = [sys.executable, "-c", script]
    done = subprocess.run(program, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"ckptplan: {package} is not installed")
    assert f"pip install '.[{extra}]'" in done.stderr
    assert not list(tmp_path.iterdir())


# Files that are continued


def sweeping(file: Path, *options: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A sweep at work."""
    return started("-m", "ckptplan", "sweep", *GRID, "-o", str(file), *options, stderr=subprocess.PIPE)


def end_sweep(file: Path, sent: signal.Signals, *options: str, at: int, complete: int) -> tuple[int, str]:
    """Send a sweep a signal when its file has ``at`` bytes; return its status and what it note.

    One that was complete before the signal came, as where this process was stopped meanwhile, begins again.
    """
    before = file.read_bytes() if file.exists() else None
    for _ in range(20):
        with sweeping(file, *options) as process:
            wait_until(
                lambda: count_bytes(file) >= at or process.poll() is not None, what=f"a file of {at} bytes"
            )
            process.send_signal(sent)
            note = process.communicate()[1].decode()
        if count_bytes(file) < complete:
            assert count_bytes(file) >= at, note
            return process.returncode, leave_progress_out(note)
        if before is None:
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(before)
    pytest.fail("no sweep could be ended before it was complete")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_a_sweep_killed_again_and_again_ends_as_one_that_never_was(
    name: str, whole: dict[str, Path], tmp_path: Path
) -> None:
    """SIGKILL before the first row, then when the file has grown to random sizes."""
    file = tmp_path / f"sweep.{name}"
    complete = whole[name].stat().st_size
    moments = random.Random(name)  # noqa: S311 - no secret
    for share in (0, *sorted(moments.uniform(0.02, 0.6) for _ in range(4))):
        at = int(share * complete)
        status, _ = end_sweep(file, signal.SIGKILL, "--jobs", "2", at=at, complete=complete)
        assert status == -signal.SIGKILL
    with sweeping(file, "--jobs", "2") as process:
        note = process.communicate()[1].decode()
    assert process.returncode == 0
    assert "rows; continuing" in note
    assert file.read_bytes() == whole[name].read_bytes()


@pytest.mark.parametrize(
    ("name", "shard"),
    [
        *(pytest.param(name, (), marks=pytest.mark.slow) for name in ("csv", "jsonl")),
        ("csv", ("--shard", "2/2")),
    ],
)
def test_a_file_that_ends_anywhere_is_continued(
    name: str, shard: tuple[str, ...], whole: dict[str, Path], parts: Path, tmp_path: Path
) -> None:
    """Cut at the end of the beginning, at a line's end, within a number, within the first cell."""
    text = (parts / f"part-2.{name}" if shard else whole[name]).read_bytes()
    middle = text.index(b"\n", len(text) // 2) + 1
    file = tmp_path / f"s.{name}"
    beginning = text.index(b"\n") + 1 if name == "csv" else text.index(b",") + 1
    for end in (beginning, beginning + 2, middle, middle + 5, len(text) - 1):
        file.write_bytes(text[:end])
        done = run("sweep", *GRID, *shard, "-o", str(file))
        assert done.returncode == 0, done.stderr
        assert file.read_bytes() == text


def test_ctrl_c_says_how_to_go_on(whole: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    status, note = end_sweep(file, signal.SIGINT, at=2000, complete=whole["csv"].stat().st_size)
    assert status == 130
    done = len(file.read_text().splitlines()) - 1
    assert 0 < done < ROWS
    assert note == f"{done} of {ROWS} rows are in {file}; the same command continues there\ninterrupted\n"
    again = run("sweep", *GRID, "-o", str(file))
    assert f"{file} has {done} of {ROWS} rows; continuing" in again.stderr
    assert file.read_bytes() == whole["csv"].read_bytes()


def test_a_note_counts_the_new_rows_and_their_plans_and_says_what_comes_next(tmp_path: Path) -> None:
    line = ("sweep", "--over", "local-bytes=10KiB,300KiB,624KiB", "-o", "rows.csv")
    note = run(*line, cwd=tmp_path).stderr
    assert note.startswith("3 rows written to rows.csv: plans at 2, nothing fits at 1 ")
    assert "with --html FILE" in note
    lines = (tmp_path / "rows.csv").read_text().splitlines(keepends=True)
    (tmp_path / "rows.csv").write_text("".join(lines[:3]))
    assert "1 rows written to rows.csv: plans at 1" in run(*line, cwd=tmp_path).stderr
    assert "with --html" not in run(*line, "--restart", "--html", "page.html", cwd=tmp_path).stderr
    # A picture shows all parts, and a command that writes a part refuses to draw it.
    part = run("sweep", "--over", "T=64,128", "--shard", "1/2", "-o", "part.csv", cwd=tmp_path).stderr
    assert part == "1 rows written to part.csv: plans at 1\n"


@pytest.mark.parametrize("name", FORMATS)
def test_a_restart_replaces_whatever_the_file_holds_and_a_complete_file_stays(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / f"s.{name}").write_bytes(b"my,own,table\n1,2,3\n")
    line = ("sweep", "--over", "T=64,128", "-o", f"s.{name}")
    assert run(*line, cwd=tmp_path).returncode == 2
    assert run(*line, "--restart", cwd=tmp_path).returncode == 0
    complete = (tmp_path / f"s.{name}").read_bytes()
    done = run(*line, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"s.{name} is complete: 2 rows\n")
    assert (tmp_path / f"s.{name}").read_bytes() == complete


def test_a_picture_of_a_sweep_that_is_continued_has_all_its_points(tmp_path: Path) -> None:
    """Rows that the file has are planned again: the picture is the same as in one go."""
    line = ("sweep", "--over", "T=64,128,256", "-o", "rows.csv", "--size", "column")
    assert run(*line, "--plot", "one.png", cwd=tmp_path).returncode == 0
    text = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text("".join(text.splitlines(keepends=True)[:3]))
    for picture, note in (
        ("two.png", "planning 2 rows of the file again"),
        ("three.png", "is complete: 3 rows"),
    ):
        done = run(*line, "--plot", picture, cwd=tmp_path)
        assert (done.returncode, note in done.stderr) == (0, True)
        assert (tmp_path / picture).read_bytes() == (tmp_path / "one.png").read_bytes()
        assert (tmp_path / "rows.csv").read_text() == text


# Processes


def test_a_second_sweep_may_not_write_the_file_of_one_that_runs_and_no_worker_outlives_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "s.csv"
    with started("-m", "ckptplan", *ENDLESS, "-o", str(file), "--jobs", "2") as process:
        # Two and Python's resource tracker.
        wait_until(lambda: len(children(process.pid)) == 3, what="two workers and what tracks them")
        wait_until(lambda: count_bytes(file), what="a file that is written")
        done = run(*ENDLESS, "-o", str(file))
        workers = children(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(is_alive, workers)), what="the end of the workers")
    assert done.returncode == 2
    assert f"{file}: is being written by another process" in done.stderr


def children(pid: int) -> list[int]:
    """Return the processes that a process started, and that run."""
    statuses = Path("/proc").glob("[0-9]*/status")
    return [int(status.parent.name) for status in statuses if f"\nPPid:\t{pid}\n" in read_status(status)]


def read_status(file: Path) -> str:
    """Return what the system says of a process; nothing if it is gone."""
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_parquet_file_is_there_when_all_its_rows_are(whole: dict[str, Path], tmp_path: Path) -> None:
    """A killed sweep leaves the file as it was, and the next one leaves nothing beside its own."""
    file = tmp_path / "s.parquet"
    assert run("sweep", "--over", "T=64,128", "-o", str(file)).returncode == 0
    before = file.read_bytes()
    with started("-m", "ckptplan", *ENDLESS, "-o", str(file), "--jobs", "2", "--restart") as process:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, what="a file beside the old one")
        process.kill()
    assert file.read_bytes() == before
    assert run("sweep", *GRID, "-o", str(file), "--restart").returncode == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        file.name: whole["parquet"].read_bytes()
    }


@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_parts_that_are_merged_are_what_one_machine_writes(
    name: str, parts: Path, whole: dict[str, Path], tmp_path: Path
) -> None:
    """In whatever order the parts are named."""
    file = tmp_path / f"all.{name}"
    for order in (1, -1):
        files = [f"part-{number}.{name}" for number in (1, 2)][::order]
        done = run("sweep", "--merge", *files, "-o", str(file), cwd=parts)
        assert (done.returncode, done.stderr) == (0, f"{ROWS} rows of 2 parts written to {file}\n")
        assert file.read_bytes() == whole[name].read_bytes()


@pytest.mark.slow
def test_a_cluster_writes_what_one_machine_writes(whole: dict[str, Path], tmp_path: Path) -> None:
    """And a file that is killed there is continued here."""
    with dask_cluster() as address:
        engine = ("--engine", address.replace("tcp://", "dask://"))
        for name in FORMATS:
            file = tmp_path / f"sweep.{name}"
            done = run("sweep", *GRID, *engine, "-o", str(file))
            assert done.returncode == 0, done.stderr
            assert file.read_bytes() == whole[name].read_bytes()
        begun, complete = tmp_path / "begun.csv", whole["csv"].stat().st_size
        end_sweep(begun, signal.SIGKILL, *engine, at=2000, complete=complete)
    assert run("sweep", *GRID, "-o", str(begun)).returncode == 0
    assert begun.read_bytes() == whole["csv"].read_bytes()


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_refused(tmp_path: Path) -> None:
    import dask.config

    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        done = run("sweep", *GRID, "--engine", "dask://127.0.0.1:9", "-o", "s.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert "--engine: no scheduler of Dask answers" in done.stderr
    assert not list(tmp_path.iterdir())
