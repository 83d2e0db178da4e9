"""Divides a sweep among machines that do not communicate, and merges the files that they write.

Each row of a part begins with the identity of the sweep, the part's number, the count of parts and the rows of
the sweep: ``4f0c1d2e3a5b:3/64:1000000``. So a part can be continued, and the merge needs only the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, Literal

from ckptplan.errors import InputError, refuse
from ckptplan.storage.files import replace_file

#: Blocks of a part (spread over the sweep, so that all parts are equal work), and the most rows of a block.
_BLOCKS, _MOST_ROWS = 16, 2048
_MOST_SHARDS = 100_000
_ACCEPTED = "NUMBER/COUNT, as 3/64, counted from 1"
#: The beginning of each line of a part, in CSV and in JSON lines.
_BEGINNING = re.compile(rb'((?:\{"sweep": ")?)([0-9a-f]{12}):(\d{1,7})/(\d{1,7}):(\d{1,15})("?,)')
#: The most missing parts that an error names.
_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A part of a sweep of ``total`` rows: every ``count``-th block of rows, from block ``number`` on.

    Numbers count from 1.
    """

    number: int
    count: int
    total: int

    @property
    def block(self) -> int:
        """The rows of a block. Only the last block of the sweep may have fewer."""
        return max(1, min(_MOST_ROWS, self.total // (_BLOCKS * self.count)))

    def __len__(self) -> int:
        rounds, left = divmod(self.total, self.block * self.count)
        return rounds * self.block + min(self.block, max(0, left - (self.number - 1) * self.block))

    def row(self, place: int) -> int:
        """Return the row of the sweep that is at ``place`` in this part. Both count from 0."""
        round_, within = divmod(place, self.block)
        return (round_ * self.count + self.number - 1) * self.block + within

    def name(self, sweep: str) -> str:
        """Return the identity of this part, given the identity of the sweep."""
        return f"{sweep}:{self.number}/{self.count}:{self.total}"


def parse_shard(text: str) -> tuple[int, int]:
    """Return the number and the count of '3/64'. Raises InputError."""
    number, slash, count = text.strip().partition("/")
    if not (slash and all(part.isascii() and part.isdecimal() and len(part) < 9 for part in (number, count))):
        raise refuse(text, "is not a part of a sweep", accepted=_ACCEPTED)
    if not 1 <= int(number) <= int(count) <= _MOST_SHARDS:
        raise refuse(text, "is out of range", accepted=f"{_ACCEPTED}, at most {_MOST_SHARDS:,} parts")
    return int(number), int(count)


@dataclass(kw_only=True)
class _Part:
    """A file of a part. A merge replaces the ``beginning`` of each line by ``whole``, from ``offset`` on."""

    path: str
    header: bytes
    beginning: bytes
    whole: bytes
    sweep: str
    shard: Shard
    offset: int

    @property
    def format(self) -> Literal["csv", "jsonl"]:
        """The format of the rows: only CSV has a header."""
        return "csv" if self.header else "jsonl"

    def take(self, count: int) -> Iterator[bytes]:
        """Yield the next ``count`` lines in the form that they have in the file of a whole sweep."""
        with _open(self.path) as file:
            file.seek(self.offset)
            for line in islice(file, count):
                yield self.whole + line[len(self.beginning) :]
            self.offset = file.tell()


def merge_parts(paths: Sequence[str], output: str, *, wanted: Literal["csv", "jsonl"]) -> int:
    """Write the rows of all parts of a sweep in order, as one run writes them, and return their number.

    Raises InputError, which names a part that is missing, given twice, incomplete, of another sweep or not in
    the format that is ``wanted``.
    """
    parts: dict[int, _Part] = {}
    for path in paths:
        part = _read_part(path)
        if part.format != wanted:
            raise InputError(
                f"holds rows as {part.format}, and {output} would hold them as {wanted}",
                source=path,
                accepted=f"an output named FILE.{part.format}, or parts in {wanted}",
            )
        first = next(iter(parts.values()), part)
        if (part.header, part.whole, part.shard.count, part.shard.total) != (
            first.header, first.whole, first.shard.count, first.shard.total
        ):  # fmt: skip
            raise InputError(f"is part {_tag(part)}, but {first.path} is part {_tag(first)}", source=path)
        twin = parts.setdefault(part.shard.number, part)
        if twin is not part:
            raise InputError(f"is part {_tag(part)}, as {twin.path} is", source=path, accepted="each part once")
    if not parts:
        raise InputError("names no file", field="parts", accepted="all parts of a sweep, as part-*.csv")
    shard = first.shard
    missing = [str(number) for number in range(1, shard.count + 1) if number not in parts]
    if missing:
        named = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED:,} more" * (len(missing) > _NAMED))
        raise InputError(
            f"{'parts' if len(missing) > 1 else 'part'} {named} of {shard.count:,} "
            f"{'are' if len(missing) > 1 else 'is'} missing",
            field="parts",
            accepted="all parts of a sweep",
        )
    with replace_file(output, binary=output != "-") as file:
        out: IO[bytes] = getattr(file, "buffer", file)
        out.write(first.header)
        for block in range(-(-shard.total // shard.block)):
            out.writelines(parts[block % shard.count + 1].take(shard.block))
    return shard.total


def _tag(part: _Part) -> str:
    """Describe a part and its sweep for an error message."""
    shard = part.shard
    return f"{shard.number}/{shard.count} of the {shard.total:,} rows of sweep {part.sweep}"


def _open(path: str) -> IO[bytes]:
    try:
        return open(path, "rb")  # noqa: PTH123 - the caller closes it
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=path) from None


def _read_part(path: str) -> _Part:
    """Read the header of a part and check that the part is complete. Raises InputError."""
    with _open(path) as file:
        header = file.readline()
        if header.startswith(b"{"):
            header = b""
            file.seek(0)
        offset, line = file.tell(), file.readline()
        match = _BEGINNING.match(line)
        number, count, total = map(int, match.group(3, 4, 5)) if match else (0, 0, 0)
        if match is None or not 1 <= number <= count <= total:
            raise InputError(
                "is no part of a sweep", source=path, accepted="a file of one part, as a sweep writes it"
            )
        start, sweep, *_, end = match.groups()
        shard = Shard(number=number, count=count, total=total)
        beginning, rows = match.group(), 0
        while line.startswith(beginning) and line.endswith(b"\n"):
            rows, line = rows + 1, file.readline()
        if line:
            raise InputError(f"row {rows + 1:,} is not one of part {shard.number}/{shard.count}", source=path)
        if rows != len(shard):
            raise InputError(
                f"has {rows:,} of the {len(shard):,} rows of part {shard.number}/{shard.count}; "
                "the command that wrote it continues it",
                source=path,
            )
    return _Part(
        path=path,
        header=header,
        beginning=beginning,
        whole=start + sweep + end,
        sweep=sweep.decode(),
        shard=shard,
        offset=offset,
    )
