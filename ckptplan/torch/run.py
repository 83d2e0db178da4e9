"""Runs calls of ``bptt`` and ``unroll``: a sequence is one operation of autograd."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch._compile import _disable_dynamo

from ckptplan.errors import InputError
from ckptplan.execution.lookahead import Lookahead
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Tier
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.place import OffloadPlace
from ckptplan.storage.remote_folder import check_room
from ckptplan.torch.ambient import Autocast, Generators
from ckptplan.torch.call import Call
from ckptplan.torch.cell_calls import SlotCell
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.chunk_engine import ChunkEngine
from ckptplan.torch.compiling.engine import CompiledEngine
from ckptplan.torch.compiling.steps import CompiledPiece
from ckptplan.torch.engine import Engine
from ckptplan.torch.executor import Executor
from ckptplan.torch.fit import make_fit
from ckptplan.torch.graphs import hand_over_hooks
from ckptplan.torch.held_graphs import explain_held_graphs
from ckptplan.torch.losses import RUN, Outputs, StackedOutputs, SummedLoss
from ckptplan.torch.memory import explain_exhaustion
from ckptplan.torch.offload import find_host_room, make_store
from ckptplan.torch.parameters import Fingerprint
from ckptplan.torch.probe import Probed, probe
from ckptplan.torch.recognise import StaleFindingsError, forget, keep
from ckptplan.torch.rehearsal import Rehearsal, rehearse_first
from ckptplan.torch.sequence_watch import SequenceWatch
from ckptplan.torch.stores import LocalStore, Store
from ckptplan.torch.surroundings.snapshot import Place, Snapshot, list_counts
from ckptplan.torch.survey import StaleSizesError
from ckptplan.torch.trees import flatten, is_differentiable
from ckptplan.torch.verify import Verifier

#: Bytes that a rehearsal may take where no limit is known.
_LIMIT = 2**26
#: A plan was made for other steps if their tapes take more than so many times what it says.
_ALIKE = 4


@dataclass(frozen=True, kw_only=True)
class Result:
    """What ``bptt`` returns: the loss, which can be differentiated, and the final state, which cannot."""

    loss: torch.Tensor
    state: Any
    #: What was executed: the given plan or schedule, or the plan that was made for ``memory``. A call without
    #: gradients needs none, and has a schedule.
    plan: Plan | Schedule
    #: The steps of the compiled pieces that ran, None if steps ran as they are written.
    piece: int | None = None


def unroll_call(call: Call) -> tuple[Any, Any]:
    """Return the outputs of all steps of a call, and the final state. Raises InputError."""
    run, tensors = run_call(call)
    outputs = run.engine.outputs
    assert isinstance(outputs, StackedOutputs)  # noqa: S101 - there is no loss
    structure = outputs.structure
    assert structure is not None  # noqa: S101 - a plan has a step
    count = sum(structure.is_tensor)
    return structure.fill(tensors[:count]), run.end.fill(tensors[count:])


def bptt_call(call: Call) -> Result:
    """Return the loss of a call, and the final state. Raises InputError."""
    run, (value, *final) = run_call(call)
    piece = run.piece
    return Result(
        loss=value,
        state=run.end.fill([leaf.detach() for leaf in final]),
        plan=run.call.told,
        piece=None if piece is None or piece.broken else piece.steps,
    )


def run_call(call: Call) -> tuple[Executor, tuple[torch.Tensor, ...]]:
    """Run a call; return what executed it, and the results of the outputs with the leaves of the final state.

    Where findings of an earlier call turn out not to hold, all is put back and begins with a trial.
    """
    anew = not call.runs_as_planned
    if call.place.folder is not None and isinstance(call.plan, Plan) and torch.is_grad_enabled():
        check_room(call.place.folder, call.plan.predicted.remote_peak_bytes, field=call.place.field)
    late: Probed | None = None
    while True:
        known = None if anew or call.survey is None else call.survey.take_probed()
        probed = late or (known if torch.is_grad_enabled() else None) or probe(call, anew=anew)
        rehearses = _needs_rehearsal(call, probed)
        if rehearses:
            probed = rehearse(call, probed, limit=_find_limit(call, probed))
        elif late is None and not (call.is_closed or probed.recalled):
            # The steps of the trial must return the same when they run again.
            rehearse(call, probed, limit=0, repeats=True)
        run = make_executor(call, probed, rehearses=rehearses, may_begin_again=late is None)
        try:
            results = execute(run)
        except StaleFindingsError as error:
            if not run.watch.restored:
                raise
            forget(probed.situation)
            anew, late = True, None if probed.recalled else _add_late(call, probed, error.places)
            continue
        except StaleSizesError:
            if call.survey is None or not run.watch.restored:
                raise
            call = replace(call, plan=call.survey.plan_again())
            continue
        except InputError:
            forget(probed.situation)
            if not probed.recalled:
                _distrust(run.piece)
            if not (
                run.watch.restored and (probed.recalled or (run.piece is not None and call.runs_as_planned))
            ):
                raise
            anew = True
            continue
        if not call.is_closed:
            _keep_findings(run)
        return run, results


def _add_late(call: Call, probed: Probed, places: tuple[Place, ...]) -> Probed:
    """Return what is known with places by which later steps count, and all random generators."""
    known = probed.found
    found = replace(known, changed=(*known.changed, *places), drawn=None)
    return Probed.of(call, found, probed.situation, probed.generators, recalled=False)


def _needs_rehearsal(call: Call, probed: Probed) -> bool:
    # Chunks have a backward pass of their own.
    differs = call.runs_again or isinstance(call.cell, ChunkCell)
    known = probed.found.rehearsed and call.verify != "always"
    return differs and not call.is_closed and probed.wants_gradients and not known


def _find_limit(call: Call, probed: Probed) -> int:
    """Return the bytes that a plan takes, if it was made for steps like these, or a schedule, about."""
    if isinstance(call.plan, Schedule):
        # Beside its tapes there are states, and what a backward pass works with.
        return 2 * call.plan.chunk_size * probed.found.tape_bytes
    if probed.found.tape_bytes <= _ALIKE * call.plan.workload.tape_bytes:
        return call.plan.predicted.local_peak_bytes
    return _LIMIT


def rehearse(call: Call, probed: Probed, *, limit: int, repeats: bool = False) -> Probed:
    """Rehearse the first steps of a call, within a ``limit`` of bytes, and return what is known then.

    ``repeats`` says that the very first ones run twice as a plain loop, and no more. Raises InputError.
    """
    with explain_exhaustion(call.plan, probed.found.device), explain_held_graphs(call.things):
        rehearse_first(call, probed, _execute_aside, limit=limit, repeats=repeats)
    if repeats:
        return probed
    found = replace(probed.found, rehearsed=True)
    keep(probed.situation, found)
    return replace(probed, found=found)


def _make_step(
    call: Call, probed: Probed, state: Any, start: int, world: Snapshot, *, engine: Engine
) -> Rehearsal:
    """Return what takes a single step aside."""
    if isinstance(call.cell, ChunkCell) and not isinstance(engine, ChunkEngine):
        # In compiled pieces, steps run as forward says, and nothing is kept that a chunk could go on from.
        call = replace(call, cell=partial(call.cell))
    return Rehearsal(
        call=call,
        probed=probed,
        execute=_execute_aside,
        state=state,
        before=engine.read_before(start),
        start=start,
        steps=1,
        surroundings=probed.surroundings,
        world=world,
    )


def _execute_aside(call: Call, probed: Probed) -> tuple[torch.Tensor, ...]:
    """Return the results of another call of the same cell."""
    found = Probed.of(call, probed.found, probed.situation, probed.generators, recalled=False)
    # A step that reads a count is refused: it belongs into the state.
    return execute(make_executor(call, found, replays_counts=False))


def make_executor(
    call: Call,
    probed: Probed,
    *,
    rehearses: bool = False,
    may_begin_again: bool = False,
    replays_counts: bool = True,
    at_once: int | None = None,
) -> Executor:
    """Return what executes a call.

    Arguments:
        call: the call.
        probed: what is known of its steps.
        rehearses: whether steps in the middle of it are rehearsed.
        may_begin_again: whether it begins again if steps draw from random generators that are not known.
        replays_counts: whether steps that run again find the counts that they change as they were.
        at_once: the outputs that a ``chunk_loss`` gets at a time; None for those that a limit has room for.
    """
    found, device = probed.found, probed.found.device
    cell: object = call.cell
    autocast, generators = Autocast.present(device), probed.generators
    if device.type != "cpu":
        generators = Generators(device, wanted=generators.wanted, held=probed.situation.reached.generators)
    # Where all can begin again after the sweep, checkpoints hold the generators that the first steps drew from.
    returns = may_begin_again and isinstance(call.plan, Plan) and probed.surroundings.can_put_back
    drawn = found.drawn if returns and found.drawn is not None else generators.numbers
    counts = list_counts(found.changed if replays_counts else (), with_graph=found.with_graph)
    replayed = generators.only(drawn if call.replay_randomness else (), beside=counts)
    verifier, kind = _make_verifier(call, probed, autocast), _choose_engine(call, probed)
    compares, saved, again = None if call.is_closed else verifier, kind is ChunkEngine, call.runs_again
    outputs: Outputs
    if call.losses:
        # What a loss draws is not replayed. Without a trial, nothing else finds that it began to draw from a
        # generator of the steps; of others, the end of a sweep tells whose steps run again.
        watches = probed.recalled and probed.wants_gradients and call.replay_randomness
        outputs = SummedLoss(
            **call.losses,
            at_once=_find_room(call) if at_once is None else at_once,
            watched=generators.only(drawn if again else generators.numbers) if watches else None,
            verifier=compares,
            saved=saved,
        )
    else:
        steps = call.plan.steps
        outputs = StackedOutputs(inputs=call.sequence, steps=steps, verifier=compares, saved=saved)
    fit = make_fit(call, parameters=probed.parameters, casts=autocast) if probed.wants_gradients else None
    engine = kind(call, probed, outputs)
    watch = SequenceWatch(
        probed=probed,
        generators=generators,
        make_step=partial(_make_step, call, probed, engine=engine),
        runs_again=again,
        rehearses=rehearses,
        may_begin_again=may_begin_again,
        replayed=drawn,
        slots=cell.places if isinstance(cell, SlotCell) else frozenset(),
    )
    return Executor(
        call=call,
        probed=probed,
        engine=engine,
        stores={Tier.LOCAL: LocalStore(), Tier.REMOTE: _make_remote_store(call, device)},
        generators=replayed,
        autocast=autocast,
        watch=watch,
        verifier=verifier,
        fit=fit,
    )


def execute(run: Executor) -> tuple[torch.Tensor, ...]:
    """Return the results of the outputs with the leaves of the final state."""
    call, probed = run.call, run.probed
    if not probed.wants_gradients:
        # Nothing will be reversed, so no checkpoints are needed.
        with explain_exhaustion(call.plan, probed.found.device), closing(run):
            run.forward_only()
        return (*run.engine.outputs.release(), *run.final)
    try:
        found: tuple[torch.Tensor, ...] = PlannedSequence.apply(  # type: ignore[no-untyped-call]
            run, Lookahead(run.list_actions()), *call.leaves, *probed.parameters
        )
    finally:
        # Also if memory ran out, which other sizes may explain.
        if run.fit is not None:
            run.fit.warn()
    return found


def _keep_findings(run: Executor) -> None:
    """Keep what was found for calls that find all as it is now, until the backward pass refuses it."""
    probed, watch, piece, situation = run.probed, run.watch, run.piece, run.probed.situation
    if watch.is_stale:
        forget(situation)
        return
    changed = watch.swept if probed.wants_gradients else probed.found.changed
    known = probed.found
    found = replace(known, changed=(*known.changed, *changed), with_graph=tuple(watch.with_graph))
    # Another number makes another situation, which the next call finds.
    settled = known.settled and not any(place.has_number for place in changed)
    if changed and not (probed.recalled and settled and {*found.with_graph} == {*known.with_graph}):
        after = situation.walk_again(run.call.things)
        found = replace(found, settled=after.key == situation.key)
        situation = after
        keep(situation, found)
    elif not probed.recalled:
        keep(situation, found)

    def refused() -> None:
        forget(situation)
        _distrust(piece)

    watch.when_refused = refused


def _distrust(piece: CompiledPiece | None) -> None:
    """Keep what was refused from running compiled again: another call shows whether that was the reason."""
    if piece is not None:
        piece.broken = True


class PlannedSequence(torch.autograd.Function):
    """The operation; its arguments are the run, its actions, the initial state, inputs and parameters."""

    @staticmethod
    def forward(ctx: Any, run: Executor, actions: Lookahead, *tensors: torch.Tensor) -> Any:
        """Execute the first sweep."""
        ctx.set_materialize_grads(False)
        ctx.run, ctx.actions = run, actions
        ctx.versions = [tensor._version for tensor in tensors]
        ctx.tensors = [tensor.detach() for tensor in tensors]
        run.sweep(actions)
        # Taken after the sweep: steps may replace buffers, e.g. in neurons that keep their last state.
        ctx.modules = Fingerprint(
            run.probed.found.modules,
            others=dict(zip(run.probed.list_parameter_names(), run.probed.parameters, strict=True)),
            changing=run.watch.changing,
        )
        # The results refer to this function, so the run must not refer to them.
        final, run.final = run.final, ()
        ctx.states = len(final)
        results = (*run.engine.outputs.release(), *(leaf.clone() for leaf in final))
        # Only floats have gradients.
        ctx.mark_non_differentiable(*(leaf for leaf in results if not is_differentiable(leaf)))
        return results

    @staticmethod
    @_disable_dynamo
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """Execute the rest; then release everything, so that autograd has the only copy of the gradients."""
        if torch.is_grad_enabled():
            # E.g. for a gradient penalty: without a graph, it would silently have no effect.
            raise RuntimeError(
                "gradients of a planned sequence have no graph of their own: create_graph=True is not supported"
            )
        run: Executor | None = ctx.run
        if all(one is None for one in gradients):
            # Autograd calls this, too, if no result was used: what comes next may begin with what it ignores.
            # That is right however often it happens.
            return (None,) * len(ctx.needs_input_grad)
        if run is None:
            raise RuntimeError(
                "a planned sequence can be reversed only once, since this frees its checkpoints: run the "
                "forward pass again (bptt, unroll or the wrapped network) before another backward, whatever "
                "retain_graph says. If its final state is where the next sequence began, detach that state "
                "(wrap(..., detach=True)) or reset the network (wrap(..., reset=...))"
            )
        actions, ctx.run, ctx.actions = ctx.actions, None, None
        with closing(run):
            trained = ctx.modules.check()
            if [tensor._version for tensor in ctx.tensors] != ctx.versions:
                raise RuntimeError(
                    "an input or the initial state was changed in place between the forward and the backward "
                    "pass, so that steps cannot be run again as they were"
                )
            ctx.tensors = None
            with run.watch.rerun([f"{name}.requires_grad" for name in trained]):
                outputs = len(gradients) - ctx.states
                run.reverse(actions, final=list(gradients[outputs:]), incoming=gradients[:outputs])
        states, inputs, parameters = run.engine.gradients.release()
        leaves = flatten(run.call.state)[0]
        hand_over_hooks(run.engine.hooks, leaves)
        given = len(leaves)
        states = (states or [None] * given)[:given]
        states += [None] * (given - len(states))
        return (None, None, *states, *inputs, *parameters)


def _choose_engine(call: Call, probed: Probed) -> type[Engine]:
    """Return what runs the steps of a call."""
    usable = probed.wants_gradients and not call.is_closed and isinstance(call.compile, CompiledPiece)
    if usable and not call.compile.broken:
        return CompiledEngine
    return ChunkEngine if isinstance(call.cell, ChunkCell) else Engine


def _make_remote_store(call: Call, device: torch.device) -> Store[Any]:
    # An observer measures each action separately.
    ahead = call.planned.overlaps and call.observer is None
    if not isinstance(call.plan, Plan) or call.schedule is not None:
        return make_store(call.place, device, ahead=ahead)
    predicted = call.plan.predicted
    if not predicted.remote_peak_bytes:
        return make_store(OffloadPlace(folder=None), device, ahead=False)
    room = find_host_room(device, predicted.local_peak_bytes)
    through = room is not None and predicted.remote_peak_bytes > room
    return make_store(call.place, device, ahead=ahead, through=through)


def _find_room(call: Call) -> int:
    """Return how many outputs a ``chunk_loss`` gets at a time: as many as a limit of memory has room for."""
    plan = call.plan
    if "chunk_loss" not in call.losses or not call.is_limited:
        return RUN
    if call.limit is None or not isinstance(plan, Plan):
        return 1
    room = max(0, call.limit - plan.predicted.local_peak_bytes)
    # For each more, what its tape has of a readout, and as much again while it is computed.
    return min(RUN, 1 + room // (2 * plan.workload.tape_bytes))


def _make_verifier(call: Call, probed: Probed, autocast: Autocast) -> Verifier | None:
    if not (call.verify and call.replay_randomness and probed.wants_gradients):
        # Steps that draw other numbers when they run again rightly differ.
        return None
    return Verifier(
        dtypes=(*autocast.dtypes, *(one.dtype for one in (*call.leaves, *probed.parameters))),
        waits=probed.found.device.type != "cpu",
    )
