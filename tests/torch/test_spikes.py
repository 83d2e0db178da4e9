"""Spikes kept sparse say what the dense ones say, in the smaller of two forms."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.torch.spikes import Spikes


@st.composite
def dense(draw: st.DrawFn) -> torch.Tensor:
    """Truth values of any shape, from silence to all firing."""
    shape = (draw(st.integers(1, 6)), *draw(st.lists(st.integers(1, 4), max_size=2)), draw(st.integers(1, 300)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    return torch.rand(shape, generator=generator) < draw(st.floats(0, 1))


@given(spikes=dense(), data=st.data())
def test_nothing_is_lost(spikes: torch.Tensor, data: st.DataObject) -> None:
    """Whole, and cut anywhere, and cut again."""
    packed = Spikes.pack(spikes)
    assert packed.steps == len(spikes)
    assert torch.equal(packed.dense(torch.bool), spikes)
    start = data.draw(st.integers(0, len(spikes) - 1))
    stop = data.draw(st.integers(start + 1, len(spikes)))
    part = packed.part(start, stop)
    assert torch.equal(part.dense(torch.float32), spikes[start:stop].float())
    assert torch.equal(part.part(0, 1).dense(torch.bool), spikes[start : start + 1])


@given(spikes=dense(), data=st.data())
def test_parts_join_again(spikes: torch.Tensor, data: st.DataObject) -> None:
    """Whichever form each has."""
    middle = data.draw(st.integers(1, len(spikes)))
    rest = spikes[middle:] if middle < len(spikes) else ~spikes
    joined = Spikes.pack(spikes[:middle]).join(Spikes.pack(rest))
    assert torch.equal(joined.dense(torch.bool), torch.cat([spikes[:middle], rest]))
    assert joined.steps == middle + len(rest)


@given(spikes=dense(), columns=st.integers(1, 5))
def test_the_sparse_product_is_the_dense_one(spikes: torch.Tensor, columns: int) -> None:
    table = torch.randn(spikes.shape[-1], columns, dtype=torch.float64)
    found = Spikes.pack(spikes).product(table)
    assert torch.allclose(found, spikes.double() @ table, rtol=1e-12, atol=1e-12)


@given(spikes=dense())
def test_the_smaller_form_is_kept(spikes: torch.Tensor) -> None:
    """A byte for each index and each count of up to 256 neurons, or a bit for each neuron."""
    packed = Spikes.pack(spikes)
    neurons = spikes.shape[-1]
    rows = spikes.numel() // neurons
    index, count = (1 if neurons <= 256 else 2), (1 if neurons < 256 else 2)
    assert packed.bytes == min(int(spikes.sum()) * index + rows * count, rows * -(-neurons // 8))


@pytest.mark.parametrize("neurons", [255, 256, 257, 2**15, 2**15 + 1])
@pytest.mark.parametrize("firing", [1, -1])
def test_indices_fit_their_type(neurons: int, firing: int) -> None:
    """The last neuron, and all of them, at the ends of what a type counts."""
    spikes = torch.zeros(1, 1, neurons, dtype=torch.bool)
    spikes[..., firing if firing < 0 else slice(None)] = True
    for one in (spikes, ~spikes):
        assert torch.equal(Spikes.pack(one).dense(torch.bool), one)
