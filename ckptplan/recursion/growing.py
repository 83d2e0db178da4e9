"""Chunks that grow towards the start, since reversing frees checkpoints as it goes (docs/optimality.md).

The j-th chunk from the end has c + floor(j p / q) steps. With p / q at most M_s / M_a the j checkpoints
that are free by then have room for the longer tape, so that the peak stays what it is for equal chunks.
"""

from __future__ import annotations

import numpy as np

from ckptplan.cost.arrays import Integers

#: Denominators of the growth; a finer ratio would gain less than a step a chunk.
_MOST = 64


def growth(*, state: int, tape: int) -> tuple[int, int]:
    """Return p and q with p / q at most state / tape and q at most 64; p at least 1."""
    if state >= tape:
        return state // tape, 1
    best = (1, -(-tape // state))
    if best[1] > _MOST:
        return best
    for q in range(1, _MOST + 1):
        p = q * state // tape
        if p and p * best[1] > best[0] * q:
            best = (p, q)
    return best


def reached(count: Integers, *, chunk: Integers, p: Integers, q: Integers) -> Integers:
    """Return the steps of ``count`` chunks: count c + sum of floor(j p / q) over j < count."""
    # j = a q + i gives floor(j p / q) = a p + floor(i p / q).
    whole, rest = np.divmod(count, q)
    # Over a period of q terms, i p mod q takes each multiple of gcd(p, q) below q equally often.
    period = (p * (q - 1) - (q - np.gcd(p, q))) // 2
    periods = whole * period + p * q * (whole * (whole - 1) // 2)
    total: Integers = count * chunk + periods + whole * p * rest + _tail(rest, p, q)
    return total


def _tail(rest: Integers, p: Integers, q: Integers) -> Integers:
    steps = np.arange(_MOST)
    rest, p, q = np.broadcast_arrays(rest, p, q)
    terms = steps * p[..., None] // q[..., None]
    total: Integers = np.where(steps < rest[..., None], terms, 0).sum(axis=-1)
    return total


def chunks(steps: Integers, *, chunk: Integers, p: Integers, q: Integers) -> Integers:
    """Return the least number of chunks that reach over ``steps``."""
    steps, chunk, p, q = np.broadcast_arrays(steps, chunk, p, q)
    # The growth alone reaches as far, which also keeps its square countable.
    growing = np.sqrt(2.0 * steps * q / p).astype(np.int64) + q + 2
    low, high = np.ones_like(steps), np.minimum(-(-steps // chunk), growing)
    while np.any(low < high):
        middle = (low + high) // 2
        enough = reached(middle, chunk=chunk, p=p, q=q) >= steps
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return low


def ends(start: int, stop: int, *, chunk: int, p: int, q: int) -> list[int]:
    """Return where the chunks of a range end, but for the last one, ascending."""
    found: list[int] = []
    end, number = stop - chunk, 1
    while end > start:
        found.append(end)
        end -= chunk + number * p // q
        number += 1
    return found[::-1]
