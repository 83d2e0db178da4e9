"""Timelines in the Trace Event Format, which Perfetto and chrome://tracing open.

A trace is written as a stream: complete events ("X") on one track for compute and one for each copy engine,
instant events ("i") for actions without duration, and a counter ("C") for each memory tier. Times are in
microseconds with three decimals, since viewers work in nanoseconds. So adjacent bars share their rounded end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

from ckptplan.schedule.timeline import BARS, COMPUTE, READ, WRITE, Event, kind_of
from ckptplan.storage.schedules import action_fields

_TRACKS = {COMPUTE: (1, "compute"), WRITE: (2, "copy engine: write"), READ: (3, "copy engine: read")}


class ChromeTrace:
    """Writes a timeline to an open file, event by event; ``close`` completes the JSON.

    ``process`` names the timeline. ``resident_bytes`` are the bytes in local memory from the start. ``beside``
    begins another timeline, which the viewer shows below the first one.
    """

    def __init__(self, file: IO[str], *, process: str, about: Mapping[str, Any], resident_bytes: int) -> None:
        self._file = file
        self._number = 0
        self._held: dict[str, int] = {}
        head = json.dumps({"displayTimeUnit": "ms", "otherData": about})
        file.write(f'{head[:-1]}, "traceEvents": [')
        self.beside(process=process, resident_bytes=resident_bytes)

    def beside(self, *, process: str, resident_bytes: int) -> None:
        """Begin the next timeline, from time zero."""
        self._number += 1
        self._held.clear()
        self._file.write("\n" if self._number == 1 else ",\n")
        self._file.write(self._metadata(1, "process_name", {"name": process}))
        for track, name in _TRACKS.values():
            self._file.write(",\n" + self._metadata(track, "thread_name", {"name": name}))
            self._file.write(",\n" + self._metadata(track, "thread_sort_index", {"sort_index": track}))
        self._count("local memory", resident_bytes, 0.0)
        self._count("remote memory", 0, 0.0)

    def add(self, event: Event) -> None:
        """Write an event as a bar or an instant, and the counters that it changes."""
        track, _ = _TRACKS[event.track]
        kind = kind_of(event)
        start = _nanoseconds(event.start)
        common = {"name": kind, "cat": event.track, "pid": self._number, "tid": track}
        common["args"] = action_fields(event.action)
        if kind in BARS:
            duration = _nanoseconds(event.end) - start
            self._write({**common, "ph": "X"}, ts=start, dur=duration)
        else:
            self._write({**common, "ph": "i", "s": "t"}, ts=start)
        self._count("local memory", event.local_bytes, event.held_at)
        self._count("remote memory", event.remote_bytes, event.held_at)

    def close(self) -> None:
        """End the list of events."""
        self._file.write("\n]}\n")

    def _count(self, name: str, value: int, at: float) -> None:
        if self._held.get(name) != value:
            self._held[name] = value
            counter = {"name": name, "ph": "C", "pid": self._number, "args": {"bytes": value}}
            self._write(counter, ts=_nanoseconds(at))

    def _metadata(self, track: int, name: str, arguments: Mapping[str, Any]) -> str:
        return json.dumps({"name": name, "ph": "M", "pid": self._number, "tid": track, "args": arguments})

    def _write(self, event: Mapping[str, Any], **times: int) -> None:
        shown = "".join(f', "{name}": {time // 1000}.{time % 1000:03d}' for name, time in times.items())
        self._file.write(f",\n{json.dumps(event)[:-1]}{shown}}}")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
