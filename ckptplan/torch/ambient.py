"""Saves and restores what a step depends on besides its arguments: random generators and autocast.

Random generators that a step may draw from: PyTorch's, Python's, numpy's, and objects that users hold.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import torch


class RandomSource:
    """A generator; its states are opaque, and the same object as long as no number is drawn.

    Arguments:
        read: returns the present state.
        write: continues from a state.
        packed: whether states are kept as bytes: a tuple of so many integers takes ten times the memory.
    """

    def __init__(
        self, read: Callable[[], Any], write: Callable[[Any], object], *, packed: bool = False
    ) -> None:
        self._read, self._write, self._packed = read, write, packed
        #: The last state, as it was read and as it is kept.
        self._raw: Any = None
        self._last: Any = None

    def state(self) -> Any:
        """Return the present state."""
        raw = self._read()
        if self._last is None or not _are_equal(raw, self._raw):
            self._raw, self._last = raw, pickle.dumps(raw) if self._packed else raw
        return self._last

    def restore(self, state: Any) -> None:
        """Continue from a state."""
        if self.state() is not state:
            self._raw, self._last = pickle.loads(state) if self._packed else state, state  # noqa: S301 - our own
            self._write(self._raw)


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two states are equal, as far as that can be told without waiting for a device."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.device.type == "cpu" and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_equal(one[name], other[name]) for name in one)
    same = one == other
    return same if isinstance(same, bool) else bool(np.all(same))


def make_held_source(generator: object) -> RandomSource | None:
    """Return a generator that users hold as a source, None if it is none of the known kinds."""
    if isinstance(generator, torch.Generator):
        return RandomSource(generator.get_state, generator.set_state)
    if isinstance(generator, np.random.RandomState):
        return RandomSource(partial(generator.get_state, legacy=False), generator.set_state, packed=True)
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return RandomSource(lambda: bits.state, partial(setattr, bits, "state"), packed=True)
    # The system's entropy cannot be drawn again.
    if isinstance(generator, random.Random) and not isinstance(generator, random.SystemRandom):
        return RandomSource(generator.getstate, generator.setstate, packed=True)
    return None


#: States of the generators, in the order of their sources.
RandomState = tuple[Any, ...]


class Generators:
    """The generators that a cell may draw from, so that a run from a checkpoint draws the same numbers.

    These are the default ones of PyTorch (CPU and CUDA), Python and numpy, and those that are ``held``:
    objects of ``torch.Generator``, ``numpy.random.Generator``, ``RandomState`` or ``random.Random``.
    """

    def __init__(self, device: torch.device, *, wanted: bool, held: Iterable[object] = ()) -> None:
        self.wanted = wanted
        once = {id(one): one for one in held}.values() if wanted else ()
        mine = [source for source in map(make_held_source, once) if source is not None]
        self._sources: list[RandomSource] = []
        if wanted:
            self._sources += [
                RandomSource(torch.get_rng_state, torch.set_rng_state),
                RandomSource(random.getstate, random.setstate, packed=True),
                RandomSource(partial(np.random.get_state, legacy=False), np.random.set_state, packed=True),
                *mine,
            ]
        if wanted and device.type == "cuda":
            read, write = torch.cuda.get_rng_state, torch.cuda.set_rng_state
            self._sources.append(RandomSource(partial(read, device), partial(write, device=device)))
        self._last: RandomState = ()

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of all."""
        return frozenset(range(len(self._sources)))

    def only(self, numbers: Container[int], *, beside: Iterable[RandomSource] = ()) -> Generators:
        """Return those of some numbers, and sources ``beside`` them that are no random ones."""
        made = copy.copy(self)
        mine = (source for number, source in enumerate(self._sources) if number in numbers)
        made._sources = [*mine, *beside]
        return made

    def state(self) -> RandomState:
        """Return the present state; an empty one if randomness is not replayed."""
        states = tuple(source.state() for source in self._sources)
        # A source may have None.
        same = len(states) == len(self._last) and all(map(is_, states, self._last))
        if not same:
            self._last = states
        # While no numbers are drawn, checkpoints share one copy of about 10 kB.
        return self._last

    def restore(self, state: RandomState) -> None:
        """Continue from a state."""
        for source, one in zip(self._sources, state, strict=True):
            source.restore(one)
        self._last = state

    def moved_since(self, state: RandomState) -> frozenset[int]:
        """Return the numbers of the generators from which something was drawn since a state."""
        pairs = zip(self.state(), state, strict=True)
        return frozenset(number for number, (one, other) in enumerate(pairs) if not _are_equal(one, other))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Restore the generators on exit."""
        before = self.state()
        try:
            yield
        finally:
            self.restore(before)


@dataclass(frozen=True, kw_only=True)
class Autocast:
    """How autocast was set for each type of device when the forward pass ran."""

    settings: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool

    @classmethod
    def present(cls, device: torch.device) -> Autocast:
        """Return the settings in force."""
        types = dict.fromkeys(("cpu", device.type))
        return cls(
            settings=tuple(
                (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in types
            ),
            cache=torch.is_autocast_cache_enabled(),
        )

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The types that are cast to."""
        return tuple(dtype for _, enabled, dtype in self.settings if enabled)

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Run under these settings, whatever the present ones are."""
        with ExitStack() as stack:
            present = set(self.present(torch.device(self.settings[-1][0])).settings)
            for kind, enabled, dtype in self.settings:
                if (kind, enabled, dtype) in present:
                    # Within another context, one that a cell enters would keep its casts from step to step.
                    continue
                stack.enter_context(
                    torch.autocast(device_type=kind, enabled=enabled, dtype=dtype, cache_enabled=self.cache)
                )
            yield

    @contextmanager
    def cast_anew(self) -> Iterator[None]:
        """Run without cached casts of weights: a weight cast without a graph would get no gradient."""
        enabled = any(enabled for _, enabled, _ in self.settings)
        if enabled:
            torch.clear_autocast_cache()
        yield
        if enabled:
            torch.clear_autocast_cache()


def read_settings() -> tuple[Any, ...]:
    """Return the settings of PyTorch that steps depend on, besides the modes of autograd and autocast."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        # Not the number of threads: it belongs to a thread, and a GPU's backward pass runs in one of its own.
    )


def read_tape_hooks() -> Any:
    """Return the innermost ``saved_tensors_hooks`` in force, None if there are none."""
    read = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return None if read is None else read(False)


@contextmanager
def without_recomputation() -> Iterator[None]:
    """Run the block without the hooks of ``torch.utils.checkpoint``, which runs again all that is around them.

    Graphs that a call reverses before it returns would each make it run that.
    """
    hooks = read_tape_hooks()
    if hooks is None or hooks[0].__module__ != "torch.utils.checkpoint":
        yield
        return
    torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        with without_recomputation():
            yield
    finally:
        torch._C._autograd._push_saved_tensors_default_hooks(*hooks)


def use_tape_hooks(hooks: Any) -> AbstractContextManager[None]:
    """Record tapes under the hooks that were in force in the forward pass."""
    return nullcontext() if hooks is None else torch.autograd.graph.saved_tensors_hooks(*hooks)
