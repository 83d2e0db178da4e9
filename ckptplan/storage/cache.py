"""Finds the user's folder of what is kept for other processes: the script of charts, rates of places."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

#: The folder, or one of ``_OFF`` for none.
VARIABLE = "CKPTPLAN_CACHE"
_OFF = ("", "0", "off", "no", "false")


def find_cache(kind: str) -> Path | None:
    """Return the folder for a kind of things, which need not exist; None means nowhere."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        folder = None if chosen.strip().lower() in _OFF else f"{chosen}/{kind}"
    elif sys.platform == "win32":
        folder = f"{os.environ.get('LOCALAPPDATA') or '~/AppData/Local'}/ckptplan/{kind}"
    elif sys.platform == "darwin":
        folder = f"~/Library/Caches/ckptplan/{kind}"
    else:
        folder = f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/ckptplan/{kind}"
    try:
        return None if folder is None else Path(folder).expanduser()
    except RuntimeError:
        # There is no home, or no user of that name.
        return None


def is_private(path: Path) -> bool:
    """Return whether only this user, or the administrator, could have written a file or its folder.

    Systems without owners of files (Windows) leave that to the folder of the user.
    """
    if not hasattr(os, "getuid"):
        return True
    found, others = (path.stat(), path.parent.stat()), stat.S_IWGRP | stat.S_IWOTH
    return all(one.st_uid in (os.getuid(), 0) and not one.st_mode & others for one in found)
