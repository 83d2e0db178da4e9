"""The same as ``benchmarks.accuracy``, in JAX, with the kinds of tapes: python -m benchmarks.accuracy_jax."""

from __future__ import annotations

from functools import partial

from benchmarks.accuracy import PAGES, run
from benchmarks.harness import main

#: Networks, and the kinds of their tapes.
CELLS = (
    ("jax:gru(inputs={i}, neurons={n})", "residuals"),
    ("jax:lif(inputs={i}, neurons={n})", "residuals"),
    ("jax:lstm(inputs={i}, neurons={h})", "residuals"),
    ("jax:lstm(inputs={i}, neurons={h})", "products"),
)

if __name__ == "__main__":
    main("accuracy_jax", partial(run, cells=CELLS), PAGES, about=__doc__)
