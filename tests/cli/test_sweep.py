"""``ckptplan sweep`` as a real process: what it writes, and that no interruption spoils it."""

import csv
import io
import json
import os
import random
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
    "--over",
    "T=256:8192:x2",
    "--over",
    "local-bytes=300KiB:624KiB:n10",
    "--over",
    "bandwidth=5GB/s,40GB/s",
)
ROWS = 6 * 10 * 2


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of sweeps that nothing interrupted, by format."""
    folder = tmp_path_factory.mktemp("whole")
    files = {name: folder / f"sweep.{name}" for name in ("csv", "jsonl", "parquet")}
    for file in files.values():
        assert run("sweep", *GRID, "-o", str(file)).returncode == 0
    return files


def sweeping(file: Path, *more: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A sweep at work."""
    return started("-m", "ckptplan", "sweep", *GRID, "-o", str(file), *more, stderr=subprocess.PIPE)


def end_sweep(file: Path, sent: signal.Signals, *more: str, at: int, complete: int) -> tuple[int, str]:
    """Send a sweep a signal when its file has ``at`` bytes; return its code and what it said.

    One that was complete before the signal came, as where this process was stopped meanwhile, begins again.
    """
    before = file.read_bytes() if file.exists() else None
    for _ in range(20):
        with sweeping(file, *more) as process:
            wait_until(
                lambda: count_bytes(file) >= at or process.poll() is not None, what=f"a file of {at} bytes"
            )
            process.send_signal(sent)
            said = process.communicate()[1].decode()
        if count_bytes(file) < complete:
            assert count_bytes(file) >= at, said
            return process.returncode, leave_progress_out(said)
        if before is None:
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(before)
    pytest.fail("no sweep could be ended before it was complete")


#: A sweep of hours, which is ended.
ENDLESS = ("sweep", "--over", "T=2000:90000:+1")


def test_every_row_says_what_was_varied_and_what_is_best(whole: dict[str, Path]) -> None:
    found = rows(whole["csv"].read_text())
    assert len(found) == ROWS
    assert {row["sweep"] for row in found} == {found[0]["sweep"]}
    assert [int(row["steps"]) for row in found[:: ROWS // 6]] == [256, 512, 1024, 2048, 4096, 8192]
    assert [row["bandwidth_bytes_per_second"] for row in found[:2]] == ["5000000000.0", "40000000000.0"]
    last = found[-1]
    assert (last["fits"], last["strategy"], last["binding"]) == ("false", "", "local_bytes")
    assert float(last["need"]) > float(last["have"]) == 624 * 1024


def test_rows_are_the_same_in_every_format(whole: dict[str, Path]) -> None:
    lines = [json.loads(line) for line in whole["jsonl"].read_text().splitlines()]
    assert pyarrow.parquet.read_table(whole["parquet"]).to_pylist() == lines
    as_csv = rows(whole["csv"].read_text())
    for row, cells in zip(lines, as_csv, strict=True):
        expected = {True: "true", False: "false", None: ""}
        assert cells == {
            name: expected[value] if isinstance(value, bool) or value is None else str(value)
            for name, value in row.items()
        }


def test_one_process_writes_what_several_write(whole: dict[str, Path], tmp_path: Path) -> None:
    run("sweep", *GRID, "-o", str(tmp_path / "a.csv"), "--jobs", "1")
    assert (tmp_path / "a.csv").read_bytes() == whole["csv"].read_bytes()


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
        how: dict[str, int] = {"at": int(share * complete), "complete": complete}
        code, _ = end_sweep(file, signal.SIGKILL, "--jobs", "2", **how)
        assert code == -signal.SIGKILL
    with sweeping(file, "--jobs", "2") as process:
        said = process.communicate()[1].decode()
    assert process.returncode == 0
    assert "rows; continuing" in said
    assert file.read_bytes() == whole[name].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_a_file_that_ends_anywhere_is_continued(name: str, whole: dict[str, Path], tmp_path: Path) -> None:
    """Cut at the end of the beginning, at a line's end, within a number, within the first cell."""
    text = whole[name].read_bytes()
    middle = text.index(b"\n", len(text) // 2) + 1
    file = tmp_path / f"s.{name}"
    beginning = text.index(b"\n") + 1 if name == "csv" else text.index(b",") + 1
    for end in (beginning, beginning + 2, middle, middle + 5, len(text) - 1):
        file.write_bytes(text[:end])
        done = run("sweep", *GRID, "-o", str(file))
        assert done.returncode == 0, done.stderr
        assert file.read_bytes() == text


@pytest.mark.parametrize("name", ["csv", "jsonl", "parquet"])
def test_a_complete_file_is_said_to_be_complete(name: str, whole: dict[str, Path]) -> None:
    before = whole[name].read_bytes()
    done = run("sweep", *GRID, "-o", str(whole[name]))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"{whole[name]} is complete: {ROWS} rows\n"
    assert whole[name].read_bytes() == before


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("csv", ["--over", "batch=60"]),
        ("csv", ["--max-overhead", "50%"]),
        ("jsonl", ["--strategies", "paper"]),
        ("parquet", ["--objective", "memory"]),
    ],
)
def test_a_file_of_another_sweep_is_left_alone(
    name: str, change: list[str], whole: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / f"s.{name}"
    file.write_bytes(whole[name].read_bytes())
    done = run("sweep", *GRID, *change, "-o", str(file))
    assert done.returncode == 2
    assert f"{file}: " in done.stderr
    assert "--restart" in done.stderr
    assert file.read_bytes() == whole[name].read_bytes()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("csv", b"my,own,table\n1,2,3\n"),
        ("jsonl", b'{"sweep": "' + b"0" * 100_000),
        # As short as what a sweep begins with, but no sweep's; a part of its beginning is what a crash left.
        ("csv", b"t"),
        ("csv", b"sweep,steps,word"),
        ("jsonl", b"["),
        ("parquet", b"\xff\x00" * 50_000),
    ],
)
def test_a_file_that_is_no_sweep_is_left_alone(name: str, content: bytes, tmp_path: Path) -> None:
    file = tmp_path / f"s.{name}"
    file.write_bytes(content)
    done = run("sweep", "--over", "T=64,128", "-o", str(file))
    assert done.returncode == 2
    assert f"{file}: is" in done.stderr
    assert file.read_bytes() == content
    assert run("sweep", "--over", "T=64,128", "-o", str(file), "--restart").returncode == 0
    assert file.read_bytes() != content


def test_rows_out_of_place_are_no_beginning(whole: dict[str, Path], tmp_path: Path) -> None:
    """Somebody took lines out."""
    lines = whole["jsonl"].read_text().splitlines(keepends=True)
    file = tmp_path / "s.jsonl"
    file.write_text("".join(lines[:3] + lines[5:9]))
    done = run("sweep", *GRID, "-o", str(file))
    assert done.returncode == 2
    assert "the 7 rows are not the first rows of the sweep" in done.stderr


def test_ctrl_c_says_how_to_go_on(whole: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    code, said = end_sweep(file, signal.SIGINT, at=2000, complete=whole["csv"].stat().st_size)
    assert code == 130
    done = len(file.read_text().splitlines()) - 1
    assert 0 < done < ROWS
    assert said == f"{done} of {ROWS} rows are in {file}; the same command continues there\ninterrupted\n"
    again = run("sweep", *GRID, "-o", str(file))
    assert f"{file} has {done} of {ROWS} rows; continuing" in again.stderr
    assert file.read_bytes() == whole["csv"].read_bytes()


def test_nobody_works_on_when_the_sweep_is_killed(tmp_path: Path) -> None:
    with started("-m", "ckptplan", *ENDLESS, "-o", str(tmp_path / "s.csv"), "--jobs", "2") as process:
        # Two and Python's resource tracker.
        wait_until(lambda: len(children(process.pid)) == 3, what="two workers and what tracks them")
        workers = children(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(is_alive, workers)), what="the end of the workers")


def children(pid: int) -> list[int]:
    """Return the processes that a process started, and that run."""
    statuses = Path("/proc").glob("[0-9]*/status")
    return [int(one.parent.name) for one in statuses if f"\nPPid:\t{pid}\n" in read_status(one)]


def read_status(file: Path) -> str:
    """Return what the system says of a process; nothing if it is gone."""
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_two_sweeps_do_not_write_one_file(tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    with started("-m", "ckptplan", *ENDLESS, "-o", str(file)):
        wait_until(lambda: count_bytes(file), what="a file that is written")
        done = run(*ENDLESS, "-o", str(file))
    assert done.returncode == 2
    assert f"{file}: is being written by another process" in done.stderr


OTHER = (*GRID, "--objective", "memory")


def folder_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_parquet_file_is_there_when_all_its_rows_are(whole: dict[str, Path], tmp_path: Path) -> None:
    """A killed sweep leaves the file as it was, and the next one leaves nothing beside its own."""
    file = tmp_path / "s.parquet"
    assert run("sweep", *OTHER, "-o", str(file)).returncode == 0
    before = file.read_bytes()
    with started("-m", "ckptplan", *ENDLESS, "-o", str(file), "--jobs", "2", "--restart") as process:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, what="a file beside the old one")
        process.kill()
    assert file.read_bytes() == before
    assert run("sweep", *GRID, "-o", str(file), "--restart").returncode == 0
    assert folder_of(tmp_path) == {file.name: whole["parquet"].read_bytes()}


def test_a_profile_can_come_from_standard_input_and_meet_several_workloads(tmp_path: Path) -> None:
    """Options hold for each workload; a file is read once."""
    profile = (ROOT / "hardware_profiles/ipu-mk1.toml").read_text()
    other = (ROOT / "workloads/paper-snn.toml").read_text().replace('name = "paper-snn"', 'name = "other"')
    (tmp_path / "other.toml").write_text(other)
    done = run(
        "sweep", "--over", "batch=60,120", "--T", "300", "--profile", "-", "--workload",
        f"paper-snn,{tmp_path / 'other.toml'}", "--format", "csv", stdin=profile,
    )  # fmt: skip
    found = rows(done.stdout)
    assert [(row["workload"], row["batch"], row["steps"]) for row in found] == [
        (name, batch, "300") for name in ("paper-snn", "other") for batch in ("60", "120")
    ]  # fmt: skip


def test_rows_stream_to_standard_output() -> None:
    done = run("sweep", "--over", "T=256,4096", "--profile", "ipu-mk1,ipu-mk2", "--format", "jsonl")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["profile"], row["steps"]) for row in found] == [
        ("ipu-mk1", 256), ("ipu-mk1", 4096), ("ipu-mk2", 256), ("ipu-mk2", 4096),
    ]  # fmt: skip
    assert done.stderr == ""


def test_without_a_file_there_is_a_short_table() -> None:
    done = run("sweep", "--over", "T=64:110:+1")
    assert done.returncode == 0
    assert "paper-snn on ipu-mk2" in done.stdout
    assert "7 more rows; -o FILE.csv" in done.stdout
    assert "best of 47: base 47" in done.stdout


def test_values_and_units() -> None:
    done = run(
        "sweep", "--over", "recompute-ratio=0.1,0.3,1", "--over", "transfer-seconds=1us", "--over",
        "remote-bytes=16 GiB,unbounded", "--format", "csv",
    )  # fmt: skip
    found = rows(done.stdout)
    assert [row["recompute_ratio"] for row in found] == ["0.1", "0.1", "0.3", "0.3", "1.0", "1.0"]
    assert [row["remote_bytes"] for row in found[:2]] == ["17179869184", ""]
    assert {row["transfer_seconds"] for row in found} == {"1e-06"}


def test_missing_pyarrow_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys\nsys.modules['pyarrow'] = None\nfrom ckptplan.cli.main import main\n"
        f"main(['sweep', '--over', 'T=64,128', '-o', {str(tmp_path / 's.parquet')!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        done.stderr
        == "ckptplan: pyarrow is not installed; in ckptplan's folder, run: pip install '.[parquet]'\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--over", "bandwith=1GB/s"],
            "--over bandwith: is not an input that can be varied. Did you mean 'bandwidth'?",
        ),
        (["--over", "T=5:1"], "--over T: '5:1' is not a range"),
        (["--over", "forward-seconds=0"], "--over forward-seconds: 0.0 is not accepted"),
        (
            ["--over", "local-bytes=1MiB,2MiB", "--local-bytes", "3 MiB"],
            "--local-bytes: is both varied by the grid and set to one value (accepted: either the axis",
        ),
        (["--over", "T=1,2", "--T", "5"], "--T: is varied by --over and set for all of it"),
        ([], "--over: is missing: the sweep would have one point"),
        (["--over", "T=1,2", "--jobs", "0"], "--jobs: '0' is out of range"),
        (["--over", "T=1,2", "-o", "s.txt"], "--output: 's.txt' does not say how rows are written"),
        (
            ["--over", "T=1,2", "-o", "no/s.csv"],
            "--output: cannot be written: the folder of 'no/s.csv' does not exist",
        ),
        (["--over", "T=1,2", "-o", ".", "--format", "csv"], "--output: '.' cannot be written: it is a folder"),
        (["--over", "T=1,2", "--format", "parquet"], "--format: cannot be streamed"),
        (["--over", "T=1,2", "--format", "parquet", "-o", "/dev/null"], "--format: cannot be streamed"),
    ],
)
def test_wrong_input_exits_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ckptplan", "sweep", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_picture_of_a_sweep_that_is_continued_has_all_its_points(tmp_path: Path) -> None:
    """Rows that the file has are planned again: the picture is the same as in one go."""
    command = ("sweep", "--over", "T=64,128,256", "-o", str(tmp_path / "rows.csv"), "--size", "column")
    assert run(*command, "--plot", str(tmp_path / "one.png")).returncode == 0
    lines = (tmp_path / "rows.csv").read_text().splitlines(keepends=True)
    (tmp_path / "rows.csv").write_text("".join(lines[:3]))
    again = run(*command, "--plot", str(tmp_path / "two.png"))
    assert again.returncode == 0
    assert "planning 2 rows of the file again" in again.stderr
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert "".join(lines) == (tmp_path / "rows.csv").read_text()
    whole = run(*command, "--plot", str(tmp_path / "three.png"))
    assert f"{tmp_path / 'rows.csv'} is complete: 3 rows" in whole.stderr
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "three.png").read_bytes()


def test_a_sweep_that_no_picture_shows_writes_nothing(tmp_path: Path) -> None:
    axes = ("--over", "T=64,128", "--over", "batch=30,60", "--over", "latency=0,1us")
    done = run("sweep", *axes, "-o", "rows.csv", "--plot", "p.png", cwd=tmp_path)
    assert done.returncode == 2
    assert "--plot: a picture shows one axis or two, and 3 vary" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_a_sweep_says_which_file_it_wrote_how_many_points_have_a_plan_and_what_comes_next(
    tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    command = ("sweep", "--over", "local-bytes=10KiB,300KiB,624KiB", "-o", str(file))
    assert run(*command).stderr == (
        f"3 rows written to {file}: plans at 1, nothing fits at 2 (the column binding says why); "
        "with --html FILE the same command draws them\n"
    )
    assert run(*command).stderr == f"{file} is complete: 3 rows\n"
    drawn = run(*command, "--restart", "--html", str(tmp_path / "page.html")).stderr
    assert "with --html" not in drawn


def test_a_sweep_that_continues_counts_the_new_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    command = ("sweep", "--over", "local-bytes=10KiB,624KiB", "-o", str(file))
    run(*command)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    assert f"1 rows written to {file}: plans at 1" in run(*command).stderr


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both halves of a sweep, as CSV and as JSON lines."""
    folder = tmp_path_factory.mktemp("parts")
    for number in (1, 2):
        for name in ("csv", "jsonl"):
            file = folder / f"part-{number}.{name}"
            assert run("sweep", *GRID, "--shard", f"{number}/2", "-o", str(file)).returncode == 0
    return folder


@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_parts_that_are_merged_are_what_one_machine_writes(
    name: str, parts: Path, whole: dict[str, Path], tmp_path: Path
) -> None:
    """In whatever order the parts are named."""
    for order in (1, -1):
        files = [f"part-{number}.{name}" for number in (1, 2)][::order]
        done = run("sweep", "--merge", *files, "-o", str(tmp_path / f"all.{name}"), cwd=parts)
        assert (done.returncode, done.stderr) == (
            0, f"{ROWS} rows of 2 parts written to {tmp_path / f'all.{name}'}\n"
        )  # fmt: skip
        assert (tmp_path / f"all.{name}").read_bytes() == whole[name].read_bytes()


def test_a_part_is_not_said_to_be_drawn_by_a_command_that_refuses_it(tmp_path: Path) -> None:
    """A picture shows all parts."""
    command = ("sweep", "--over", "T=64,128", "--shard", "1/2", "-o", "part.csv")
    assert run(*command, cwd=tmp_path).stderr == "1 rows written to part.csv: plans at 1\n"


@pytest.mark.parametrize("rows_left", [0, 1, 20])
def test_a_part_is_continued_as_a_whole_sweep_is(rows_left: int, parts: Path, tmp_path: Path) -> None:
    lines = (parts / "part-2.csv").read_bytes().splitlines(keepends=True)
    file = tmp_path / "part-2.csv"
    file.write_bytes(b"".join(lines[: 1 + rows_left]))
    assert run("sweep", *GRID, "--shard", "2/2", "-o", str(file)).returncode == 0
    assert file.read_bytes() == b"".join(lines)
    other = run("sweep", *GRID, "--shard", "1/2", "-o", str(file))
    assert (other.returncode, "is not a partial result of this sweep" in other.stderr) == (2, True)


def test_a_part_that_is_missing_doubled_foreign_or_incomplete_is_named(
    parts: Path, whole: dict[str, Path], tmp_path: Path
) -> None:
    for number in (1, 2):
        (tmp_path / f"part-{number}.csv").write_bytes((parts / f"part-{number}.csv").read_bytes())
    (tmp_path / "again.csv").write_bytes((parts / "part-2.csv").read_bytes())
    (tmp_path / "whole.csv").write_bytes(whole["csv"].read_bytes())
    lines = (parts / "part-2.csv").read_text().splitlines(keepends=True)
    (tmp_path / "short.csv").write_text("".join(lines[:-1]))
    (tmp_path / "cut.csv").write_text("".join(lines)[:-5])
    (tmp_path / "mixed.csv").write_text(
        "".join([*lines[:9], (parts / "part-1.csv").read_text().splitlines()[5]])
    )
    for name, numbers in {"zero": "1/0:5", "beyond": "3/2:5", "empty": "1/2:0"}.items():
        (tmp_path / f"{name}.csv").write_text(f"{lines[0]}0123456789ab:{numbers},1\n")
    assert run("sweep", *OTHER, "--shard", "2/2", "-o", "foreign.csv", cwd=tmp_path).returncode == 0
    assert run("sweep", *GRID, "--shard", "2/3", "-o", "third.csv", cwd=tmp_path).returncode == 0
    for files, message in {
        "part-1.csv": "parts: part 2 of 2 is missing",
        "third.csv": "parts: parts 1, 3 of 3 are missing",
        "part-1.csv part-2.csv again.csv": "again.csv: is part 2/2 of the 120 rows of sweep ",
        "part-1.csv foreign.csv": "foreign.csv: is part 2/2 of the 120 rows of sweep ",
        "part-1.csv third.csv": "third.csv: is part 2/3 of the 120 rows of sweep ",
        "part-1.csv whole.csv": "whole.csv: is no part of a sweep (accepted: what a sweep wrote as one",
        "part-1.csv short.csv": "short.csv: has 59 of the 60 rows of part 2/2; the command that wrote",
        "part-1.csv cut.csv": "cut.csv: row 60 is not one of part 2/2",
        "part-1.csv mixed.csv": "mixed.csv: row 9 is not one of part 2/2",
        "part-1.csv zero.csv": "zero.csv: is no part of a sweep (accepted: what a sweep wrote as one",
        "part-1.csv beyond.csv": "beyond.csv: is no part of a sweep",
        "part-1.csv empty.csv": "empty.csv: is no part of a sweep",
        "part-1.csv none.csv": "none.csv: cannot be read: No such file or directory",
        "": "parts: names no file",
    }.items():
        done = run("sweep", "--merge", *files.split(), "-o", "all.csv", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), files
        assert message in done.stderr
        assert not (tmp_path / "all.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--merge part-1.csv", "--merge: needs a file for the rows (accepted: -o FILE.csv or -o FILE.jsonl"),
        ("--merge part-1.csv -o all.parquet", "--merge: needs a file for the rows"),
        (
            "--merge part-1.csv part-2.csv -o all.jsonl",
            "part-1.csv: holds rows as csv, and all.jsonl would hold them as jsonl (accepted: an output named",
        ),
        (
            "--merge part-1.jsonl part-2.jsonl -o all.csv",
            "part-1.jsonl: holds rows as jsonl, and all.csv would hold them as csv (accepted: an output",
        ),
        ("--merge part-1.csv part-2.jsonl -o all.csv", "part-2.jsonl: holds rows as jsonl, and all.csv"),
        ("--merge part-1.csv --over T=1,2 -o all.csv", "--over: does not go together with --merge"),
        ("part-1.csv --over T=1,2 -o all.csv", "PARTS: are files to merge (accepted: --merge with them)"),
        ("--merge part-1.csv -o part-1.csv", "--output: is read by this command and would be lost"),
        ("--over T=1,2 --shard 1/2", "--shard: writes a part of a sweep (accepted: -o FILE beside it"),
        ("--over T=1,2 --shard 1/2 -o a.csv --plot p.png", "--plot: does not go together with --shard"),
        ("--over T=1,2 --shard 1/3 -o a.csv", "--shard: 3 parts of 2 rows would be empty ones"),
        ("--over T=1,2 --shard 2 -o a.csv", "--shard: '2' is not a part of a sweep (accepted: NUMBER/COUNT"),
        (
            "--over T=1,2 --engine slurm://a:1",
            "--engine: 'slurm://a:1' is not a cluster (accepted: dask://HOST",
        ),
        ("--over T=1,2 --engine dask://a:1 --jobs 2", "--jobs: does not go together with --engine"),
    ],
)
def test_wrong_parts_and_engines_are_told(arguments: str, message: str, parts: Path) -> None:
    done = run("sweep", *arguments.split(), cwd=parts)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
def test_a_cluster_writes_what_one_machine_writes(whole: dict[str, Path], tmp_path: Path) -> None:
    """And a file that is killed there is continued here."""
    with dask_cluster() as address:
        engine = ("--engine", address.replace("tcp://", "dask://"))
        for name in ("csv", "jsonl", "parquet"):
            file = tmp_path / f"sweep.{name}"
            done = run("sweep", *GRID, *engine, "-o", str(file))
            assert done.returncode == 0, done.stderr
            assert file.read_bytes() == whole[name].read_bytes()
        begun, complete = tmp_path / "begun.csv", whole["csv"].stat().st_size
        end_sweep(begun, signal.SIGKILL, *engine, at=2000, complete=complete)
    assert run("sweep", *GRID, "-o", str(begun)).returncode == 0
    assert begun.read_bytes() == whole["csv"].read_bytes()


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_told(tmp_path: Path) -> None:
    import dask.config

    file = tmp_path / "s.csv"
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        done = run("sweep", *GRID, "--engine", "dask://127.0.0.1:9", "-o", str(file))
    assert done.returncode == 2
    assert "--engine: no scheduler of Dask answers" in done.stderr
    assert not file.exists()


def test_missing_dask_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys\nsys.modules['distributed'] = None\nfrom ckptplan.cli.main import main\n"
        f"main(['sweep', '--over', 'T=64,128', '--engine', 'dask://a:1', '-o', {str(tmp_path / 's.csv')!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("ckptplan: distributed is not installed; in ckptplan's folder, run: pip inst")
