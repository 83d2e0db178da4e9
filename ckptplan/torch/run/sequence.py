"""A sequence as one operation of autograd, so that each parameter gets one whole gradient for each call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from ckptplan.torch.run.executor import Executor
from ckptplan.torch.run.gradients import hand_over_hooks
from ckptplan.torch.state.nests import is_differentiable


def execute(run: Executor) -> tuple[list[Tensor], Any]:
    """Run the first sweep of a call; return the loss or the outputs, and the final state.

    Places hold the same values afterwards as after a plain loop. Gradients flow from these values through the
    sequence.
    """
    inherited = [leaf for _, leaf in run.inherited]
    arguments = (*inherited, *run.call.inputs.leaves, *run.parameters)
    outputs: tuple[Tensor, ...] = PlannedSequence.apply(run, *arguments)  # type: ignore[no-untyped-call]
    final, results = run.final, run.list_results()
    assert final is not None  # noqa: S101 - there was a sweep
    count = len(outputs) - len(results)
    leaves = list(final.leaves)
    for (number, _), tensor in zip(results, outputs[count:], strict=True):
        leaves[number] = tensor
    run.state.write(final, leaves)
    # The results refer to this run, so it must not refer to them.
    passed, run.state.passed.value, run.final = run.state.passed.value, None, None
    return list(outputs[:count]), passed


class PlannedSequence(torch.autograd.Function):
    """A sequence whose forward pass is the first sweep, and whose backward pass is the rest of the schedule.

    Its arguments are the run, tensors of the first state that gradients may reach, inputs, and parameters with
    the originals of constants. It returns the loss or the outputs, and the tensors of the final state.
    """

    @staticmethod
    def forward(ctx: Any, run: Executor, *_: Tensor) -> Any:
        """Execute the first sweep."""
        ctx.set_materialize_grads(False)
        with run.explain_exhaustion():
            run.sweep()
        ctx.run = run
        outputs, final = run.take_results(), run.list_results()
        assert run.final is not None  # noqa: S101 - there was a sweep
        ctx.output_count, ctx.final_count = len(outputs), len(run.final.leaves)
        ctx.numbers = [number for number, _ in final]
        results = (*outputs, *(leaf.detach().clone() for _, leaf in final))
        ctx.mark_non_differentiable(*(result for result in results if not is_differentiable(result)))
        return results

    @staticmethod
    @_disable_dynamo
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Execute the rest of the schedule, and leave autograd the only reference to the gradients."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "gradients of a planned sequence have no graph of their own: create_graph=True is not supported"
            )
        if all(gradient is None for gradient in gradients):
            return (None,) * len(ctx.needs_input_grad)
        run: Executor | None = ctx.run
        if run is None:
            raise RuntimeError(
                "Trying to backward through a planned sequence a second time. The first backward pass freed "
                "its checkpoints, whatever retain_graph says. Run the forward pass again; or, if the next "
                "sequence began with the state that this one left, detach the state or reset the network"
            )
        ctx.run = None
        final: list[Tensor | None] = [None] * ctx.final_count
        for number, gradient in zip(ctx.numbers, gradients[ctx.output_count :], strict=True):
            final[number] = gradient
        with run.explain_exhaustion():
            run.reverse(gradients[: ctx.output_count], final)
        steps = run.steps
        states, hooks = steps.state_gradients, steps.take_first_hooks()
        inherited = [states[number] if number < len(states) else None for number, _ in run.inherited]
        inherited_hooks = [hooks[number] if number < len(hooks) else [] for number, _ in run.inherited]
        hand_over_hooks(inherited_hooks, [leaf for _, leaf in run.inherited])
        inputs, parameters = steps.input_gradients, steps.sums.release()
        steps.state_gradients, steps.input_gradients = [], []
        return (None, *inherited, *inputs, *parameters)
