"""Executes the strategies step by step, from their description in words, and counts what happens.

Independent of the closed forms: nothing here divides or sums a series. One machine keeps the laws (a
backward needs its tape, a run starts at a state that is there); one short program a strategy drives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from math import comb
from typing import TypeAlias

#: The first step of each chunk, and the step after its last one.
Chunks: TypeAlias = list[tuple[int, int]]


@dataclass
class Machine:
    """Counts actions and remembers the worst moment of each tier."""

    steps: int
    state_bytes: int
    tape_bytes: int
    runs: int = 0
    moved: int = 0
    messages_out: int = 0
    messages_in: int = 0
    advances: int = 0
    chunks: int = 0
    saves: int = 0
    loads: int = 0
    local_peak: int = 0
    remote_peak: int = 0
    position: int = 0
    reversed_down_to: int = -1
    tapes: set[int] = field(default_factory=set)
    local: set[int] = field(default_factory=set)
    remote: set[int] = field(default_factory=set)

    def advance(self, stop: int) -> None:
        self.advances += 1
        self._run(stop)

    def _run(self, stop: int) -> None:
        self.runs += stop - self.position
        self.position = stop

    def record(self, stop: int) -> None:
        for step in range(self.position, stop):
            self.tapes.add(step)
            self._look()
        self.chunks += 1
        self._run(stop)

    def backward(self, start: int, stop: int) -> None:
        for step in reversed(range(start, stop)):
            assert step == (self.steps if self.reversed_down_to < 0 else self.reversed_down_to) - 1
            self.tapes.remove(step)
            self.reversed_down_to = step

    def save(self) -> None:
        assert self.position not in self.local
        self.local.add(self.position)
        self.saves += 1
        self._look()

    def load(self, state: int) -> None:
        assert state in self.local
        self.loads += 1
        self.position = state

    def push(self, states: list[int]) -> None:
        self.remote.update(states)
        self.moved += len(states)
        self.messages_out += 1
        self._look()

    def pull(self, states: list[int]) -> None:
        assert set(states) <= self.remote
        self.remote -= set(states)
        self.messages_in += 1

    def _look(self) -> None:
        held = len(self.local) * self.state_bytes + len(self.tapes) * self.tape_bytes
        self.local_peak = max(self.local_peak, held)
        self.remote_peak = max(self.remote_peak, len(self.remote))


def pieces(start: int, stop: int, size: int) -> Chunks:
    """Cut a range into pieces of ``size``, the ragged one first."""
    ends = list(range(stop, start, -size))[::-1]
    return list(zip([start, *ends], ends, strict=False))


def base(machine: Machine) -> None:
    reverse(machine, [(0, machine.steps)])


def standard(machine: Machine, *, chunk_size: int) -> None:
    reverse(machine, pieces(0, machine.steps, chunk_size))


def growing(machine: Machine, *, chunk_size: int, state_units: int, tape_units: int) -> None:
    reverse(machine, growing_pieces(0, machine.steps, chunk_size, (state_units, tape_units)))


def remote(machine: Machine, *, chunk_size: int) -> None:
    reverse_in_segments(machine, chunk_size, lambda start, stop: [(start, stop)])


def double(machine: Machine, *, chunk_size: int, remote_chunk_size: int) -> None:
    reverse_in_segments(machine, remote_chunk_size, lambda start, stop: pieces(start, stop, chunk_size))


def nested(machine: Machine, *, chunk_size: int, segment_size: int) -> None:
    def cut(start: int, stop: int) -> Chunks:
        return pieces(start, stop, chunk_size)

    reverse_in_segments(machine, segment_size, cut, outer_local=True)


def double_growing(
    machine: Machine, *, chunk_size: int, remote_chunk_size: int, state_units: int, tape_units: int
) -> None:
    def cut(start: int, stop: int) -> Chunks:
        return growing_pieces(start, stop, chunk_size, (state_units, tape_units))

    reverse_in_segments(machine, remote_chunk_size, cut)


def growing_pieces(start: int, stop: int, size: int, growth: tuple[int, int]) -> Chunks:
    """Cut a range from its end into chunks with room for what the checkpoints behind each of them leave."""
    chunks: Chunks = []
    while stop > start:
        length = size + len(chunks) * growth[0] // growth[1]
        chunks.append((max(start, stop - length), stop))
        stop = max(start, stop - length)
    return chunks[::-1]


def reverse(machine: Machine, chunks: Chunks, *, held: bool = False) -> None:
    """Save before each chunk but the last, and reverse from the end; the first state may be held already."""
    *earlier, last = chunks
    for start, stop in earlier:
        if not (held and start == chunks[0][0]):
            machine.save()
        machine.advance(stop)
    machine.record(last[1])
    machine.backward(*last)
    for start, stop in reversed(earlier):
        machine.load(start)
        machine.local.remove(start)
        machine.record(stop)
        machine.backward(start, stop)


def reverse_in_segments(
    machine: Machine, size: int, cut: Callable[[int, int], Chunks], *, outer_local: bool = False
) -> None:
    """Keep a checkpoint before each segment but the last, and reverse each in its chunks, from the end."""
    *earlier, last = pieces(0, machine.steps, size)
    for _, stop in earlier:
        if outer_local:
            machine.save()
        else:
            machine.push([machine.position])
        machine.advance(stop)
    reverse(machine, cut(*last))
    for start, stop in reversed(earlier):
        chunks = cut(start, stop)
        if outer_local:
            machine.load(start)
            if len(chunks) == 1:
                machine.local.remove(start)
        else:
            machine.pull([start])
            machine.position = start
        reverse(machine, chunks, held=outer_local)


def hierarchical(machine: Machine, *, chunk_size: int, nb_local: int) -> None:
    *earlier, last = pieces(0, machine.steps, chunk_size)
    starts = [start for start, _ in earlier]
    away = starts[: max(0, len(starts) - nb_local)]
    batches = [[start for start in away if low <= start < high] for low, high in _batches(away, nb_local)]
    for start, stop in earlier:
        machine.save()
        machine.advance(stop)
        for batch in batches:
            if start == batch[-1]:
                machine.push(batch)
                machine.local -= set(batch)
    machine.record(machine.steps)
    machine.backward(*last)
    for start, stop in reversed(earlier):
        if start not in machine.local:
            batch = batches.pop()
            machine.pull(batch)
            machine.local |= set(batch)
            machine._look()
        machine.load(start)
        machine.local.remove(start)
        machine.record(stop)
        machine.backward(start, stop)


def _batches(away: list[int], size: int) -> Chunks:
    """Ranges of starts that travel together, the ragged batch first."""
    return [(away[low], away[high - 1] + 1) for low, high in pieces(0, len(away), size)]


def revolve(machine: Machine, *, chunk_size: int, nb_local: int) -> None:
    reverse_in_parts(machine, [], chunk_size=chunk_size, slots=nb_local)


def disk_revolve(machine: Machine, *, nb_local: int, nb_parts: int) -> None:
    """With the least k that is enough, segments as long as k runs allow; the last part keeps the rest."""
    steps, number, k = machine.steps, nb_parts - 1, 1
    while comb(nb_local + k, k) + number * comb(nb_local + k - 1, nb_local) < steps:
        k += 1
    last = max(steps - number * comb(nb_local + k - 1, nb_local), comb(nb_local + k - 1, nb_local))
    length, longer = divmod(steps - last, number) if number else (0, 0)
    lengths = [length] * (number - longer) + [length + 1] * longer
    reverse_in_parts(machine, lengths, chunk_size=1, slots=nb_local)


def periodic(machine: Machine, *, chunk_size: int, period: int, nb_local: int) -> None:
    """Segments of ``period`` chunks, the first one ragged."""
    number = len(pieces(0, machine.steps, chunk_size))
    lengths = [stop - start for start, stop in pieces(0, number, period)][:-1]
    reverse_in_parts(machine, lengths, chunk_size=chunk_size, slots=nb_local)


def reverse_in_parts(machine: Machine, lengths: list[int], *, chunk_size: int, slots: int) -> None:
    """Segments of these numbers of chunks in remote memory, and a last part.

    Each split by trying all of them for the one that runs least again, and of these saves least.
    """
    chunks = pieces(0, machine.steps, chunk_size)

    @cache
    def least(low: int, high: int, slots: int) -> tuple[float, int, int]:
        """Steps that run again, saves, and the split with the least of both, for a saved first state."""
        if high - low == 1:
            return 0, 0, low
        if slots == 0:
            return float("inf"), 0, low
        return min(
            (
                chunks[middle - 1][1]
                - chunks[low][0]
                + least(low, middle, slots)[0]
                + least(middle, high, slots - 1)[0],
                least(low, middle, slots)[1] + least(middle, high, slots - 1)[1] + (high - middle > 1),
                # Of equal ones that which keeps the fewest checkpoints is of no use to the peak.
                -middle,
            )
            for middle in range(low + 1, high)
        )

    def reverse_chunks(low: int, high: int, slots: int) -> None:
        start = chunks[low][0]
        if high - low == 1:
            machine.record(chunks[low][1])
            machine.backward(*chunks[low])
            return
        if machine.position not in machine.local:
            machine.save()
        middle = -least(low, high, slots)[2]
        machine.advance(chunks[middle][0])
        reverse_chunks(middle, high, slots - 1)
        machine.load(start)
        if middle - low == 1:
            machine.local.remove(start)
        reverse_chunks(low, middle, slots)

    starts = [sum(lengths[:place]) for place in range(len(lengths) + 1)]
    for start, stop in pairwise(starts):
        machine.push([chunks[start][0]])
        machine.advance(chunks[stop][0])
    reverse_chunks(starts[-1], len(chunks), slots)
    for start, stop in reversed(list(pairwise(starts))):
        machine.pull([chunks[start][0]])
        machine.position = chunks[start][0]
        reverse_chunks(start, stop, slots)


PROGRAMS = {
    "growing": growing,
    "double-growing": double_growing,
    "revolve": revolve,
    "disk-revolve": disk_revolve,
    "periodic": periodic,
    "base": base,
    "standard": standard,
    "remote": remote,
    "hierarchical": hierarchical,
    "double": double,
    "nested": nested,
}


def execute(name: str, *, steps: int, state_bytes: int, tape_bytes: int, **parameters: int) -> Machine:
    """Run a strategy and return what was counted; everything must be reversed and nothing left."""
    machine = Machine(steps=steps, state_bytes=state_bytes, tape_bytes=tape_bytes)
    PROGRAMS[name](machine, **parameters)  # type: ignore[operator]
    assert machine.reversed_down_to == 0
    assert not machine.tapes
    assert not machine.local
    assert not machine.remote
    return machine
