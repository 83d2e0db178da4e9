"""Loops that JAX has traced, and their forward and backward passes under a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import jax
from jax.extend import core

from ckptplan.jax.jaxprs import slice_jaxpr
from ckptplan.jax.leaves import Arrays, differentiable, fill_zeros, is_small, split
from ckptplan.jax.step import Step
from ckptplan.jax.sums import GradientSums
from ckptplan.jax.tapes import TracedGradient


@dataclass(frozen=True)
class Batch:
    """The batch of a gradient under ``jax.vmap``: number of examples, and which arguments are batched."""

    size: int = 1
    batched: tuple[bool, ...] = ()

    def spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that runs on the whole batch."""
        if self.size == 1:
            return function
        axes = tuple(0 if batched else None for batched in self.batched)
        return jax.vmap(function, in_axes=axes, axis_size=self.size)

    def enlarge(self, arguments: Sequence[jax.ShapeDtypeStruct]) -> list[jax.ShapeDtypeStruct]:
        """Return the arguments with a batch axis in front of the batched ones."""
        if self.size == 1:
            return list(arguments)
        pairs = zip(arguments, self.batched, strict=True)
        return [
            argument.update(shape=(self.size, *argument.shape)) if batched else argument
            for argument, batched in pairs
        ]


@dataclass(frozen=True, kw_only=True, eq=False)
class Loop(ABC):
    """A loop that JAX has traced: an operation with its parameters.

    Its arguments are constants of the condition, if there is one, and then the arguments of the body:
    constants, the state, and the inputs of all steps.
    """

    params: dict[str, Any]
    #: Whether ``jax.vmap`` batched its constants. JAX then moves an axis of all outputs, which copies them.
    copies_outputs: bool = False
    primitive: ClassVar[core.Primitive]
    #: The parameters with the body, and with the number of the constants of the body.
    names: ClassVar[tuple[str, str]]

    @property
    def first(self) -> int:
        """The index of the first argument of the body."""
        return int(self.params.get("cond_nconsts", 0))

    @property
    def body(self) -> core.ClosedJaxpr:
        """The body, with constants, the state and an input as arguments."""
        body: core.ClosedJaxpr = self.params[self.names[0]]
        return body

    @cached_property
    def step(self) -> Step:
        """The body as a step."""
        constants = self.params[self.names[1]]
        states = self.params.get("num_carry", len(self.body.in_avals) - constants)
        return Step(self.body, constants=constants, states=states)

    def run(self, *arguments: Any) -> Sequence[Any]:
        """Run the loop as JAX does."""
        results: Sequence[Any] = self.primitive.bind(*arguments, **self.params)
        return results

    def run_alone(self, *arguments: Any) -> Sequence[Any]:
        """Run the loop without derivatives."""
        return self.run(*arguments)

    def run_silently(self, *arguments: Any) -> Sequence[Any]:
        """Run the loop without the effects of steps, which the sweep has already had."""
        body = self.body
        if not body.effects:
            return self.run(*arguments)
        silent = slice_jaxpr(body.jaxpr, body.jaxpr.outvars, body.jaxpr.invars, effects=False)
        params = self.params | {self.names[0]: core.ClosedJaxpr(silent, body.consts)}
        return replace(self, params=params).run(*arguments)

    def rebind(self, params: dict[str, Any], batched: Sequence[bool]) -> Self:
        """Return the loop that ``jax.vmap`` makes of this one. ``batched`` says which arguments are batched."""
        constants = batched[self.first : self.first + self.params[self.names[1]]]
        return replace(self, params=params, copies_outputs=any(constants))

    @abstractmethod
    def plan(self, wanted: tuple[int, ...], *, batch: Batch, as_words: bool) -> Passes:
        """Plan the loop for gradients of the ``wanted`` arguments, and return its passes. Raises InputError.

        Arguments:
            wanted: the indices of the arguments of the body whose gradients are wanted.
            batch: the batch that ``jax.vmap`` makes of the loop.
            as_words: whether buffers may store floating-point numbers as integers, which have no derivative.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class Passes(ABC):
    """The forward and the backward pass of a loop under a plan.

    Arguments:
        loop: the loop.
        sums: how a step is recorded and reversed.
        as_words: whether buffers store small floating-point numbers as integers, which have no derivative.
        size: the number of examples that the plan is for; None if it suits any number.
    """

    loop: Loop
    sums: GradientSums
    as_words: bool
    size: int | None = None

    @property
    def refuses_batch(self) -> str:
        """Why ``jax.vmap`` cannot batch the passes, '' if it can."""
        return ""

    @property
    def traced(self) -> TracedGradient:
        """The step and its backward."""
        return self.sums.recording.traced

    @property
    def step(self) -> Step:
        """The step."""
        return self.traced.step

    @property
    def holds_words(self) -> bool:
        """Whether any buffer stores floating-point numbers as integers."""
        leaves = *self.step.state, *self.sums.recording.tape, *self.step.outputs
        return self.as_words and any(map(is_small, leaves))

    def split(self, arguments: Sequence[Any]) -> tuple[Arrays, Arrays, Arrays]:
        """Return constants, state and inputs among the arguments of the loop."""
        return self.step.split_given(arguments[self.loop.first :])

    def go_back(self, kept: Arrays, arguments: Arrays, incoming: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of the wanted arguments.

        ``incoming`` are the gradients of the differentiable results, None for a result without a gradient.
        """
        final, stacked = split(incoming, len(differentiable(self.step.state)))
        gradients = self.reverse(kept, arguments, fill_zeros(final, self.step.state), stacked)
        return self.traced.order(*gradients)

    @abstractmethod
    def sweep(self, *arguments: Any) -> Sequence[Any]:
        """Return the results, then the arrays that the sweep keeps for the backward pass."""

    @abstractmethod
    def reverse(
        self, kept: Arrays, arguments: Arrays, final: Arrays, stacked: Arrays
    ) -> tuple[Arrays, Arrays, Arrays]:
        """Return the gradients of the wanted constants, the differentiable state and the wanted inputs.

        Arguments:
            kept: the arrays from the sweep.
            arguments: the arguments of the loop.
            final: the gradients of the differentiable leaves of the final state.
            stacked: the gradients of the differentiable outputs, None for an output without a gradient.
        """
