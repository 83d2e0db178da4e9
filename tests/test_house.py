"""Rules of the house that no tool checks: one meaning a name, one idea a module."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ckptplan"
MODULES = sorted(PACKAGE.rglob("*.py"))


def test_no_class_name_is_used_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module.relative_to(PACKAGE)}:{node.lineno}")
    assert len(places) > 100
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
