"""Caches measured rates for later processes, as texts in the user's cache folder."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import sys
from pathlib import Path

from ckptplan.errors import InputError
from ckptplan.storage.files import write_bytes

#: The environment variable that names the cache folder, or turns the cache off with one of ``_OFF``.
VARIABLE = "CKPTPLAN_CACHE"
_OFF = ("", "0", "off", "no", "false")
_log = logging.getLogger("ckptplan.storage")


def recall(key: str) -> tuple[str, float] | None:
    """Return a cached text, and the modification time of its file in seconds since the epoch.

    Return None if there is no file, if it cannot be read, or if another user may have written it.
    """
    path = _find_file(key)
    try:
        if path is None or not path.is_file() or not _is_private(path):
            return None
        return path.read_bytes().decode(), path.stat().st_mtime
    except (OSError, ValueError) as error:
        _log.debug("the file %s holds no text, and is replaced: %s", path, error)
        return None


def keep(key: str, text: str) -> None:
    """Write a text to the cache, if the cache folder can be written to."""
    path = _find_file(key)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_bytes(path, text.encode())
        path.chmod(0o600)
    except (InputError, OSError) as error:
        _log.debug("%s is not kept for other processes: %s", key, error)


def _find_file(key: str) -> Path | None:
    """Return the file of a key, which need not exist; None if the cache is off."""
    folder = find_cache()
    return None if folder is None else folder / hashlib.sha256(key.encode()).hexdigest()[:32]


def find_cache() -> Path | None:
    """Return the cache folder, which need not exist; None if the cache is off."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        folder = None if chosen.strip().lower() in _OFF else chosen
    elif sys.platform == "win32":
        folder = f"{os.environ.get('LOCALAPPDATA') or '~/AppData/Local'}/ckptplan"
    elif sys.platform == "darwin":
        folder = "~/Library/Caches/ckptplan"
    else:
        folder = f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/ckptplan"
    try:
        return None if folder is None else Path(folder).expanduser() / "places"
    except RuntimeError:
        # There is no home folder, or no user of that name.
        return None


def _is_private(path: Path) -> bool:
    """Return whether only this user, or the administrator, could have written a file or its folder.

    Always True on systems without owners of files (Windows), where the user's folder is private anyway.
    """
    if not hasattr(os, "getuid"):
        return True
    stats, shared = (path.stat(), path.parent.stat()), stat.S_IWGRP | stat.S_IWOTH
    return all(status.st_uid in (os.getuid(), 0) and not status.st_mode & shared for status in stats)
