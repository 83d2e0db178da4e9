"""Runs code in a process that has only what an install of ckptplan with some extras brings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
#: Hides the modules of all other packages, as from an interpreter that has none of them.
PREAMBLE = """\
import sys
class Hiding:
    names = {names!r}
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] in self.names else self.finder.find_spec(name, *rest)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = map(Hiding, sys.meta_path)
"""


def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def requirements(extras: Iterable[str]) -> list[Requirement]:
    """What pyproject.toml asks for, references to its own extras resolved."""
    name = canonicalize_name(project()["name"])
    direct = [Requirement(line) for line in project()["dependencies"]]
    for extra in extras:
        for requirement in map(Requirement, project()["optional-dependencies"][extra]):
            is_own = canonicalize_name(requirement.name) == name
            direct += requirements(sorted(requirement.extras)) if is_own else [requirement]
    return direct


def run_installed(code: str, *, extras: Iterable[str] = (), cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run code where ckptplan was installed with these extras and nothing else was."""
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE.format(names=_absent_modules(frozenset(extras))) + code],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@cache
def _absent_modules(extras: frozenset[str]) -> frozenset[str]:
    """Top-level modules in this environment that such an install would not bring."""
    brought = _closure(requirements(sorted(extras)))
    return frozenset(
        module
        for module, distributions in _owners().items()
        if module != "ckptplan" and not brought & {canonicalize_name(name) for name in distributions}
    )


@cache
def _owners() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _closure(direct: list[Requirement]) -> set[str]:
    """Names of the packages that are installed for these requirements, theirs included."""
    seen: set[tuple[str, str]] = set()
    waiting = [(requirement, "") for requirement in direct]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for asked in ("", *requirement.extras):
            key = (canonicalize_name(requirement.name), asked)
            if key not in seen:
                seen.add(key)
                waiting += [(Requirement(line), asked) for line in metadata.requires(requirement.name) or []]
    return {name for name, _ in seen}


def extras_named(text: str) -> set[str]:
    """The extras of all installs from the folder that a text shows."""
    lists = re.findall(r"pip install (?:-e )?[\"']?\.\[([\w,-]+)\]", text)
    return {extra for names in lists for extra in names.split(",")}
