"""Separates the seconds of whole programs into those of steps and of actions.

A compiled program shows no times of its parts. With f, r, o, b the seconds of a step, a, k, s, l those of an
action (docs/equations.md) and c those of a call, a program takes

    F f + R r + N o + B b + A a + K k + S s + L l + P p + c

where F, R, N, B are the numbers of its steps that run first, run again, are recorded and are reversed, A, K, S,
L those of its advances, chunks, saves and loads, and P that of the pages of memory that it is given: large
buffers are new in each run, and touching them first takes time that is of no step. The ten unknowns have the
least squares of relative errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from ckptplan.calibration.action_times import ActionTimes
from ckptplan.calibration.samples import Sample, relative_least_squares
from ckptplan.schedule.actions import Action, Advance, Backward, Load, Record, Save, Tier

_NAMES = ("forward", "recompute", "overhead", "backward", "advance", "chunk", "save", "load", "call")
_PAGES = "pages"


@dataclass(frozen=True, kw_only=True)
class ProgramWork:
    """What a program does: steps by kind, and actions."""

    counts: tuple[int, ...]

    @classmethod
    def of(cls, actions: Iterable[Action], *, sweep: bool = False) -> ProgramWork:
        """Return the work of a schedule; that before its first Backward with ``sweep``."""
        found = dict.fromkeys(_NAMES, 0)
        known = 0
        for action in actions:
            match action:
                case Advance(start, stop) | Record(start, stop):
                    again = max(0, min(known, stop) - start)
                    found["recompute"] += again
                    found["forward"] += stop - start - again
                    known = max(known, stop)
                    if isinstance(action, Record):
                        found["overhead"] += stop - start
                        found["chunk"] += 1
                    else:
                        found["advance"] += 1
                case Backward(start, stop):
                    if sweep:
                        break
                    found["backward"] += stop - start
                case Save(_, Tier.LOCAL):
                    found["save"] += 1
                case Load(_, Tier.LOCAL):
                    found["load"] += 1
        return cls(counts=tuple(found[name] if name != "call" else 1 for name in _NAMES))

    @property
    def saves(self) -> int:
        """The number of local saves."""
        return self.counts[_NAMES.index("save")]

    @classmethod
    def forward(cls, steps: int) -> ProgramWork:
        """Return the work of a forward pass alone."""
        return cls(counts=(steps, *(0,) * (len(_NAMES) - 2), 1))


@dataclass
class TimedPrograms:
    """Seconds of programs, one value a round, and the pages that they were given."""

    works: Sequence[ProgramWork]
    rounds: list[list[float]] = field(default_factory=list)
    #: The pages that each program was given, in each round.
    pages: list[list[int]] = field(default_factory=list)

    def fit(self, *, chunks: tuple[int, ...], shown_by: dict[str, int]) -> ActionTimes:
        """Return the times of steps and actions by the rounds.

        ``chunks`` are the sizes of the chunks. ``shown_by`` names the program whose rounds show the spread of a
        field best: parts are known through differences, whose spread says little.
        """
        samples = [Sample(values=values) for values in zip(*self.rounds, strict=True)]
        names = (*_NAMES, _PAGES)
        given = [median(pages) for pages in zip(*self.pages, strict=True)]
        rows = [(*work.counts, pages) for work, pages in zip(self.works, given, strict=True)]
        found = dict(zip(names, relative_least_squares(rows, [one.median for one in samples]), strict=True))
        modelled = [sum(count * found[name] for name, count in zip(names, row, strict=True)) for row in rows]
        misses = [one.median / model - 1 for one, model in zip(samples, modelled, strict=True)]
        return ActionTimes(
            forward_seconds=found["forward"],
            recompute_seconds=found["recompute"],
            record_overhead_seconds=found["overhead"],
            backward_seconds=found["backward"],
            advance_seconds=found["advance"],
            chunk_seconds=found["chunk"],
            save_seconds=found["save"],
            load_seconds=found["load"],
            spread={name: samples[place].spread for name, place in shown_by.items()},
            fit={},
            chunks=chunks,
            misfit=math.sqrt(sum(miss**2 for miss in misses) / len(misses)),
        )
