"""Keeps measurements of calls by their kind, and by the plain constants that such a call can reach.

A depth, an option, or a length may decide how much a step takes; a counter or a record changes with each call
and decides nothing. So a call with other constants is measured again, and the names of those that turn out to
have made no difference are left out for this kind from then on. Nothing of the caller is kept alive.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ckptplan.torch.measurement import Measurement
from ckptplan.torch.surroundings.signature import Signature

#: Constants that are told apart by name: all others count as one.
_MOST_NAMES = 512
#: Longer texts are kept by their hash.
_LONG = 64
_SIZES = (
    *("state_bytes", "tape_bytes", "resident_bytes_per_step"),
    *("output_bytes", "workspace_bytes", "parameter_bytes"),
)
#: Sizes that differ by no more are equal.
_EQUAL = 0.05
#: A number that changes by less than some sizes, times this, may be why they changed.
_SHARE = 0.25
#: The parts of a name: attributes, elements.
_PART = re.compile(r"\.?[^.\[]+|\[[^\]]*\]?|\.")
#: By name: there may be several of one.
Constants: TypeAlias = tuple[tuple[str, tuple[Any, ...]], ...]


class ConstantNotes(Signature):
    """Notes the numbers and texts that a walk meets, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, list[Any]] = {}
        self._others: list[Any] = []

    @property
    def constants(self) -> Constants:
        """What was noted, which can be compared and hashed."""
        found = [(name, tuple(values)) for name, values in self._values.items()]
        return (*sorted(found, key=lambda one: one[0]), ("", (hash(tuple(self._others)),)))

    def note_constant(self, name: str, value: Any) -> None:
        """Note a number or a text."""
        if not isinstance(value, int | float | str):
            return
        described = _describe(value)
        if name in self._values or len(self._values) < _MOST_NAMES:
            self._values.setdefault(name, []).append(described)
        else:
            self._others.append((name, described))

    def note_again(self, name: str, number: int) -> None:
        """Objects are not noted."""

    def note(self, name: str, thing: Any, parts: int) -> None:
        """Objects are not noted."""


def _describe(value: float | str) -> tuple[str, Any]:
    kind = type(value).__qualname__
    if isinstance(value, str):
        return kind, hash(value) if len(value) > _LONG else str.__str__(value)
    if type(value) in (bool, int) or (type(value) is float and value == value):  # noqa: PLR0124 - NaN
        return kind, value
    # Subclasses may compare and hash in their own way.
    return kind, (int if isinstance(value, int) else float).__repr__(value)


@dataclass
class _Kind:
    """What is known of one kind of call; the latest last."""

    measured: OrderedDict[Constants, Measurement] = field(default_factory=OrderedDict)
    left_out: set[str] = field(default_factory=set)

    def reduce(self, constants: Constants) -> Constants:
        """Return the constants that are not left out."""
        return _leave_out(constants, self.left_out) if self.left_out else constants

    def learn(self, constants: Constants, new: Measurement) -> None:
        """Add a measurement, and leave out the names that have changed, if the sizes have not."""
        alike = [
            names
            for known, old in self.measured.items()
            if _are_alike(old, new, _find_change(known, constants))
            and (names := _find_changed_names(known, constants))
        ]
        self.measured[constants] = new
        if not alike:
            return
        names = min(alike, key=len)
        reduced = _leave_out(constants, names)
        group = [old for known, old in self.measured.items() if _leave_out(known, names) == reduced]
        equal = sum(_are_alike(old, new, 1.0) for old in group)
        # What made a difference before may make one again, as a depth of 100 and 101 against one of 1.
        if equal > 2 * (len(group) - equal):
            self._forget(names)

    def _forget(self, names: set[str]) -> None:
        self.left_out |= names
        merged: OrderedDict[Constants, Measurement] = OrderedDict()
        for constants, measurement in self.measured.items():
            key = self.reduce(constants)
            merged[key] = _take_larger(merged.get(key, measurement), measurement)
        self.measured = merged


class KnownKinds:
    """Measurements by kind and constants, ``most`` of them: those of the kind used longest ago are dropped."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kinds: OrderedDict[Any, _Kind] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(kind.measured) for kind in self._kinds.values())

    def clear(self) -> None:
        """Forget all."""
        self._kinds.clear()

    def find(self, name: Any, constants: Constants) -> Measurement | None:
        """Return the measurement of such a call, if there is one."""
        kind = self._kinds.get(name)
        if kind is None:
            return None
        self._kinds.move_to_end(name)
        reduced = kind.reduce(constants)
        found = kind.measured.get(reduced)
        if found is not None:
            kind.measured.move_to_end(reduced)
        return found

    def keep(self, name: Any, constants: Constants, measurement: Measurement) -> None:
        """Keep the measurement of a call of which none was found."""
        kind = self._kinds.setdefault(name, _Kind())
        self._kinds.move_to_end(name)
        kind.learn(kind.reduce(constants), measurement)
        while len(self) > self.most:
            oldest_name, oldest = next(iter(self._kinds.items()))
            oldest.measured.popitem(last=False)
            if not oldest.measured:
                del self._kinds[oldest_name]


def _leave_out(constants: Constants, names: set[str]) -> Constants:
    under = tuple(name + mark for name in names if name for mark in ".[")
    return tuple(one for one in constants if one[0] not in names and not one[0].startswith(under))


def _find_changed_names(old: Constants, new: Constants) -> set[str]:
    """Return the names of constants that differ; of elements that were added or removed, the container's."""
    before, after = dict(old), dict(new)
    names = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    for here, there in ((before, after), (after, before)):
        known = {prefix for name in there for prefix, _ in _list_prefixes(name)}
        for name in here.keys() - there.keys():
            first = ((prefix, parent) for prefix, parent in _list_prefixes(name) if prefix not in known)
            prefix, parent = next(first, (name, ""))
            names.add(parent if parent and prefix.endswith("]") else prefix)
    return names


def _list_prefixes(name: str) -> Iterator[tuple[str, str]]:
    """Yield what a name lies under, from outside to inside and itself last, each with what that lies under."""
    parent = ""
    for part in _PART.findall(name):
        yield parent + part, parent
        parent += part


def _find_change(old: Constants, new: Constants) -> float:
    """Return the smallest change of a number that differs, as a share; one if no number does."""
    before = dict(old)
    pairs = (
        (one, other)
        for name, values in new
        if name
        for (_, one), (_, other) in zip(before.get(name, ()), values, strict=False)
        if one != other and isinstance(one, int | float) and isinstance(other, int | float)
    )
    return min((abs(one - other) / max(abs(one), abs(other)) for one, other in pairs), default=1.0)


def _are_alike(old: Measurement, new: Measurement, change: float) -> bool:
    """Return whether sizes are equal, and have not changed with a number that has changed by so little."""
    allowed = min(_EQUAL, _SHARE * change)
    pairs = ((getattr(old, name), getattr(new, name)) for name in _SIZES)
    return all(abs(one - other) <= allowed * max(one, other) for one, other in pairs)


def _take_larger(old: Measurement, new: Measurement) -> Measurement:
    return replace(new, **{name: max(getattr(old, name), getattr(new, name)) for name in _SIZES})
