"""Checks a call of ``bptt`` or ``unroll``, and assembles the parts that execute it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.execution.lookahead import Lookahead
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.actions import Action, Tier
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.ambient import Autocast, Generators
from ckptplan.torch.cell_calls import ClosedCell, SlotCell
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.chunk_engine import ChunkEngine
from ckptplan.torch.compiled.engine import CompiledEngine
from ckptplan.torch.compiled.piece import CompiledPiece
from ckptplan.torch.compiling.options import Compile
from ckptplan.torch.compiling.prepare import pick_piece
from ckptplan.torch.constants import refuse_other_leaves
from ckptplan.torch.engine import Cell, Engine
from ckptplan.torch.executor import Executor, Observer
from ckptplan.torch.fit import Gauge, make_gauge
from ckptplan.torch.function import PlannedSequence, Run
from ckptplan.torch.gradients import Gradients
from ckptplan.torch.inputs import Sequence, make_sequence
from ckptplan.torch.kept import Situation, forget, keep, number_findings
from ckptplan.torch.losses import Outputs, SummedLoss
from ckptplan.torch.memory import explain_exhaustion
from ckptplan.torch.parameters import Parameters
from ckptplan.torch.probe import ProbeResult, probe
from ckptplan.torch.sequence_watch import SequenceWatch
from ckptplan.torch.sharding import refuse_sharded
from ckptplan.torch.step_engine import StepEngine
from ckptplan.torch.stores import FileStore, HostStore, LocalStore, Store
from ckptplan.torch.surroundings.holders import Holder
from ckptplan.torch.trees import Structure, flatten, refuse_inference_tensors
from ckptplan.torch.verify import Verifier

_O = TypeVar("_O", bound=Outputs)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A call of ``bptt`` or ``unroll``; the fields are their arguments. Raises InputError."""

    cell: Cell
    inputs: Any
    state: Any
    plan: Plan | Schedule
    losses: dict[str, object]
    parameters: Parameters = ()
    remote_dir: str | os.PathLike[str] | None = None
    replay_randomness: bool = True
    verify: bool = True
    schedule: Iterable[Action] | None = None
    observer: Observer | None = None
    strict: bool = False
    #: Whether the plan's sizes are compared with those of the cell.
    compares_sizes: bool = True
    #: How pieces are compiled, or the piece itself; None if steps run as they are written.
    compile: Compile | CompiledPiece | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Plan | Schedule):
            raise InputError(
                f"{quote_value(self.plan)} is not a plan",
                field="plan",
                value=self.plan,
                accepted="a Plan, as ckptplan.optimize and ckptplan.load_plan return, or a ckptplan.Schedule",
            )
        if not callable(self.cell):
            raise InputError(
                f"{quote_value(self.cell)} cannot be called", field="cell", accepted="cell(state, x)"
            )
        if self.remote_dir is not None and not isinstance(self.remote_dir, str | os.PathLike):
            raise InputError(f"is {quote_value(self.remote_dir)}", field="remote_dir", accepted="a folder")
        if isinstance(self.plan, Schedule) and self.schedule is None:
            # A plan's actions are legal by construction; others could silently give wrong gradients.
            self.plan.check()

    @property
    def sequence(self) -> Sequence:
        """The inputs as a sequence."""
        asked_by = "plan" if isinstance(self.plan, Plan) else "schedule"
        return make_sequence(self.inputs, steps=self.plan.steps, asked_by=asked_by)

    @property
    def _planned(self) -> Schedule:
        return schedule_of(self.plan) if isinstance(self.plan, Plan) else self.plan

    def _probe(self, losses: SummedLoss | None, *, anew: bool) -> ProbeResult:
        """Return what the first steps show, run aside, or what they showed in an earlier call."""
        inputs = self.sequence
        refuse_other_leaves(self.state, field="state")
        if torch.is_grad_enabled():
            refuse_inference_tensors(flatten(self.state)[0], field="state")
            refuse_inference_tensors(inputs.leaves, field="inputs")
        # Without gradients, there is nothing to reduce.
        with refuse_sharded((self.cell, *self.losses.values())) if torch.is_grad_enabled() else nullcontext():
            return probe(
                self.cell,
                self.state,
                inputs,
                things=self._things,
                named=self.parameters,
                losses=losses,
                device=self._likely_device(inputs),
                replays_randomness=self.replay_randomness,
                steps=self.plan.steps,
                options=(self.verify, self.runs_once),
                anew=anew,
            )

    @property
    def _things(self) -> dict[str, object]:
        return {"cell": self.cell, **self.losses, **self._made_inputs}

    @property
    def runs_once(self) -> bool:
        """Whether each step runs a single time, so that it may read what earlier ones left."""
        return (
            isinstance(self.plan, Plan) and self.schedule is None and self.plan.predicted.recomputed_steps == 0
        )

    @property
    def _made_inputs(self) -> dict[str, object]:
        """What makes the inputs, if they are made: it may keep something, as a cell may."""
        return {"inputs": self.inputs} if callable(self.inputs) else {}

    def _likely_device(self, inputs: Sequence) -> torch.device:
        """Return the device on which the cell will probably run, from its arguments."""
        modules = [one for one in (self.cell, *self.losses.values()) if isinstance(one, torch.nn.Module)]
        tensors = [
            *flatten(self.state)[0],
            *inputs.leaves,
            *self.parameters,
            *(parameter for module in modules for parameter in module.parameters()),
        ]
        devices = [tensor.device for tensor in tensors]
        accelerators = [device for device in devices if device.type != "cpu"]
        return (accelerators or devices or [torch.device("cpu")])[0]

    @property
    def _places(self) -> frozenset[tuple[int, Any]]:
        cell: object = self.cell
        return cell.places if isinstance(cell, SlotCell) else frozenset()

    @property
    def is_closed(self) -> bool:
        """Whether the cell reaches nothing else: its trial costs little, and it is made anew in each call."""
        return isinstance(self.cell, ClosedCell)

    def run(self, make_outputs: Callable[[], _O]) -> tuple[_O, tuple[torch.Tensor, ...], Structure]:
        """Return the outputs, their results with the leaves of the final state, and its structure.

        Where findings of an earlier call turn out not to hold, all is put back and begins with a trial.
        """
        # An observer sees each action once, and actions may be given only once.
        anew = self.schedule is not None or self.observer is not None or self.is_closed
        while True:
            outputs = make_outputs()
            attempt = self._attempt(outputs, anew=anew)
            try:
                return outputs, *attempt.run()
            except InputError:
                forget(attempt.probed.situation)
                if not attempt.probed.recalled:
                    attempt.distrust()
                if not attempt.can_repeat:
                    raise
            anew = True

    def _attempt(self, outputs: Outputs, *, anew: bool) -> Attempt:
        probed = self._probe(outputs if isinstance(outputs, SummedLoss) else None, anew=anew)
        return Attempt(job=self, outputs=outputs, probed=probed, watch=self._watch(probed))

    def execute(
        self, outputs: Outputs, probed: ProbeResult, watch: SequenceWatch
    ) -> tuple[tuple[torch.Tensor, ...], Structure]:
        """Return the results of the outputs with the leaves of the final state, and its structure."""
        state, inputs = flatten(self.state)[0], self.sequence.leaves
        executor = self._executor(outputs, probed, watch)
        if not self.wants_gradients(probed):
            # Nothing will be reversed, so no checkpoints are needed.
            with explain_exhaustion(self.plan, probed.device), closing(executor):
                executor.forward_only()
            return (*outputs.release(), *executor.final), executor.end
        run = Run(
            executor=executor,
            actions=Lookahead(iter(self._planned if self.schedule is None else self.schedule)),
            outputs=outputs,
            modules=probed.modules,
            parameters=probed.name_parameters(),
            states=len(state),
            plan=self.plan,
            device=probed.device,
            watch=watch,
            things=probed.things,
            places=self._places,
        )
        gauge = executor.engine.gauge = self._gauge(probed)
        try:
            found: tuple[torch.Tensor, ...] = PlannedSequence.apply(  # type: ignore[no-untyped-call]
                run, *state, *inputs, *probed.parameters
            )
        finally:
            # Also if memory ran out, which other sizes may explain.
            if gauge is not None:
                gauge.warn(stacklevel=6)
        return found, executor.end

    def wants_gradients(self, probed: ProbeResult) -> bool:
        """Return whether there will be a backward pass."""
        tensors = (*flatten(self.state)[0], *self.sequence.leaves, *probed.parameters)
        return torch.is_grad_enabled() and any(one.requires_grad for one in tensors)

    def _watch(self, probed: ProbeResult) -> SequenceWatch:
        return SequenceWatch(
            surroundings=probed.surroundings,
            state=self.state,
            before=probed.before,
            with_graph=probed.with_graph,
            trial=probed.trial,
            generators=self._find_generators(probed),
            forgives_noise=not self.verify,
            roots=self._list_roots(probed),
            expected=probed.changed if probed.recalled else None,
        )

    def _find_generators(self, probed: ProbeResult) -> Generators:
        """Return the generators that steps may draw from: those of the trial, if it knew the device."""
        if probed.device.type == "cpu":
            return probed.trial.generators
        return Generators(probed.device, wanted=True, held=probed.generators)

    def _list_roots(self, probed: ProbeResult) -> tuple[torch.Tensor, ...]:
        """Return the leaves that require a gradient among the parameters, the state and the inputs."""
        tensors = (*probed.parameters, *flatten(self.state)[0], *self.sequence.leaves)
        return tuple(one for one in tensors if one.requires_grad and one.is_leaf)

    def _gauge(self, probed: ProbeResult) -> Gauge | None:
        """Return what compares the plan's sizes with the cell's, None if it was done for such a call."""
        if not (isinstance(self.plan, Plan) and self.compares_sizes):
            return None
        leaves = (*flatten(self.state)[0], *self.sequence.leaves, *probed.parameters)
        kinds = tuple(getattr(one, "__code__", type(one)) for one in (self.cell, *self.losses.values()))
        shapes = tuple((leaf.shape, leaf.dtype, leaf.requires_grad) for leaf in leaves)
        casts = Autocast.present(probed.device)
        return make_gauge(
            self.plan,
            cell=kinds,
            call=(shapes, casts),
            strict=self.strict,
            playable=self.schedule is None,
        )

    def _executor(self, outputs: Outputs, probed: ProbeResult, watch: SequenceWatch) -> Executor:
        remote: Store
        if self.remote_dir is None:
            # An observer measures each action separately.
            ahead = self._planned.overlaps and self.observer is None
            remote = HostStore(probed.device, ahead=ahead)
        else:
            remote = FileStore(self.remote_dir)
        leaves, structure = flatten(self.state)
        autocast = Autocast.present(probed.device)
        return Executor(
            engine=self._engine(outputs, probed),
            outputs=outputs,
            steps=self.plan.steps,
            state=structure.fill([leaf.detach() for leaf in leaves]),
            stores={Tier.LOCAL: LocalStore(), Tier.REMOTE: remote},
            generators=self._find_generators(probed)
            if self.replay_randomness
            else Generators(probed.device, wanted=False),
            autocast=autocast,
            observer=self.observer,
            watch=watch,
            verifier=self._make_verifier(autocast, probed),
        )

    def _make_verifier(self, autocast: Autocast, probed: ProbeResult) -> Verifier | None:
        if not (self.verify and self.replay_randomness):
            # Steps that draw other numbers when they run again rightly differ.
            return None
        tensors = (*flatten(self.state)[0], *self.sequence.leaves, *probed.parameters)
        return Verifier(
            steps=self.plan.steps,
            dtypes=(*autocast.dtypes, *(one.dtype for one in tensors)),
            waits=probed.device.type != "cpu",
        )

    def _engine(self, outputs: Outputs, probed: ProbeResult) -> Engine:
        inputs = self.sequence
        wanted = tuple(leaf.requires_grad for leaf in inputs.leaves)
        shared: dict[str, Any] = {
            "cell": self.cell,
            "inputs": inputs,
            "steps": self.plan.steps,
            "outputs": outputs,
            "parameters": probed.parameters,
            "gradients": Gradients(parameters=len(probed.parameters), inputs=inputs.leaves, wanted=wanted),
            "input_gradients": wanted,
        }
        piece = self._find_piece(probed)
        if isinstance(self.cell, ChunkCell) and piece is None:
            planned = self._planned
            return ChunkEngine(
                **shared, device=probed.device, chunk=planned.chunk_size, room=planned.local_states
            )
        shared["temporary"] = probed.temporary
        if piece is None:
            return StepEngine(**shared)
        return CompiledEngine(**shared, piece=piece, loss=self.losses.get(piece.product))

    def _find_piece(self, probed: ProbeResult) -> CompiledPiece | None:
        """Return the compiled piece, None if steps run as they are written. A trial has found no fault."""
        if self.compile is None or self.is_closed or not self.wants_gradients(probed):
            return None
        return pick_piece(
            self.compile,
            cell=self.cell,
            losses=self.losses,
            state=self.state,
            inputs=self.sequence,
            steps=self.plan.steps,
            parameters=self.parameters,
            device=probed.device,
        )


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A run of a job with findings, of a trial or of an earlier call."""

    job: Job
    outputs: Outputs
    probed: ProbeResult
    watch: SequenceWatch

    @property
    def can_repeat(self) -> bool:
        """Whether earlier findings or compiled steps may be the reason, and all is as it was before."""
        again = self.job.schedule is None and self.job.observer is None
        return (self.probed.recalled or (self.outputs.piece is not None and again)) and self.watch.restored

    def distrust(self) -> None:
        """Keep what was refused from running compiled again: another call shows whether that was the reason."""
        if self.outputs.piece is not None:
            self.outputs.piece.distrust()

    def run(self) -> tuple[tuple[torch.Tensor, ...], Structure]:
        """Run it, and keep its findings if they hold for calls that find everything as it is now."""
        results = self.job.execute(self.outputs, self.probed, self.watch)
        self.watch.when_refused = self.distrust
        if self.job.wants_gradients(self.probed):
            changed, checked = self.watch.swept, self.watch.checked
        else:
            changed, checked = self.probed.changed, True
        if not changed and self.probed.recalled:
            # They are kept already.
            self._forget_if_refused(self.probed.situation)
        elif not changed or checked or self.job.runs_once:
            self._keep(changed)
        return results

    def _keep(self, changed: tuple[tuple[Holder, Any], ...]) -> None:
        probed, situation = self.probed, self.probed.situation
        if changed:
            situation = situation.walk_again(probed.things)
        if situation.key is None or self.job.is_closed:
            return
        findings = number_findings(
            situation,
            used=probed.used,
            modules=probed.modules,
            temporary=probed.temporary,
            device=probed.device,
            changed=(*probed.changed, *changed),
            with_graph=self.watch.with_graph,
        )
        if findings is not None:
            keep(situation, findings)
            self._forget_if_refused(situation)

    def _forget_if_refused(self, situation: Situation) -> None:
        def refused() -> None:
            forget(situation)
            self.distrust()

        self.watch.when_refused = refused
