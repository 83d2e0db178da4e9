"""Saves and restores what a step depends on besides its arguments: random generators and autocast.

Random generators that a step may draw from: PyTorch's, Python's, numpy's, and objects that users hold.
"""

from __future__ import annotations

import ctypes
import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

#: The Mersenne twister of numpy's default generator: 624 words and a position.
_TWISTER_BYTES = 4 * 625


class RandomSource:
    """A generator; its states are opaque, and the same object as long as no number is drawn.

    Arguments:
        read: returns the present state.
        write: continues from a state.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], object]) -> None:
        self._read, self._write = read, write
        self._last: Any = None

    def state(self) -> Any:
        """Return the present state."""
        state = self._read()
        if self._last is None or not are_equal_states(state, self._last):
            self._last = state
        return self._last

    def restore(self, state: Any) -> None:
        """Continue from a state."""
        if self.state() is not state:
            self._write(state)
            self._last = state


def are_equal_states(one: Any, other: Any) -> bool:
    """Return whether two states of the same generator are equal."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        # Of numpy: nested, with arrays.
        return one.keys() == other.keys() and all(are_equal_states(one[key], other[key]) for key in one)
    return bool(np.all(one == other))


class PythonState:
    """The state of the module ``random``, or of an object of ``random.Random``."""

    def __init__(self, generator: Any = random) -> None:
        self._generator = generator
        self._seen: Any = None
        self._packed: Any = None

    def read(self) -> Any:
        """Return the present state."""
        state = self._generator.getstate()
        if self._seen is None or not _begins_alike(state, self._seen):
            self._seen, self._packed = state, _pack(state)
        return self._packed

    def write(self, state: Any) -> None:
        """Continue from a state."""
        self._seen, self._packed = _unpack(state), state
        self._generator.setstate(self._seen)


def _begins_alike(one: Any, other: Any) -> bool:
    """Return whether no number was drawn between two states of Python's generator.

    A draw moves the position, which is the last word, and all words change before it is the same again.
    """
    if not (_is_twister(one) and _is_twister(other)):
        return bool(one == other)
    return bool(one[2] == other[2] and one[1][-1] == other[1][-1] and one[1][:8] == other[1][:8])


def _is_twister(state: Any) -> bool:
    return isinstance(state, tuple) and len(state) == 3 and isinstance(state[1], tuple) and len(state[1]) == 625


def _pack(state: Any) -> Any:
    """Return a state as bytes: a tuple of so many integers takes ten times the memory."""
    return (state[0], array("I", state[1]).tobytes(), state[2]) if _is_twister(state) else state


def _unpack(state: Any) -> Any:
    if isinstance(state, tuple) and len(state) == 3 and isinstance(state[1], bytes):
        return state[0], tuple(array("I", state[1])), state[2]
    return state


class NumpyState:
    """The state of the generator behind ``numpy.random.rand`` and its like."""

    def __init__(self) -> None:
        self._twister: Any = None
        self._address: int | None = None
        self._words, self._has_spare = b"", True
        self._state: Any = None

    def read(self) -> Any:
        """Return the present state."""
        # Reading it takes 30 us. Usually a look at its memory shows that it has not moved; only a spare number
        # of a normal distribution is used up without a trace there.
        words = self._read_words()
        if not words or words != self._words or self._has_spare:
            self._state = state = np.random.get_state(legacy=False)  # noqa: NPY002 - what others draw from
            self._words, self._has_spare = words, bool(state.get("has_gauss", 1))
        return self._state

    def write(self, state: Any) -> None:
        """Continue from a state."""
        np.random.set_state(state)  # noqa: NPY002 - as above
        self._words = b""

    def _read_words(self) -> bytes:
        """Return the memory of the generator, nothing if it is not numpy's own Mersenne twister."""
        generator = np.random.mtrand.get_bit_generator()
        if generator is not self._twister:
            is_known = type(generator) is np.random.MT19937
            self._twister, self._words = generator, b""
            self._address = generator.ctypes.state_address if is_known else None
        return b"" if self._address is None else ctypes.string_at(self._address, _TWISTER_BYTES)


def list_default_sources(device: torch.device) -> list[RandomSource]:
    """Return the default generators that a cell on a device may draw from."""
    sources = [RandomSource(torch.get_rng_state, torch.set_rng_state)]
    sources += [RandomSource(one.read, one.write) for one in (PythonState(), NumpyState())]
    if device.type == "cuda":
        read, write = torch.cuda.get_rng_state, torch.cuda.set_rng_state
        sources.append(RandomSource(partial(read, device), partial(write, device=device)))
    return sources


def make_held_source(generator: object) -> RandomSource | None:
    """Return a generator that users hold as a source, None if it is none of the known kinds."""
    if isinstance(generator, torch.Generator):
        return RandomSource(generator.get_state, generator.set_state)
    if isinstance(generator, np.random.RandomState):
        return RandomSource(partial(generator.get_state, legacy=False), generator.set_state)
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return RandomSource(lambda: bits.state, partial(setattr, bits, "state"))
    # The system's entropy cannot be drawn again.
    if isinstance(generator, random.Random) and not isinstance(generator, random.SystemRandom):
        state = PythonState(generator)
        return RandomSource(state.read, state.write)
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
        self._sources = [*list_default_sources(device), *mine] if wanted else []
        self._last: RandomState = ()

    def beside(self, more: Iterable[RandomSource]) -> Generators:
        """Return the same generators, with sources that are no random ones."""
        made = Generators(torch.device("cpu"), wanted=False)
        made.wanted, made._sources = self.wanted, [*self._sources, *more]
        return made

    def state(self) -> RandomState:
        """Return the present state; an empty one if randomness is not replayed."""
        states = tuple(source.state() for source in self._sources)
        if not all(one is other for one, other in zip_longest(states, self._last)):
            self._last = states
        # While no numbers are drawn, checkpoints share one copy of about 10 kB.
        return self._last

    def restore(self, state: RandomState) -> None:
        """Continue from a state."""
        for source, one in zip(self._sources, state, strict=True):
            source.restore(one)
        self._last = state

    def moved_since(self, state: RandomState) -> bool:
        """Return whether numbers were drawn since a state."""
        return not all(are_equal_states(one, other) for one, other in zip(self.state(), state, strict=True))

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


def use_tape_hooks(hooks: Any) -> AbstractContextManager[None]:
    """Record tapes under the hooks that were in force in the forward pass."""
    return nullcontext() if hooks is None else torch.autograd.graph.saved_tensors_hooks(*hooks)
