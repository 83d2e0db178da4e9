"""Provides the script that draws charts: Vega, Vega-Lite and vega-embed in one.

Making it takes seconds, and it is the same for every page, so it is kept in a file
that only the user can write.
"""

from __future__ import annotations

import hashlib
import logging
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ckptplan.errors import InputError, MissingExtra
from ckptplan.storage.cache import find_cache, is_private
from ckptplan.storage.files import write_bytes

#: The version of Vega-Lite that charts are written for.
_VEGA_LITE = "6.1"
#: What pages call to draw a chart.
_ENTRY = "window.drawChart = vegaEmbed;"
#: The most bytes of a file that is read; the script has 0.9 MB.
_MOST_BYTES = 2**23
_log = logging.getLogger("ckptplan.report")


@cache
def load_library() -> str:
    """Return the script. Raises MissingExtra."""
    path = _find_file()
    script = None if path is None else _read(path)
    if script is None:
        script = _make()
        if path is not None:
            _write(path, script)
    return script


def _make() -> str:
    try:
        import vl_convert
    except ImportError:
        raise MissingExtra("html", package="vl-convert-python") from None
    return str(vl_convert.javascript_bundle(_ENTRY, vl_version=_VEGA_LITE))


def _find_file() -> Path | None:
    """Return the file of the script that the installed release of vl-convert makes. Raises MissingExtra."""
    try:
        release = version("vl-convert-python")
    except PackageNotFoundError:
        raise MissingExtra("html", package="vl-convert-python") from None
    folder = find_cache("charts")
    name = hashlib.sha256(f"{release} {_VEGA_LITE} {_ENTRY}".encode()).hexdigest()[:32]
    return None if folder is None else folder / f"{name}.js"


def _read(path: Path) -> str | None:
    """Return the script of a file; None if there is none, or one that this user may not have written.

    The first line is the digest of the others, so that a damaged file is none.
    """
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES or not is_private(path):
            return None
        digest, _, script = path.read_bytes().decode().partition("\n")
    except (OSError, ValueError) as error:
        _log.debug("the file %s holds no script, and is replaced: %s", path, error)
        return None
    return script if digest == _digest(script) else None


def _write(path: Path, script: str) -> None:
    """Write the script, if the folder can be written to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_bytes(path, f"{_digest(script)}\n{script}".encode())
        path.chmod(0o600)
    except (InputError, OSError) as error:
        _log.debug("the script of charts is not kept in a file: %s", error)


def _digest(script: str) -> str:
    return f"// {hashlib.sha256(script.encode()).hexdigest()}"
