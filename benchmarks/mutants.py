"""Changes the formulas one at a time, and shows which test finds each change: python -m benchmarks.mutants.

In the functions of ``ckptplan/cost`` and ``ckptplan/strategies``, integers of sums and products grow by 1,
factors are dropped, ``+`` becomes ``-``, ``<`` becomes ``<=``, minima become maxima, and quotients are no
longer rounded up. The tests of literal numbers and laws then run until the first one fails. Golden files are
left out: they say that a number changed, and not that it is wrong.

No file is changed. pytest collects the tests once, and a fork of that process makes each change. It takes a
second if a test finds the change, and half a minute if none does. The results are written into
benchmarks/results/mutants.json after each change, and ``--resume`` goes on from there.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from itertools import count
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from benchmarks.harness import RESULTS, make_document, read, table

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ckptplan"
FILE = RESULTS / "mutants.json"
#: What is changed, and what is not: modules without formulas.
FOLDERS = ("cost", "strategies")
EXCLUDED = {"protocol.py", "registry.py"}
#: The tests, the quickest first.
TESTS = (
    "tests/cost/test_paper.py", "tests/laws/test_settings.py", "tests/cost", "tests/laws/test_search.py",
    "tests/laws/test_front.py", "tests/recursion/test_revolve.py", "tests/strategies",
)  # fmt: skip
#: Further tests of modules that find schedules decision by decision.
SOLVED = ("optimal.py", "memorising.py", "solved.py", "answer.py")
SOLVED_TESTS = (
    "tests/laws/test_problems.py", "tests/laws/test_optimal.py", "tests/recursion/test_optimum.py",
)  # fmt: skip
#: Tests that take seconds and find no more.
SLOW = (
    *("flat_fronts", "every_sequence_length", "disk_revolve", "periodic", "coarse_front", "exhaustive"),
    *("bounds_are_close", "suggested", "too_fine", "another_unit", "fewer_segments", "gives_up"),
)
#: The most seconds that the tests may take: a change that makes a search endless is found by them.
LIMIT_SECONDS = 180
_LOWER = "the bound of a box is lower, so that a search takes longer and finds the same"
_CAPPED = "where this factor is in force, T - c is the larger bound"
_WIDER = "the search looks at more settings, which do not fit or equal one with a smaller number"
_ZEROS = "zeros are added to give the sum its shape"
#: File, function and change, or file and function -> why changes that survive give wrong results nowhere.
EQUIVALENT: dict[tuple[str, ...], str] = {
    **{
        ("strategies/segments.py", "Segmented._recomputed_between", change): _LOWER
        for change in (
            "chunk * (steps - chunk) / longest -> chunk * (steps - chunk)",
            "chunk * (steps - chunk) / shortest -> chunk * (steps - chunk)",
            "steps - chunk -> steps + chunk",
            "steps - chunk -> steps + chunk (2)",
            "2 * steps - chunk - saved - 2 -> 2 * steps - chunk - saved - 3",
            "2 * steps -> steps",
            "np.maximum(low[self.segment], chunk) -> np.minimum(low[self.segment], chunk)",
            "np.maximum(0, high['chunk_size'] - high[self.segment]) -> "
            "np.maximum(1, high['chunk_size'] - high[self.segment])",
            "high['chunk_size'] - high[self.segment] -> high['chunk_size'] + high[self.segment]",
            "np.minimum(high['chunk_size'], longest) -> np.maximum(high['chunk_size'], longest)",
        )
    },
    ("strategies/segments.py", "Segmented.ranges"): _WIDER,
    (
        "cost/paper.py",
        "price",
        "states + np.zeros_like(chunk_size) -> states - np.zeros_like(chunk_size)",
    ): _ZEROS,
    (
        "cost/exact.py",
        "price",
        "counts.remote_checkpoints * costs.remote_state_bytes + np.zeros_like(counts.tapes) -> "
        "counts.remote_checkpoints * costs.remote_state_bytes - np.zeros_like(counts.tapes)",
    ): _ZEROS,
    **{
        ("strategies/segments.py", "Segmented._count_two_levels", change): _LOWER
        for change in (
            "ceil_div(undivided, 2) - 1 -> ceil_div(undivided, 2) - 2",
            "ceil_div(undivided, 2) -> undivided // 2",
        )
    },
    **{
        ("strategies/segments.py", "Segmented._recomputed", change): _CAPPED
        for change in (
            "2 * steps -> 3 * steps",
            "2 * steps -> steps",
            "2 * steps // chunk + 1 -> 2 * steps // chunk + 2",
        )
    },
    (
        "strategies/segments.py",
        "Hierarchical.actions",
        "ceil_div(away, slots) - 1 -> ceil_div(away, slots) + 1",
    ): "the numbers that are added are below 1, and no chunk has them",
    **{
        ("strategies/revolve.py", "Revolve.admits", change): _WIDER
        for change in (
            "ceil_div(steps, low['chunk_size']) - 1 -> ceil_div(steps, low['chunk_size']) + 1",
            "np.maximum(1, ceil_div(steps, low['chunk_size']) - 1) -> "
            "np.maximum(2, ceil_div(steps, low['chunk_size']) - 1)",
        )
    },
    (
        "strategies/revolve.py",
        "Revolve.admits",
        "steps < 2 ** 31 -> steps <= 2 ** 31",
    ): "steps run again less than T times on average, so the count is below 2**62 for T = 2**31, too",
}
_SWAPS = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min"}
_OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
#: The longest operand of a long expression that is shown in full.
_WIDTH = 50


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of an expression.

    Arguments:
        file: the module, as 'cost/paper.py'.
        function: the function or method that holds the expression, as 'Base.counts'.
        text: the expression before and after, as 'a + b -> a - b'.
        line: the line where the expression begins.
        source: the whole module after the change.
    """

    file: str
    function: str
    text: str
    line: int
    source: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What names this change, also after lines were added above it."""
        return self.file, self.function, self.text


class Finder(ast.NodeVisitor):
    """Collects the expressions of a module that can be changed, each with what may replace it."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._function_depth = 0
        #: Function, expression, replacement.
        self.replacements: list[tuple[str, ast.expr, ast.expr]] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:  # noqa: D102
        self._function_depth += 1
        self._visit_body(node)
        self._function_depth -= 1

    def visit_ClassDef(self, node: ast.ClassDef) -> None:  # noqa: D102
        self._visit_body(node)

    def _visit_body(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self._names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._names.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: D102
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Pass over messages."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Pass over texts."""

    def visit_BinOp(self, node: ast.BinOp) -> None:  # noqa: D102
        if not any(_is_text(side) for side in (node.left, node.right)):
            self._change_operation(node)
        self.generic_visit(node)

    def _change_operation(self, node: ast.BinOp) -> None:
        if type(node.op) in _OPERATORS:
            self._replace(node, op=_OPERATORS[type(node.op)]())
        if isinstance(node.op, ast.Mult):
            for kept in (node.left, node.right):
                if not isinstance(kept, ast.Constant):
                    self._add(node, kept)
        if isinstance(node.op, ast.Div | ast.FloorDiv):
            self._add(node, node.left)
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv):
            for name in ("left", "right"):
                if (larger := _grow(getattr(node, name))) is not None:
                    self._replace(node, **{name: larger})

    def visit_Compare(self, node: ast.Compare) -> None:  # noqa: D102
        if type(node.ops[0]) in _OPERATORS:
            self._replace(node, ops=[_OPERATORS[type(node.ops[0])](), *node.ops[1:]])
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:  # noqa: D102
        name = ast.unparse(node.func).rpartition(".")[2]
        if name == "ceil_div":
            self._add(node, ast.BinOp(node.args[0], ast.FloorDiv(), node.args[1]))
        if name in {*_SWAPS, "at_least"}:
            for place, argument in enumerate(node.args):
                if (larger := _grow(argument)) is not None:
                    self._replace(node, args=[*node.args[:place], larger, *node.args[place + 1 :]])
        if name in _SWAPS:
            prefix = ast.unparse(node.func)[: -len(name)]
            self._replace(node, func=ast.parse(prefix + _SWAPS[name], mode="eval").body)
        self.generic_visit(node)

    def _replace(self, node: ast.expr, **fields: Any) -> None:
        changed = copy(node)
        for name, value in fields.items():
            setattr(changed, name, value)
        self._add(node, changed)

    def _add(self, node: ast.expr, changed: ast.expr) -> None:
        if self._function_depth:
            self.replacements.append((".".join(self._names), node, changed))


def _grow(node: ast.expr) -> ast.Constant | None:
    """Return a number plus 1, and None for any other expression."""
    value: Any = node.value if isinstance(node, ast.Constant) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return ast.Constant(value + 1) if is_number else None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def list_changes(path: Path) -> list[Change]:
    """Return all changes of a module, each with a text of its own within its function."""
    source = path.read_text()
    finder = Finder()
    finder.visit(ast.parse(source))
    lines = source.encode().splitlines(keepends=True)
    changes, counts = [], Counter[tuple[str, str]]()
    for function, node, changed in finder.replacements:
        text = f"{_shorten(node)} -> {_shorten(changed)}"
        counts[function, text] += 1
        if (number := counts[function, text]) > 1:
            text += f" ({number})"
        begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
        end = sum(map(len, lines[: (node.end_lineno or 0) - 1])) + (node.end_col_offset or 0)
        whole = source.encode()
        new = whole[:begin] + f"({ast.unparse(changed)})".encode() + whole[end:]
        changes.append(
            Change(
                file=path.relative_to(PACKAGE).as_posix(),
                function=function,
                text=text,
                line=node.lineno,
                source=new.decode(),
            )
        )
    return changes


def _shorten(node: ast.expr) -> str:
    """Return an expression as text, with long operands cut."""
    text = ast.unparse(node)
    if not isinstance(node, ast.BinOp) or len(text) <= 2 * _WIDTH:
        return _cut(text, 2 * _WIDTH)
    symbol = ast.unparse(ast.BinOp(ast.Name("a"), node.op, ast.Name("b")))[1:-1]
    return symbol.join(f"({_cut(ast.unparse(side), _WIDTH)})" for side in (node.left, node.right))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width // 2]}...{text[-width // 2 :]}"


def list_modules(only: Iterable[str]) -> list[Path]:
    """Return the modules with formulas, or those of them that are named, as 'cost/paper.py'."""
    every = [path for name in FOLDERS for path in sorted((PACKAGE / name).glob("*.py"))]
    known = {path.relative_to(PACKAGE).as_posix(): path for path in every if path.name not in EXCLUDED}
    if unknown := set(only) - set(known):
        names = " and ".join(sorted(unknown))
        raise SystemExit(f"{names}: no module with formulas. There are {', '.join(known)}.")
    return [known[name] for name in only] or list(known.values())


def make_change(change: Change) -> None:
    """Give the function of a change its changed code, in this process."""
    module = import_module(f"ckptplan.{change.file.removesuffix('.py').replace('/', '.')}")
    owner: Any = module
    code = compile(change.source, change.file, "exec")
    for name in change.function.split("."):
        code = next(part for part in code.co_consts if isinstance(part, CodeType) and part.co_name == name)
        owner = vars(owner)[name]
        if not isinstance(owner, type):
            # Functions inside this one are parts of its code.
            break
    unwrap = ("__func__", "fget", "func", "__wrapped__")
    while wrapped := next((getattr(owner, name) for name in unwrap if hasattr(owner, name)), None):
        owner = wrapped
    owner.__code__ = code


class Runner:
    """Runs the tests on each change in a fork of the process that collected them: a plugin of pytest."""

    def __init__(
        self, changes: Sequence[Change], *, jobs: int, report: Callable[[Change, str | None], None]
    ) -> None:
        self._changes, self._jobs, self._report = changes, jobs, report
        #: Process -> its change, the end of its pipe to read, and when it is ended.
        self._running: dict[int, tuple[Change | None, int, float]] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try all changes, in place of running the tests once."""
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        self._start(None, session)
        while self._running:
            self._finish()
        for change in self._changes:
            while len(self._running) >= self._jobs:
                self._finish()
            self._start(change, session)
        while self._running:
            self._finish()
        return True

    def _start(self, change: Change | None, session: pytest.Session) -> None:
        reading, writing = os.pipe()
        sys.stderr.flush()
        process = os.fork()
        if process:
            os.close(writing)
            self._running[process] = change, reading, time.monotonic() + LIMIT_SECONDS
            return
        try:
            os.write(writing, (_find_failure(change, session) or "").encode())
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)

    def _finish(self) -> None:
        """Wait until a process ends, and report its change."""
        while True:
            time.sleep(0.02)
            for process, (change, reading, limit) in self._running.items():
                ended, _ = os.waitpid(process, os.WNOHANG)
                late = not ended and time.monotonic() > limit
                if late:
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
                if ended or late:
                    del self._running[process]
                    failed = f"more than {LIMIT_SECONDS} s" if late else os.read(reading, 4096).decode()
                    os.close(reading)
                    if change is not None:
                        self._report(change, failed or None)
                    elif failed:
                        raise SystemExit(f"without any change, this test fails: {failed}")
                    return


def _find_failure(change: Change | None, session: pytest.Session) -> str | None:
    """Return the first test that fails with a change, or None if all pass."""
    if change is not None:
        make_change(change)
    is_solved = change is None or Path(change.file).name in SOLVED
    items = [item for item in session.items if is_solved or not item.nodeid.startswith(SOLVED_TESTS)]
    for item, following in zip(items, [*items[1:], None], strict=True):
        reports = runtestprotocol(item, log=False, nextitem=following)
        if any(report.failed for report in reports):
            return item.nodeid.removeprefix("tests/")
    return None


def key_of(row: dict[str, Any]) -> tuple[str, str, str]:
    """Return the key of the change of a result."""
    return row["file"], row["function"], row["change"]


def document(rows: list[dict[str, Any]]) -> str:
    """Return the number of changes of each module, and the changes that no test finds."""
    files = dict.fromkeys(row["file"] for row in rows)
    counts = {file: Counter(judge(row) for row in rows if row["file"] == file) for file in files}
    verdicts = ("found", "equivalent", "survived")
    lines = [
        [file, str(count.total()), *(str(count[verdict]) for verdict in verdicts)]
        for file, count in counts.items()
    ]
    survivors = [
        f"- {row['file']}:{row['line']}, {row['function']}: `{row['change']}`"
        for row in rows
        if judge(row) == "survived"
    ]
    return "\n".join([table(["module", "changes", *verdicts], lines), "", *survivors])


def judge(row: dict[str, Any]) -> str:
    """Return 'found', 'equivalent' or 'survived'."""
    if row["found_by"] is not None:
        return "found"
    return "survived" if find_reason(key_of(row)) is None else "equivalent"


def find_reason(key: tuple[str, str, str]) -> str | None:
    """Return why a change that survives gives wrong results nowhere, None if that is not known."""
    return EQUIVALENT.get(key) or EQUIVALENT.get(key[:2])


def write(results: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    """Write what became of each change so far."""
    rows = sorted(results.values(), key=lambda row: (row["file"], row["line"], row["change"]))
    part = FILE.with_suffix(".part")
    part.write_text(json.dumps(make_document("mutants", rows), indent=1) + "\n")
    part.replace(FILE)


def main() -> None:
    """Try the changes, and print the table."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument(
        "--only", action="append", default=[], metavar="FILE", help="a module, as cost/paper.py"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many changes are tried at a time")
    parser.add_argument("--list", action="store_true", help="print the changes and try none")
    parser.add_argument("--show", action="store_true", help="print the table of the last run and try none")
    parser.add_argument(
        "--resume", action="store_true", help="try the changes that have no result, or survived"
    )
    parser.add_argument("--small", action="store_true", help="try two changes, and write nothing")
    given = parser.parse_args()
    if given.show:
        print(document(read("mutants")))
        return
    changes = [change for path in list_modules(given.only) for change in list_changes(path)]
    if given.list:
        print(
            table(
                ["place", "function", "change"], ([f"{c.file}:{c.line}", c.function, c.text] for c in changes)
            )
        )
        return
    if given.small:
        changes = changes[:2]
    results = {} if given.small or not FILE.exists() else {key_of(row): row for row in read("mutants")}
    if not given.only:
        results = {change.key: results[change.key] for change in changes if change.key in results}
    known = {key for key, row in results.items() if judge(row) != "survived"} if given.resume else set()
    pending = [change for change in changes if change.key not in known]
    tried = count(1)

    def report(change: Change, found_by: str | None) -> None:
        names = dict(zip(("file", "function", "change"), change.key, strict=True))
        row = results[change.key] = {**names, "line": change.line, "found_by": found_by}
        place = f"{next(tried)}/{len(pending)} {change.file}:{change.line}"
        print(f"{place} {change.text}: {found_by or judge(row)}", file=sys.stderr)
        if not given.small:
            write(results)

    os.environ["CKPTPLAN_HYPOTHESIS"] = "unshrunk"
    solved_tests = SOLVED_TESTS if any(Path(change.file).name in SOLVED for change in pending) else ()
    tests = TESTS[:1] if given.small else (*TESTS, *solved_tests)
    chosen = ("-m", "not slow", "-k", f"not ({' or '.join(SLOW)})", *tests)
    with redirect_stdout(StringIO()) as told:
        status = pytest.main(
            ["-q", "-n", "0", "-p", "no:cacheprovider", "--tb=short", *chosen],
            plugins=[Runner(pending, jobs=given.jobs, report=report)],
        )
    if status:
        raise SystemExit(told.getvalue())
    print(document([results[change.key] for change in changes]))


if __name__ == "__main__":
    main()
