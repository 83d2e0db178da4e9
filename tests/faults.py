"""Interrupt the program at random moments, and fill its disk: ``python -m tests.faults --kills 500``.

Afterwards each result must be the old file, the new one whole, or rows that the same command continues; and the
next run of the command leaves nothing but its result in the folder (docs/robustness.md).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ckptplan
from benchmarks.harness import list_tables
from tests.support import long_plan, small_plan

#: Exit codes of a process that a signal met: while it ran, or before it could heed the signal.
_ENDS = {
    signal.SIGKILL: {-9},
    signal.SIGTERM: {143, -15},
    signal.SIGINT: {130, -2},
}
OLD = b"the old file\n"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A command that writes a file.

    Arguments:
        name: what it is called in the table.
        arguments: its arguments; it runs in a folder of its own.
        result: the file.
        rows: whether an interrupted run leaves rows that the next one continues.
        weight: how often it is chosen.
        same: whether two runs write the same bytes.
        others: other files that it may write.
    """

    name: str
    arguments: tuple[str, ...]
    result: str
    rows: bool = False
    weight: int = 4
    same: bool = True
    others: tuple[str, ...] = ()

    @property
    def known(self) -> set[str]:
        """The files of its folder when it has ended."""
        return {"plan.json", "long.json", self.result, *self.others}


_CHEAP = ("--strategies", "paper")
_GRID = ("--over", "T=64:350:+1", "--jobs", "2")
SUBJECTS = (
    Subject(
        name="optimize -o", arguments=("optimize", "--T", "64", *_CHEAP, "-o", "out.json"), result="out.json"
    ),
    Subject(name="schedule -o", arguments=("schedule", "long.json", "-o", "out.jsonl"), result="out.jsonl"),
    Subject(name="simulate --trace", arguments=("simulate", "long.json", "--trace", "t.json"), result="t.json"),
    Subject(name="sweep -o .csv", arguments=("sweep", *_GRID, "-o", "s.csv"), result="s.csv", rows=True),
    Subject(name="sweep -o .jsonl", arguments=("sweep", *_GRID, "-o", "s.jsonl"), result="s.jsonl", rows=True),
    Subject(name="sweep -o .parquet", arguments=("sweep", *_GRID, "-o", "s.parquet"), result="s.parquet"),
    Subject(
        name="pareto --plot",
        arguments=("pareto", "--T", "256", *_CHEAP, "--plot", "p.png"),
        result="p.png",
        weight=2,
    ),
    Subject(
        name="calibrate -o",
        arguments=(
            *("calibrate", "--cell", "lif", "--batch", "2", "--neurons", "8", "--inputs", "4", "--T", "16"),
            *("--repeats", "3", "--threads", "1", "-o", "w.toml", "--profile-out", "m.toml"),
        ),
        result="w.toml",
        weight=1,
        same=False,
        others=("m.toml",),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a fault left: the state of the result, temporary files, and what was wrong."""

    subject: str
    fault: str
    state: str
    left: int
    wrong: tuple[str, ...]


class Laboratory:
    """Folders in which commands are disturbed, and what they write undisturbed."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self._folder = folder
        self._chance = random.Random(seed)  # noqa: S311 - no secret
        self._whole: dict[str, tuple[bytes, float]] = {}
        self._plans = folder / "plans"
        self._plans.mkdir()
        ckptplan.save_plan(small_plan(), self._plans / "plan.json")
        ckptplan.save_plan(long_plan(5_000), self._plans / "long.json")

    def kill(self, subject: Subject) -> Finding:
        """Send a signal at a random moment, then run the command once more."""
        whole, seconds = self._measure(subject)
        sent = self._chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        folder = self._prepare(subject)
        process = _start(subject, folder)
        time.sleep(self._chance.uniform(0, 1.1 * seconds))
        _send(process, sent)
        told = process.communicate(timeout=600)[1]
        wrong = []
        if not (sent is signal.SIGINT and met_python(told)):
            wrong = [] if process.returncode in {0, *_ENDS[sent]} else [f"exit code {process.returncode}"]
            wrong += _judge_words(told)
        return self._finish(subject, sent.name, folder, wrong, cleans=sent is not signal.SIGKILL, whole=whole)

    def fill(self, subject: Subject) -> Finding:
        """Let files grow to a random share of the result only, then run the command once more."""
        limit = self._chance.randrange(max(1, len(self._measure(subject)[0])))
        return self._restrict(
            subject,
            "full disk",
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
            accepted={2},
        )

    def close(self, subject: Subject) -> Finding:
        """Close or fill a standard stream, then run the command once more."""
        streams = ("stdin", "stdout", "stderr")
        state, stream = self._chance.choice(
            [*(("closed", name) for name in streams), *(("full", name) for name in streams[1:])]
        )

        def change() -> None:
            os.close(streams.index(stream))
            if state == "full":
                os.open("/dev/full", os.O_WRONLY)

        return self._restrict(subject, f"{state} {stream}", change, accepted={0, 2, 141})

    def _restrict(
        self, subject: Subject, fault: str, before: Callable[[], None], *, accepted: set[int]
    ) -> Finding:
        """Run a command that begins with something else, and accept some of its exit codes."""
        whole, _ = self._measure(subject)
        folder = self._prepare(subject)
        process = _start(subject, folder, before=before)
        told = process.communicate(timeout=600)[1]
        wrong = [] if process.returncode in accepted else [f"exit code {process.returncode}"]
        return self._finish(subject, fault, folder, wrong + _judge_words(told), cleans=True, whole=whole)

    def _finish(
        self, subject: Subject, fault: str, folder: Path, wrong: list[str], *, cleans: bool, whole: bytes
    ) -> Finding:
        state = _state(subject, folder, whole)
        left = sorted({path.name for path in folder.iterdir()} - subject.known)
        wrong += [f"the result is {state}"] if state == "broken" else []
        wrong += [f"left behind: {', '.join(left)}"] if left and cleans else []
        again = _start(subject, folder)
        told = again.communicate(timeout=600)[1]
        wrong += (
            [] if again.returncode == 0 else [f"the next run: exit code {again.returncode}, {told[-200:]!r}"]
        )
        wrong += [] if _state(subject, folder, whole) == "new" else ["the next run writes something else"]
        more = sorted({path.name for path in folder.iterdir()} - subject.known)
        wrong += [f"left after the next run: {', '.join(more)}"] if more else []
        shutil.rmtree(folder)
        return Finding(subject=subject.name, fault=fault, state=state, left=len(left), wrong=tuple(wrong))

    def _prepare(self, subject: Subject) -> Path:
        """Return a folder with the plans, and in half of all cases with an old result."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        for plan in self._plans.iterdir():
            shutil.copy(plan, folder)
        if not subject.rows and self._chance.random() < 0.5:
            (folder / subject.result).write_bytes(OLD)
        return folder

    def _measure(self, subject: Subject) -> tuple[bytes, float]:
        """Return what a command writes undisturbed, and the seconds that it takes."""
        if subject.name not in self._whole:
            folder = self._prepare(subject)
            began = time.monotonic()
            process = _start(subject, folder)
            told = process.communicate(timeout=600)[1]
            if process.returncode:
                raise RuntimeError(f"{subject.name} fails undisturbed: {told}")
            self._whole[subject.name] = (folder / subject.result).read_bytes(), time.monotonic() - began
            shutil.rmtree(folder)
        return self._whole[subject.name]


def _start(subject: Subject, folder: Path, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    def prepare() -> None:
        # What a shell starts in the background ignores Ctrl-C, and so would its children.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if before is not None:
            before()

    uncovered = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    here = {
        "SOURCE_DATE_EPOCH": "1700000000",
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "ckptplan", *subject.arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**uncovered, **here},
        preexec_fn=prepare,
        start_new_session=True,
    )


def _send(process: subprocess.Popen[str], sent: signal.Signals) -> None:
    """Send a signal to a process; a terminal sends Ctrl-C to its children as well."""
    if sent is signal.SIGINT and process.poll() is None:
        os.killpg(process.pid, sent)
    else:
        process.send_signal(sent)


def met_python(told: str) -> bool:
    """Return whether Ctrl-C met Python itself, before it ran a line of the program."""
    return told.rstrip().endswith("KeyboardInterrupt") and str(Path(ckptplan.__file__).parent) not in told


def _judge_words(told: str) -> list[str]:
    return [f"told: {told[-300:]!r}"] if "Traceback" in told or "a fault in ckptplan" in told else []


def _state(subject: Subject, folder: Path, whole: bytes) -> str:
    """Return what a result is: absent, old, new, rows to continue, or broken."""
    path = folder / subject.result
    if subject.rows and any((folder / other).exists() for other in subject.others):
        return "rows"
    if not path.exists():
        return "absent"
    content = path.read_bytes()
    if content == OLD:
        return "old"
    if content == whole or (not subject.same and _is_whole(path)):
        return "new"
    # Rows up to the last complete line are those of the whole file; what follows is cut off by the next run.
    complete = content[: content.rfind(b"\n") + 1]
    return "rows" if subject.rows and whole.startswith(complete) else "broken"


def _is_whole(path: Path) -> bool:
    try:
        ckptplan.load_workload(path)
    except ckptplan.InputError:
        return False
    return True


def run_faults(
    kills: int, others: int, *, seed: int, folder: Path, subjects: tuple[Subject, ...] = SUBJECTS
) -> Iterator[Finding]:
    """Yield what each fault left: ``kills`` signals, and ``others`` full disks and streams."""
    laboratory = Laboratory(folder, seed=seed)
    chance = random.Random(seed + 1)  # noqa: S311 - no secret
    # Mixed, so that a run that is cut short has some of each.
    turns = ["kill"] * kills + ["other"] * others
    chance.shuffle(turns)
    for turn in turns:
        (subject,) = chance.choices(subjects, [one.weight for one in subjects])
        if turn == "kill":
            yield laboratory.kill(subject)
        else:
            yield (laboratory.fill if chance.random() < 0.5 else laboratory.close)(subject)


def count_findings(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return counts for each command and fault, and for all."""
    groups = sorted({(one.subject, one.fault) for one in findings})
    counts = [
        _count(name, fault, [one for one in findings if (one.subject, one.fault) == (name, fault)])
        for name, fault in groups
    ]
    return [*counts, _count("all", "", findings)]


def _count(name: str, fault: str, found: Sequence[Finding]) -> dict[str, Any]:
    states = {state: sum(one.state == state for one in found) for state in ("absent", "old", "new", "rows")}
    left, wrong = sum(one.left > 0 for one in found), sum(bool(one.wrong) for one in found)
    return {"command": name, "fault": fault, "runs": len(found), **states, "left": left, "wrong": wrong}


def main() -> int:
    """Run the faults that are asked for; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=500, help="signals at random moments (default: 500)")
    parser.add_argument("--others", type=int, help="full disks, closed and full streams (default: a fifth)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: 1)")
    parser.add_argument("-o", "--output", type=Path, help="write the counts as JSON")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so long")
    asked = parser.parse_args()
    deadline = time.monotonic() + asked.seconds
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="ckptplan-faults-") as folder:
        others = asked.kills // 5 if asked.others is None else asked.others
        for finding in run_faults(asked.kills, others, seed=asked.seed, folder=Path(folder)):
            findings.append(finding)
            if finding.wrong:
                sys.stderr.write(f"{finding.subject}, {finding.fault}: {'; '.join(finding.wrong)}\n")
            if time.monotonic() > deadline:
                break
    counts = count_findings(findings)
    sys.stdout.write("\n\n".join(list_tables(counts)) + "\n")
    if asked.output:
        asked.output.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    return any(one.wrong for one in findings)


if __name__ == "__main__":
    sys.exit(main())
