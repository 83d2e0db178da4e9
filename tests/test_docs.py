"""The documents keep what they promise: commands run, outputs are real, references exist."""

import json
import re
import shlex
from pathlib import Path

import pytest

from ckptplan.cost import paper
from ckptplan.strategies.registry import all_strategies
from tests.cost import test_paper
from tests.support import run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def stripped(text: str) -> str:
    """Tables are padded with spaces that nobody sees."""
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_readme_shows_what_the_program_prints() -> None:
    golden = ROOT / "tests" / "golden"
    assert stripped((golden / "optimize.txt").read_text()) in README
    assert stripped((golden / "infeasible.txt").read_text()) in README


def test_the_gate_runs_the_test_command_of_the_readme() -> None:
    command = next(line for line in README.splitlines() if line.endswith("-m pytest"))
    assert command in (ROOT / ".ci" / "run").read_text()


COMMANDS = [
    line.removeprefix(".venv/bin/ckptplan ")
    for line in README.splitlines()
    if line.startswith(".venv/bin/ckptplan ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_run(command: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path / word) if word == "plan.json" else word for word in shlex.split(command)]
    assert run(*arguments).returncode == 0


def test_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    exec(compile(code[1], "README.md", "exec"), {})  # noqa: S102
    assert (tmp_path / "plan.json").exists()


def test_every_equation_has_its_function_and_its_test() -> None:
    rows = re.findall(
        r"^\| \((\d+)\) \|.*\| `(\w+)` \| `(\w+)` \|$", (ROOT / "docs/equations.md").read_text(), re.M
    )
    assert [int(number) for number, _, _ in rows] == list(range(1, 14))
    for number, function, test in rows:
        assert f"Eq. ({number})" in str(getattr(paper, function).__doc__)
        assert test.startswith(f"test_eq_{number}_")
        assert hasattr(test_paper, test)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_toml_of_the_documents_loads(page: Path, tmp_path: Path) -> None:
    """Whole examples are files as they stand; parts are taken with what they leave out."""
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)):
        head = "" if "\nname = " in f"\n{block}" else REST[page.stem]
        file = tmp_path / f"{number}.toml"
        # A table ends the list of plain fields: what is left out goes first.
        repeated = [line.split(" = ")[0] for line in block.splitlines() if " = " in line]
        kept = [line for line in head.splitlines() if line.split(" = ")[0] not in repeated]
        tables = re.findall(r"^\[(\w+)\]$", block, re.M)
        file.write_text("\n".join(line for line in kept if line.split(" = ")[0] not in tables) + "\n" + block)
        command = ["profiles" if page.stem == "profiles" else "workloads", "show", str(file)]
        done = run(*command)
        assert done.returncode == 0, done.stderr


REST = {
    "profiles": 'name = "p"\nlocal_bytes = 1\nwrite_bytes_per_second = 1\nread_bytes_per_second = 1',
    "workloads": 'name = "w"\nsteps = 1\nforward_seconds = 1\nbackward_seconds = 1\nrecompute_seconds = 1',
}


def test_every_strategy_is_in_the_readme() -> None:
    for name in all_strategies():
        assert f"| `{name}` |" in README


def test_links_between_documents_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_timings_in_the_documents_are_those_measured() -> None:
    """Each number of the tables stands in the result file of the benchmark that it names."""
    measured = json.loads((ROOT / "benchmarks/results/search.json").read_text())["results"]
    page = (ROOT / "docs/search.md").read_text()
    for result in measured:
        assert f"{result['median_seconds'] * 1e3:.1f} ms" in page
    startup = json.loads((ROOT / "benchmarks/results/startup.json").read_text())["results"]
    assert (
        f"takes {startup['optimize']['ratio']:.1f} times as long" in (ROOT / "docs/architecture.md").read_text()
    )


def test_pages_that_the_code_refers_to_exist() -> None:
    named = {
        page
        for file in [*(ROOT / "ckptplan").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
        for page in re.findall(r"[\w/-]*\b[\w-]+\.md\b", file.read_text())
    }
    assert len(named) >= 4
    for page in named:
        assert (ROOT / page).exists() or (ROOT / "docs" / page).exists(), page
