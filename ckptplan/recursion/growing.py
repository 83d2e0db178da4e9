"""Arithmetic of chunks that grow towards the start as reversal frees checkpoints (docs/optimality.md).

The j-th chunk from the end has c + floor(j p / q) steps. As p / q is at most M_s / M_a, the longer tape fits
in the memory of the j checkpoints that are free by then, and the peak is the same as for equal chunks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers

#: Largest denominator of the growth; a finer ratio would gain less than one step per chunk.
_MOST = 64


def growth_ratio(*, state: int, tape: int) -> tuple[int, int]:
    """Return p and q with p / q at most state / tape; q is at most 64, or p is 1."""
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


def sum_steps(count: Integers, *, chunk: Integers, p: Integers, q: Integers) -> Integers:
    """Return the steps of ``count`` chunks: count c + sum of floor(j p / q) over j < count."""
    # j = a q + i gives floor(j p / q) = a p + floor(i p / q).
    whole, rest = np.divmod(count, q)
    # Over a period of q terms, i p mod q takes each multiple of gcd(p, q) below q equally often.
    period = (p * (q - 1) - (q - np.gcd(p, q))) // 2
    periods = whole * period + p * q * (whole * (whole - 1) // 2)
    total: Integers = count * chunk + periods + whole * p * rest + _sum_tail(rest, p, q)
    return total


def _sum_tail(rest: Integers, p: Integers, q: Integers) -> Integers:
    """Return the sum of floor(i p / q) over i < rest, for rest < q; p and q are the same everywhere."""
    # One problem has one growth: tabulate all its sums. (If q > 64, p is 1 and the sums are 0.)
    terms = np.arange(_MOST) * p.max(initial=0) // q.max(initial=1)
    sums: Integers = np.concatenate([[0], np.cumsum(terms)])[np.minimum(rest, _MOST)]
    return sums


def count_chunks(steps: Integers, *, chunk: Integers, p: Integers, q: Integers) -> Integers:
    """Return the least number of chunks that cover ``steps``; arguments broadcast."""
    steps, chunk, p, q = np.broadcast_arrays(steps, chunk, p, q)
    # Rounding down shortens each chunk but the first by at most 1 - gcd(p, q) / q steps. So the number lies
    # between the number of unrounded chunks and that of chunks shortened by this much. Rounded floats may shift
    # either end by one.
    shorter = chunk - (1 - np.gcd(p, q) / q)
    most = -(-steps // chunk)
    low = np.maximum(1, _solve_smooth(steps, chunk, p / q).astype(np.int64) - 1)
    high = np.minimum(most, _solve_smooth(steps, shorter, p / q).astype(np.int64) + 2)
    low = np.minimum(low, high)
    while np.any(low < high):
        middle = (low + high) // 2
        enough = sum_steps(middle, chunk=chunk, p=p, q=q) >= steps
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    least: Integers = low
    return least


def _solve_smooth(
    steps: Integers, chunk: Integers | npt.NDArray[np.float64], slope: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the real n that solves n chunk + slope n (n - 1) / 2 = steps."""
    first = chunk - slope / 2
    # This form of the root avoids cancellation where chunks hardly grow.
    root = np.sqrt(first * first + 2 * slope * steps)
    n: npt.NDArray[np.float64] = np.where(
        first > 0, 2 * steps / np.maximum(first + root, 1e-300), (root - first) / slope
    )
    return n


def list_chunk_ends(start: int, stop: int, *, chunk: int, p: int, q: int) -> list[int]:
    """Return the ends of all chunks of a range except the last, ascending."""
    ends: list[int] = []
    end, number = stop - chunk, 1
    while end > start:
        ends.append(end)
        end -= chunk + number * p // q
        number += 1
    return ends[::-1]
