"""Judges what a case did: exit code, messages, time, memory, and what it wrote."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import NoReturn

from tests.fuzz.case import Case, Outcome, Verdict

#: What a case may take at most: seconds of processor time, bytes above those of a program that does nothing.
#: On a processor that others keep busy, commands take twice as long as docs/robustness.md promises.
MOST_SECONDS, MOST_MEMORY = 20.0, 500 * 2**20
#: Characters of a message.
_MOST_TOLD = 20_000
#: Characters that change how text is shown: controls but tab and line ends, and those of direction.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]")
#: Classes of problems, in the order of the report.
CLASSES = (
    "internal fault",
    "wrong exit code",
    "too slow",
    "too much memory",
    "executed",
    "written",
    "not JSON",
    "no message",
    "control characters",
)


#: They write a file where no option names one.
_MAKERS = (("workloads", "new"), ("profiles", "new"))
#: It runs a cell, to count its bytes.
_COUNTS_SIZES = ("workloads", "new")


def judge(case: Case, outcome: Outcome) -> Verdict:
    """Return the verdict on an outcome."""
    return Verdict(
        name=case.name,
        kind=case.kind,
        command=" ".join(case.arguments[:1]),
        code=outcome.code,
        seconds=outcome.seconds,
        cpu_seconds=outcome.cpu_seconds,
        memory=outcome.memory,
        problems=tuple(_problems(case, outcome)),
    )


def _problems(case: Case, outcome: Outcome) -> Iterator[tuple[str, str]]:
    told = outcome.stderr.decode("utf-8", "replace")
    printed = outcome.stdout.decode("utf-8", "replace")
    if outcome.loader_fault:
        yield "internal fault", f"the library: {outcome.loader_fault}"
    if "Traceback (most recent call last)" in told or "a fault in ckptplan" in told or outcome.code == 1:
        yield "internal fault", _last_line(told)
    elif wrong := _wrong_code(case, outcome):
        yield "wrong exit code", f"{wrong}: {_last_line(told)}"
    # The limits of a case end what takes longer, by signals of the system. Measurements take as long, and as
    # much memory, as the cell that they run.
    measures = case.arguments[:1] in (("calibrate",), ("validate",)) or case.arguments[:2] == _COUNTS_SIZES
    slow = outcome.cpu_seconds > MOST_SECONDS or outcome.code in (-14, -24, -9)
    if slow and not measures:
        yield "too slow", f"{outcome.cpu_seconds:.1f} s of the processor, {outcome.seconds:.1f} s in all"
    if outcome.memory > MOST_MEMORY and not measures:
        yield "too much memory", f"{outcome.memory / 2**20:.0f} MiB"
    yield from _wrong_files(case, outcome)
    if "--format=json" in " ".join(case.arguments) or "--format json" in " ".join(case.arguments):
        yield from _wrong_json(case, outcome, printed)
    if outcome.code in (2, 3) and not told + printed and not case.streams.startswith("errors"):
        yield "no message", f"exit code {outcome.code} without a word"
    if len(told) > _MOST_TOLD:
        yield "no message", f"a message of {len(told):,} characters"
    # The schedule of a plan and JSON are for programs.
    found = _CONTROLS.search(told + printed)
    if found and not _colours_wanted(case):
        yield "control characters", unicodedata.name(found[0], f"U+{ord(found[0]):04X}")


def _wrong_code(case: Case, outcome: Outcome) -> str:
    """Return what is wrong with the exit code, nothing if it may be right."""
    if outcome.code < 0:
        # Ended by the limits of a case, which is judged as too slow; or by a crash.
        return "" if outcome.code in (-14, -24, -9) else f"ended by signal {-outcome.code}"
    allowed = case.codes if _may_disagree(case) else case.codes - {4}
    # The script is printed, and no file is read.
    expected = {0, *allowed} if _asks_for_completion(case) else {outcome.loaded} if outcome.loaded else allowed
    return "" if outcome.code in expected else f"{outcome.code}, not {' or '.join(map(str, sorted(expected)))}"


def _asks_for_completion(case: Case) -> bool:
    """Return whether the program is asked to complete a command line, or for the script that does."""
    return case.environment.get("_CKPTPLAN_COMPLETE", "").startswith(("source_", "complete_"))


def _may_disagree(case: Case) -> bool:
    return case.kind != "arguments" or bool({"simulate", "validate", "calibrate"} & set(case.arguments))


def _wrong_files(case: Case, outcome: Outcome) -> Iterator[tuple[str, str]]:
    named = {name.removeprefix("./") for name in case.outputs} | {
        "sub/linked.json" if "link.json" in case.outputs else ""
    }
    # A short option and its value may be one word.
    named |= {text.removeprefix("-o") for text in case.arguments if text.startswith("-o")}
    # "--" ends the options of a group, and says nothing else.
    makes = tuple(text for text in case.arguments if text != "--")[:2] in _MAKERS
    if case.arguments[:1] == ("calibrate",) or makes:
        # Where no option names them.
        named |= {"my-workload.toml", "my-machine.toml"}
    if case.arguments[:1] == ("report",):
        named |= {"report.html"}
    # What is kept for other processes, in a folder that a variable names.
    kept = case.environment.get("CKPTPLAN_CACHE", "") or None
    for name, content in outcome.written.items():
        if kept is not None and name.startswith(f"{kept}/charts/"):
            continue
        if name == "executed":
            yield "executed", "code that a file names"
        elif name not in named and not name.startswith(tuple(f"{one}/" for one in named if one)):
            yield "written", f"{name!r}, which no option names"
        elif outcome.code == 3 and case.arguments[:1] in (("compare",), ("largest",)):
            # The reasons why nothing fits are their result.
            continue
        elif outcome.code == 3 and _is_page(content):
            # A page says why nothing fits.
            continue
        elif outcome.code in (2, 3) and case.arguments[:1] != ("sweep",) and not case.streams:
            # With a full stream, the file may be whole and the rest of the answer lost.
            yield "written", f"{len(content):,} bytes of {name!r} with exit code {outcome.code}"
        elif outcome.code == 0 and f"--trace {name}" in " ".join(case.arguments):
            try:
                json.loads(content, parse_constant=_refuse)
            except ValueError:
                yield "written", f"{name!r} is not JSON"


def _is_page(content: bytes) -> bool:
    return content.startswith(b"<!DOCTYPE html>") and b"Nothing fits" in content


def _wrong_json(case: Case, outcome: Outcome, printed: str) -> Iterator[tuple[str, str]]:
    """Standard output in JSON mode is JSON: the result, or the error."""
    texts = [
        text.partition("=")[2] if "=" in text else after
        for text, after in zip(case.arguments, (*case.arguments[1:], ""), strict=True)
        if text.partition("=")[0] == "--format"
    ]
    plain = case.arguments[0] in ("schedule", "sweep") or {"-h", "--help", "--version", "--"} & set(
        case.arguments
    )
    if texts != ["json"] or plain or outcome.code not in (0, 2, 3, 4) or case.streams or not printed:
        return
    if "PYTHONIOENCODING" in case.environment or _asks_for_completion(case):
        # In the encoding that was asked for, or a script.
        return
    try:
        json.loads(printed, parse_constant=_refuse)
    except ValueError as error:
        yield "not JSON", str(error)[:100]


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _colours_wanted(case: Case) -> bool:
    return bool(
        {"FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "PYTHONIOENCODING", "GITHUB_ACTIONS"}
        & set(case.environment)
    )


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing on standard error"


def signature(verdict: Verdict) -> tuple[str, ...]:
    """Return what is the same for cases that fail for the same reason."""
    if not verdict.problems:
        return ()
    name, words = verdict.problems[0]
    # The part of a message that does not quote the case.
    words = re.sub(r"'.*?'|\".*?\"|given\.\w+|\d+(\.\d+)?", "_", words)
    command = "" if name in ("internal fault", "wrong exit code") else verdict.command
    return name, command, words[:120]
