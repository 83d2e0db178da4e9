"""Rules of the house that no tool checks: one meaning a name, one idea a module."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ckptplan"
MODULES = sorted(PACKAGE.rglob("*.py"))
TREES = {module: ast.parse(module.read_text()) for module in MODULES}
#: A shorter module with one importer is a part of its importer's idea.
SHORT = 60
#: Found by their names or run by Python, and imported by nobody.
ENTRIES = {"ckptplan.__main__"}
#: Folders where each strategy, or each kind of picture, is a file of its own.
LISTED = ("ckptplan.strategies.", "ckptplan.report.plots.")


def name_of(module: Path) -> str:
    parts = module.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(module): module for module in MODULES}


def imported_by(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of the package that a module imports, also within functions and for types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in NAMES)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & NAMES.keys()
            yield from inner
            if node.module in NAMES and len(inner) < len(node.names):
                yield node.module


IMPORTS = {name: set(imported_by(TREES[module])) for name, module in NAMES.items()}


def levels() -> Iterator[tuple[str, int]]:
    """Yield modules and the places of their layers in the contract, the highest first."""
    contracts = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = (one["layers"] for one in contracts if one["name"] == "Imports point down")
    for level, line in enumerate(layers):
        for package in line.split(" | "):
            yield from ((name, level) for name in NAMES if f"{name}.".startswith(f"{package}."))


LEVELS = dict(levels())


def strings_of_code(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of a module that are no docstrings."""
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


def test_no_class_name_is_used_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module.relative_to(PACKAGE)}:{node.lineno}")
    assert len(places) > 100
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_short_module_has_more_than_one_importer() -> None:
    importers: dict[str, set[str]] = defaultdict(set)
    for name, imported in IMPORTS.items():
        for other in imported:
            importers[other].add(name)
    alone = {
        name: sorted(importers[name])
        for name, module in NAMES.items()
        if module.name != "__init__.py"
        and len(module.read_text().splitlines()) < SHORT
        and len(importers[name]) < 2
        and name not in ENTRIES
        and not name.startswith(LISTED)
    }
    assert alone == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports within functions and for types count, too: what is below never needs what is above."""
    left = {name: imported - {name} for name, imported in IMPORTS.items()}
    while free := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in free:
            del left[name]
    assert {name: sorted(imported & left.keys()) for name, imported in left.items()} == {}


def test_no_string_names_a_module_of_a_higher_layer() -> None:
    """An import by name is one that the contract of layers does not see."""
    named = {
        name: sorted(text for text in strings_of_code(TREES[module]) if text in LEVELS and is_above(text, name))
        for name, module in NAMES.items()
    }
    assert {name: texts for name, texts in named.items() if texts} == {}


def is_above(name: str, other: str) -> bool:
    return LEVELS[name] < LEVELS.get(other, -1)
