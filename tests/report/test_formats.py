"""JSON of results: its layout, and when its parts are made. Other formats are in tests/golden."""

from __future__ import annotations

import json

import pytest

from ckptplan.report.formats import FORMATS, Column, View, json_text


@pytest.mark.parametrize(
    "document",
    [{}, {"a": {}, "b": [], "c": ()}, {"a": [{"b": [1, [2.5]]}, None, True, "\u00e9\n"]}, {"a": (1, 2)}],
)
def test_json_is_laid_out_as_by_the_standard_library(document: dict[str, object]) -> None:
    assert json_text(document) == json.dumps(document, indent=2) + "\n"


def test_parts_of_a_document_are_made_when_they_are_reached_and_columns_stay_on_one_line() -> None:
    made: list[str] = []

    def part(name: str) -> dict[str, Column]:
        made.append(name)
        return {name: Column([1, 2])}

    pieces = FORMATS["json"].render(
        View(
            kind="any",
            blocks=list,
            document=lambda: {"a": lambda: part("x"), "b": lambda: part("y")},
            rows=list,
        )
    )
    text = ""
    while '"x": [1, 2]' not in text:
        text += next(pieces)
    assert made == ["x"]
    assert text + "".join(pieces) == '{\n  "a": {\n    "x": [1, 2]\n  },\n  "b": {\n    "y": [1, 2]\n  }\n}\n'


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_numbers_that_are_none(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"a": value})
