"""Files of rows: whose a file is, and that it is told from its first moment."""

import os
from pathlib import Path
from typing import Any, Literal

import pytest

from ckptplan.errors import InputError
from ckptplan.storage.rows import RowOutput, make_beginning, open_rows
from ckptplan.storage.tables import Columns, Lines

COLUMNS: Columns = {"sweep": "text", "number": "whole"}
IDENTITY = "0123456789ab"
FORMATS: tuple[Literal["csv", "jsonl"], ...] = ("csv", "jsonl")


def row(index: int) -> dict[str, Any]:
    return {"sweep": IDENTITY, "number": index}


def written(
    path: Path, format_: Literal["csv", "jsonl"], *, upto: int | None = None, **wishes: Any
) -> RowOutput:
    """Open a file of ten rows, and write what it lacks of the first ``upto``."""
    lines = Lines(format=format_, columns=COLUMNS)
    with open_rows(
        path, lines=lines, identity=IDENTITY, total=10, head=lambda _: {"sweep": IDENTITY}, **wishes
    ) as file:
        file.append(list(map(row, range(file.done, upto or file.done))))
    return file


@pytest.mark.parametrize("format_", FORMATS)
def test_a_file_cut_anywhere_is_continued(format_: Literal["csv", "jsonl"], tmp_path: Path) -> None:
    """At every byte: one that ends within its beginning, as after a power cut, counts as empty."""
    file = tmp_path / "rows"
    written(file, format_, upto=3)
    whole = file.read_bytes()
    for end in range(len(whole)):
        file.write_bytes(whole[:end])
        written(file, format_, upto=3)
        assert file.read_bytes() == whole


@pytest.mark.parametrize("format_", FORMATS)
def test_a_file_with_another_beginning_is_left_as_it_is(
    format_: Literal["csv", "jsonl"], tmp_path: Path
) -> None:
    """Even if it differs in the last byte of what is there."""
    file = tmp_path / "rows"
    beginning = make_beginning(Lines(format=format_, columns=COLUMNS), IDENTITY).encode()
    for end in range(len(beginning)):
        file.write_bytes(beginning[:end] + b"~")
        with pytest.raises(InputError, match="is not a partial result of this sweep"):
            written(file, format_)
        assert file.read_bytes() == beginning[:end] + b"~"


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("zeros", [1, 4096, 65_536, 200_000])
def test_zeros_behind_what_was_written_are_cut_off(
    format_: Literal["csv", "jsonl"], zeros: int, tmp_path: Path
) -> None:
    """What some file systems leave after a power cut: the length that was, without what was to be there."""
    file = tmp_path / "rows"
    written(file, format_, upto=3)
    whole = file.read_bytes()
    beginning = len(make_beginning(Lines(format=format_, columns=COLUMNS), IDENTITY))
    for end in range(beginning, len(whole) + 1):
        file.write_bytes(whole[:end] + b"\0" * zeros)
        assert written(file, format_, upto=3).done == whole[:end].count(b"\n") - (format_ == "csv")
        assert file.read_bytes() == whole


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("tail", [b"\0\0\n", b"\0" * 70_000 + b"mine", b"\0" * 70_000 + b"\n"])
def test_zeros_before_anything_else_are_no_tail(
    format_: Literal["csv", "jsonl"], tail: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "rows"
    written(file, format_, upto=2)
    first = file.read_bytes()
    for begun in (first, first[:-1]):
        file.write_bytes(begun + tail)
        with pytest.raises(InputError, match="belongs to another sweep, or is not a row"):
            written(file, format_, upto=3)
        assert file.read_bytes() == begun + tail


@pytest.mark.parametrize("format_", FORMATS)
def test_zeros_alone_are_no_sweep(format_: Literal["csv", "jsonl"], tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_bytes(b"\0" * 5000)
    with pytest.raises(InputError, match="is not a partial result of this sweep"):
        written(file, format_)
    assert file.read_bytes() == b"\0" * 5000


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("before", [None, b"", b"another's"])
def test_a_file_is_never_seen_without_its_beginning(
    format_: Literal["csv", "jsonl"], before: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a kill comes, what stands there is what was, nothing, or all of the beginning."""
    file = tmp_path / "rows"
    if before is not None:
        file.write_bytes(before)
    beginning = make_beginning(Lines(format=format_, columns=COLUMNS), IDENTITY).encode()
    seen = []
    for name in ("write", "ftruncate", "replace", "fsync", "fstat"):
        true = getattr(os, name)

        def look(*given: Any, true: Any = true) -> Any:
            result = true(*given)
            seen.append(file.read_bytes())
            return result

        monkeypatch.setattr(os, name, look)
    written(file, format_, restart=before == b"another's")
    assert set(seen) <= {before or b"", beginning}
    assert file.read_bytes() == beginning


@pytest.mark.parametrize("restart", [False, True])
def test_rights_and_links_stay(restart: bool, tmp_path: Path) -> None:
    file, link = tmp_path / "rows", tmp_path / "link"
    file.touch()
    file.chmod(0o640)
    link.symlink_to(file)
    written(link, "csv", upto=1, restart=restart)
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    assert file.read_text().startswith("sweep,number\n")
