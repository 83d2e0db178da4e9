"""Boxes of parameters side by side: what branch and bound cuts, joins and takes points from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers
from ckptplan.strategies.closed_form import Box
from ckptplan.strategies.protocol import Columns


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """Boxes side by side; a point is a box whose ends are equal."""

    low: Columns
    high: Columns

    @classmethod
    def points(cls, columns: Columns) -> Boxes:
        """Return points as boxes."""
        return cls(low=columns, high=columns)

    @classmethod
    def whole(cls, box: Box) -> Boxes:
        """Return a single box."""
        return cls(low=_column(box.low), high=_column(box.high))

    def take(self, chosen: Any) -> Boxes:
        """Return the boxes at an index, or where a mask is true."""
        return Boxes(
            low={name: column[chosen] for name, column in self.low.items()},
            high={name: column[chosen] for name, column in self.high.items()},
        )

    def count(self) -> int:
        """Return the number of boxes."""
        return len(next(iter(self.low.values()), ()))

    def volumes(self) -> npt.NDArray[np.float64]:
        """Return the number of points in each; floats, since they can pass 2**63."""
        sides: Any = np.ones(self.count())
        for name in self.low:
            sides = sides * (self.high[name] - self.low[name] + 1).astype(np.float64)
        result: npt.NDArray[np.float64] = sides
        return result

    def volume(self) -> float:
        """Return the number of points in all."""
        # A strategy without parameters has a single setting.
        return float(np.sum(self.volumes())) if self.low else 1.0


def _column(values: Mapping[str, int]) -> dict[str, Integers]:
    return {name: np.array([value], dtype=np.int64) for name, value in values.items()}


def list_points(boxes: Boxes) -> Boxes:
    """Return every point of the boxes."""
    columns: dict[str, Integers] = {}
    index = np.arange(len(next(iter(boxes.low.values())))) if boxes.low else np.zeros(1, dtype=np.int64)
    for name in boxes.low:
        # Repeat what there is once for each value of the next parameter, then count that one up.
        sides = boxes.high[name][index] - boxes.low[name][index] + 1
        columns = {known: np.repeat(column, sides) for known, column in columns.items()}
        starts = np.repeat(np.cumsum(sides) - sides, sides)
        index = np.repeat(index, sides)
        columns[name] = boxes.low[name][index] + np.arange(len(index)) - starts
    return Boxes.points(columns)


def list_corners(boxes: Boxes) -> Boxes:
    """Return the corners of the boxes: points that good settings are often among."""
    ends = [
        (low,) if np.array_equal(low, high) else (low, high)
        for low, high in zip(boxes.low.values(), boxes.high.values(), strict=True)
    ]
    found = list(product(*ends))
    return Boxes.points(
        {name: np.concatenate([corner[i] for corner in found]) for i, name in enumerate(boxes.low)}
    )


def cut_in_halves(boxes: Boxes, name: str) -> Boxes:
    """Return the left halves of all boxes cut across one side, then the right halves.

    A box that is a single value wide there gives itself and an empty half, which is never chosen.
    """
    low, high = boxes.low[name], boxes.high[name]
    # Costs go with T / chunk: a long side is cut at its geometric mean.
    geometric = np.sqrt(low.astype(np.float64) * high.astype(np.float64)).astype(np.int64)
    middle = np.where(high > 4 * low, geometric, low + (high - low) // 2)
    middle = np.clip(middle, low, np.maximum(low, high - 1))
    left = Boxes(low=boxes.low, high={**boxes.high, name: middle})
    right = Boxes(low={**boxes.low, name: np.minimum(middle + 1, high)}, high=boxes.high)
    return join_boxes([left, right])


def cut_into_singles(boxes: Boxes, name: str) -> Boxes:
    """Return boxes that are a single value wide across one side."""
    sides = boxes.high[name] - boxes.low[name] + 1
    index = np.repeat(np.arange(boxes.count()), sides)
    parts = boxes.take(index)
    values = parts.low[name] + np.arange(len(index)) - np.repeat(np.cumsum(sides) - sides, sides)
    return Boxes(low={**parts.low, name: values}, high={**parts.high, name: values})


def join_boxes(parts: list[Boxes]) -> Boxes:
    """Return all boxes of several lots, one lot behind the other."""
    names = parts[0].low
    return Boxes(
        low={name: np.concatenate([part.low[name] for part in parts]) for name in names},
        high={name: np.concatenate([part.high[name] for part in parts]) for name in names},
    )
