"""Changes the formulas one at a time, and shows which test finds each change.

    python -m benchmarks.mutants [cost/paper.py ...]

In the functions of ``ckptplan/cost`` and ``ckptplan/strategies``, integers of sums and products grow by 1,
factors are dropped, ``+`` becomes ``-``, ``<`` becomes ``<=``, minima become maxima, and quotients are no
longer rounded up. The tests of literal numbers and laws then run until the first one fails. Golden files are
left out: they say that a number changed, and not that it is wrong.

No file is changed. pytest collects the tests once, and a fork of that process makes each change. It takes a
second if a test finds the change, and half a minute if none does.
"""

from __future__ import annotations

import ast
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from benchmarks.harness import ROOT, Setting, main

PACKAGE = ROOT / "ckptplan"
#: The modules with formulas.
MODULES = [
    path.relative_to(PACKAGE).as_posix()
    for folder in ("cost", "strategies")
    for path in sorted((PACKAGE / folder).glob("*.py"))
    if path.name not in ("protocol.py", "registry.py")
]
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
#: File, function and a part of the change -> why changes that survive give wrong results nowhere.
EQUIVALENT = {
    ("strategies/segments.py", "Segmented._recomputed_between", ""): "the bound of a box is lower, so that a "
    "search takes longer and finds the same",
    ("strategies/segments.py", "Segmented._count_two_levels", "ceil_div(undivided, 2)"): "the bound is lower",
    (
        "strategies/segments.py",
        "Segmented._recomputed",
        "2 * steps",
    ): "where it counts, T - c is the larger bound",
    (
        "strategies/segments.py",
        "Segmented.ranges",
        "",
    ): "the search looks at more settings, which do not fit or equal one with a smaller number",
    ("strategies/revolve.py", "Revolve.admits", "ceil_div(steps, low['chunk_size']) - 1"): "more settings",
    (
        "strategies/revolve.py",
        "Revolve.admits",
        "steps < 2 ** 31",
    ): "steps run again less than T times on average, so the count is below 2**62 for T = 2**31, too",
    ("cost/paper.py", "price", "+ np.zeros_like"): "zeros are added to give the sum its shape",
    ("cost/exact.py", "price", "+ np.zeros_like"): "zeros are added to give the sum its shape",
}
_SWAPS = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min"}
_OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A change of one expression of a module, with the source of the changed module."""

    file: str
    function: str
    text: str
    line: int
    source: str


def find_changes(
    node: ast.AST, names: tuple[str, ...] = (), *, inside: bool = False
) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Yield the function, the expression and the replacement of each change; messages stay as they are."""
    if isinstance(node, ast.Raise | ast.JoinedStr):
        return
    children = ast.iter_child_nodes(node)
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        names, children = (*names, node.name), iter(node.body)
        inside |= isinstance(node, ast.FunctionDef)
    elif inside and isinstance(node, ast.expr):
        yield from ((".".join(names), node, changed) for changed in change_expression(node))
    for child in children:
        yield from find_changes(child, names, inside=inside)


def change_expression(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what may replace a sum, a product, a comparison or a call."""

    def replace(**fields: Any) -> ast.expr:
        changed = copy(node)
        for name, value in fields.items():
            setattr(changed, name, value)
        return changed

    match node:
        case ast.BinOp(left=left, op=op, right=right) if not (_is_text(left) or _is_text(right)):
            if type(op) in _OPERATORS:
                yield replace(op=_OPERATORS[type(op)]())
            factors = (left, right) if isinstance(op, ast.Mult) else ()
            yield from (factor for factor in factors if not isinstance(factor, ast.Constant))
            if isinstance(op, ast.Div | ast.FloorDiv):
                yield left
            if isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv):
                grown = {"left": _grow(left), "right": _grow(right)}
                yield from (replace(**{name: larger}) for name, larger in grown.items() if larger)
        case ast.Compare(ops=[first, *others]) if type(first) in _OPERATORS:
            yield replace(ops=[_OPERATORS[type(first)](), *others])
        case ast.Call(func=function, args=arguments):
            prefix, dot, name = ast.unparse(function).rpartition(".")
            if name == "ceil_div":
                yield ast.BinOp(arguments[0], ast.FloorDiv(), arguments[1])
            if name in {*_SWAPS, "at_least"}:
                for place, argument in enumerate(arguments):
                    if larger := _grow(argument):
                        yield replace(args=[*arguments[:place], larger, *arguments[place + 1 :]])
            if name in _SWAPS:
                yield replace(func=ast.parse(f"{prefix}{dot}{_SWAPS[name]}", mode="eval").body)


def _grow(node: ast.expr) -> ast.Constant | None:
    """Return a number plus 1, and None for any other expression."""
    value: Any = node.value if isinstance(node, ast.Constant) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return ast.Constant(value + 1) if is_number else None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def list_changes(file: str) -> list[Change]:
    """Return all changes of a module, each with a text of its own within its function."""
    source = (PACKAGE / file).read_bytes()
    lines = source.splitlines(keepends=True)
    changes, counts = [], Counter[tuple[str, str]]()
    for function, node, changed in find_changes(ast.parse(source)):
        text = f"{ast.unparse(node)} -> {ast.unparse(changed)}"
        counts[function, text] += 1
        if (number := counts[function, text]) > 1:
            text += f" ({number})"
        begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
        end = sum(map(len, lines[: (node.end_lineno or 0) - 1])) + (node.end_col_offset or 0)
        new = source[:begin] + f"({ast.unparse(changed)})".encode() + source[end:]
        changes.append(Change(file, function, text, node.lineno, new.decode()))
    return changes


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

    def __init__(self, changes: list[Change], setting: Setting) -> None:
        self._changes, self._setting = changes, setting
        #: A row for each change.
        self.rows: list[dict[str, Any]] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try all changes, in place of running the tests once."""
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        _collected.extend(session.items)
        fork = multiprocessing.get_context("fork")
        with fork.Pool(maxtasksperchild=1) as pool:
            if failed := pool.apply(_find_failure, [None]):
                raise session.Interrupted(f"without any change, this test fails: {failed}")
            for change, found_by in zip(self._changes, pool.imap(_find_failure, self._changes), strict=True):
                names = {"file": change.file, "line": change.line, "function": change.function}
                row = {**names, "change": change.text, "found_by": found_by, "verdict": judge(change, found_by)}
                self.rows.append(row)
                place = f"{len(self.rows)}/{len(self._changes)} {change.file}:{change.line}"
                print(f"{place} {change.text}: {found_by or row['verdict']}", file=sys.stderr)
                self._setting.save(self.rows)
        return True


#: The tests, as the forks inherit them.
_collected: list[pytest.Item] = []


def _find_failure(change: Change | None) -> str | None:
    """Return the first test that fails with a change, or None if all pass."""
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(LIMIT_SECONDS)
    try:
        if change is not None:
            make_change(change)
        is_solved = change is None or Path(change.file).name in SOLVED
        items = [item for item in _collected if is_solved or not item.nodeid.startswith(SOLVED_TESTS)]
        for item, following in zip(items, [*items[1:], None], strict=True):
            reports = runtestprotocol(item, log=False, nextitem=following)
            if any(report.failed for report in reports):
                return item.nodeid.removeprefix("tests/")
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def _stop(*_: object) -> None:
    raise TimeoutError(f"more than {LIMIT_SECONDS} s")


def judge(change: Change, found_by: str | None) -> str:
    """Return 'found', 'survived', or why a change that survives gives wrong results nowhere."""
    reasons = (
        reason
        for (file, function, part), reason in EQUIVALENT.items()
        if (file, function) == (change.file, change.function) and part in change.text
    )
    if found_by:
        return "found"
    return next((f"equivalent: {reason}" for reason in reasons), "survived")


def summarise(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how many changes of each module are found, equivalent to the code, and survive."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row["file"], Counter())[row["verdict"].partition(":")[0]] += 1
    verdicts = ("found", "equivalent", "survived")
    return [{"module": file, **{name: count[name] for name in verdicts}} for file, count in counts.items()]


def run(setting: Setting) -> dict[str, Any]:
    """Try the changes of the modules; return how many are found, the survivors, and all changes."""
    changes = [change for file in setting.parts for change in list_changes(file)]
    changes = changes[: setting.pick(2, None, None)]
    os.environ["CKPTPLAN_HYPOTHESIS"] = "unshrunk"
    is_solved = any(Path(change.file).name in SOLVED for change in changes)
    tests = TESTS[:1] if setting.small else (*TESTS, *(SOLVED_TESTS if is_solved else ()))
    chosen = ("-m", "not slow", "-k", f"not ({' or '.join(SLOW)})", *tests)
    runner = Runner(changes, setting)
    with redirect_stdout(StringIO()) as printed:
        status = pytest.main(
            ["-q", "-n", "0", "-p", "no:cacheprovider", "--tb=short", *chosen], plugins=[runner]
        )
    if status:
        raise SystemExit(printed.getvalue())
    survivors = [row for row in runner.rows if row["verdict"] == "survived"]
    return {"modules": summarise(runner.rows), "survivors": survivors, "changes": runner.rows}


if __name__ == "__main__":
    main("mutants", run, {}, about=__doc__, parts=MODULES)
