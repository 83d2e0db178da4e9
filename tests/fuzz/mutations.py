"""Changes documents: their structure while they are data, and their bytes when they are text."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import tomli_w

from tests.fuzz.values import hostile_text, number_near

#: Text that replaces its quoted mark in the written document: what a library would not write.
_RAW = (
    "NaN", "nan", "Infinity", "-inf", "1e999", "-0", "0x10", "1_0", "9" * 5000, "1" + "0" * 400 + ".5", "01",
    "+1", "'",
    "[" * 3000, "{\"a\":" * 500, "[" * 90 + "]" * 90, "tru", "null", "2026-11-21", "25:61:00", "\"\\ud800\"",
    "\"\\u0000\"",
    "\"\"\"x\"\"\"", "1 # 2", "[1, 2", "{}", "[]", "{a = 1}", "1.5e-400",
)  # fmt: skip
#: Values of any type, wrong for most fields.
_VALUES: tuple[Any, ...] = (
    True, False, 0, -1, 1, 1.5, -0.0, 2**31, 2**53 + 1, 2**62, 2**62 + 1, 2**63, 2**64, 10**40, 1e308, 5e-324,
    1e-320, [],
    {}, [[]], {"value": 1}, {"value": {"value": 1}}, [1, 2, 3], ["a"], {"a": 1}, "1 KiB", "1 KB", "10 s",
    "10 us", "1e5",
    "5 GB/s", "-1 B", "unbounded", "A", "lif", "planted:factory", "os:abort", "2026-11-21", "sha256:0",
)  # fmt: skip
_MARK = "raw-{}-mark"
Path = tuple[str | int, ...]


def change_structure(document: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return a document with some changes, among them marks for raw text."""
    document = copy.deepcopy(document)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 6])):
        chance.choice(_CHANGES)(document, chance)
    return document


def mark_raw(text: str) -> str:
    """Return the mark in whose place raw text is written."""
    return _MARK.format(_RAW.index(text))


def write_document(document: dict[str, Any], *, language: str) -> bytes:
    """Return a document as JSON or TOML, with raw text in place of its marks."""
    text = json.dumps(document, indent=2) if language == "json" else tomli_w.dumps(_without_none(document))
    for raw in _RAW:
        text = text.replace(f'"{mark_raw(raw)}"', raw)
    return text.encode("utf-8", "surrogatepass")


def change_bytes(content: bytes, chance: random.Random) -> bytes:
    """Return a file with one to three changes of its bytes."""
    for _ in range(chance.choice([1, 1, 2, 3])):
        content = chance.choice(_BYTE_CHANGES)(content, chance)
    return content


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_none(one) for one in value if one is not None]
    return value


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the way to every value inside a document."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in entries:
        yield (*path, key)
        yield from _paths(one, (*path, key))


def _pick(document: dict[str, Any], chance: random.Random) -> tuple[Any, Any]:
    """Return a random container of the document and a key in it; the upper ones as often as all others."""
    paths: list[Path] = list(_paths(document)) or [("name",)]
    upper: list[Path] = [path for path in paths if len(path) == 1]
    among: list[Path] = chance.choice([paths, upper])
    path = chance.choice(among)
    container: Any = document
    for key in path[:-1]:
        container = container[key]
    return container, path[-1]


def _remove(document: dict[str, Any], chance: random.Random) -> None:
    container, key = _pick(document, chance)
    if isinstance(container, list) or key in container:
        del container[key]


def _add(document: dict[str, Any], chance: random.Random) -> None:
    container, _ = _pick(document, chance)
    name = chance.choice(
        ["extra", "Steps", "schema_version ", "__class__", "a.b", "", "\u202ename", hostile_text(chance)]
    )
    value = chance.choice(_VALUES)
    if isinstance(container, dict):
        container[name] = value
    else:
        container.insert(chance.randrange(len(container) + 1), value)


def _put_value(document: dict[str, Any], chance: random.Random) -> None:
    container, key = _pick(document, chance)
    container[key] = copy.deepcopy(chance.choice(_VALUES))


def _put_text(document: dict[str, Any], chance: random.Random) -> None:
    container, key = _pick(document, chance)
    container[key] = chance.choice([hostile_text(chance), "x" * chance.choice([100, 5000, 100_000])])


def _put_raw(document: dict[str, Any], chance: random.Random) -> None:
    container, key = _pick(document, chance)
    container[key] = mark_raw(chance.choice(_RAW))


def _put_number(document: dict[str, Any], chance: random.Random) -> None:
    for _ in range(20):
        container, key = _pick(document, chance)
        value = container[key] if isinstance(container, list) else container.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            container[key] = number_near(value, chance)
            return


def _swap(document: dict[str, Any], chance: random.Random) -> None:
    first, one = _pick(document, chance)
    second, other = _pick(document, chance)
    if isinstance(first, dict) and one not in first:
        return
    container = copy.deepcopy(first[one])
    second[other] = container


def _rename(document: dict[str, Any], chance: random.Random) -> None:
    container, key = _pick(document, chance)
    if isinstance(container, dict) and key in container:
        text = str(key)
        new = chance.choice(
            [text.upper(), text + "s", text[:-1], text + " ", text.replace("e", "\u0435"), f"{text}.{text}"]
        )
        container[new] = container.pop(key)


def _nest(document: dict[str, Any], chance: random.Random) -> None:
    container, key = _pick(document, chance)
    value: Any = 1
    for _ in range(chance.choice([2, 50, 200])):
        value = {"a": value} if chance.random() < 0.5 else [value]
    container[key] = value


_Change = Callable[[dict[str, Any], random.Random], None]
_CHANGES: tuple[_Change, ...] = (
    _remove, _add, _put_value, _put_text, _put_raw, _put_number, _put_number, _put_number, _put_number,
    _swap, _rename, _nest,
)  # fmt: skip

_INSERTED = (
    b"\xff", b"\xfe\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x00", b"\xef\xbb\xbf", b"\r",
    b"\n",
    b"\x1b[2J",
    b'"', b"'", b"[", b"]", b"{", b"}", b"=", b".", b",", b"#", b"\\", b"\\u0000", b"\\ud800", b"-", b"e",
    b"9" * 400, b" " * 3000, b"\n" * 3000, b"a." * 300, b"[[x]]\n", b"[" * 2000,
    b'"""', b"\xe2\x80\xae", b"NaN", b"1e999",
)  # fmt: skip


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _flip(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + bytes([chance.randrange(256)]) + content[place + 1 :]


def _insert(content: bytes, chance: random.Random) -> bytes:
    place = chance.choice([0, len(content), chance.randrange(len(content) + 1)])
    return content[:place] + chance.choice(_INSERTED) + content[place:]


def _take_out(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + content[place + chance.choice([1, 2, 10, 100]) :]


def _double(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    part = content[place : place + chance.choice([1, 5, 50, 500])]
    return content[:place] + part * chance.choice([2, 2, 3, 30]) + content[place + len(part) :]


def _double_line(content: bytes, chance: random.Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b"\n"]
    place = chance.randrange(len(lines))
    return b"".join([*lines[:place], lines[place], *lines[place:]])


def _swap_lines(content: bytes, chance: random.Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b"\n"]
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _change_digits(content: bytes, chance: random.Random) -> bytes:
    digits = [place for place, byte in enumerate(content) if 48 <= byte < 58]
    place = chance.choice(digits or [0])
    new = chance.choice([b"0", b"9", b"-1", b"1.5", b"99999999999999999999", b"", b"\xd9\xa3", b"1e3", b"nan"])
    return content[:place] + new + content[place + 1 :]


def _encode_anew(content: bytes, chance: random.Random) -> bytes:
    return content.decode("utf-8", "replace").encode(chance.choice(["utf-16", "utf-32", "utf-8-sig", "utf-7"]))


def _replace_all(content: bytes, chance: random.Random) -> bytes:  # noqa: ARG001 - one signature
    long = chance.choice([b" ", b"\n", b"[", b"a=1\n", b"{", b"a.", b'"', b"#", b"0", b"{}\n", b","])
    return chance.choice(
        [b"", b"\n", b"\x00" * 100, b"[]", b"{}", b"null", b"1", b"\x89PNG\r\n", long * 20_000]
    )


_BYTE_CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _cut, _flip, _flip, _insert, _insert, _take_out, _double, _double_line, _swap_lines, _change_digits,
    _change_digits,
    _encode_anew, _replace_all,
)  # fmt: skip
