"""Law: under every strategy, both runtimes return the gradients of ``jax.lax.scan`` within 1e-12 in fp64.

Cells are random: their states, operations and outputs are drawn, and written once for both libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
import torch

import ckptplan
import ckptplan.jax
import ckptplan.torch
from ckptplan.jax.tapes import TAPES
from ckptplan.strategies.registry import all_strategies
from tests.torch.support import plan_of

#: It needs both runtimes.
pytestmark = pytest.mark.slow

Numbers = npt.NDArray[Any]
STRATEGIES = sorted(all_strategies())
#: Functions that both libraries have under the same name.
FUNCTIONS = ("tanh", "sin", "sigmoid", "arctan")


@dataclass(frozen=True, kw_only=True)
class RandomCell:
    """A cell of two states: the first sees the input and both states, the second sees the first one."""

    functions: tuple[str, str]
    multiplies: bool
    decays: bool
    outputs_both: bool
    sizes: tuple[int, int]
    seed: int

    def arrays(self, steps: int) -> tuple[list[Numbers], tuple[Numbers, Numbers], Numbers]:
        """Parameters, the initial state and the inputs, of batch 2 with 3 channels."""
        random = np.random.default_rng(self.seed)
        one, two = self.sizes
        shapes = [(3, one), (one, one), (two, one), (one, two), (two,)]
        parameters = [random.standard_normal(shape) / np.sqrt(shape[0]) for shape in shapes]
        state = random.standard_normal((2, one)), random.standard_normal((2, two))
        return parameters, state, random.standard_normal((steps, 2, 3))

    def step(self, library: Any, parameters: Any, state: Any, x: Any) -> tuple[Any, Any]:
        """The next state and an output, with the functions of a library."""
        first, second = (_function(library, name) for name in self.functions)
        w_in, w_self, w_back, w_on, bias = parameters
        a, b = state
        a = (0.9 * a if self.decays else 0.0) + first(x @ w_in + a @ w_self + b @ w_back)
        b = second(a @ w_on + bias) * (b + 1.0) / 2.0 if self.multiplies else b / 2.0 + second(a @ w_on)
        return (a, b), ((a, b) if self.outputs_both else b)


def _function(library: Any, name: str) -> Callable[[Any], Any]:
    if name == "sigmoid" and library is jnp:
        return jax.nn.sigmoid
    found: Callable[[Any], Any] = getattr(library, name)
    return found


def draw_cell(random: np.random.Generator) -> RandomCell:
    """Draw a cell."""
    multiplies, decays, outputs_both = random.integers(2, size=3).astype(bool).tolist()
    first, second = random.choice(FUNCTIONS, 2).tolist()
    return RandomCell(
        functions=(first, second),
        multiplies=multiplies,
        decays=decays,
        outputs_both=outputs_both,
        sizes=(int(random.integers(2, 6)), int(random.integers(2, 5))),
        seed=int(random.integers(2**31)),
    )


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def of_jax(cell: RandomCell, steps: int, scan: Callable[..., Any]) -> list[Numbers]:
    """Gradients of parameters, initial states and inputs, of a loss of all outputs and the final state."""

    def loss(parameters: Any, state: Any, inputs: Any) -> Any:
        final, outputs = scan(lambda state, x: cell.step(jnp, parameters, state, x), state, inputs)
        weights = jnp.arange(1.0, steps + 1)[:, None, None]
        stacked = sum(jnp.sum(weights * jnp.square(one)) for one in jax.tree.leaves(outputs))
        return stacked + sum(jnp.sum(jnp.sin(one)) for one in final)

    found = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*cell.arrays(steps))
    return [np.asarray(one) for one in jax.tree.leaves(found)]


def of_torch(cell: RandomCell, steps: int, plan: ckptplan.Plan) -> list[Numbers]:
    """The same by the other runtime."""
    parameters, (a, b), inputs = cell.arrays(steps)
    tensors = [torch.tensor(one, requires_grad=True) for one in (*parameters, a, b, inputs)]
    *weights, first, second, xs = tensors
    (last, end), outputs = ckptplan.torch.scan(
        lambda state, x: cell.step(torch, weights, state, x), (first, second), xs, plan=plan, parameters=weights
    )
    places = torch.arange(1.0, steps + 1, dtype=torch.float64)[:, None, None]
    stacked = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    terms = [(places * one.square()).sum() for one in stacked] + [last.sin().sum(), end.sin().sum()]
    found = torch.autograd.grad(torch.stack(terms).sum(), tensors, allow_unused=True, materialize_grads=True)
    return [one.numpy() for one in found]


def assert_same(ours: list[Numbers], theirs: list[Numbers]) -> None:
    """Each gradient is within 1e-12 of its largest entry."""
    for one, other in zip(ours, theirs, strict=True):
        assert np.abs(one - other).max() <= 1e-12 * max(float(np.abs(other).max()), 1e-30)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_are_those_of_scan(strategy: str) -> None:
    """Each strategy has a cell, a length and a kind of tape of its own."""
    random = np.random.default_rng(STRATEGIES.index(strategy))
    cell, steps = draw_cell(random), int(random.integers(9, 25))
    tape: Any = str(random.choice(TAPES))
    plan = plan_of(steps, strategy, states=200 if strategy == "base" else 16)
    theirs = of_jax(cell, steps, jax.lax.scan)

    def scan(f: Any, state: Any, inputs: Any) -> Any:
        return ckptplan.jax.scan(f, state, inputs, plan=plan, tape=tape)

    assert_same(of_jax(cell, steps, scan), theirs)
    assert_same(of_torch(cell, steps, plan), theirs)
