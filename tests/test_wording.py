"""Python users are told of parameters, command-line users of options."""

import ast
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

import ckptplan
from ckptplan.calibration.calibrate import Noisy
from ckptplan.cli.app import make_app
from ckptplan.cli.command import as_option, option_of
from ckptplan.errors import CkptplanError, Infeasible, InputError
from ckptplan.model.cell_spec import CellSpec
from ckptplan.report.infeasible import format_infeasible
from ckptplan.storage.rows import open_rows
from ckptplan.storage.tables import Lines
from ckptplan.torch.device.memory import OutOfMemory, explain_exhaustion
from ckptplan.wording import Argument, arguments_as
from tests.support import run, small_plan, strings_of_code

PACKAGE = Path(ckptplan.__file__).parent
#: An option in a text, or the dashes that an f-string puts before one.
OPTION = re.compile(r"(?<![\w-])--[a-zA-Z]|[\s`(]--$|(?<![\w-])-o\b")
#: 'local_bytes=', which only Python writes.
KEYWORD = re.compile(r"\b[a-z_]+=")
IPU = ckptplan.load_profile("ipu-mk2")
PAPER = ckptplan.load_workload("paper-snn")
#: A workload whose sizes are plain numbers, with a cell: one that was calibrated.
MEASURED = ckptplan.Workload(
    name="mine",
    steps=64,
    batch=4,
    state_bytes=256,
    tape_bytes=1792,
    forward_seconds=1e-3,
    backward_seconds=1e-3,
    recompute_seconds=1e-3,
    cell="gru(inputs=8, neurons=16)",
)


def texts(module: Path) -> Iterator[str]:
    """The string literals of a module, parts of f-strings included, docstrings not."""
    return strings_of_code(ast.parse(module.read_text(encoding="utf-8")))


def below_the_command_line() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if PACKAGE / "cli" not in path.parents]


@pytest.mark.parametrize("module", below_the_command_line(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_below_the_command_line_speaks_of_an_option(module: Path) -> None:
    assert [text for text in texts(module) if OPTION.search(text)] == []


def test_a_text_with_an_option_in_it_would_be_seen(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Run with --docs."""\nx = f"again with --{name}"\ny = "a (--smaller) one"\nz = "-- no"\n'
    )
    assert {text for text in texts(module) if OPTION.search(text)} == {"again with --", "a (--smaller) one"}


def test_a_command_line_words_all_arguments_of_its_process() -> None:
    with arguments_as(as_option):
        assert f"try {Argument('local_bytes', 4096)}" == "try --local-bytes 4096"
    assert str(Argument("restart", True)) == "restart=True"


def test_every_argument_that_is_spoken_of_is_an_option_of_some_command() -> None:
    """What modules call an argument is translated to an option that exists."""
    known = set(_options_of(get_command(make_app())))
    spoken = {
        node.args[0].value
        for module in below_the_command_line()
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Argument"
        and isinstance(node.args[0], ast.Constant)
    }
    assert {"local_bytes", "repeats", "cell", "restart"} <= spoken
    assert {option_of(str(name)) for name in spoken} <= known


def _options_of(command: Any) -> Iterator[str]:
    for each in command.params:
        yield from each.opts
    for below in getattr(command, "commands", {}).values():
        yield from _options_of(below)


def error_of_another_batch() -> CkptplanError:
    with pytest.raises(InputError) as raised:
        MEASURED.with_batch(60)
    return raised.value


def error_of_a_sweep_over_batches() -> CkptplanError:
    with pytest.raises(InputError) as raised:
        ckptplan.sweep({"batch": [30, 60]}, workloads=MEASURED, profiles=IPU)
    return raised.value


def error_of_no_cell() -> CkptplanError:
    with pytest.raises(InputError) as raised:
        CellSpec.of(ckptplan.load_workload("paper-snn").model_copy(update={"cell": None}))
    return raised.value


def error_of_other_rows(path: Path) -> CkptplanError:
    path.write_text("not,rows\n")
    lines = Lines(format="csv", columns={"sweep": "text", "x": "whole"})
    with (
        pytest.raises(InputError) as raised,
        open_rows(path, lines=lines, identity="a", total=1, head=lambda _: {}),
    ):
        pass
    return raised.value


def error_of_memory() -> CkptplanError:
    plan = ckptplan.optimize(PAPER, ckptplan.load_profile("nvidia-h200"), strategies=["base"])
    with pytest.raises(OutOfMemory) as raised, explain_exhaustion(plan, torch.device("cpu")):
        raise MemoryError("no room")
    return raised.value


def test_the_same_mistake_names_the_parameter_in_python_and_the_option_on_the_command_line(
    tmp_path: Path,
) -> None:
    for fail, in_python, on_the_command_line in (
        (error_of_another_batch, "calibrate it again with batch=60", "again with --batch 60"),
        (
            error_of_a_sweep_over_batches,
            "with batch=30 (at mine on ipu-mk2, batch = 30)",
            "with --batch 30 (at mine on ipu-mk2, batch = 30)",
        ),
        (error_of_no_cell, "or cell=)", "or --cell)"),
        (partial(error_of_other_rows, tmp_path / "x.csv"), "or restart=True)", "or --restart)"),
        (error_of_memory, "a plan for local_bytes=", "a plan for --local-bytes "),
        (
            partial(Noisy, field="forward", spread=0.2, most=0.05),
            "lower thread_count=, or raise repeats= or tolerance=",
            "lower --threads, or raise --repeats or --tolerance",
        ),
    ):
        error = fail()
        assert in_python in str(error)
        assert not OPTION.search(str(error))
        with arguments_as(as_option):
            assert on_the_command_line in str(fail())


def test_suggestions_are_data_that_each_edge_puts_into_words() -> None:
    with pytest.raises(Infeasible) as raised:
        ckptplan.optimize(PAPER, IPU, strategies=["base"], local_bytes="500 KiB")
    changes = {one["change"]: one["value"] for one in raised.value.suggestions}
    assert f"local_bytes={changes['local_bytes']} " in format_infeasible(raised.value)
    assert not OPTION.search(format_infeasible(raised.value))
    with arguments_as(as_option):
        on_the_command_line = format_infeasible(raised.value)
    assert f"--local-bytes {changes['local_bytes']} " in on_the_command_line
    assert not KEYWORD.search(on_the_command_line)


def test_the_command_line_names_its_options(tmp_path: Path) -> None:
    ckptplan.save_workload(MEASURED, tmp_path / "mine.toml")
    done = run("optimize", "--workload", str(tmp_path / "mine.toml"), "--batch", "60", "--format", "json")
    assert "--batch: workload 'mine' has no network" in done.stderr
    assert done.stderr.endswith("calibrate it again with --batch 60\n")
    ckptplan.save_plan(small_plan(), tmp_path / "plan.json")
    done = run("validate", str(tmp_path / "plan.json"), "--cell", "no cell!")
    assert done.stderr.startswith("ckptplan: --cell: 'no cell!' is not a cell")
    done = run("validate", str(tmp_path / "plan.json"), "--regret", "--cell", "rnn(inputs=1, neurons=1)")
    assert done.stderr.startswith("ckptplan: --regret: double was the only strategy requested")


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (("optimize",), "--basis lists"),
        (("compare", "--strategies", "paper"), "--basis lists"),
        (("pareto", "--T", "64", "--strategies", "closed"), "--strategies all adds"),
        (("pareto", "--T", "64"), "--basis lists"),
        (("pareto", "--T", "64", "--at", "500 KiB"), "--basis lists"),
        (("largest", "T", "--strategies", "base"), "--basis lists"),
        (("sweep", "--over", "T=1:100:+1"), "-o FILE.csv"),
        (("paper",), "--format json"),
        (("paper", "--figure", "4"), "--figure 4 --format csv"),
    ],
)
def test_tables_hint_at_options(command: tuple[str, ...], hint: str) -> None:
    printed = " ".join(run(*command).stdout.split())
    assert hint in printed
    assert not re.search(r"\b(format|strategies|output|figure)='?\w", printed)
