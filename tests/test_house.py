"""Rules of the house that no tool checks: one meaning a name, one idea a module."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ckptplan"
MODULES = sorted(PACKAGE.rglob("*.py"))
TREES = {module: ast.parse(module.read_text()) for module in MODULES}


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


def test_no_class_name_is_used_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module.relative_to(PACKAGE)}:{node.lineno}")
    assert len(places) > 100
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports within functions and for types count, too: what is below never needs what is above."""
    left = {name: imported - {name} for name, imported in IMPORTS.items()}
    while free := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in free:
            del left[name]
    assert {name: sorted(imported & left.keys()) for name, imported in left.items()} == {}
