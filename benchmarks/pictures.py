"""Draw all pictures of the documents: python -m benchmarks.pictures.

Nothing is measured: the timeline of offloading is that of the last run of ``benchmarks.offload``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

import ckptplan
from benchmarks.harness import DOCS, read
from ckptplan.paper.figures import FIGURES
from ckptplan.paper.pictures import draw_figure
from ckptplan.paper.setting import load_paper_setting
from ckptplan.report.plots import make_picture, style
from ckptplan.report.plots.figures import make_figure, save_figure, set_height, take_axes

FOLDER = DOCS / "pictures"
#: The rows of a timeline: label and colour.
_ROWS = {
    "whole": ("whole run", style.BLUE),
    "wait": ("compute waits", style.GREY),
    "write": ("write", style.PURPLE),
    "read": ("read", style.ORANGE),
}


def draw_offload(timeline: Mapping[str, Any]) -> Figure:
    """Return the picture of a measured timeline beside the simulated one."""

    def draw(figure: Figure) -> None:
        set_height(figure, 3.0)
        panels = figure.subplots(2, 1, sharex=True)
        for name, ax in zip(("measured", "simulated"), panels, strict=True):
            _draw_timeline(timeline[name], ax)
            ax.set_title(f"{name}: {timeline[name]['seconds']:.2f} s")
        panels[-1].set_xlim(0, 1.02 * max(timeline[name]["seconds"] for name in ("measured", "simulated")))
        panels[-1].set_xlabel("time (s)")

    return make_figure(draw)


def _draw_timeline(found: Mapping[str, Any], ax: Axes) -> None:
    """Draw a row of bars for the whole run, for waiting, and for each direction of transfers."""
    bars = {**found, "whole": [(0, found["seconds"])]}
    for row, (name, (_, colour)) in enumerate(_ROWS.items()):
        spans = [(start, end - start) for start, end in bars.get(name, ())]
        # Waits are short, and a white edge would hide them.
        edge = colour if name == "wait" else "white"
        ax.broken_barh(spans, (row - 0.35, 0.7), facecolors=colour, edgecolor=edge, linewidth=0.3)
    ax.set_yticks(range(len(_ROWS)), [label for label, _ in _ROWS.values()])
    ax.set_ylim(len(_ROWS) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")


#: The choices of caches that are compared, with their colours, and the longest sequence.
_CHOICES = {
    "all": ("all: every cache stays (up to T = 4,396)", style.GREY),
    "none": ("none: every step runs again in full", style.ORANGE),
    "last": ("last: those of the last steps", style.BLUE),
    "segment": ("segment: these, and each segment's", style.PURPLE),
}
_LONGEST = 1_000_000


def draw_caches() -> Figure:
    """Return the picture of time over T, a line for the closed forms with each choice of caches."""
    lengths = [int(steps) for steps in np.geomspace(500, _LONGEST, 40)]

    def find_overhead(steps: int, cache: str) -> float | None:
        try:
            plan = ckptplan.optimize("paper-snn", "ipu-mk2", steps=steps, strategies="closed", cache=cache)
        except ckptplan.Infeasible:
            return None
        return 100 * plan.predicted.overhead

    def draw(figure: Figure) -> None:
        ax = take_axes(figure, height=3.2)
        for cache, (label, colour) in _CHOICES.items():
            points = [(steps, find_overhead(steps, cache)) for steps in lengths]
            found = [(steps, share) for steps, share in points if share is not None]
            ax.plot(*zip(*found, strict=True), color=colour, label=label, linewidth=1.6)
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        ax.set_ylim(0, 100)
        ax.set_xlabel("time steps T")
        ax.set_ylabel("time over plain backpropagation (%)")
        ax.legend(loc="upper left")

    return make_figure(draw)


def list_results() -> dict[str, Callable[[], Any]]:
    """Return the results that the documents show, by the names of their pictures."""
    workload, profile = ckptplan.load_workload("paper-snn"), ckptplan.load_profile("ipu-mk2")
    grid = ["T=256:16384:x2", "batch=30,60,90,120,150"]
    short = workload.replace(steps=64)
    return {
        "front": lambda: ckptplan.pareto(workload, profile),
        "double": lambda: ckptplan.optimize(short, profile, strategies=["double"], local_bytes="230kB"),
        "sensitivity": lambda: ckptplan.sensitivity(workload, profile),
        "sweep": lambda: ckptplan.sweep(grid, workloads=workload, profiles=profile),
    }


def main() -> None:
    """Draw all pictures of the documents."""
    figures = {name: make_picture(result()) for name, result in list_results().items()}
    setting = load_paper_setting()
    figures |= {f"paper-figure-{number}": draw_figure(make(setting)) for number, make in FIGURES.items()}
    figures["cache"] = draw_caches()
    figures["offload"] = draw_offload(read("offload")["timeline"])
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        save_figure(figure, str(FOLDER / f"{name}.png"))


if __name__ == "__main__":
    main()
