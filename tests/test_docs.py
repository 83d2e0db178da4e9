"""The documents keep what they promise: commands run, outputs are real, references exist."""

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import ckptplan
from benchmarks import accuracy, commands, networks, optimal
from benchmarks.accuracy import bias
from benchmarks.harness import put_section, read
from ckptplan.cost import paper
from ckptplan.model.record import Parameters
from ckptplan.strategies.registry import all_strategies
from tests.cost import test_paper
from tests.laws.test_settings import check_executed, check_played
from tests.strategies import reference
from tests.support import plain_costs, run

ROOT = Path(__file__).parent.parent
#: The benchmarks of accuracy: of PyTorch, and of JAX.
ACCURACY = ("accuracy", "accuracy_jax")
README = (ROOT / "README.md").read_text()
#: Pages whose commands are run. The first lines of README are compared with what its command prints.
PAGES = (
    "docs/strategies.md", "docs/schedule-format.md", "docs/trade-offs.md", "docs/accuracy.md",
    "docs/machines.md",
)  # fmt: skip


def stripped(text: str) -> str:
    """Tables are padded with spaces that nobody sees."""
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_readme_shows_the_first_lines_that_the_program_prints_at_80_columns() -> None:
    shown = re.findall(r"```text\n(.*?)```", README, re.DOTALL)[0]
    printed = stripped(run("optimize", "--T", "4096", "--profile", "ipu-mk2", COLUMNS="80").stdout)
    assert printed.startswith(shown)
    assert 10 <= shown.count("\n") <= 14


def test_readme_is_one_page() -> None:
    assert len(README.splitlines()) <= 110
    assert len(README.split()) <= 900


def test_the_pages_are_few_and_short() -> None:
    """Whoever adds a page or a paragraph takes another one away."""
    names = ("*.md", "docs/**/*.md", "examples/**/*.md")
    pages = sorted({page for name in names for page in ROOT.glob(name)})
    assert len([page for page in pages if ROOT / "docs" in page.parents]) <= 26
    assert sum(len(page.read_text().split()) for page in pages) <= 30_000


def test_the_page_on_strategies_shows_what_the_program_prints() -> None:
    golden, page = ROOT / "tests" / "golden", (ROOT / "docs/strategies.md").read_text()
    assert stripped((golden / "optimize.txt").read_text()) in page
    assert stripped((golden / "infeasible.txt").read_text()) in page


def test_the_page_on_machines_shows_which_machine_the_program_names(tmp_path: Path) -> None:
    """The commands of that section as they stand, at the width of a plain terminal."""
    page = (ROOT / "docs/machines.md").read_text()
    section = page.partition("## Size a machine")[2].partition("\n## ")[0]
    shown = re.findall(r"```text\n(.*?)\n```", section, re.DOTALL)[0]
    commands = [shlex.split(line) for line in section.splitlines() if line.startswith(".venv/bin/ckptplan ")]
    printed = [run(*command[1:], cwd=tmp_path, COLUMNS="80").stdout for command in commands]
    assert stripped(shown) in stripped(printed[-1])


def test_the_gate_runs_the_test_command_of_the_readme() -> None:
    command = next(line for line in README.splitlines() if line.endswith("-m pytest"))
    assert command in (ROOT / ".ci" / "run").read_text()


def test_the_strategy_that_contributors_copy_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counts are those of its schedule and of its execution, as CONTRIBUTING.md gives them."""
    module, program, entry = re.findall(
        r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
    )
    names: dict[str, Any] = {**vars(reference)}
    exec(compile(module, "CONTRIBUTING.md", "exec"), names)  # noqa: S102
    exec(compile(program, "CONTRIBUTING.md", "exec"), names)  # noqa: S102
    (strategy,) = names["STRATEGIES"]
    monkeypatch.setitem(reference.PROGRAMS, strategy.name, names[strategy.name])
    assert entry.strip() == f'"{strategy.name}": {strategy.name},'
    for steps in range(1, 20):
        for costs in (plain_costs(steps), plain_costs(steps, state_bytes=3, tape_bytes=17)):
            check_played(strategy, Parameters(), costs)
            check_executed(strategy, Parameters(), costs)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run documented commands in, with the plan that the README writes first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/pictures").mkdir(parents=True)
    workload = ckptplan.load_workload("paper-snn").with_steps(4096)
    ckptplan.save_plan(ckptplan.optimize(workload, ckptplan.load_profile("ipu-mk2")), "plan.json")
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_documents_run(page: str, workplace: Path) -> None:
    """As they stand and in their order, as a reader types them."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    commands = [
        line for block in blocks for line in block.splitlines() if line.startswith(".venv/bin/ckptplan ")
    ]
    assert len(commands) >= (
        5 if page in {"docs/schedule-format.md", "docs/trade-offs.md", "docs/accuracy.md"} else 1
    )
    program = f"{sys.executable} -m ckptplan"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for command in commands:
        line = "set -o pipefail; " + command.replace(".venv/bin/ckptplan", program)
        if " calibrate " in command:
            # What is measured is not what matters here.
            line += " --quick"
        elif " validate " in command:
            line += " --repeats 1"
        done = subprocess.run(
            ["/bin/bash", "-c", line],
            check=False,
            capture_output=True,
            text=True,
            cwd=workplace,
            env=environment,
        )
        # 141: the reader of a pipe has seen enough. 4: times are not what they were a minute before.
        accepted = (0, 141) if "|" in command else (0, 4) if " validate " in command else (0,)
        assert done.returncode in accepted, (command, done.stderr)
        assert "Traceback" not in done.stderr


#: Further pages whose Python is run. A compiler of C++ takes its time.
PYTHON_PAGES = (
    *PAGES, "docs/tutorial.md", "docs/runtime.md", "docs/runtime-cells.md", "docs/jax.md", "docs/own-loop.md",
    "docs/offload.md", "docs/online.md", "docs/plan-format.md",
)  # fmt: skip
#: Pages whose Python tests/studies/test_docs.py runs.
RUN_ELSEWHERE = {"docs/sweep.md"}


def test_every_page_with_python_is_run() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "```python\n" in page.read_text()]
    assert {page.relative_to(ROOT).as_posix() for page in pages} <= {*PYTHON_PAGES} | RUN_ELSEWHERE


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_python_of_the_documents_runs(page: str, workplace: Path) -> None:
    """The README's is run by tests/test_packaging.py, with what the README installs."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for code in blocks:
        exec(compile(code, page, "exec"), {})  # noqa: S102
    assert (workplace / "plan.json").exists()


def test_the_tutorial_trains_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plain program follows from the diff of the page; a program that has trained resumes at its end."""
    page = (ROOT / "docs/tutorial.md").read_text()
    [planned], [diff] = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "diff"))
    lines, removed = planned.splitlines(), list[str]()
    for line in diff.splitlines():
        if line.startswith("-"):
            removed.append(line[1:])
        else:
            place = lines.index(line[1:])
            lines[place : place + 1] = removed
            removed = []
    plain = "\n".join(lines)
    assert "ckptplan" not in plain
    losses, right = {}, {}
    for name, program in (("plain", plain), ("planned", planned)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        exec(compile(program, name, "exec"), {})  # noqa: S102
        epochs = re.findall(r"^epoch \d: loss ([\d.]+), (\d+) of 48 right$", capsys.readouterr().out, re.M)
        assert len(epochs) == 3
        losses[name], right[name] = [float(loss) for loss, _ in epochs], int(epochs[-1][1])
        exec(compile(program, name, "exec"), {})  # noqa: S102
        assert capsys.readouterr().out == ""
    assert losses["planned"] == pytest.approx(losses["plain"], abs=0.1)
    assert losses["planned"][-1] < losses["planned"][0]
    assert min(right.values()) > 40


def test_every_equation_has_its_function_and_its_test() -> None:
    rows = re.findall(
        r"^\| \((\d+)\) \|.*\| `(\w+)` \| `(\w+)` \|$", (ROOT / "docs/equations.md").read_text(), re.M
    )
    assert [int(number) for number, _, _ in rows] == list(range(1, 14))
    for number, function, test in rows:
        assert f"Eq. ({number})" in str(getattr(paper, function).__doc__)
        assert hasattr(test_paper, test)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_toml_of_the_documents_loads(page: Path, tmp_path: Path) -> None:
    """Whole examples are files as they stand; parts are taken with what they leave out."""
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)):
        head = "" if "\nname = " in f"\n{block}" else REST[page.stem]
        if page.stem == "workloads" and "[network]" not in block:
            head = f"state_bytes = 1\ntape_bytes = 1\n{head}" if head else head
        file = tmp_path / f"{number}.toml"
        # A table ends the list of plain fields: what is left out goes first.
        repeated = [line.split(" = ")[0] for line in block.splitlines() if " = " in line]
        kept = [line for line in head.splitlines() if line.split(" = ")[0] not in repeated]
        tables = re.findall(r"^\[(\w+)\]$", block, re.M)
        file.write_text("\n".join(line for line in kept if line.split(" = ")[0] not in tables) + "\n" + block)
        command = ["profiles" if page.stem == "machines" else "workloads", "show", str(file)]
        done = run(*command)
        assert done.returncode == 0, done.stderr


REST = {
    "machines": 'name = "p"\nlocal_bytes = 1\nwrite_bytes_per_second = 1\nread_bytes_per_second = 1',
    "workloads": 'name = "w"\nsteps = 1\nforward_seconds = 1\nbackward_seconds = 1\nrecompute_seconds = 1',
}


def test_every_strategy_has_its_row() -> None:
    page = (ROOT / "docs/strategies.md").read_text()
    for name in all_strategies():
        assert f"| `{name}` |" in page


def test_links_between_documents_lead_somewhere() -> None:
    for page in (
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "examples").rglob("README.md"),
        *sorted((ROOT / "docs").rglob("*.md")),
    ):
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]+)(?:#([^)]*))?", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
            if anchor and target.endswith(".md"):
                assert anchor in _anchors(page.parent / target), f"{page.name}: {target}#{anchor}"


def _anchors(page: Path) -> list[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]


def test_commands_of_the_page_are_those_measured() -> None:
    listed = {command for _, commands_of_group in commands.GROUPS.values() for command in commands_of_group}
    assert listed <= {one["command"] for one in read("commands")}


def test_figures_for_optimal_schedules_are_those_measured() -> None:
    """The tables show some of the rows; each row is, whole, one that was measured."""
    page = (ROOT / "docs/optimality.md").read_text()
    measured = read("optimal")
    tables = re.findall(r"^\| rho = (\S+) \|.*\n\|[-|]+\n((?:\| x = .*\n)+)", page, re.M)
    assert tables
    for rho, table in tables:
        cells = [optimal.show_regret(one) for one in measured["regrets"] if f"{one['rho']:g}" == rho]
        assert re.findall(r"[\d.]+ \([\d.]+\) \w+", table) == cells
    cases = {f"| {' | '.join(optimal.show_case(case))} |" for case in measured["cases"]}
    shown = re.findall(r"^\| [\w ]+ \| `[\w-]+` \| [\d,]+ \|.* ms \|.*$", page, re.M)
    assert len(shown) >= 3
    assert set(shown) <= cases
    peers = {peer["peer"]: peer for peer in measured["peers"] if peer["steps"] == 1000}
    found = re.findall(r"([\d.]+) s \((\w+Revolve); (?:`optimal` in )?([\d.]+) ms\)", page)
    assert {name for _, name, _ in found} == set(peers)
    for theirs, name, ours in found:
        assert float(theirs) == round(peers[name]["peer_seconds"], 2)
        assert float(ours) == round(peers[name]["optimal_seconds"] * 1e3, 1)


#: Pages with the benchmarks that write into them.
SECTIONS = [
    (page, name)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for name in re.findall(r"<!-- benchmarks\.(\w+) -->", page.read_text())
]


@pytest.mark.parametrize(("page", "name"), SECTIONS, ids=lambda part: getattr(part, "stem", part))
def test_sections_of_measurements_are_what_benchmarks_wrote(page: Path, name: str) -> None:
    """Tables and summaries are generated, none is typed."""
    written = import_module(f"benchmarks.{name}").PAGES[page](read(name))
    assert section_of(page.read_text(), name) == written


def test_writing_a_section_leaves_the_rest_of_the_page_as_it_is(tmp_path: Path) -> None:
    """Also what stands behind the section of another benchmark."""
    page = tmp_path / "accuracy.md"
    text = (ROOT / "docs/accuracy.md").read_text()
    page.write_text(text)
    put_section(page, "wrong_profiles", "new\n")
    assert page.read_text() == text.replace(section_of(text, "wrong_profiles"), "new\n")


def test_gains_of_offloading_are_those_of_the_planner() -> None:
    """The best plan with remote checkpoints beside the best local one, in rounded ratios of time."""
    table = (ROOT / "docs/offload.md").read_text().partition("## When it pays")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\d,]+) \| ([\d.]+) \| (.*) \|$", table, re.M)
    assert len(rows) == 6
    for steps, rho, gains in rows:
        workload = ckptplan.Workload(
            name="job", steps=int(steps.replace(",", "")), units=1, state_bytes=1000, tape_bytes=1000,
            forward_seconds=1, backward_seconds=2, recompute_seconds=1,
        )  # fmt: skip
        rate = 1000 * float(rho)
        for states, gain in zip((3, 6, 12, 24), gains.split(" | "), strict=True):
            machine = ckptplan.HardwareProfile(
                name="place", local_bytes=1000 * states, write_bytes_per_second=rate, read_bytes_per_second=rate
            )
            local = ckptplan.optimize(workload, machine, strategies=LOCAL).predicted.seconds
            both = ckptplan.optimize(workload, machine, strategies=[*LOCAL, *FAR]).predicted.seconds
            assert gain == f"{local / both:.1f}"


#: What a call with ``memory=`` chooses from, and what a place adds to it.
LOCAL = ["base", "standard", "nested", "growing", "revolve"]
FAR = ["remote", "hierarchical", "double", "double-growing", "periodic"]


def test_bounds_of_networks_follow_from_their_rows() -> None:
    results = read("networks")
    assert networks.bounds(results["rows"]) == results["bounds"]


def test_lines_that_a_method_changes_are_those_of_its_program() -> None:
    """Programs of peers are kept as differences from the plain one, so they can be made from it."""
    rows = read("networks")["rows"]
    for network in networks.NETWORKS:
        for method, file in network.methods.items():
            changed = networks.count_lines(network.plain, file)
            told = {
                (row["lines_written"], row["lines_gone"])
                for row in rows
                if (row["network"], row["method"]) == (network.name, method)
            }
            assert told == {changed}, (network.name, method)


def test_pages_that_the_code_refers_to_exist() -> None:
    named = {
        page
        for file in [*(ROOT / "ckptplan").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
        for page in re.findall(r"[\w/-]*\b[\w-]+\.md\b", file.read_text())
    }
    assert len(named) >= 4
    for page in named:
        assert (ROOT / page).exists() or (ROOT / "docs" / page).exists(), page


def test_a_validation_names_what_is_wrong() -> None:
    for line in read("wrong_profiles"):
        named = line["named"].split(", ") if line["named"] else []
        assert line["exit_code"] == (4 if named else 0), line
        assert set(NAMED[line["wrong"]]) <= set(named), line
        assert bool(named) == (line["wrong"] != "nothing"), line


def section_of(page: str, benchmark: str) -> str:
    """Return what a benchmark wrote into a page."""
    return page.partition(f"<!-- benchmarks.{benchmark} -->\n")[2].partition("<!-- end -->")[0]


@pytest.mark.parametrize("bound", [0.0, 0.02, 0.1])
def test_the_page_on_accuracy_hides_no_plan_that_is_off(bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is off by more than the bounds is listed, noisy or not, and the families have every plan."""
    monkeypatch.setattr(accuracy, "TIME", (0.0, bound))
    monkeypatch.setattr(accuracy, "PEAK", (0.0, bound))
    points = read("accuracy")["points"]
    off = {what: [one for one in points if abs(bias(one, what)) > bound] for what in ("seconds", "bytes")}
    listed = accuracy.beyond_list(points)
    assert len(re.findall(r"[:,] [+-][\d.]+%", listed)) == len(off["seconds"])
    assert len(re.findall(r"peak [+-][\d.]+%", listed)) == len(off["bytes"])
    rows = re.findall(r"\| (\S+) \| (\d+)/(\d+) \|", accuracy.families_table(points))
    assert sum(int(total) for _, _, total in rows) == len(points)


@pytest.mark.parametrize("name", ACCURACY)
def test_every_row_behind_the_page_on_accuracy_can_be_printed(name: str) -> None:
    """By the command that the page names."""
    words = (f"benchmarks.{name}", "--show")
    assert f"`python -m {' '.join(words)}`" in (ROOT / "docs/accuracy.md").read_text()
    done = subprocess.run(
        [sys.executable, "-m", *words],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    for one in read(name)["points"]:
        assert f"| {one['predicted_seconds']:.4g} | {one['measured_seconds']:.4g} |" in done.stdout


#: What is wrong -> what a validation must name.
NAMED = {
    "nothing": (),
    "bandwidth x 4": ("write bandwidth", "read bandwidth"),
    "state bytes / 2": ("state",),
    "tape bytes / 2": ("checkpoints and tapes",),
    "backward seconds / 2": ("backward", "total"),
}
