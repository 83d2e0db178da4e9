"""Rules about imports that import-linter does not check."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.support import strings_of_code

ROOT = Path(__file__).parent.parent
TREES = {
    ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
        module.read_text()
    )
    for module in sorted((ROOT / "ckptplan").rglob("*.py"))
}


def rank_layers() -> Iterator[tuple[str, int]]:
    """Yield each module and the rank of its layer in import-linter's contract; the top layer has rank 0."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["name"] == "Imports point down")
    for rank, line in enumerate(layers):
        for package in line.split(" | "):
            yield from ((name, rank) for name in TREES if f"{name}.".startswith(f"{package}."))


RANKS = dict(rank_layers())


def test_no_string_names_a_module_of_a_higher_layer() -> None:
    """An import by name, as `import_module("ckptplan.cli.jobs")`, escapes the contract of layers."""
    named = {
        name: sorted(text for text in strings_of_code(tree) if RANKS.get(text, 99) < RANKS.get(name, -1))
        for name, tree in TREES.items()
    }
    assert len(RANKS) > 100
    assert {name: texts for name, texts in named.items() if texts} == {}
