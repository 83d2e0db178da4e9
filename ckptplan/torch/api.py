"""The two entry points, and the autograd function behind both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ckptplan.errors import InputError, shown
from ckptplan.model.plan import Plan
from ckptplan.playback import actions
from ckptplan.schedule.actions import Action, Backward, Tier
from ckptplan.torch import discovery
from ckptplan.torch.ambient import Autocast, Generators
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.chunk_engine import ChunkEngine
from ckptplan.torch.engine import Cell, Engine
from ckptplan.torch.executor import Executor, Observer
from ckptplan.torch.gradients import Gradients
from ckptplan.torch.graphs import graph_leaves
from ckptplan.torch.host_store import HostStore
from ckptplan.torch.inputs import Sequence, each_step, sequence
from ckptplan.torch.lookahead import Lookahead
from ckptplan.torch.losses import Outputs, Stacked, Summed
from ckptplan.torch.memory import explained
from ckptplan.torch.step_engine import StepEngine
from ckptplan.torch.stores import FileStore, LocalStore, Store
from ckptplan.torch.trees import Structure, flattened, is_differentiable, no_inference_tensors


@dataclass(frozen=True, kw_only=True)
class Result:
    """What ``bptt`` returns: the loss, which can be differentiated, and the final state, which cannot."""

    loss: torch.Tensor
    state: Any


def unroll(
    cell: Cell,
    inputs: Any,
    state: Any,
    *,
    plan: Plan,
    parameters: Iterable[torch.Tensor] = (),
    remote_dir: str | os.PathLike[str] | None = None,
    replay_randomness: bool = True,
    schedule: Iterable[Action] | None = None,
    observer: Observer | None = None,
) -> tuple[Any, Any]:
    """Return the outputs of all steps, stacked over time, and the final state; both can be differentiated.

    ``cell(state, x)`` returns (state, output); states and outputs are tensors or nests of them. ``inputs`` are
    tensors of shape (T, ...), a nest of such, or a callable (start, stop) -> chunk, called again where steps
    are run again. Gradients reach the inputs, the initial state, the parameters of ``cell``, and what else its
    first step is seen to use; name in ``parameters`` what only later steps use. Checkpoints that the plan
    keeps in remote memory wait in host memory, or in files under ``remote_dir``. ``schedule`` is carried out
    instead of the plan's own, as ``ckptplan.load_schedule`` returns one (``ckptplan.simulate`` says whether
    it is legal). ``observer`` is told each action when it is done.

    Outputs of all steps are kept: where only a loss is wanted, ``bptt`` needs far less memory.
    Raises InputError.
    """
    job = _Job(
        cell=cell,
        inputs=inputs,
        state=state,
        plan=plan,
        modules=(cell,),
        parameters=tuple(parameters),
        remote_dir=remote_dir,
        replay_randomness=replay_randomness,
        schedule=schedule,
        observer=observer,
    )
    outputs = Stacked(steps=plan.steps)
    probed = job.probe(outputs=None)
    tensors = _run(job, outputs, probed)
    structure = probed.output
    count = sum(structure.is_tensor)
    return structure.filled(tensors[:count]), probed.state.filled(tensors[count:])


def bptt(
    cell: Cell,
    inputs: Any,
    state: Any,
    loss: Callable[[int, Any], torch.Tensor] | None = None,
    *,
    plan: Plan,
    chunk_loss: Callable[[int, Any], torch.Tensor] | None = None,
    final_loss: Callable[[Any], torch.Tensor] | None = None,
    parameters: Iterable[torch.Tensor] = (),
    remote_dir: str | os.PathLike[str] | None = None,
    replay_randomness: bool = True,
    schedule: Iterable[Action] | None = None,
    observer: Observer | None = None,
) -> Result:
    """Return the loss of a sequence, taken inside the schedule: outputs are never kept.

    The loss is the sum of ``loss(t, output)`` over all steps, or of ``chunk_loss(start, outputs)`` over runs of
    steps (outputs stacked over time; any cut of the sequence must give the same sum), and of
    ``final_loss(state)``. Each returns a single float. ``result.loss.backward()`` works as people know it,
    with scaling, clipping and accumulation. Other arguments are those of ``unroll``.

    Raises InputError.
    """
    if loss is not None and chunk_loss is not None:
        raise InputError("is given beside loss", field="chunk_loss", accepted="one of both")
    if loss is None and chunk_loss is None and final_loss is None:
        raise InputError("is missing", field="loss", accepted="loss, chunk_loss or final_loss")
    job = _Job(
        cell=cell,
        inputs=inputs,
        state=state,
        plan=plan,
        modules=(cell, loss, chunk_loss, final_loss),
        parameters=tuple(parameters),
        remote_dir=remote_dir,
        replay_randomness=replay_randomness,
        schedule=schedule,
        observer=observer,
    )
    outputs = Summed(loss=loss, chunk_loss=chunk_loss, final_loss=final_loss)
    probed = job.probe(outputs=outputs)
    value, *final = _run(job, outputs, probed)
    return Result(loss=value, state=probed.state.filled([leaf.detach() for leaf in final]))


@dataclass(frozen=True, kw_only=True)
class _Probed:
    """What the first step showed."""

    parameters: discovery.Parameters
    state: Structure
    output: Structure


@dataclass(frozen=True, kw_only=True)
class _Job:
    cell: Cell
    inputs: Any
    state: Any
    plan: Plan
    modules: tuple[object, ...]
    parameters: discovery.Parameters
    remote_dir: str | os.PathLike[str] | None
    replay_randomness: bool
    schedule: Iterable[Action] | None
    observer: Observer | None

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Plan):
            raise InputError(
                f"{shown(self.plan)} is not a plan",
                field="plan",
                value=self.plan,
                accepted="a Plan, as ckptplan.optimize and ckptplan.load_plan return",
            )
        if not callable(self.cell):
            raise InputError(f"{shown(self.cell)} cannot be called", field="cell", accepted="cell(state, x)")

    @property
    def sequence(self) -> Sequence:
        """The inputs."""
        return sequence(self.inputs, steps=self.plan.steps)

    @property
    def device(self) -> torch.device:
        """Where the cell runs: where its state is, or its inputs, or its parameters."""
        found = flattened(self.state)[0]
        if found:
            return found[0].device
        of_inputs = self.sequence.device()
        if of_inputs is not None:
            return of_inputs
        for thing in self.modules:
            if isinstance(thing, torch.nn.Module):
                for parameter in thing.parameters():
                    return parameter.device
        return torch.device("cpu")

    def probe(self, *, outputs: Summed | None) -> _Probed:
        """Run the first step aside, and see what it uses and whether it can be run again."""
        leaves, structure = flattened(self.state)
        no_inference_tensors(leaves, field="state")
        sequence = self.sequence
        no_inference_tensors(sequence.leaves, field="inputs")
        generators = Generators(self.device, wanted=True)
        with generators.aside(), torch.enable_grad(), discovery.untouched_buffers(self.modules):
            pieces, nest = sequence.piece(0, 1)
            x = next(each_step(tuple(piece.detach() for piece in pieces), nest, 1))
            first = tuple(leaf.detach() for leaf in leaves)
            versions = [leaf._version for leaf in first]
            state, output = discovery.check_result(self._call(structure.filled(first), x))
            discovery.check_state(first, versions, state, given=len(first))
            reached = [*flattened(state)[0], *flattened(output)[0]]
            if outputs is not None:
                reached += Summed(
                    loss=outputs.loss, chunk_loss=outputs.chunk_loss, final_loss=outputs.final_loss
                ).take(0, [output], first_time=True)
                reached += outputs.probe_final(state)
        known = {id(leaf) for leaf in (*leaves, *sequence.leaves, *first, *pieces)}
        found = [leaf for leaf in graph_leaves(reached) if id(leaf) not in known]
        return _Probed(
            parameters=discovery.parameters_of(self.modules, [*self.parameters, *found]),
            state=flattened(state)[1],
            output=flattened(output)[1],
        )

    def _call(self, state: Any, x: Any) -> Any:
        try:
            return self.cell(state, x)
        except TypeError as error:
            if "argument" not in str(error):
                raise
            raise InputError(
                f"cannot be called as cell(state, x): {error}",
                field="cell",
                accepted="cell(state, x) -> (state, output); ckptplan.torch.adapters has those of torch.nn, "
                "snnTorch, Norse and SpikingJelly",
            ) from error

    def executor(self, outputs: Outputs, parameters: discovery.Parameters) -> Executor:
        """Return what carries the plan out."""
        sequence, device = self.sequence, self.device
        remote: Store
        if self.remote_dir is None:
            remote = HostStore(device, ahead=self.plan.profile.overlaps_compute)
        else:
            remote = FileStore(self.remote_dir, device)
        return Executor(
            engine=self._engine(outputs, parameters, sequence),
            outputs=outputs,
            steps=self.plan.steps,
            state=_detached(self.state),
            stores={Tier.LOCAL: LocalStore(), Tier.REMOTE: remote},
            generators=Generators(device, wanted=self.replay_randomness),
            autocast=Autocast.present(device),
            observer=self.observer,
        )

    def _engine(self, outputs: Outputs, parameters: discovery.Parameters, inputs: Sequence) -> Engine:
        wanted = tuple(leaf.requires_grad for leaf in inputs.leaves)
        shared: dict[str, Any] = {
            "cell": self.cell,
            "inputs": inputs,
            "steps": self.plan.steps,
            "outputs": outputs,
            "parameters": parameters,
            "gradients": Gradients(parameters=len(parameters), inputs=inputs.leaves, wanted=wanted),
            "input_gradients": wanted,
        }
        if isinstance(self.cell, ChunkCell):
            chunk = dict(self.plan.parameters).get("chunk_size", 1)
            return ChunkEngine(**shared, device=self.device, chunk=chunk)
        return StepEngine(**shared)


def _detached(tree: Any) -> Any:
    leaves, structure = flattened(tree)
    return structure.filled([leaf.detach() for leaf in leaves])


def _run(job: _Job, outputs: Outputs, probed: _Probed) -> tuple[torch.Tensor, ...]:
    """Return what came of the outputs, then the leaves of the final state."""
    state = flattened(job.state)[0]
    inputs = job.sequence.leaves
    executor = job.executor(outputs, probed.parameters)
    wanted = any(one.requires_grad for one in (*state, *inputs, *probed.parameters))
    if not (wanted and torch.is_grad_enabled()):
        # Nothing to reverse, nothing to keep.
        with explained(job.plan, job.device), closing(executor):
            executor.forward_only()
        return (*outputs.release(), *executor.final)
    run = _Run(
        executor=executor,
        actions=Lookahead(iter(actions(job.plan) if job.schedule is None else job.schedule)),
        outputs=outputs,
        states=len(state),
        plan=job.plan,
        device=job.device,
    )
    found: tuple[torch.Tensor, ...] = _Planned.apply(  # type: ignore[no-untyped-call]
        run, *state, *inputs, *probed.parameters
    )
    return found


@dataclass(kw_only=True)
class _Run:
    """One sweep and its reversal."""

    executor: Executor
    actions: Lookahead
    outputs: Outputs
    #: Leaves of the initial state.
    states: int
    plan: Plan
    device: torch.device
    first: Backward | None = None
    reversed: bool = False


class _Planned(torch.autograd.Function):
    """The whole sequence as one operation: its arguments are the initial state, the inputs, the parameters."""

    @staticmethod
    def forward(ctx: Any, run: _Run, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Carry the first sweep out."""
        ctx.set_materialize_grads(False)
        ctx.run = run
        ctx.versions = [tensor._version for tensor in tensors]
        ctx.tensors = [tensor.detach() for tensor in tensors]
        with explained(run.plan, run.device):
            try:
                run.first = run.executor.sweep(run.actions)
            except BaseException:
                run.executor.close()
                raise
        # What is returned holds this function, so that the run must not hold it.
        final, run.executor.final = run.executor.final, ()
        ctx.states = len(final)
        results = (*run.outputs.release(), *(leaf.clone() for leaf in final))
        # Only floats have gradients.
        ctx.mark_non_differentiable(*(leaf for leaf in results if not is_differentiable(leaf)))
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """Carry the rest out."""
        run: _Run = ctx.run
        if run.reversed:
            raise RuntimeError(
                "a planned sequence is reversed once: its checkpoints were freed on the way. Call bptt or "
                "unroll again for another backward; retain_graph keeps nothing of it"
            )
        run.reversed = True
        if [tensor._version for tensor in ctx.tensors] != ctx.versions:
            run.executor.close()
            raise RuntimeError(
                "a parameter, an input or the initial state was changed in place between the forward and the "
                "backward pass, so that steps cannot be run again as they were"
            )
        count = len(gradients) - ctx.states
        executor = run.executor
        with explained(run.plan, run.device), closing(executor):
            ctx.tensors = None
            if run.first is not None:
                executor.reverse(
                    run.first,
                    run.actions,
                    final=list(gradients[count:]),
                    incoming=tuple(gradients[:count]),
                )
        found = executor.engine.gradients
        states = (found.state or [None] * run.states)[: run.states]
        states += [None] * (run.states - len(states))
        return (None, *states, *found.inputs, *found.parameters)
