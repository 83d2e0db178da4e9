"""The public names and their parameters are those of the golden files: others' programs call them."""

import pytest

from tests.golden.public_names import FOLDER, PACKAGES, list_names


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_those_of_the_golden_file(package: str) -> None:
    assert list_names(package) == (FOLDER / f"{package}.txt").read_text(), (
        "if this is meant, add a line to CHANGELOG and run: python -m tests.golden"
    )
