"""Finds how much memory this machine has, and how much room there is for states in host memory or a folder."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

from ckptplan.errors import CkptplanError

#: The share of free memory that states may fill.
_SHARE = 0.75
_KIB = 1024


def host_memory_bytes() -> int:
    """Return the most memory that this process may use, in bytes."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(installed, int(text)) if text.isdecimal() else installed


def find_free_memory() -> int | None:
    """Return the bytes of host memory that this process may still take, None if they are not known."""
    if not Path("/proc/meminfo").exists():
        return None
    import resource

    free = read_field("/proc/meminfo", "MemAvailable")
    for limit, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        most, _ = resource.getrlimit(limit)
        if most != resource.RLIM_INFINITY:
            free = min(free, max(0, most - read_field("/proc/self/status", used)))
    return free + _count_freed_bytes()


class _Mallinfo(ctypes.Structure):
    """The statistics of glibc's heap."""

    _fields_ = (("before", ctypes.c_size_t * 8), ("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t))


def _count_freed_bytes() -> int:
    """Return the bytes that are free inside the heap, 0 if the C library does not report them."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0
    mallinfo.restype = _Mallinfo
    return int(mallinfo().fordblks)


def read_field(file: str, name: str) -> int:
    """Return the entry ``name`` of a system file that lists sizes in kB, in bytes. Raises CkptplanError."""
    for line in Path(file).read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * _KIB
    raise CkptplanError(f"{file} has no entry {name}")


def round_down(size: int, *, digits: int = 2) -> int:
    """Round a size down to few significant digits, so that small changes of free space do not show."""
    unit = 10 ** max(0, len(str(size)) - digits)
    return int(size // unit * unit)


#: By key: the bytes that ``keep_steady`` returned last.
_steady: dict[object, int] = {}


def keep_steady(key: object, free: int) -> int:
    """Return about nine tenths of the free bytes, and the same number again for later calls with this key.

    The earlier number is returned as long as it is 70 % to 100 % of ``free``. So similar calls get the same
    plan, though the free bytes change a little from call to call. Rounding alone would not achieve this.
    """
    previous = _steady.get(key)
    if previous is None or not 0.7 * free <= previous <= free:
        previous = _steady[key] = round_down(int(0.9 * free))
    return previous


def find_cached_room(local_bytes: int) -> int | None:
    """Return the bytes of host memory that remote states may fill, None if the system does not report them.

    If the states take more, ``StateFiles`` writes them through to the device.

    Arguments:
        local_bytes: bytes of host memory that the call takes; 0 if its limit applies to another device.
    """
    free = find_free_memory()
    if free is None:
        return None
    return keep_steady(round_down(local_bytes), int(_SHARE * max(0, free - local_bytes)))


def find_folder_room(folder: Path) -> int:
    """Return the bytes that remote states may fill in a folder."""
    return keep_steady(folder, shutil.disk_usage(folder).free)
