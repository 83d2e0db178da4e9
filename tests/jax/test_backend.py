"""Compiled programs are timed without the first touch of new memory, and cells are built by their names."""

from __future__ import annotations

import itertools
import mmap
import os
import platform
import time
from typing import Any

import jax.numpy as jnp
import pytest

from ckptplan import InputError
from ckptplan.calibration.runtimes import open_backend, set_threads
from ckptplan.jax import backend as jax_backend
from ckptplan.jax import new_memory
from ckptplan.jax.cells import build_jax_network
from ckptplan.model.cell_spec import CellSpec
from ckptplan.planning.playback import make_schedule

BATCH, STEPS = 16, 60
SPEC = CellSpec.parse("jax:rnn(inputs=3, neurons=64)")
THREADS = set_threads(None)


def test_the_first_touch_of_new_memory_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of more than 32 MiB goes back to the system after each run; a smaller one is kept."""
    network = build_jax_network(SPEC, batch=BATCH, seed=0)
    backend = open_backend(SPEC, thread_count=THREADS)
    new = {}
    for steps in (60, 6_000):
        schedule = make_schedule("base", steps=steps)
        # As with one thread, which is another number than this process has.
        monkeypatch.setattr(backend, "clock", time.process_time)
        program = backend.program(network, schedule, inputs=network.inputs(steps), steps=steps)
        reports = [program.time() for _ in range(3)]
        assert all(report.seconds > 0 and report.new_memory >= 0 for report in reports)
        assert (program.peak_bytes() > 2**26) == (steps == 6_000)
        new[steps] = reports[-1].new_memory
    if platform.libc_ver()[0] == "glibc" and "MALLOC_MMAP_MAX_" not in os.environ:
        assert new[6_000] > 10 * new[60]


def test_pages_whose_time_is_nonsense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of another clock than the processor's are not taken off."""
    monkeypatch.setattr(jax_backend, "count_new_pages", itertools.count(0, 10).__next__)
    monkeypatch.setattr(jax_backend, "time_new_page", lambda: 60.0)
    network = build_jax_network(SPEC, batch=BATCH, seed=0)
    given = network, make_schedule("base", steps=STEPS), network.inputs(STEPS)
    with pytest.raises(InputError, match=r"the first touch of new memory takes 600.* s of a run of"):
        jax_backend.compile_gradient(*given, clock=time.process_time).time()
    report = jax_backend.compile_gradient(*given, clock=time.perf_counter).time()
    assert (report.seconds > 0, report.new_memory) == (True, 0)


@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="large pages are of Linux")
def test_a_page_is_timed_and_not_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults are of single pages, also where the system gives large ones to all."""
    faults: list[int] = []

    class Large(mmap.mmap):
        """Has large pages, unless they are switched off."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self.madvise(mmap.MADV_HUGEPAGE)
            faults.append(new_memory.count_new_pages())

    monkeypatch.setattr(mmap, "mmap", Large)
    new_memory.time_new_page.__wrapped__()
    each = faults[1] - faults[0]
    assert each >= new_memory._TOUCHED_BYTES // mmap.PAGESIZE


def make_pairs() -> Any:
    return lambda _, state, x: (state, x), {"w": jnp.ones(3)}


def make_frozen() -> Any:
    return lambda _, state, x: (state, x), {"w": 3}, jnp.ones(3)


def make_broken(batch: int) -> Any:
    return lambda weights, state, x: (state @ weights, x), jnp.ones((7, 7)), jnp.ones((batch, 3))


def make_stateless() -> Any:
    return lambda _, state, x: (state, x), jnp.ones(3), ()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("make_pairs", "returned 'tuple' .*step, parameters, state"),
        ("make_frozen", "returned parameters without a gradient"),
        ("make_broken", "its first step, .* raised TypeError"),
        ("make_stateless", "returned a state without arrays"),
        ("make_nothing", "cannot be imported"),
    ],
)
def test_factories_that_are_not_accepted(factory: str, message: str) -> None:
    with pytest.raises(InputError, match=f"cell: .*{message}"):
        build_jax_network(CellSpec.parse(f"jax:{__name__}:{factory}(neurons=3)"), batch=2, seed=0)
