"""The page on architecture shows the package as it is: its layers, and names that exist."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ckptplan"
TEXT = (ROOT / "docs/architecture.md").read_text()


def layers() -> list[list[str]]:
    """Return the layers of import-linter's contract from the top down, each a list of rooms that share it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (one for one in contracts if one["name"] == "Imports point down")
    return [[room.strip().partition(".")[2] for room in layer.split("|")] for layer in contract["layers"]]


def part_of(page: str, name: str) -> str:
    """Return what stands between the marks of a picture."""
    return page.partition(f"<!-- {name} -->\n")[2].partition("\n<!-- end -->")[0]


def test_every_package_is_in_a_layer() -> None:
    """Modules beside them are the package's entry points, its version and layers of their own."""
    rooms = {room for layer in layers() for room in layer}
    packages = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    modules = {file.stem for file in PACKAGE.glob("*.py")} - {"__init__", "__main__", "version"}
    assert packages | modules == rooms


def test_the_picture_of_the_layers_is_the_contract() -> None:
    lines = "\n".join(" | ".join(layer) for layer in layers())
    assert part_of(TEXT, "layers") == f"```text\n{lines}\n```"
    assert layers()[0] == ["cli"]


def test_the_picture_of_the_data_names_what_exists_and_where() -> None:
    """A node is a name and the file, or the folder, that it stands in."""
    nodes = re.findall(r"(\w+) \(([\w./]+)\)", part_of(TEXT, "data"))
    assert len(nodes) >= 8
    for name, place in nodes:
        path = PACKAGE / place
        assert path.exists(), (name, place)
        if path.suffix:
            assert re.search(rf"^(?:class|def) {name}\b", path.read_text(), re.M), (name, place)


def test_files_that_the_page_names_exist() -> None:
    named = re.findall(r"`([\w/]+(?:\.py|/))`", TEXT)
    assert len(named) >= 10
    for place in named:
        assert (PACKAGE / place).exists() or (ROOT / place).exists(), place
