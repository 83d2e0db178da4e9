"""Finds built-in profiles and workloads by name, and files by path."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ckptplan.errors import InputError, did_you_mean

Shelf = Literal["hardware_profiles", "workloads"]


def find_folder(shelf: Shelf) -> Path:
    """Return the folder of the built-in files: in the project's root, or in the installed package."""
    package = Path(__file__).parent.parent
    project = package.parent
    if (project / "pyproject.toml").is_file() and (project / shelf).is_dir():
        return project / shelf
    return package / shelf


def list_names(shelf: Shelf) -> list[str]:
    """Return the names of the built-in files, sorted."""
    return sorted(path.stem for path in find_folder(shelf).glob("*.toml"))


def locate(name_or_path: str | Path, *, shelf: Shelf, noun: str) -> Path:
    """Return the file of a built-in name, or the argument itself if it looks like a path.

    Raises InputError for an unknown name, and suggests a similar one.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text == "-" or text.endswith(".toml") or "/" in text or "\\" in text:
        return Path(name_or_path)
    names = list_names(shelf)
    if text in names:
        return find_folder(shelf) / f"{text}.toml"
    file = next((name for name in (text, f"{text}.toml") if len(text) < 200 and Path(name).is_file()), None)
    hint = did_you_mean(text, names) if file is None else f" Say './{file}' for the file of that name."
    raise InputError(
        f"there is no {noun} {text[:60]!r}.{hint}",
        field=noun.rsplit(maxsplit=1)[-1],
        value=text,
        accepted=f"{', '.join(names)}, or a path to a .toml file",
    )
