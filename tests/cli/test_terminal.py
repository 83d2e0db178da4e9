"""Help with examples that run, completion by a real bash, hints, and quick starts."""

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
from ckptplan.strategies.registry import all_strategies
from tests.security.program import run_all
from tests.support import run, run_process, small_plan

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
    # Bash completes names of files where the program offers nothing.
    assert "complete -o default -F" in (folder / ".bash_completions" / "ckptplan.sh").read_text()
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


@pytest.mark.parametrize("value", ["complete_bash", "bash_complete", "source_tcsh", "x"])
def test_the_version_is_printed_whatever_is_asked_of_completion(value: str) -> None:
    done = run_process("-V", _CKPTPLAN_COMPLETE=value)
    assert (done.returncode, done.stdout) == (0, f"ckptplan {ckptplan.__version__}\n")
    assert run("--version").stdout == done.stdout


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
    text = " ".join(done.output.split())
    assert f"Example: {EXAMPLES[path]}" in text
    assert "<bool>" not in text
    if "--strategies" in text:
        assert f"Strategies: {', '.join(all_strategies())}; groups: paper" in text


@pytest.mark.parametrize("line", ["", "profiles", "workloads", "-h", "optimize -h"])
def test_help_is_shown_at_every_level(line: str) -> None:
    done = run(*line.split())
    assert "Usage" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("line", "heavy"),
    [
        ("--help", {"numpy", "scipy", "matplotlib", "torch"}),
        ("optimize", {"scipy", "matplotlib", "torch"}),
        ("simulate plan.json", {"scipy", "matplotlib", "torch", "checkpoint_schedules"}),
    ],
)
def test_a_command_imports_nothing_heavy_that_it_does_not_use(
    line: str, heavy: set[str], tmp_path: Path
) -> None:
    ckptplan.save_plan(small_plan(), tmp_path / "plan.json")
    script = (
        "import sys\nfrom ckptplan.cli.main import main\n"
        f"try: main({line.split()})\n"
        "except SystemExit as end: assert end.code == 0\n"
        f"print(sorted({heavy} & sys.modules.keys()))\n"
    )
    program = [sys.executable, "-c", script]
    done = subprocess.run(program, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]"


def tiny_plan() -> ckptplan.Plan:
    """A plan that runs in a moment; its times are not those of this machine."""
    times: Any = dict.fromkeys(("forward_seconds", "backward_seconds", "recompute_seconds"), 1e-3)
    sizes: Any = {"steps": 16, "batch": 4, "state_bytes": 256, "tape_bytes": 1792}
    workload = ckptplan.Workload(name="mine", cell="gru(inputs=8, neurons=16)", **sizes, **times)
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
