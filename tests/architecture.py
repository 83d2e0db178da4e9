"""Write the generated parts of docs/architecture.md anew: ``python -m tests.architecture``.

They are the layers, from import-linter's contract, and a line for each module, from its docstring.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ckptplan"
PAGE = ROOT / "docs/architecture.md"


def layers() -> list[list[str]]:
    """Return the layers of the package from the top down, each a list of the rooms that share it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (one for one in contracts if one["name"] == "Imports point down")
    return [[room.strip().partition(".")[2] for room in layer.split("|")] for layer in contract["layers"]]


def layer_picture() -> str:
    """Return the layers as text, one a line; it reads alike in a terminal, on a forge and on the site."""
    lines = "\n".join(" | ".join(layer) for layer in layers())
    return f"```text\n{lines}\n```"


def modules() -> Iterator[Path]:
    """Yield every module: the package's own, then room by room in the order of the layers."""
    rooms = [room for layer in layers() for room in layer]
    loose = [PACKAGE / f"{room}.py" for room in rooms if (PACKAGE / f"{room}.py").exists()]
    yield from sorted(set(PACKAGE.glob("*.py")) - set(loose))
    for room in rooms:
        yield from sorted((PACKAGE / room).rglob("*.py"), key=lambda file: (file.parent, file.name))
    yield from loose


def line_of(module: Path) -> str:
    """Return the line of a module: its place, a package in bold, and the first line of its docstring."""
    about = (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n")[0].replace("|", r"\|")
    place = module.relative_to(PACKAGE)
    if place.name == "__init__.py":
        return f"| **`{place.parent.as_posix() if place.parent.name else 'ckptplan'}/`** | {about} |"
    return f"| `{place.as_posix()}` | {about} |"


def module_table() -> str:
    """Return the table of all modules."""
    return "\n".join(["| module | what it is for |", "|---|---|", *(line_of(module) for module in modules())])


def part_of(page: str, name: str) -> str:
    """Return what stands between the marks of a generated part."""
    return page.partition(f"<!-- {name} -->\n")[2].partition("\n<!-- end -->")[0]


def main() -> None:
    """Write both parts into the page."""
    page = PAGE.read_text()
    for name, text in (("layers", layer_picture()), ("modules", module_table())):
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
