"""Predicted against measured, on plans in JAX that calibration did not see: python -m benchmarks.accuracy_jax.

As benchmarks/accuracy.py does it for PyTorch: for each cell a fresh calibration, then the best plan of every
strategy that is searched by default and fits within several budgets and for several lengths; none is left out,
those with remote states included (``--strategies all`` adds the others). All programs of a budget run in turn,
for several rounds, on one thread; times are medians. A reference, plain backpropagation of 64 steps, runs
throughout the calibration, and before and after each program, and corrects for the pace of the machine.

Both processor time and wall time are taken. docs/accuracy.md says what they are worth here.
"""

from __future__ import annotations

import argparse

from ckptplan.calibration.host import set_threads


def main() -> None:
    """Measure, print all tables and write the section of docs/accuracy.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", help="'all' for those that are not searched by default, too")
    parser.add_argument(
        "--small", action="store_true", help="few short runs of one cell, which are only printed"
    )
    parser.add_argument("--show", action="store_true", help="print the tables of the last run, measure nothing")
    wanted = parser.parse_args()
    # Threads are fixed when JAX is imported.
    set_threads(1)
    from benchmarks.accuracy_jax_cells import Setting, measure_all
    from benchmarks.accuracy_report import points_table, section_jax, summarise_jax
    from benchmarks.harness import DOCS, put_section, read, write

    if wanted.show:
        print(points_table(read("accuracy_jax")["points"]))
        return
    few = Setting.small(strategies=wanted.strategies)
    results = measure_all(few if wanted.small else Setting(strategies=wanted.strategies))
    results["summary"] = summarise_jax(results)
    print(section_jax(results))
    if not wanted.small:
        write("accuracy_jax", results)
        put_section(DOCS / "accuracy.md", "accuracy_jax", section_jax(results))


if __name__ == "__main__":
    main()
