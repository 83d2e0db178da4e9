"""Finds the output formats: every module of this package that has a ``FORMAT``."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import ckptplan.report.formats
from ckptplan.errors import InputError, did_you_mean
from ckptplan.report.formats.protocol import Format


@cache
def all_formats() -> Mapping[str, Format]:
    """Return every format by name, the default first."""
    found = [
        module.FORMAT
        for info in pkgutil.iter_modules(ckptplan.report.formats.__path__)
        if hasattr(module := import_module(f"ckptplan.report.formats.{info.name}"), "FORMAT")
    ]
    return {format_.name: format_ for format_ in sorted(found, key=lambda format_: format_.rank)}


def format_named(name: str) -> Format:
    """Return the format called ``name``. Raises InputError with the nearest known one."""
    known = all_formats()
    if name not in known:
        raise InputError(
            f"there is no format {name!r}.{did_you_mean(name, known)}",
            field="format",
            value=name,
            accepted=", ".join(known),
        )
    return known[name]


def format_of_file(path: str) -> Format | None:
    """Return the format that a file's name asks for, None if it asks for none."""
    suffix = Path(path).suffix.lower()
    return next(
        (one for one in all_formats().values() if one.suffix is not None and one.suffix == suffix), None
    )
