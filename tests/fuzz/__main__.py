"""Run hostile cases and judge them: ``python -m tests.fuzz --cases 10000`` (docs/robustness.md)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.harness import list_tables
from ckptplan.studies.workers import count_cores
from tests.fuzz.campaign import make_case, run_cases, try_case
from tests.fuzz.case import Verdict
from tests.fuzz.execute import prepare
from tests.fuzz.report import list_failures, summarise

#: Off a terminal, a line for so many cases.
_BETWEEN_LINES = 2000


def main() -> int:
    """Run the cases that are asked for; 1 if any of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="how many (default: 2000)")
    parser.add_argument("--seed", type=int, default=1, help="of all cases (default: 1)")
    parser.add_argument("--seconds", type=float, help="begin no case after so long")
    parser.add_argument("--jobs", type=int, default=count_cores(), help="processes (default: one per core)")
    parser.add_argument("--only", metavar="SEED:INDEX", help="one case: show what it is and what it does")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="folder of failing cases")
    parser.add_argument("-o", "--output", type=Path, help="write the numbers as JSON")
    asked = parser.parse_args()
    return _show(asked.only) if asked.only else _campaign(asked)


def _show(name: str) -> int:
    prepare()
    case = make_case(name)
    verdict = try_case(case)
    told = {**vars(verdict), **case.describe(), "codes": sorted(case.codes)}
    sys.stdout.write(json.dumps(told, indent=2, default=str) + "\n")
    return bool(verdict.problems)


def _campaign(asked: argparse.Namespace) -> int:
    began = time.monotonic()
    verdicts: list[Verdict] = []
    for chunk in run_cases(asked.seed, asked.cases, jobs=asked.jobs, seconds=asked.seconds):
        verdicts += chunk
        for one in chunk:
            if one.problems:
                sys.stderr.write(f"\n{one.name}: {', '.join(kind for kind, _ in one.problems)}\n")
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{len(verdicts):,} of {asked.cases:,} cases")
        elif len(verdicts) % _BETWEEN_LINES < len(chunk):
            sys.stderr.write(f"{len(verdicts):,} of {asked.cases:,} cases\n")
        sys.stderr.flush()
    summary = summarise(verdicts, seed=asked.seed, seconds=time.monotonic() - began)
    failures = list_failures(verdicts, asked.failures)
    sys.stdout.write("\n\n".join(list_tables(summary)) + "\n")
    for failure in failures:
        sys.stdout.write(f"\n{json.dumps(failure, indent=2)}\npython -m tests.fuzz --only {failure['name']}\n")
    if asked.output:
        asked.output.write_text(
            json.dumps({**summary, "failures": failures}, indent=2) + "\n", encoding="utf-8"
        )
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
