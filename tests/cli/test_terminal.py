"""At a terminal: completion by a real bash, help with examples that run, and hints at what was meant."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import ckptplan
from ckptplan.cli.app import COMMANDS, GROUPS, make_app
from ckptplan.cli.options import describe_strategies
from ckptplan.errors import did_you_mean
from ckptplan.strategies.registry import all_strategies
from tests.security.program import run_all
from tests.support import run, run_on_terminal, run_process, small_plan

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = {
    path: f"ckptplan {path} {entry[-1]}".replace("  ", " ") for path, entry in {**GROUPS, **COMMANDS}.items()
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with the program on its path, in which completion was installed as users do."""
    folder = tmp_path_factory.mktemp("home")
    program = folder / "bin" / "ckptplan"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ckptplan "$@"\n')
    program.chmod(0o755)
    done = in_home(folder, [str(program), "--install-completion", "bash"])
    assert "bash completion installed" in done.stdout
    return folder


def in_home(home: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=home)


#: What bash does at Tab: it sets the words and the place of the cursor, and calls the registered function.
TAB = """
source "$HOME/.bashrc"
read -ra COMP_WORDS <<< "$1"; [[ "$1" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
registered=$(complete -p ckptplan); [[ "$registered" =~ -F\\ ([^ ]+) ]]
"${BASH_REMATCH[1]}" ckptplan "${COMP_WORDS[-1]}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""


def offered(home: Path, line: str) -> set[str]:
    done = in_home(home, ["/bin/bash", "--norc", "--noprofile", "-c", TAB, "bash", line])
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("ckptplan opt", {"optimize"}),
        ("ckptplan optimize --profile nvidia-h", {"nvidia-h100-sxm", "nvidia-h200"}),
        ("ckptplan optimize --workload paper", {"paper-snn"}),
        ("ckptplan optimize --strategies optimal,gro", {"optimal,growing"}),
        ("ckptplan optimize --strategies double,doub", {"double,double-growing"}),
        ("ckptplan compare --objective m", {"memory"}),
        ("ckptplan sweep --over laten", {"latency="}),
        ("ckptplan largest ", {"T", "batch", "neurons"}),
        ("ckptplan optimize --bas", {"--basis"}),
        # Nothing is offered where a file is meant: bash then completes names of files.
        ("ckptplan simulate pla", set()),
    ],
)
def test_bash_completes(home: Path, line: str, names: set[str]) -> None:
    assert offered(home, line) == names


def test_bash_completes_files_where_nothing_is_offered(home: Path) -> None:
    script = (home / ".bash_completions" / "ckptplan.sh").read_text()
    assert "complete -o default -F" in script


@pytest.mark.parametrize("value", ["complete_bash", "bash_complete", "source_tcsh", "x"])
def test_a_request_for_completion_that_says_nothing_is_ignored(value: str) -> None:
    done = run_process("-V", _CKPTPLAN_COMPLETE=value)
    assert (done.returncode, done.stdout) == (0, f"ckptplan {ckptplan.__version__}\n")


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its path, as 'profiles show'."""
    root: Any = get_command(make_app())
    yield "", root
    for name, one in root.commands.items():
        yield name, one
        yield from ((f"{name} {inner}", command) for inner, command in getattr(one, "commands", {}).items())


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_help_has_an_example_and_the_strategies_and_no_types_of_flags(path: str) -> None:
    done = CliRunner().invoke(
        make_app(), [*path.split(), "--help"], env={"COLUMNS": "80"}, prog_name="ckptplan"
    )
    told = " ".join(done.output.split())
    example = EXAMPLES[path]
    assert f"Example: {example}" in told
    assert "<bool>" not in told
    if "--strategies" in told:
        assert f"Strategies: {', '.join(all_strategies())}; groups: paper" in told


def tiny_plan() -> ckptplan.Plan:
    """A plan that runs in a moment; its times are not those of this machine."""
    workload = ckptplan.Workload(
        name="mine",
        steps=16,
        batch=4,
        state_bytes=256,
        tape_bytes=1792,
        forward_seconds=1e-3,
        backward_seconds=1e-3,
        recompute_seconds=1e-3,
        cell="gru(inputs=8, neurons=16)",
    )
    return ckptplan.optimize(workload, ckptplan.load_profile("ipu-mk2"))


#: Examples that run elsewhere: one measures for seconds, tests of the documents run those of the README.
RUN_ELSEWHERE = ("calibrate", *(path for path, line in EXAMPLES.items() if f"/{line}\n" in README))


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in EXAMPLES if path not in RUN_ELSEWHERE])
def test_examples_run(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, with a plan of few steps."""
    monkeypatch.chdir(tmp_path)
    ckptplan.save_plan(tiny_plan() if path == "validate" else small_plan(), "plan.json")
    arguments = shlex.split(EXAMPLES[path])[1:]
    more = ["--repeats", "1"] if path == "validate" else []
    done = CliRunner().invoke(make_app(), [*arguments, *more], prog_name="ckptplan", catch_exceptions=False)
    assert done.exit_code in ((0, 4) if path == "validate" else (0,)), done.output


def test_strategies_are_described_in_a_few_words() -> None:
    told = describe_strategies()
    assert list(told)[: len(all_strategies())] == list(all_strategies())
    assert told["nested"] == "Double with its outer checkpoints in local memory"
    assert all(text and not text.startswith("Implements") for text in told.values())


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("h100", "'nvidia-h100-sxm'"),
        ("H100", "'nvidia-h100-sxm'"),
        ("h10", "'nvidia-h100-sxm'"),
        ("a100", "'nvidia-a100-80gb'"),
        ("wormhole", "'tenstorrent-wormhole-n300'"),
        ("ipu-mk", "'ipu-mk1' or 'ipu-mk2'"),
    ],
)
def test_a_part_of_a_name_is_enough_to_be_understood(word: str, hint: str) -> None:
    known = (
        "ipu-bow",
        "ipu-mk1",
        "ipu-mk2",
        "nvidia-a100-80gb",
        "nvidia-h100-sxm",
        "tenstorrent-wormhole-n300",
    )
    assert did_you_mean(word, known) == f" Did you mean {hint}?"


def test_what_resembles_nothing_gets_no_hint() -> None:
    assert did_you_mean("zzz", ("ipu-mk1", "nvidia-h200")) == ""


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["optimize", "--profile", "h100"], "Did you mean 'nvidia-h100-sxm'?"),
        (["optimize", "--workload", "paper"], "Did you mean 'paper-snn'?"),
        (["optimize", "--strategies", "dubble"], "Did you mean 'double'?"),
        (["optimize", "--profil", "ipu-mk2"], "No such option: --profil (Possible options: --profile)"),
        (["optimize", "--t", "5"], "(Possible options: --T, "),
        (["optimise"], "Did you mean 'optimize'?"),
        (["workloads", "check"], "No such command 'check'. (accepted: list, show, new)"),
    ],
)
def test_hints_at_what_was_meant(arguments: list[str], hint: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert hint in done.stderr


def test_a_pager_gets_lines_as_wide_as_the_terminal_behind_it() -> None:
    for columns, pipes_output in ((80, True), (80, False), (60, True)):
        how: dict[str, Any] = {"columns": columns, "shows_output": not pipes_output, "TERM": "dumb"}
        _, output, shown = run_on_terminal("profiles", "list", **how)
        lines = (output or shown).splitlines()
        assert any(line.startswith("tenstorrent-wormhole-n300") for line in lines)
        assert max(map(len, lines)) <= columns


def test_messages_are_wrapped_between_words_on_a_terminal() -> None:
    _, _, shown = run_on_terminal("optimize", "--profile", "h100", TERM="dumb")
    lines = shown.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    assert "'nvidia-h100-sxm'?" in shown
    assert run("optimize", "--profile", "h100").stderr.count("\n") == 1


def test_help_breaks_no_type_at_80_columns_and_no_paragraph_before_its_end(tmp_path: Path) -> None:
    """Choices that are too long for their column are part of the description."""
    names = [name for name in EXAMPLES if name not in ("", "profiles", "workloads", "schema")]
    runs = run_all(*((*name.split(), "--help") for name in names), folder=tmp_path, COLUMNS="80")
    for name, done in zip(names, runs.done, strict=True):
        broken = [line for line in done.out.splitlines() if ("<" in line) != (">" in line)]
        assert (name, broken) == (name, [])
    help_of_sweep = runs.done[names.index("sweep")].out
    assert "csv, jsonl or parquet" in re.sub(r"[\s│]+", " ", help_of_sweep)
    assert " With -o FILE rows go to a file (.csv, .jsonl or .parquet) as they come; after" in help_of_sweep
    assert " an interruption the same command continues it." in help_of_sweep
