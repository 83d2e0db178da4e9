"""Words beside what they name: each label gets a place of its own, clear of others and of the curves if it can.

Places are found in dots, after the layout of the figure is settled, and the layout stays fixed from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ckptplan.report.style import BLACK, GREY, ink_of, measure_text
from ckptplan.wording import escape_controls

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

Dots = npt.NDArray[np.float64]
#: (x0, y0, x1, y1) of boxes, one a row.
_NO_BOXES: Dots = np.empty((0, 4))
#: Distances of a label from its curve that are tried, in points, and the directions.
_DISTANCES = (3.0, 9.0, 16.0, 26.0, 40.0, 60.0, 85.0, 120.0, 170.0)
_DIRECTIONS = 16
#: Anchors along a curve.
_ANCHORS = 36
#: Beyond this many points, a line leads from the label to its curve.
_NEAR = 8.0
#: Places of a label that are tried, the best first.
_TRIED = 300
#: Side of the squares in which curves are counted, in points.
_CELL = 2.0


@dataclass(frozen=True, kw_only=True)
class Label:
    """Some words, and the points (x, y) of the data beside one of which they belong."""

    text: str
    points: Any
    colour: str = BLACK
    weight: str = "normal"
    #: Whether it rather stands upon its points, as the name of an area does.
    centred: bool = False


@dataclass
class _Field:
    """What is taken: boxes that no label may touch, and squares that curves cross."""

    frame: Bbox
    cell: float
    boxes: Dots = field(default_factory=lambda: _NO_BOXES)
    counts: Any = None

    def __post_init__(self) -> None:
        shape = int(self.frame.width / self.cell) + 2, int(self.frame.height / self.cell) + 2
        self.counts = np.zeros(shape)

    def cross(self, path: Dots) -> None:
        """Count the squares that a curve crosses, each once."""
        places = ((path - (self.frame.x0, self.frame.y0)) / self.cell).astype(int)
        inside = np.all((places >= 0) & (places < self.counts.shape), axis=1)
        crossed = np.unique(places[inside], axis=0)
        self.counts[crossed[:, 0], crossed[:, 1]] += 1

    def take(self, boxes: Dots) -> None:
        self.boxes = np.vstack([self.boxes, boxes])

    def crossed(self, boxes: Dots) -> Dots:
        """Return how many crossed squares each box covers."""
        sums = np.pad(self.counts.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
        corner = (self.frame.x0, self.frame.y0) * 2
        low = ((boxes - corner) / self.cell).astype(int)
        x0, x1 = (np.clip(low[:, i] + add, 0, self.counts.shape[0]) for i, add in ((0, 0), (2, 1)))
        y0, y1 = (np.clip(low[:, i] + add, 0, self.counts.shape[1]) for i, add in ((1, 0), (3, 1)))
        return np.asarray(sums[x1, y1] - sums[x0, y1] - sums[x1, y0] + sums[x0, y0], dtype=float)

    def lead(self, box: Dots, anchor: Dots, dot: float) -> Dots:
        """Return small boxes along the line from a box to its anchor; a mark at the anchor ends it."""
        start = np.clip(anchor, box[:2], box[2:])
        share = np.linspace(0, 1, max(2, int(np.hypot(*(anchor - start)) / (2 * dot))))[:-1, None]
        along = start + share * (anchor - start)
        boxes = _padded(np.hstack([along, along]), dot / 2)
        around = self.boxes[((self.boxes[:, :2] <= anchor) & (anchor <= self.boxes[:, 2:])).all(axis=1)]
        for mark in around:
            inside = ((boxes[:, :2] < mark[2:]) & (boxes[:, 2:] > mark[:2])).all(axis=1)
            boxes = boxes[~inside]
        return boxes

    def free(self, boxes: Dots) -> npt.NDArray[np.bool_]:
        """Return which boxes are within the frame and touch no box that is taken."""
        frame = self.frame
        inside = (boxes[:, 0] >= frame.x0) & (boxes[:, 2] <= frame.x1)
        inside &= (boxes[:, 1] >= frame.y0) & (boxes[:, 3] <= frame.y1)
        return np.asarray(inside & self.apart(boxes))

    def apart(self, boxes: Dots) -> npt.NDArray[np.bool_]:
        """Return which boxes touch none that is taken."""
        mine, taken = boxes[:, None], self.boxes[None]
        apart = (mine[..., 0] >= taken[..., 2]) | (mine[..., 2] <= taken[..., 0])
        apart |= (mine[..., 1] >= taken[..., 3]) | (mine[..., 3] <= taken[..., 1])
        return np.asarray(apart.all(axis=1))


def place_labels(
    axes: Axes,
    labels: Sequence[Label],
    *,
    curves: Sequence[npt.ArrayLike] = (),
    marks: Sequence[tuple[float, float, float]] = (),
) -> list[Label]:
    """Write each label beside its points; return those for which there was no room.

    ``curves`` are points of the data that labels rather not cover, besides the points of the labels
    themselves. ``marks`` are circles (x, y, diameter in points) that no label touches. Text that is there
    already stays clear. The layout of the figure must be settled (``settle``).
    """
    figure: Any = axes.get_figure(root=True)
    dot = figure.dpi / 72
    renderer = renderer_of(figure)
    frame = axes.get_window_extent(renderer).padded(-2 * dot)
    taken = _Field(frame, _CELL * dot)
    taken.take(np.array([box.extents for box in _texts(axes, renderer)]).reshape(-1, 4))
    for x, y, wide in marks:
        [[left, below]] = _in_dots(axes, (x, y))
        half = wide * dot / 2
        taken.take(np.array([[left - half, below - half, left + half, below + half]]))
    paths = [_dense(_in_dots(axes, label.points), frame, taken.cell) for label in labels]
    for path in (*paths, *(_dense(_in_dots(axes, curve), frame, taken.cell) for curve in curves)):
        taken.cross(path)
    lacking = []
    # The label with the fewest places of its own goes first.
    for number in sorted(range(len(labels)), key=lambda number: len(paths[number])):
        others = [path for i, path in enumerate(paths) if i != number]
        if not len(paths[number]) or not _place(
            axes, labels[number], paths[number], others=others, taken=taken, dot=dot
        ):
            lacking.append(labels[number])
    return lacking


def renderer_of(figure: Figure) -> Any:
    """Return what measures the text of a figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = figure.canvas if isinstance(figure.canvas, FigureCanvasAgg) else FigureCanvasAgg(figure)
    return canvas.get_renderer()  # type: ignore[no-untyped-call]


def settle(figure: Figure) -> None:
    """Lay the figure out, and keep this layout."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def _texts(axes: Axes, renderer: Any) -> list[Bbox]:
    return [text.get_window_extent(renderer) for text in axes.texts if text.get_text() and text.get_visible()]


def _in_dots(axes: Axes, points: npt.ArrayLike) -> Dots:
    return np.asarray(axes.transData.transform(np.asarray(points, dtype=float).reshape(-1, 2)))


def _dense(path: Dots, frame: Bbox, cell: float) -> Dots:
    """Return points along a path within the frame, no farther apart than a square."""
    path = path[np.isfinite(path).all(axis=1)]
    if len(path) > 1:
        reach = 2 * (frame.width + frame.height)
        path = np.clip(path, (frame.x0 - reach, frame.y0 - reach), (frame.x1 + reach, frame.y1 + reach))
        parts = np.abs(np.diff(path, axis=0)).max(axis=1)
        count = np.maximum(1, np.ceil(parts / cell)).astype(int)
        start = np.repeat(np.arange(len(parts)), count)
        share = (np.arange(len(start)) - np.repeat(np.cumsum(count) - count, count)) / count[start]
        dense = path[start] + share[:, None] * (path[start + 1] - path[start])
        path = np.vstack([dense, path[-1:]])
    inside = (path >= (frame.x0, frame.y0)) & (path <= (frame.x1, frame.y1))
    return np.asarray(path[inside.all(axis=1)])


def _place(axes: Axes, label: Label, path: Dots, *, others: list[Dots], taken: _Field, dot: float) -> bool:
    """Write a label at its best place. Returns False if there is none."""
    text = axes.text(
        0, 0, escape_controls(label.text), transform=None, ha="left", va="bottom", zorder=7, parse_math=False,
        color=ink_of(label.colour), fontweight=label.weight, linespacing=1.1,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
    )  # fmt: skip
    text.set_in_layout(False)
    size = text.get_window_extent().size
    anchors = path[np.unique(np.linspace(0, len(path) - 1, _ANCHORS).astype(int))]
    boxes, whose, far = _candidates(anchors, size, dot, centred=label.centred)
    free = taken.free(_padded(boxes, 1.5 * dot))
    if not free.any():
        text.remove()
        return False
    boxes, whose, far = boxes[free], whose[free], far[free]
    cost = far / dot + 1.3 * taken.crossed(boxes) - _lonely(anchors, others, dot)[whose]
    for best in np.argsort(cost, kind="stable")[:_TRIED].tolist():
        box, anchor = boxes[best], anchors[whose[best]]
        line = taken.lead(box, anchor, dot) if far[best] > _NEAR * dot else _NO_BOXES
        if len(line) and not taken.apart(line).all():
            continue
        _pin(axes, text, box[:2])
        taken.take(np.vstack([_padded(box[None], 1.5 * dot), line]))
        if len(line):
            _draw_leader(axes, (line[[0, -1], :2] + line[[0, -1], 2:]) / 2)
        return True
    text.remove()
    return False


def _shares(axes: Axes, dots: Dots) -> Dots:
    """Return places as shares of the figure, which hold at any resolution."""
    return np.asarray(dots / (axes.figure.bbox.width, axes.figure.bbox.height))


def _pin(axes: Axes, text: Any, corner: Dots) -> None:
    text.set_transform(axes.figure.transFigure)
    text.set_position(tuple(_shares(axes, corner)))


def _candidates(
    anchors: Dots, size: Any, dot: float, *, centred: bool
) -> tuple[Dots, npt.NDArray[np.int64], Dots]:
    """Return the boxes to try, the number of the anchor of each, and the distance between the two."""
    angles = np.linspace(0, 2 * np.pi, _DIRECTIONS, endpoint=False)
    ways = np.column_stack([np.cos(angles), np.sin(angles)])
    # The box's nearest side is at the distance: its centre lies on an ellipse around the anchor.
    offsets = np.vstack([ways * (np.asarray(size) / 2 + distance * dot) for distance in _DISTANCES])
    far = np.repeat(np.asarray(_DISTANCES) * dot, _DIRECTIONS)
    if centred:
        offsets, far = np.vstack([np.zeros(2), offsets]), np.concatenate([[0.0], far])
    centres = (anchors[:, None] + offsets[None]).reshape(-1, 2)
    boxes = np.hstack([centres - np.asarray(size) / 2, centres + np.asarray(size) / 2])
    return boxes, np.repeat(np.arange(len(anchors)), len(offsets)), np.tile(far, len(anchors))


def _padded(boxes: Dots, by: float) -> Dots:
    return np.asarray(boxes + np.array([-by, -by, by, by]))


def _lonely(anchors: Dots, others: list[Dots], dot: float) -> Dots:
    """Return how far each anchor is from all other curves, in points, up to a limit."""
    nearest = np.full(len(anchors), 12.0)
    for path in others:
        if len(path):
            gaps = np.hypot(*(anchors[:, None] - path[None]).transpose(2, 0, 1)).min(axis=1) / dot
            nearest = np.minimum(nearest, gaps)
    return 1.5 * nearest


def _draw_leader(axes: Axes, ends: Dots) -> None:
    figure: Any = axes.get_figure(root=True)
    [line] = axes.plot(
        *_shares(axes, ends).T, transform=figure.transFigure, color=GREY, linewidth=0.6, zorder=6, marker="",
        label="_leader", scalex=False, scaley=False, solid_capstyle="butt",
    )  # fmt: skip
    line.set_in_layout(False)


def wrap(figure: Figure, text: str, *, width: float, points: float, most: int = 3) -> str:
    """Return a text in lines no wider than ``width`` dots, at most ``most`` of them; what is beyond is cut.

    Lines break between words, and within a word that is wider than a line.
    """
    from matplotlib.text import Text

    def fits(line: str) -> bool:
        probe = Text(0, 0, line, fontsize=points, parse_math=False, figure=figure)
        return bool(probe.get_window_extent(renderer).width <= width)

    renderer = renderer_of(figure)
    lines: list[str] = []
    for paragraph in escape_controls(text).split("\n"):
        lines.append("")
        for word in paragraph.split(" "):
            longer = f"{lines[-1]} {word}" if lines[-1] else word
            if fits(longer):
                lines[-1] = longer
                continue
            if lines[-1]:
                lines.append("")
            lines[-1:] = _break(word, fits)
    if len(lines) > most:
        lines = lines[:most]
        while lines[-1] and not fits(f"{lines[-1]}…"):
            lines[-1] = lines[-1][:-1]
        lines[-1] += "…"
    return "\n".join(lines)


def _break(word: str, fits: Any) -> list[str]:
    parts = []
    while not fits(word) and len(word) > 1:
        low, high = 1, len(word)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(word[:middle]) else (low, middle - 1)
        parts.append(word[:low])
        word = word[low:]
    return [*parts, word]


def set_title(figure: Figure, *lines: str) -> int:
    """Write lines over a figure, each wrapped to its width; the layout leaves room for them.

    Returns the number of lines after wrapping.
    """
    edge = 4 * figure.dpi / 72
    points = measure_text()
    text = "\n".join(wrap(figure, line, width=figure.bbox.width - 2 * edge, points=points) for line in lines)
    figure.suptitle(text, x=edge / figure.bbox.width, ha="left", fontsize=points, parse_math=False)
    return text.count("\n") + 1


def set_legend(figure: Figure, handles: Sequence[Any], *, handlelength: float = 1.4) -> None:
    """Put a legend below a figure, in as many columns as its width has room for."""
    if not handles:
        return
    for columns in range(min(5, len(handles)), 0, -1):
        legend = figure.legend(
            handles=list(handles), loc="outside lower left", ncols=columns, handlelength=handlelength,
            columnspacing=1.2, borderaxespad=0.2,
        )  # fmt: skip
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()
