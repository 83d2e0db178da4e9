"""The floor of a standard plan: its arithmetic in C++ on PyTorch's matrix products, without autograd.

Each chunk runs once without a tape, once with it, and backwards. All memory is allocated beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.cpp_extension import load

from benchmarks.runtime_variants import BATCH, NEURONS, Job

_FLAGS = ["-O3", "-march=native", "-ffast-math", "-fopenmp-simd"]


def build_floor() -> Any:
    """Return the C++ functions, or a text that says why there are none."""
    try:
        return load(
            "ckptplan_floor",
            [str(Path(__file__).with_name("floor.cpp"))],
            extra_cflags=_FLAGS,
            extra_ldflags=["-lmvec", "-lm"],
        )
    except (RuntimeError, OSError) as error:
        return f"no floor: {str(error).splitlines()[0]}"


@dataclass(frozen=True)
class _Arithmetic:
    """Runs a chunk from states in the first rows of some tensors, forwards or backwards."""

    #: Of all steps of a chunk and the step before: the rows of the state.
    states: tuple[torch.Tensor, ...]
    forward: Callable[[torch.Tensor], float]
    #: Gradients of the state, which it changes, as it adds to those of weights.
    adjoints: tuple[torch.Tensor, ...]
    backward: Callable[[torch.Tensor], None]
    gradients: list[torch.Tensor]


def _make_gru(library: Any, job: Job, chunk: int) -> _Arithmetic:
    weights = [one.detach() for one in job.parameters]
    states, tape = torch.zeros(chunk + 1, BATCH, NEURONS), torch.empty(chunk, BATCH, 4 * NEURONS)
    inner, of_inputs, of_state = (
        torch.empty(BATCH, 3 * NEURONS),
        torch.empty(chunk, BATCH, 3 * NEURONS),
        torch.empty(chunk, BATCH, 3 * NEURONS),
    )
    adjoint, gradients = torch.zeros(BATCH, NEURONS), [torch.zeros_like(one) for one in weights]
    scale = 1 / (BATCH * NEURONS * job.steps)
    return _Arithmetic(
        (states,),
        lambda x: library.gru_forward(x, states, weights, of_inputs, inner, tape, scale),
        (adjoint,),
        lambda x: library.gru_backward(
            x, states, weights, tape, adjoint, of_inputs, of_state, gradients, scale
        ),
        gradients,
    )


def _make_lif(library: Any, job: Job, chunk: int) -> _Arithmetic:
    model = job.cell.model
    order = (model.weight, model.recurrent_weight, model.bias)
    weights = [one.detach() for one in order]
    membranes, spikes = (torch.zeros(chunk + 1, BATCH, NEURONS) for _ in range(2))
    inner, of_inputs = torch.empty(BATCH, NEURONS), torch.empty(chunk, BATCH, NEURONS)
    of_membranes, of_spikes = (torch.zeros(BATCH, NEURONS) for _ in range(2))
    gradients = [torch.zeros_like(one) for one in weights]
    numbers = float(model.decay), float(model.threshold)
    slope, scale = float(model.slope), 1 / (BATCH * NEURONS * job.steps)
    places = {id(one): gradient for one, gradient in zip(order, gradients, strict=True)}
    return _Arithmetic(
        (membranes, spikes),
        lambda x: library.lif_forward(x, membranes, spikes, weights, of_inputs, inner, *numbers, scale),
        (of_membranes, of_spikes),
        lambda x: library.lif_backward(
            x,
            membranes,
            spikes,
            weights,
            of_membranes,
            of_spikes,
            of_inputs,
            gradients,
            *numbers,
            slope,
            scale,
        ),
        [places[id(one)] for one in job.parameters],
    )


class Floor:
    """Runs a job as a standard plan does."""

    def __init__(self, library: Any, kind: str, job: Job, *, chunk: int) -> None:
        self.inputs = job.inputs.split(chunk)
        self.chunk = (_make_gru if kind == "gru" else _make_lif)(library, job, chunk)

    def __call__(self) -> tuple[float, list[torch.Tensor]]:
        """Return the loss and the gradients of the parameters, which the next call overwrites."""
        chunk = self.chunk
        loss, checkpoints = 0.0, []
        for one in (*chunk.states, *chunk.adjoints, *chunk.gradients):
            one.zero_()
        for x in self.inputs:
            checkpoints.append([rows[0].clone() for rows in chunk.states])
            loss += chunk.forward(x)
            for rows in chunk.states:
                rows[0].copy_(rows[-1])
        for x in self.inputs[::-1]:
            for rows, kept in zip(chunk.states, checkpoints.pop(), strict=True):
                rows[0].copy_(kept)
            chunk.forward(x)
            chunk.backward(x)
        return loss, chunk.gradients
