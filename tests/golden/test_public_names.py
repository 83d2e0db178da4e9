"""The public names and their parameters are those of the golden files: others' programs call them."""

import importlib
import inspect

import pytest

from tests.golden.public_names import FOLDER, PACKAGES, list_names


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_those_of_the_golden_file(package: str) -> None:
    assert list_names(package) == (FOLDER / f"{package}.txt").read_text(), (
        "if this is meant, add a line to CHANGELOG and run: python -m tests.golden"
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_public_functions_spell_their_keywords_out(package: str) -> None:
    """Completion and type checkers know them. Other names may only be accepted to be refused by a message."""
    module = importlib.import_module(package)
    functions = [value for name in module.__all__ if inspect.isfunction(value := getattr(module, name))]
    assert functions
    hidden = [
        f"{function.__name__}(**{parameter.name})"
        for function in functions
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.VAR_KEYWORD and parameter.annotation != "Never"
    ]
    assert not hidden
