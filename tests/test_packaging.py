"""What is installed is ours, comes from the folder, and is all that the documents use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckptplan
from tests.installed import ROOT, extras_named, project, requirements, run_installed
from tests.support import run

README = (ROOT / "README.md").read_text()
#: Installs a package of the index that begins with our name: a stranger's, or nobody's.
FROM_THE_INDEX = re.compile(
    r"(?:pip\w?\s+install|conda\s+install|(?:uv|poetry)\s+add)\s[^\n`&;|]*?(?<![\w./-])ckptplan|\bckptplan\["
)

#: Makes a package look absent to `importlib.metadata`.
HIDE_NORSE = """\
from importlib import metadata
find = metadata.version
def version(name):
    if name == "norse":
        raise metadata.PackageNotFoundError(name)
    return find(name)
metadata.version = version
"""


def sources() -> Iterator[Path]:
    """Everything that a user reads: documents, examples, benchmarks, docstrings and messages."""
    yield from (ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml"))
    for folder in ("docs", "examples", "benchmarks", "ckptplan", "hardware_profiles", "workloads"):
        yield from (file for file in (ROOT / folder).rglob("*") if file.suffix in {".md", ".py", ".toml"})


def test_the_distribution_bears_a_name_of_its_own() -> None:
    """Another project has the name of the import package on the index."""
    assert project()["name"] == "ckptplan-bptt"
    assert set(project()["scripts"]) == {"ckptplan"}


def test_nothing_tells_anybody_to_install_from_the_index() -> None:
    files = list(sources())
    assert len(files) > 100
    told = [f"{file.relative_to(ROOT)}: {found}" for file in files for found in _installs(file)]
    assert told == []


def _installs(file: Path) -> list[str]:
    return FROM_THE_INDEX.findall(file.read_text())


@pytest.mark.parametrize(
    "line",
    [
        "pip install ckptplan",
        'pip install "ckptplan[torch]" scikit-learn',
        "install it with: pip install 'ckptplan[{extra}]'",
        "python3 -m pip install --upgrade scikit-learn ckptplan",
        "pip install\n    ckptplan",
        "pip install ckptplan-bptt",
        "pipx install ckptplan",
        "uv add ckptplan",
    ],
)
def test_an_install_from_the_index_is_recognised(line: str) -> None:
    assert FROM_THE_INDEX.search(line)


@pytest.mark.parametrize(
    "line",
    [
        'pip install ".[torch]"',
        ".venv/bin/pip install . && .venv/bin/ckptplan optimize",
        "in ckptplan's folder, run: pip install '.[torch]'",
        "pip install ./ckptplan",
    ],
)
def test_an_install_from_the_folder_is_not_one(line: str) -> None:
    assert not FROM_THE_INDEX.search(line)


def test_every_extra_that_a_document_names_exists() -> None:
    for file in sources():
        assert extras_named(file.read_text()) <= set(project()["optional-dependencies"]), file


def test_extras_refer_to_the_distribution_by_its_name() -> None:
    """`snntorch` brings torch as well: what it needs is resolved through the extra `torch`."""
    assert {"torch", "snntorch"} <= {requirement.name for requirement in requirements(["snntorch"])}


def test_the_verbose_version_names_every_package_that_an_install_brings() -> None:
    lines = run("--version", "--verbose").stdout.splitlines()
    assert lines[0] == run("--version").stdout.strip()
    assert run("--verbose", "--version").stdout.splitlines() == lines
    named = {line.split()[0].lower() for line in lines[3:]}
    assert named >= {requirement.name for requirement in requirements(["torch", "jax", "snntorch"])}


def test_verbose_is_refused_without_version() -> None:
    done = run("--verbose", "profiles", "list")
    assert done.returncode == 2
    assert "--verbose is only accepted with --version" in done.stderr


def test_a_missing_package_is_named_by_the_verbose_version(tmp_path: Path) -> None:
    program = "import sys; from ckptplan.cli.main import main; main(['--version', '--verbose'])"
    done = run_installed(f"{HIDE_NORSE}{program}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "norse is not installed" in done.stdout.splitlines()


def test_the_citation_names_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {ckptplan.__version__}\n" in citation


def test_python_blocks_of_the_readme_run_with_what_it_installs_above_them(tmp_path: Path) -> None:
    """Each as a program of its own, with the extras named so far."""
    blocks = list(re.finditer(r"```python\n(.*?)```", README, re.DOTALL))
    assert len(blocks) == 2
    for block in blocks:
        extras = extras_named(README[: block.start()])
        done = run_installed(block[1], extras=extras, cwd=tmp_path)
        assert done.returncode == 0, (sorted(extras), done.stderr)


def test_what_no_extra_brings_is_not_there(tmp_path: Path) -> None:
    """The check above would see a missing extra."""
    for package, extras in (("torch", ()), ("snntorch", ("torch",)), ("pytest", ("snntorch",))):
        done = run_installed(f"import {package}", extras=extras, cwd=tmp_path)
        assert done.returncode == 1
        assert f"ModuleNotFoundError: No module named '{package}'" in done.stderr
