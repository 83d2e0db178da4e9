"""Runs many commands in one process that is not that of the tests, and says what each took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_RUNNER = """
import contextlib, io, json, math, sys, time
from ckptplan.cli import progress
from ckptplan.cli.main import main
# A busy machine may take as long as jobs that tell their progress.
progress._INTERVAL_SECONDS = math.inf
class Endless(io.TextIOBase):
    def __init__(self, head):
        self.lines = head.splitlines(keepends=True)
    def readline(self, size=-1):
        return self.lines.pop(0) if self.lines else "\\n"
results = []
for case in json.load(open(sys.argv[1])):
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    sys.argv = ["ckptplan", *case["arguments"]]
    if case["endless"] is not None:
        sys.stdin = Endless(case["endless"])
    began = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    out.seek(0)
    seconds = time.process_time() - began
    said = {"out": out.read(), "err": err.getvalue()}
    results.append({"code": code, "seconds": seconds, "path": [*sys.path], **said})
# Not of getrusage: that begins with the peak of the parent before this program was loaded.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) * 1024
json.dump({"results": results, "peak": peak}, sys.__stdout__)
"""


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str
    seconds: float
    path: list[str]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What several commands did in a row, and the most memory that the process had."""

    done: list[Done]
    peak_bytes: int


def run_all(
    *commands: Sequence[str | Path], folder: Path, endless: str | None = None, **environment: str
) -> Runs:
    """Run commands in a folder; ``endless`` is what standard input holds before blank lines without end."""
    cases = [{"arguments": [str(one) for one in command], "endless": endless} for command in commands]
    (folder / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run(
        # -P: the folder is on the import path only if the program puts it there.
        [sys.executable, "-P", "-c", _RUNNER, "cases.json"],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return Runs(done=[Done(**one) for one in found["results"]], peak_bytes=found["peak"])
