"""Finds the folders of what is kept for other processes: the user's folder for caches, or another one."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

#: The folder, or one of ``_OFF`` for none.
VARIABLE = "CKPTPLAN_CACHE"
_OFF = ("", "0", "off", "no", "false")


def find_cache(name: str) -> Path | None:
    """Return the folder of what is kept under a name ("charts"), which need not exist; None means nowhere."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return None if chosen.strip().lower() in _OFF else _expand(chosen, name)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expand(base, f"ckptplan/{name}")


def is_private(path: Path) -> bool:
    """Return whether only this user, or the administrator, could have written a file or its folder.

    Systems without owners of files (Windows) leave that to the folder of the user.
    """
    if not hasattr(os, "getuid"):
        return True
    return all(_belongs(one) for one in (path, path.parent))


def _belongs(path: Path) -> bool:
    found = path.stat()
    others = stat.S_IWGRP | stat.S_IWOTH
    return found.st_uid in (os.getuid(), 0) and not found.st_mode & others


def _expand(base: str, below: str) -> Path | None:
    try:
        return Path(base).expanduser() / below
    except RuntimeError:
        # There is no home, or no user of that name.
        return None
