"""Results as JSON: the whole document, in SI base units, indented for people who read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ckptplan.report.formats.protocol import Format

if TYPE_CHECKING:
    from ckptplan.report.view import View


class Json(Format):
    """The document of a result."""

    name = "json"
    rank = 1
    suffix = ".json"

    def render(self, view: View) -> Iterator[str]:
        """Yield the document; parts of it that are functions are called when they are reached."""
        return generate_json(view.document())


def json_text(document: Mapping[str, Any]) -> str:
    """Return JSON as the program prints it."""
    return "".join(generate_json(document))


def generate_json(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield JSON as the program prints it: two spaces a level, NaN and infinity refused with ValueError."""
    import json  # --help names the format, and writes nothing

    yield from _generate(document, encode=json.JSONEncoder(allow_nan=False).encode, margin="\n")
    yield "\n"


def _generate(value: Any, *, encode: Callable[[Any], str], margin: str) -> Iterator[str]:
    from ckptplan.report.view import Column

    if callable(value):
        value = value()
    deeper = f"{margin}  "
    if isinstance(value, Mapping) and value:
        opening = "{"
        for name, member in value.items():
            yield f"{opening}{deeper}{encode(name)}: "
            yield from _generate(member, encode=encode, margin=deeper)
            opening = ","
        yield f"{margin}}}"
    elif isinstance(value, (list, tuple)) and value and not isinstance(value, Column):
        opening = "["
        for member in value:
            yield f"{opening}{deeper}"
            yield from _generate(member, encode=encode, margin=deeper)
            opening = ","
        yield f"{margin}]"
    else:
        yield encode(value)


FORMAT = Json()
