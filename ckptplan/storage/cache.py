"""Caches texts for later processes in the user's cache folder: the script of charts, rates of offloading."""

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
#: The most bytes of a file that is read. The largest text, the script of charts, has 0.9 MB.
_MOST_BYTES = 2**23
_log = logging.getLogger("ckptplan.storage")


def recall(kind: str, key: str) -> tuple[str, float] | None:
    """Return a cached text, and the modification time of its file in seconds since the epoch.

    Return None if there is no file, if another user may have written it, or if it is damaged. The first line of
    the file is the digest of the other lines.
    """
    path = find_file(kind, key)
    try:
        if path is None or not path.is_file() or path.stat().st_size > _MOST_BYTES or not _is_private(path):
            return None
        (digest, _, text), modified = path.read_bytes().decode().partition("\n"), path.stat().st_mtime
    except (OSError, ValueError) as error:
        _log.debug("the file %s holds no text, and is replaced: %s", path, error)
        return None
    return (text, modified) if digest == _digest(text) else None


def keep(kind: str, key: str, text: str) -> None:
    """Write a text to the cache, if the cache folder can be written to."""
    path = find_file(kind, key)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_bytes(path, f"{_digest(text)}\n{text}".encode())
        path.chmod(0o600)
    except (InputError, OSError) as error:
        _log.debug("%s is not kept for other processes: %s", key, error)


def find_file(kind: str, key: str) -> Path | None:
    """Return the file of a key, which need not exist; None if the cache is off."""
    folder = find_cache(kind)
    return None if folder is None else folder / hashlib.sha256(key.encode()).hexdigest()[:32]


def find_cache(kind: str) -> Path | None:
    """Return the cache folder for a kind of texts, which need not exist; None if the cache is off."""
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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
