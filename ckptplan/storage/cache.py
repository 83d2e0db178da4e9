"""Keeps texts for other processes in the user's folder for caches: the script of charts, rates of places."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import sys
from pathlib import Path

from ckptplan.errors import InputError
from ckptplan.storage.files import write_bytes

#: The folder, or one of ``_OFF`` for none.
VARIABLE = "CKPTPLAN_CACHE"
_OFF = ("", "0", "off", "no", "false")
#: The most bytes of a file that is read; the script has 0.9 MB.
_MOST_BYTES = 2**23
_log = logging.getLogger("ckptplan.storage")


def recall(kind: str, key: str) -> tuple[str, float] | None:
    """Return a text that was kept, and the time of its file in seconds.

    None if there is none, or one that this user may not have written. The first line is the digest of the
    others, so that a damaged file is none.
    """
    path = find_file(kind, key)
    try:
        if path is None or not path.is_file() or path.stat().st_size > _MOST_BYTES or not _is_private(path):
            return None
        (digest, _, text), kept = path.read_bytes().decode().partition("\n"), path.stat().st_mtime
    except (OSError, ValueError) as error:
        _log.debug("the file %s holds no text, and is replaced: %s", path, error)
        return None
    return (text, kept) if digest == _digest(text) else None


def keep(kind: str, key: str, text: str) -> None:
    """Keep a text, if the folder can be written to."""
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
    """Return the file of a key, which need not exist; None where nothing is kept."""
    folder = find_cache(kind)
    return None if folder is None else folder / hashlib.sha256(key.encode()).hexdigest()[:32]


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


def _is_private(path: Path) -> bool:
    """Return whether only this user, or the administrator, could have written a file or its folder.

    Systems without owners of files (Windows) leave that to the folder of the user.
    """
    if not hasattr(os, "getuid"):
        return True
    stats, others = (path.stat(), path.parent.stat()), stat.S_IWGRP | stat.S_IWOTH
    return all(status.st_uid in (os.getuid(), 0) and not status.st_mode & others for status in stats)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
