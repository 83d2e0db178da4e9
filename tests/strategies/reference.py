"""Executes the strategies step by step, from their description in words, and counts what happens.

Independent of the closed forms: nothing here divides or sums a series. One machine keeps the laws (a
backward needs its tape, a run starts at a state that is there); one short program a strategy drives it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache


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


def pieces(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Cut a range into pieces of ``size``, the ragged one first."""
    ends = list(range(stop, start, -size))[::-1]
    return list(zip([start, *ends], ends, strict=False))


def base(machine: Machine) -> None:
    machine.record(machine.steps)
    machine.backward(0, machine.steps)


def standard(machine: Machine, *, chunk_size: int) -> None:
    *earlier, last = pieces(0, machine.steps, chunk_size)
    for _, stop in earlier:
        machine.save()
        machine.advance(stop)
    machine.record(machine.steps)
    machine.backward(*last)
    for start, stop in reversed(earlier):
        machine.load(start)
        machine.local.remove(start)
        machine.record(stop)
        machine.backward(start, stop)


def remote(machine: Machine, *, chunk_size: int) -> None:
    *earlier, last = pieces(0, machine.steps, chunk_size)
    for start, stop in earlier:
        machine.push([start])
        machine.advance(stop)
    machine.record(machine.steps)
    machine.backward(*last)
    for start, stop in reversed(earlier):
        machine.pull([start])
        machine.position = start
        machine.record(stop)
        machine.backward(start, stop)


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


def _batches(away: list[int], size: int) -> list[tuple[int, int]]:
    """Ranges of starts that travel together, the ragged batch first."""
    return [(away[low], away[high - 1] + 1) for low, high in pieces(0, len(away), size)]


def double(machine: Machine, *, chunk_size: int, remote_chunk_size: int, outer_local: bool = False) -> None:
    *earlier, last = pieces(0, machine.steps, remote_chunk_size)
    for _, stop in earlier:
        if outer_local:
            machine.save()
        else:
            machine.push([machine.position])
        machine.advance(stop)
    _segment(machine, *last, chunk_size, held=False)
    for start, stop in reversed(earlier):
        if outer_local:
            machine.load(start)
        else:
            machine.pull([start])
            machine.position = start
        chunks = pieces(start, stop, chunk_size)
        if outer_local and len(chunks) == 1:
            machine.local.remove(start)
        if not outer_local and len(chunks) > 1:
            machine.save()
        _segment(machine, start, stop, chunk_size, held=len(chunks) > 1)


def nested(machine: Machine, *, chunk_size: int, segment_size: int) -> None:
    double(machine, chunk_size=chunk_size, remote_chunk_size=segment_size, outer_local=True)


def _segment(machine: Machine, start: int, stop: int, chunk_size: int, *, held: bool) -> None:
    """Reverse one segment as standard does; its first state may be held in a slot already."""
    *earlier, last = pieces(start, stop, chunk_size)
    for first, end in earlier:
        if not (held and first == start):
            machine.save()
        machine.advance(end)
    machine.record(stop)
    machine.backward(*last)
    for first, end in reversed(earlier):
        machine.load(first)
        machine.local.remove(first)
        machine.record(end)
        machine.backward(first, end)


def growing(machine: Machine, *, chunk_size: int, state_units: int, tape_units: int) -> None:
    _grown(machine, 0, machine.steps, chunk_size, (state_units, tape_units))


def double_growing(
    machine: Machine, *, chunk_size: int, remote_chunk_size: int, state_units: int, tape_units: int
) -> None:
    *earlier, last = pieces(0, machine.steps, remote_chunk_size)
    for _, stop in earlier:
        machine.push([machine.position])
        machine.advance(stop)
    _grown(machine, *last, chunk_size, (state_units, tape_units))
    for start, stop in reversed(earlier):
        machine.pull([start])
        machine.position = start
        _grown(machine, start, stop, chunk_size, (state_units, tape_units))


def _grown(machine: Machine, start: int, stop: int, chunk_size: int, growth: tuple[int, int]) -> None:
    """Chunks from the end, each with room for what the checkpoints behind it leave."""
    chunks, end, length = [], stop, chunk_size
    while end > start:
        chunks.append((max(start, end - length), end))
        end = max(start, end - length)
        length = chunk_size + len(chunks) * growth[0] // growth[1]
    last, *earlier = chunks
    for _, end in reversed(earlier):
        machine.save()
        machine.advance(end)
    machine.record(stop)
    machine.backward(*last)
    for first, end in earlier:
        machine.load(first)
        machine.local.remove(first)
        machine.record(end)
        machine.backward(first, end)


def revolve(machine: Machine, *, chunk_size: int, nb_local: int) -> None:
    """Each split by trying all of them for the one that runs least again, and of these saves least."""
    chunks = pieces(0, machine.steps, chunk_size)

    @cache
    def least(low: int, high: int, slots: int) -> tuple[float, int, int]:
        """Steps that run again, saves, and the split that takes no more of either, for a saved first state."""
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

    def reverse(low: int, high: int, slots: int) -> None:
        start = chunks[low][0]
        if high - low == 1:
            machine.record(chunks[low][1])
            machine.backward(*chunks[low])
            return
        if machine.position not in machine.local:
            machine.save()
        middle = -least(low, high, slots)[2]
        machine.advance(chunks[middle][0])
        reverse(middle, high, slots - 1)
        machine.load(start)
        if middle - low == 1:
            machine.local.remove(start)
        reverse(low, middle, slots)

    reverse(0, len(chunks), nb_local)


PROGRAMS = {
    "growing": growing,
    "double-growing": double_growing,
    "revolve": revolve,
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
