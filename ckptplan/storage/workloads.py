"""Reads workloads as TOML."""

from __future__ import annotations

from pathlib import Path

from ckptplan.errors import InputError
from ckptplan.model.workload import Workload
from ckptplan.storage.files import parse_toml, read_text
from ckptplan.storage.library import locate
from ckptplan.storage.versions import drop_version


def load_workload(name_or_path: str | Path) -> Workload:
    """Return a built-in workload by name, or one from a TOML file (docs/workloads.md).

    Raises InputError.
    """
    path = locate(name_or_path, shelf="workloads", noun="workload")
    source = str(name_or_path)
    document = drop_version(parse_toml(read_text(path), source=source), kind="workload", source=source)
    try:
        return Workload(**document)
    except InputError as error:
        raise error.inside(source=source) from None
