"""What several tests share: random problems, brute force, and the program as a process."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import math
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import strategies as st

import ckptplan
from ckptplan.cli import main, progress
from ckptplan.cost.exact import Cost
from ckptplan.model.budget import Budget
from ckptplan.model.goal import Goal, Model
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import Totals
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import ACTION_TIMES, Calibration
from ckptplan.paper.setting import load_paper_setting
from ckptplan.recursion.growing import CachedGrowth, growth_ratio
from ckptplan.report.blocks import Block
from ckptplan.report.console import write_blocks
from ckptplan.search.boxes import Limits
from ckptplan.search.objective import Objective
from ckptplan.search.question import Question
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.protocol import Columns, Strategy
from ckptplan.strategies.registry import all_strategies
from ckptplan.strategies.solved import Solved

ROOT = Path(__file__).parent.parent
Found = TypeVar("Found")

#: Time costs: zero, small whole numbers (which make ties) and any positive number.
seconds = st.one_of(
    st.just(0.0), st.integers(1, 6).map(float), st.floats(1e-6, 1e3, allow_nan=False, allow_infinity=False)
)


@st.composite
def step_costs(
    draw: st.DrawFn, *, steps: st.SearchStrategy[int] | None = None, actions: bool = True
) -> StepCosts:
    """Any problem: M_a / M_s from far below to far above 1, free actions and overlapped transfers included.

    Actions cost nothing in half of the problems, and in all without ``actions``.
    """
    costly = actions and draw(st.booleans())
    state_bytes = draw(st.integers(1, 1000))
    tape_bytes = draw(
        st.one_of(st.integers(1, 12).map(lambda alpha: alpha * state_bytes), st.integers(1, 5000))
    )
    return StepCosts(
        steps=draw(st.integers(1, 64) if steps is None else steps),
        state_bytes=state_bytes,
        tape_bytes=tape_bytes,
        resident_bytes=draw(st.integers(0, 2000)),
        remote_state_bytes=draw(st.integers(1, 5000)),
        forward_seconds=draw(seconds),
        backward_seconds=draw(seconds),
        recompute_seconds=draw(seconds),
        record_overhead_seconds=draw(seconds),
        write_seconds=draw(seconds),
        read_seconds=draw(seconds),
        message_seconds=draw(seconds),
        overlaps_compute=draw(st.booleans()),
        **cast("dict[str, Any]", {name: draw(seconds) if costly else 0.0 for name in ACTION_TIMES}),
    )


def changed(costs: StepCosts, **changes: Any) -> StepCosts:
    """The same problem with some of its costs changed."""
    return StepCosts(**{**dict(costs), **changes})


def plain_costs(steps: int, **changes: Any) -> StepCosts:
    """A problem with costs that a person can add up."""
    return StepCosts(
        **{
            "steps": steps,
            "state_bytes": 10,
            "tape_bytes": 10,
            "resident_bytes": 0,
            "remote_state_bytes": 1000,
            "forward_seconds": 1.0,
            "backward_seconds": 2.0,
            "recompute_seconds": 1.0,
            "write_seconds": 3.0,
            "read_seconds": 4.0,
            "message_seconds": 0.5,
            # Moving a cache takes longer than any run.
            "cache_write_seconds": 30.0,
            "cache_read_seconds": 40.0,
            **changes,
        }
    )


#: Strategies that a few parameters determine, and those that are solved decision by decision.
CLOSED = {name: one for name, one in all_strategies().items() if isinstance(one, ClosedForm)}
SOLVED = {name: one for name, one in all_strategies().items() if isinstance(one, Solved)}


def ask(
    *,
    costs: StepCosts,
    budget: Budget | None = None,
    strategies: Iterable[Strategy | str] = tuple(CLOSED),
    **more: Any,
) -> Question:
    """A question about any costs, within any budget, zero included."""
    names = tuple(one if isinstance(one, str) else one.name for one in strategies)
    wishes = {name: more.pop(name) for name in tuple(more) if name in Goal.model_fields}
    asked = Question(costs=costs, goal=Goal(strategies=names, **wishes), **more)
    return asked if budget is None else asked.replace(**vars(budget))


def totals_of(answer: Answer | None) -> Totals:
    """The cost of an answer of a strategy that is solved."""
    assert answer is not None
    assert answer.solved is not None
    return answer.solved


def fixed(strategy: Strategy, *, state_bytes: int, tape_bytes: int, cache_bytes: int = 0) -> dict[str, int]:
    """The parameters that sizes alone determine."""
    if cache_bytes:
        growth = CachedGrowth.of(state=state_bytes, tape=tape_bytes, cache=cache_bytes)._asdict()
    else:
        growth = dict(zip(("state", "tape"), growth_ratio(state=state_bytes, tape=tape_bytes), strict=True))
    units = {f"{name}_units": size for name, size in growth.items()}
    names = (*strategy.parameter_names, *strategy.cache_names)
    return {name: units[name] for name in names if name in units}


def setting_of(strategy: Strategy, numbers: Sequence[int], costs: StepCosts) -> Parameters:
    """A setting with these numbers, clamped as for execution."""
    sizes = {name: getattr(costs, name) for name in ("state_bytes", "tape_bytes", "cache_bytes")}
    sizes = fixed(strategy, **sizes)
    free = [name for name in strategy.parameter_names if name not in sizes]
    enough = [*numbers, *[numbers[-1]] * len(free)]
    return strategy.clamp(Parameters({**dict(zip(free, enough, strict=False)), **sizes}), steps=costs.steps)


def settings_of(
    strategy: Strategy, steps: int, *, state_bytes: int = 1, tape_bytes: int = 1, cache_bytes: int = 0
) -> Iterator[dict[str, int]]:
    """Every legal setting of a strategy, by what its parameters mean; all caches are kept."""
    sizes = fixed(strategy, state_bytes=state_bytes, tape_bytes=tape_bytes, cache_bytes=cache_bytes)
    numbers = range(1, steps + 1)
    names = tuple(name for name in strategy.parameter_names if name not in sizes)
    if names == ():
        yield sizes
    elif names == ("chunk_size",):
        yield from ({"chunk_size": chunk, **sizes} for chunk in numbers)
    elif names == ("chunk_size", "nb_local"):
        yield from ({"chunk_size": chunk, "nb_local": local} for chunk in numbers for local in numbers)
    elif names in (("chunk_size", "remote_chunk_size"), ("chunk_size", "segment_size")):
        yield from (
            {"chunk_size": chunk, names[1]: segment, **sizes}
            for chunk in numbers
            for segment in range(chunk, steps + 1)
        )
    elif names == ("nb_local", "nb_parts"):
        yield from (
            {"nb_local": slots, "nb_parts": parts} for slots in numbers for parts in range(1, steps - slots + 2)
        )
    elif names == ("chunk_size", "period", "nb_local"):
        yield from (
            {"chunk_size": chunk, "period": period, "nb_local": slots}
            for chunk in numbers
            for period in range(1, -(-steps // chunk) + 1)
            for slots in range(1, max(2, period))
        )
    else:
        raise NotImplementedError(f"say what the settings of {strategy.name} are")


def columns_of(settings: list[dict[str, int]]) -> Columns:
    """Settings side by side."""
    return {name: np.array([setting[name] for setting in settings], dtype=np.int64) for name in settings[0]}


def brute_force(
    strategy: ClosedForm, *, costs: StepCosts, limits: Limits, objective: Objective, model: Model
) -> tuple[float, ...] | None:
    """The key and parameters of the best of all settings, each evaluated; None if none keeps the limits."""
    sizes = {"state_bytes": costs.state_bytes, "tape_bytes": costs.tape_bytes}
    settings = list(settings_of(strategy, costs.steps, **sizes))
    points = columns_of(settings)
    cost = strategy.evaluate(low=points, high=points, costs=costs, model=model)
    keys = objective(cost)
    fitting = np.flatnonzero(limits.keeps(cost))
    return min(((*(column[i].item() for column in keys), *settings[i].values()) for i in fitting), default=None)


def one_cost(strategy: ClosedForm, costs: StepCosts, parameters: Mapping[str, int]) -> Cost:
    """The cost of one setting."""
    return strategy.cost(Parameters(parameters), costs=costs)


def run(
    *arguments: str, stdin: str | None = None, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of the program in this process, with streams, folder and variables of its own.

    It parses, computes and prints as a process would, without the second that imports take, and without the
    lines of progress that appear where a busy machine takes ten seconds.
    """
    out, err = io.StringIO(), io.StringIO()
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | environment
    with (
        patch.dict(os.environ, variables, clear=True),
        patch.object(sys, "argv", ["ckptplan", *arguments]),
        patch.object(sys, "stdin", io.StringIO(stdin or "")),
        patch.object(progress, "_INTERVAL_SECONDS", math.inf),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main.run(list(arguments))
    return subprocess.CompletedProcess(["ckptplan", *arguments], code, out.getvalue(), err.getvalue())


def run_process(
    *arguments: str,
    stdin: str | None = None,
    cwd: Path | None = None,
    heeds_interrupts: bool = False,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run the program as its users do: a real process; one that interrupts itself must heed that.

    Lines of progress are left out of what it said.
    """
    done = subprocess.run(
        [sys.executable, "-m", "ckptplan", *arguments],
        check=False,
        capture_output=True,
        text=True,
        input=stdin,
        cwd=cwd,
        preexec_fn=_heed_interrupts if heeds_interrupts else None,
        # As wide as by default, whatever runs the tests.
        env={**{name: value for name, value in os.environ.items() if name != "COLUMNS"}, **environment},
    )
    done.stderr = leave_progress_out(done.stderr)
    return done


def leave_progress_out(said: str) -> str:
    """Return what a process said without the lines that it prints where a busy machine takes ten seconds."""
    return re.sub(r"^.+: (\d+ s so far|\d+ %(, about .+ left)?)\n", "", said, flags=re.MULTILINE)


@contextmanager
def started(*command: str, **more: Any) -> Iterator[subprocess.Popen[Any]]:
    """A Python process that a test interrupts; gone at the end, whatever the test found.

    It heeds Ctrl-C and a closed terminal: what a shell starts in the background ignores them, and so would its
    children. Coverage is not measured in it: a signal would meet the tracer as often as the program.
    """
    options: dict[str, Any] = {"env": _uncovered(os.environ), "preexec_fn": _heed_interrupts, **more}
    process = subprocess.Popen([sys.executable, *command], **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def wait_until(condition: Callable[[], Found], *, what: str, seconds: float = 120) -> Found:
    """Return what a condition returns as soon as that is true; fails with ``what`` when the time is over.

    The condition is asked once more after that: this process, too, may have been stopped meanwhile.
    """
    end = time.monotonic() + seconds
    over = False
    while not (found := condition()):
        if over:
            pytest.fail(f"after {seconds:g} s still not: {what}")
        time.sleep(0.01)
        over = time.monotonic() > end
    return found


def count_bytes(file: Path) -> int:
    """Return how many bytes a file has by now: none before it is there."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended may stay listed where nobody asks for its code."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def run_on_terminal(
    *arguments: str,
    interrupt_at: str | None = None,
    shows_output: bool = False,
    columns: int = 80,
    cwd: Path | None = None,
    **environment: str,
) -> tuple[int, str, str]:
    """Run the program on a terminal; return its code, its standard output, and what the terminal showed.

    Arguments:
        arguments: of the program.
        interrupt_at: a pattern; where it is shown, the program is interrupted.
        shows_output: whether standard output is the terminal, too; otherwise it is a file.
        columns: the width of the terminal.
        cwd: the folder that the program runs in.
        environment: variables besides those of this process.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    plain = {name: one for name, one in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    variables = {**_uncovered(plain), "TERM": "xterm", **environment}
    shown, waits = b"", interrupt_at is not None
    with tempfile.TemporaryFile() as output:
        streams = {"stdin": theirs, "stdout": theirs if shows_output else output, "stderr": theirs}
        with started("-m", "ckptplan", *arguments, **streams, cwd=cwd, env=variables) as process:
            os.close(theirs)
            # Linux ends the reading of a terminal that nobody writes to any more with an error.
            with contextlib.suppress(OSError):
                while part := os.read(ours, 4096):
                    shown += part
                    if waits and re.search(str(interrupt_at).encode(), shown):
                        process.send_signal(signal.SIGINT)
                        waits = False
            process.wait()
        os.close(ours)
        output.seek(0)
        found = process.returncode, output.read().decode(), shown.decode()
    assert not waits, f"never shown: {interrupt_at}, but {found}"
    return found


@contextmanager
def dask_cluster(*, workers: int = 2) -> Iterator[str]:
    """A scheduler of Dask and workers with one thread, each a process; yields the scheduler's address.

    Workers come when they have started.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        quiet: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        quiet["env"] = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        file = Path(folder) / "scheduler.json"

        def start(kind: str, *options: str) -> None:
            command = ("-m", f"distributed.cli.dask_{kind}", "--no-dashboard", *options)
            running.enter_context(started(*command, "--scheduler-file", str(file), **quiet))

        start("scheduler", "--port", "0")
        for _ in range(workers):
            start("worker", "--nthreads", "1")
        yield wait_until(lambda: read_whole(file), what="a scheduler's file")["address"]


def read_whole(file: Path) -> Any:
    """Return a JSON document; None while its file is not there, or not written to its end."""
    try:
        return json.loads(file.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


_MPIEXEC = shutil.which("mpiexec")
#: Whether programs can run on MPI, a library of the system that no package index has.
HAS_MPI = _MPIEXEC is not None and find_spec("mpi4py") is not None


def run_mpi(script: str, *, cwd: Path) -> str:
    """Return what a program prints that hands work to two others of three processes."""
    environment = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        # More processes than cores, and by whoever runs the tests.
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    done = subprocess.run(
        [str(_MPIEXEC), "-n", "3", sys.executable, "-m", "mpi4py.futures", script],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def strings_of_code(tree: ast.Module) -> Iterator[str]:
    """Yield the strings of a module that are no docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def told(blocks: Iterable[Block], *, width: int = 160) -> str:
    """Return blocks as a console prints them."""
    return write_blocks(blocks, width=width)


def small_plan(strategy: str = "double", *, profile: str = "ipu-mk2", local_bytes: str = "230 kB") -> Plan:
    """A plan of 64 steps with few bytes: short enough to read, and with all kinds of actions."""
    workload = load_paper_setting().workload.with_steps(64)
    return ckptplan.optimize(
        workload, ckptplan.load_profile(profile), strategies=[strategy], local_bytes=local_bytes
    )


def calibration(uncertainty: float) -> Calibration:
    """What a calibration says that knows times within a share."""
    return Calibration(
        machine="a machine",
        device="cpu",
        threads=1,
        torch="2.13.0",
        date="2026-01-01T00:00:00+00:00",
        seed=0,
        uncertainty=uncertainty,
        transfer_uncertainty=0.0,
    )


def long_plan(steps: int) -> Plan:
    """A plan with as many actions as there can be: four for each step."""
    return ckptplan.optimize(
        load_paper_setting().workload.with_steps(steps),
        ckptplan.load_profile("nvidia-h200"),
        strategies=["remote"],
        objective="memory",
        local_bytes="1 PB",
        remote_bytes="unbounded",
    )


def _uncovered(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not name.startswith("COVERAGE")}


def _heed_interrupts() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
