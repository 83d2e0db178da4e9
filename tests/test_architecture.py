"""The page on architecture is the package: each module has its line, pictures show what is there."""

import re

from tests.architecture import PACKAGE, PAGE, layer_picture, layers, line_of, module_table, modules, part_of

AGAIN = "run: python -m tests.architecture"
TEXT = PAGE.read_text()


def test_each_module_has_its_line_and_no_line_is_stale() -> None:
    shown = [line for line in part_of(TEXT, "modules").splitlines() if ".py`" in line or "/`**" in line]
    real = [line_of(module) for module in modules()]
    assert {"missing": [line for line in real if line not in shown]} == {"missing": []}, AGAIN
    assert {"stale": [line for line in shown if line not in real]} == {"stale": []}, AGAIN
    assert part_of(TEXT, "modules") == module_table(), f"the order differs; {AGAIN}"


def test_every_module_is_in_a_layer() -> None:
    """The table is made room by room: a package without a layer would have no lines."""
    assert sorted(modules()) == sorted(PACKAGE.rglob("*.py"))


def test_every_module_says_what_it_is_for() -> None:
    assert [line for line in map(line_of, modules()) if line.endswith("|  |")] == []


def test_the_picture_of_the_layers_is_the_contract() -> None:
    assert part_of(TEXT, "layers") == layer_picture(), AGAIN
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
    """In the running text; the table has been checked."""
    text = TEXT.replace(part_of(TEXT, "modules"), "")
    root = PACKAGE.parent
    named = re.findall(r"`([\w/]+(?:\.py|/))`", text)
    assert len(named) >= 10
    for place in named:
        assert (PACKAGE / place).exists() or (root / place).exists(), place
