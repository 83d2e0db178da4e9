"""The same as ``benchmarks.accuracy``, in JAX, with the kinds of tapes: python -m benchmarks.accuracy_jax."""

from __future__ import annotations

from functools import partial

from benchmarks.accuracy import document, document_all, run
from benchmarks.harness import DOCS, main

#: Networks, and the kinds of their tapes.
CELLS = (
    ("jax:gru(inputs={i}, neurons={n})", "residuals"),
    ("jax:lif(inputs={i}, neurons={n})", "residuals"),
    ("jax:lstm(inputs={i}, neurons={h})", "residuals"),
    ("jax:lstm(inputs={i}, neurons={h})", "products"),
)

if __name__ == "__main__":
    run_jax, page = partial(run, cells=CELLS), DOCS / "accuracy.md"
    main("accuracy_jax", run_jax, document, about=__doc__, page=page, shown=document_all)
