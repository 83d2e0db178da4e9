"""Wraps a whole planned sequence as one operation of autograd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ckptplan.execution.lookahead import Lookahead
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Backward
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.executor import Executor
from ckptplan.torch.gradients import Gradient
from ckptplan.torch.held_graphs import explain_held_graphs
from ckptplan.torch.losses import Outputs
from ckptplan.torch.memory import explain_exhaustion
from ckptplan.torch.modules import Fingerprint
from ckptplan.torch.sequence_watch import SequenceWatch
from ckptplan.torch.trees import is_differentiable


@dataclass(kw_only=True)
class Run:
    """One sweep and its reversal."""

    executor: Executor
    actions: Lookahead
    outputs: Outputs
    modules: tuple[torch.nn.Module, ...]
    #: The parameters, by the names of what holds them.
    parameters: dict[str, torch.Tensor]
    #: Leaves of the initial state.
    states: int
    plan: Plan | Schedule
    device: torch.device
    watch: SequenceWatch
    #: The cell and the losses, by the names of their arguments.
    things: dict[str, object]
    #: Buffers that a wrapped module keeps its state in, see ``Fingerprint``.
    places: frozenset[tuple[int, Any]]
    first: Backward | None = None

    @contextmanager
    def explain(self) -> Iterator[None]:
        """Turn errors of the block into what they mean for a run. The block must release what it holds."""
        with explain_exhaustion(self.plan, self.device), explain_held_graphs(self.things):
            yield


class PlannedSequence(torch.autograd.Function):
    """The operation; its arguments are the run, the initial state, the inputs and the parameters."""

    @staticmethod
    def forward(ctx: Any, run: Run, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Execute the first sweep."""
        ctx.set_materialize_grads(False)
        ctx.run = run
        ctx.versions = [tensor._version for tensor in tensors]
        ctx.tensors = [tensor.detach() for tensor in tensors]
        with run.watch.sweep(), run.explain():
            try:
                run.first = run.executor.sweep(run.actions)
                run.watch.end_sweep()
            except BaseException:
                run.executor.close()
                raise
        # Taken after the sweep: steps may replace buffers, e.g. in neurons that keep their last state.
        ctx.modules = Fingerprint(
            run.modules, others=run.parameters, without=run.watch.written, places=run.places
        )
        # The results refer to this function, so the run must not refer to them.
        final, run.executor.final = run.executor.final, ()
        ctx.states = len(final)
        results = (*run.outputs.release(), *(leaf.clone() for leaf in final))
        # Only floats have gradients.
        ctx.mark_non_differentiable(*(leaf for leaf in results if not is_differentiable(leaf)))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """Execute the rest; then release everything, so that autograd has the only copy of the gradients."""
        if torch.is_grad_enabled():
            # E.g. for a gradient penalty: without a graph, it would silently have no effect.
            raise RuntimeError(
                "gradients of a planned sequence have no graph of their own: create_graph=True is not supported"
            )
        run: Run | None = ctx.run
        if run is None:
            raise RuntimeError(
                "a planned sequence can be reversed only once, since this frees its checkpoints: run the "
                "forward pass again (bptt, unroll or the wrapped network) before another backward, whatever "
                "retain_graph says. If its final state is where the next sequence began, detach that state "
                "(wrap(..., detach=True)) or reset the network (wrap(..., reset=...))"
            )
        ctx.run = None
        with closing(run.executor):
            trained = ctx.modules.check()
            if [tensor._version for tensor in ctx.tensors] != ctx.versions:
                raise RuntimeError(
                    "an input or the initial state was changed in place between the forward and the backward "
                    "pass, so that steps cannot be run again as they were"
                )
            ctx.tensors = None
            with run.watch.rerun([f"{name}.requires_grad" for name in trained]):
                _reverse(run, gradients, outputs=len(gradients) - ctx.states)
        found = run.executor.engine.gradients
        states: list[Gradient] = (found.state or [None] * run.states)[: run.states]
        states += [None] * (run.states - len(states))
        return (None, *states, *found.inputs, *found.parameters)


def _reverse(run: Run, gradients: tuple[torch.Tensor | None, ...], *, outputs: int) -> None:
    if run.first is None:
        return
    with run.explain():
        try:
            run.executor.reverse(
                run.first, run.actions, final=list(gradients[outputs:]), incoming=tuple(gradients[:outputs])
            )
        except BaseException:
            # Close first, so that the error reports the memory that is free afterwards.
            run.executor.close()
            raise
