"""Writes rows as Parquet, with pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ckptplan.errors import InputError, MissingExtra
from ckptplan.storage.files import replace_binary_file
from ckptplan.storage.tables import Columns, Type

#: Rows turned into columns at a time.
_BATCH = 50_000
_KEY = b"ckptplan.sweep"
_TYPES: Mapping[Type, str] = {"text": "string", "whole": "int64", "number": "float64", "truth": "bool_"}


def import_pyarrow() -> Any:
    """Return the package pyarrow. Raises MissingExtra."""
    try:
        import pyarrow as package
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("parquet", package="pyarrow") from None
    return package


def write_parquet(path: str | Path, *, lines: str | Path, columns: Columns, identity: str) -> None:
    """Convert a file of JSON lines to Parquet, atomically. Raises InputError, MissingExtra."""
    arrow = import_pyarrow()
    schema = arrow.schema(
        [(name, getattr(arrow, _TYPES[type_])()) for name, type_ in columns.items()],
        metadata={_KEY: identity.encode()},
    )
    with (
        Path(lines).open(encoding="utf-8") as rows,
        replace_binary_file(path) as file,
        arrow.parquet.ParquetWriter(file, schema) as writer,
    ):
        while batch := list(islice(rows, _BATCH)):
            writer.write_table(arrow.Table.from_pylist(list(map(json.loads, batch)), schema=schema))


def read_identity(path: str | Path) -> str | None:
    """Return the identity of the sweep in a Parquet file, None if it does not exist.

    Raises InputError, MissingExtra.
    """
    arrow = import_pyarrow()
    source = str(path)
    if not Path(path).exists():
        return None
    try:
        metadata = arrow.parquet.read_schema(source).metadata or {}
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=source) from None
    except (arrow.ArrowException, ValueError):
        raise InputError("is not a Parquet file", source=source, accepted="a new file") from None
    identity: str = metadata.get(_KEY, b"").decode(errors="replace")
    return identity


def holds_sweep(path: str | Path, identity: str) -> bool:
    """Return whether a file is the Parquet file of this sweep. Raises MissingExtra."""
    try:
        return read_identity(path) == identity
    except InputError:
        return False
