"""Executes the actions of a schedule: the first sweep at once, the rest when gradients arrive.

Between the two, and while a chunk is reversed, the places that steps change hold the values of the caller.
While steps run again, the places hold the values of checkpoints. ``_begin_replay`` and ``_end_replay`` switch
between these values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ckptplan.errors import InputError
from ckptplan.execution.lookahead import Lookahead
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.device.memory import explain_exhaustion
from ckptplan.torch.device.meters import Clock, choose_clock
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.constants import Constants
from ckptplan.torch.run.context import ForwardContext
from ckptplan.torch.run.gradients import Gradient
from ckptplan.torch.run.outputs import SummedLoss
from ckptplan.torch.run.scope import Scope
from ckptplan.torch.run.steps import LateStateError, Tape
from ckptplan.torch.run.verify import Verifier
from ckptplan.torch.state.lifted import Checkpoint, LiftedContent, LiftedState, PassedState, StatePart
from ckptplan.torch.state.nests import NestMemo, fill, flatten, is_differentiable, read_versions
from ckptplan.torch.state.places import Holder, Place, join_names
from ckptplan.torch.state.reach import Snapshot
from ckptplan.torch.store.store import Store

#: Called as ``observer(action, executor)`` after each action.
Observer = Callable[[Action, Any], object]


class Executor:
    """One sweep of a call and its reversal. It is used once.

    Arguments:
        call: the call.
        actions: the actions of a schedule.
        scope: the objects that the call can reach, and the places that are parts of its state.
        observer: called after each action, with the action and this executor. The executor's ``began`` is the
            time at which the action began, by its ``clock``: the observer's own, or one that fits the device.
        remote: keeps the checkpoints of the remote tier; None keeps them on the device, too.
        plan: the plan or schedule, to explain exhausted memory; None if nothing was planned.
        postpones_last: whether the steps of the last Record of the sweep run without a tape, and are recorded
            only when gradients arrive. This leaves memory for the caller's loss; these steps run once more.
            Only for calls without losses.
    """

    def __init__(
        self,
        call: Call,
        actions: Iterator[Action],
        scope: Scope,
        *,
        observer: Observer | None = None,
        remote: Store | None = None,
        plan: Plan | Schedule | None = None,
        postpones_last: bool = False,
    ) -> None:
        self.call, self.scope, self._actions = call, scope, Lookahead(actions)
        self._observer, self._postpones_last = observer, postpones_last
        self.constants = Constants(scope.list_constant_places())
        parameters = scope.list_parameters(call)
        #: The parameters, and the tensors computed before the call: the autograd function returns their
        #: gradients.
        self.parameters = [*parameters, *self.constants.list_targets()]
        self._frozen = [tensor for tensor in scope.reach.tensors if not tensor.requires_grad]
        leaves, nest = flatten(call.state, parameters=True)
        writes = scope.traits.writes_passed
        copies = [leaf.detach().clone() if writes else leaf.detach() for leaf in leaves]
        passed = PassedState(fill(nest, copies))
        self.state = LiftedState(passed, scope.lifted, is_written=writes, refuse_reading=_refuse_reading)
        first = self.state.read()
        first.leaves[: len(leaves)] = leaves
        #: The tensors that places held before the call, by their ids.
        self._held_before = {id(leaf): leaf for leaf, part in first.pair() if not part.is_passed}
        self.outputs = call.make_outputs()
        self.steps = call.steps_type(
            call.cell,
            call.inputs,
            self.state,
            self.outputs,
            final_loss=call.losses.get("final_loss"),
            parameters=[*parameters, *self.constants.leaves],
            constants=len(self.constants.leaves),
            first_roots=[
                (leaf.requires_grad and not part.is_content, leaf.grad_fn is not None)
                for leaf, part in first.pair()
            ],
            traits=scope.traits,
        )
        self._device, self._plan = call.device, plan
        self.context = ForwardContext(self._device.type)
        tensors = (*first.leaves, *parameters, *call.inputs.leaves)
        dtypes = (*self.context.dtypes, *(tensor.dtype for tensor in tensors if is_differentiable(tensor)))
        dtypes = dtypes or (torch.get_default_dtype(),)
        self._verifier = Verifier(dtypes, call.inputs.steps) if call.compares else None
        self.steps.verifier = self._verifier
        #: The stores of the checkpoints of each tier.
        self._local = Store()
        self.stores: dict[Tier, Store] = {Tier.LOCAL: self._local, Tier.REMOTE: remote or Store()}
        self.tapes: list[Tape] = []
        #: The clock of the observer or the one that fits the device, and its time when the action began.
        self.clock: Clock = getattr(observer, "clock", None) or choose_clock(self._device)
        self.began = 0.0
        #: After the sweep: the final state, and a snapshot of everything that the call can reach.
        self.final: Checkpoint | None = None
        self._ended: Snapshot | None = None
        self._input_versions = read_versions(call.inputs.leaves)
        #: The numbers and tensors of the first state whose gradients the autograd function returns.
        needed = [
            (n, leaf, part)
            for n, (leaf, part) in enumerate(first.pair())
            if leaf.requires_grad and not part.is_content
        ]
        self.inherited = [(number, leaf) for number, leaf, part in needed if part.is_passed or part.inherits]
        #: Other tensors with a graph from before the call, which steps should not use.
        self._unused = [(number, part) for number, _, part in needed if not (part.is_passed or part.inherits)]
        #: The action with which the reversal begins, and the state before it if it is a postponed recording.
        self._next: Action | None = None
        self._postponed: Checkpoint | None = None
        self._incoming: Sequence[Gradient] = ()
        #: The sum of the losses of the sweep, and the sum of the recorded losses.
        self._swept_total: float | None = None
        self._recorded_total = 0.0
        self._reverses = False
        #: The caller's values during a replay: of lifted places, and of holders that changed since the sweep.
        self._caller_content: LiftedContent | None = None
        self._changed_holders: list[tuple[Holder, Any]] = []
        self._caller_values: list[Any] = []
        #: Called after a LateStateError if the sweep cannot begin again, so that the next call knows the cause.
        self.when_late: Callable[[], object] | None = None

    def explain_exhaustion(self) -> AbstractContextManager[None]:
        """Return a context that explains exhausted memory by the prediction of the plan."""
        return nullcontext() if self._plan is None else explain_exhaustion(self._plan, self._device)

    # The sweep

    def sweep(self) -> None:
        """Execute the actions before the first Backward. If this fails, restore all places.

        Raises LateStateError if steps changed a place that is no part of the state.
        """
        try:
            self.constants.insert()
            try:
                self._copy_written()
                self._run_sweep()
                if hidden := self.state.list_hidden():
                    _refuse_reading(hidden[0])
                self.final = self.state.read()
            finally:
                self.constants.remove()
            self._end_sweep()
        except BaseException as error:
            hidden = self.state.list_hidden()
            if any(part.is_read for part in hidden) and isinstance(error, Exception):
                # Compiled functions raise another error in place of LateStateError. Report all hidden parts at
                # once: each would cost a sweep.
                error = LateStateError(f"{hidden[0].name} is read by a later step", reading=hidden)
            missing = self.scope.reach.restore(self.scope.start)
            self.close()
            if isinstance(error, LateStateError) and missing:
                if self.when_late is not None:
                    self.when_late()
                raise InputError(
                    f"a later step writes into {missing[0]}, of which there is no copy to begin again",
                    field="cell",
                    accepted="the same call again, from a new network, which takes this into account",
                ) from error
            raise error

    def _copy_written(self) -> None:
        """Let steps write into copies of tensors with a graph that they find in places."""
        state = self.state.read()
        copies = {
            id(leaf): leaf.detach().clone()
            for leaf, part in state.pair()
            if part.is_written and not (part.is_content or part.is_passed)
        }
        if copies:
            self.state.write(state, [copies.get(id(leaf), leaf) for leaf in state.leaves])

    def _run_sweep(self) -> None:
        for action in self._actions:
            if isinstance(action, Backward):
                self._next = action
                return
            if self._postpones_last and isinstance(action, Record) and self._is_last(action):
                self._next, self._postponed = action, self.state.save()
                self.state.hide_unread(self._postponed)
                self._do(Advance(action.start, action.stop))
                return
            self._do(action)

    def _is_last(self, record: Record) -> bool:
        return record.start > 0 and record.stop == self.call.inputs.steps

    def _end_sweep(self) -> None:
        self._ended = self.scope.reach.take_snapshot()
        if read_versions(self.call.inputs.leaves) != self._input_versions:
            raise InputError(
                "are changed in place by a step, and would be changed again when steps run again",
                field="inputs",
                accepted="a cell that leaves its input as it is",
            )
        self.lift_late_places(self._ended)
        self._refuse_filled_caches()
        written = [part for checkpoint in self._local for part in checkpoint.find_overwritten()]
        if written:
            raise LateStateError(f"{written[0].name} is changed by a later step", written=written)

    def _refuse_filled_caches(self) -> None:
        """Raise InputError if steps filled a cache with tensors, which may need gradients in a plain loop."""
        constant = self.scope.traits.constant_caches
        for cache in self.scope.reach.list_filled_caches(self.scope.start):
            if cache.name not in constant or any(tensor.requires_grad for tensor in cache.list_tensors()):
                raise InputError(
                    f"fills {cache.name}, a cache of results, in steps that run without gradients, so that its "
                    "tensors would get none",
                    field="cell",
                    accepted=f"a cell that computes {cache.name}(...) in each step; or a call of {cache.name} "
                    "before the sequence, if nothing in it needs a gradient",
                )

    def lift_late_places(self, snapshot: Snapshot) -> None:
        """Lift the places that changed during the sweep and are no part of the state.

        Raises LateStateError if there are any.
        """
        late = self._find_late(snapshot)
        if late:
            self.scope.lift(late)
            raise LateStateError(f"{join_names(late)} is changed by a later step")

    def _find_late(self, snapshot: Snapshot) -> list[Place]:
        """Return the places that changed during the sweep and are no part of the state."""
        expected = self.scope.lifted_places.keys() | self.constants.list_unchanged()
        inner = self._list_inner()
        changed = self.scope.reach.list_changes(self.scope.start, snapshot)
        return [place for place in changed if place not in expected and id(place.holder.owner) not in inner]

    def _list_inner(self) -> set[int]:
        """Return the ids of the containers and tensors within the parts of the state."""
        memo, leaves = NestMemo(), list[Tensor]()
        for part in self.scope.lifted:
            part.open(leaves, memo)
        containers: list[Any] = [getattr(nest, "container", None) for nest in memo.values()]
        attributes = {id(vars(container)) for container in containers if hasattr(container, "__dict__")}
        return {id(leaf) for leaf in leaves} | memo.keys() | attributes

    # The reversal

    def reverse(self, incoming: Sequence[Gradient], final: Sequence[Gradient]) -> None:
        """Execute the first Backward and all actions after it.

        Arguments:
            incoming: the gradients of the loss, or of the stacked outputs.
            final: the gradients of the tensors of the final state.
        """
        assert self._ended is not None  # noqa: S101 - there was a sweep
        assert self._next is not None  # noqa: S101 - it has a Backward
        written = self._check_versions(self._ended)
        self._changed_holders = self.scope.reach.list_differing(self._ended)
        self._incoming, self._reverses = incoming, True
        steps, leaves = self.steps, self.call.inputs.leaves
        steps.state_gradients = list(final)
        steps.input_gradients = [torch.zeros_like(leaf) if leaf.requires_grad else None for leaf in leaves]
        # Parameters that were frozen or unfrozen since the sweep require gradients as they did there.
        changed = [leaf for leaf in steps.parameters if not leaf.requires_grad]
        changed += [leaf for leaf in self._frozen if leaf.requires_grad]
        try:
            for leaf in changed:
                leaf.requires_grad_(not leaf.requires_grad)
            with self.context.enter():
                if self._postponed is not None:
                    self._begin_replay()
                    self.state.load(self._postponed)
                    self._postponed = None
                self._announce_next_read()
                self._do(self._next)
                for action in self._actions:
                    self._do(action)
                    if isinstance(action, Save | Load | Transfer):
                        self._announce_next_read()
            self._compare_total()
            self._refuse_lost_gradients()
            for number, name in written.items():
                if steps.sums.is_reached[number]:
                    raise _make_written_error(name)
        except LateStateError:
            if self.when_late is not None:
                self.when_late()
            raise
        except (InputError, RuntimeError) as error:
            if written and not isinstance(error, torch.OutOfMemoryError):
                raise _make_written_error(next(iter(written.values()))) from error
            raise
        finally:
            self._end_replay()
            for leaf in changed:
                leaf.requires_grad_(not leaf.requires_grad)
            self.close()

    def _announce_next_read(self) -> None:
        """Announce the next read to the remote store, if it can fetch ahead."""
        remote = self.stores[Tier.REMOTE]
        if remote.fetches_ahead and (message := self._actions.next_message()):
            caches = [] if message.caches is None else self.steps.number_caches(message.caches)
            if numbers := (*message.states, *caches):
                remote.expect(numbers)

    def _check_versions(self, ended: Snapshot) -> dict[int, str]:
        """Return the numbers and names of parameters that were written in place since the sweep.

        Steps may not use them. Raises RuntimeError for other tensors, since their use cannot be detected.
        """
        reach, inner = self.scope.reach, self._list_inner()
        numbers = {id(parameter): number for number, parameter in enumerate(self.steps.parameters)}
        written: dict[int, str] = {}
        for number in reach.list_written(ended, reach.take_snapshot()):
            tensor = reach.tensors[number]
            if id(tensor) in numbers:
                written[numbers[id(tensor)]] = reach.names[number]
            elif id(tensor) not in inner:
                raise _make_written_error(reach.names[number])
        if read_versions(self.call.inputs.leaves) != self._input_versions:
            raise RuntimeError("an input was written in place between the forward and the backward pass")
        return written

    def _begin_replay(self) -> None:
        """Put the values that steps need into places, and keep the values of the caller."""
        if self._caller_content is not None:
            return
        self._caller_content = LiftedContent(self.scope.lifted)
        self._caller_values = [holder.read() for holder, _ in self._changed_holders]
        for holder, old in self._changed_holders:
            holder.write(old)
        self.constants.insert()

    def _end_replay(self) -> None:
        """Put the values of the caller back into places."""
        if self._caller_content is None:
            return
        self.constants.remove()
        for (holder, _), content in zip(self._changed_holders, self._caller_values, strict=True):
            holder.write(content)
        self._caller_content.restore()
        self._caller_content = None

    def _compare_total(self) -> None:
        if self._verifier is None or self._swept_total is None:
            return
        if self.steps.has_own_backward and all(gradient is None for gradient in self._incoming):
            # Without a gradient, no loss was computed again.
            return
        total = self._recorded_total + self.steps.recomputed_loss
        self._verifier.compare_total(self._swept_total, total, self.steps.recomputed_scale)

    def _refuse_lost_gradients(self) -> None:
        """Raise LateStateError if steps use a tensor computed before the call that the trial did not use.

        Raises RuntimeError, as PyTorch does in a plain loop, if steps use a tensor whose graph was freed.
        """
        count = len(self.constants.originals)
        reached = (
            zip(self.parameters[-count:], self.steps.sums.is_reached[-count:], strict=True) if count else ()
        )
        if any(is_reached and not target.requires_grad for target, is_reached in reached):
            raise RuntimeError(
                "Trying to backward through the graph of a tensor from before the call a second time: compute "
                "the tensor again for each call, or detach it"
            )
        gradients = self.steps.state_gradients
        lost = [
            part for number, part in self._unused if number < len(gradients) and gradients[number] is not None
        ]
        if lost:
            raise LateStateError(
                f"{lost[0].name} has a graph from before the call, and only later steps use it", inheriting=lost
            )

    # Actions

    def _do(self, action: Action) -> None:
        if self._observer is not None:
            self.began = self.clock()
        if self._reverses:
            if isinstance(action, Backward):
                self._end_replay()
            elif isinstance(action, Load | Advance | Record):
                self._begin_replay()
        self._execute(action)
        if self._observer is not None:
            self._observer(action, self)

    def _execute(self, action: Action) -> None:
        match action:
            case Advance(start, stop, cached):
                self._advance(start, stop, cached)
            case Record(start, stop):
                self._record(start, stop)
            case Backward(start, stop):
                self._backward(start, stop)
            case Save(number, tier):
                checkpoint = self.state.save()
                self.stores[tier].put(number, checkpoint)
                if not self._reverses:
                    self.state.hide_unread(checkpoint)
            case Load(number, tier):
                self._load(self.stores[tier].get(number))
            case Free(number, tier):
                self.stores[tier].drop(number)
            case Transfer(numbers, source, target, caches):
                for number in numbers:
                    self.stores[target].put(number, self.stores[source].get(number), message_size=len(numbers))
                    self.stores[source].drop(number)
                if caches is not None:
                    remote: Any = self.stores[Tier.REMOTE]
                    self.steps.move_caches(caches, remote, target)

    def _advance(self, start: int, stop: int, cached: int | None) -> None:
        with self.context.cast_again():
            self.steps.advance(start, stop, cached)
        if self._verifier is not None:
            self._verifier.reach(stop, self.state.read())

    def _record(self, start: int, stop: int) -> None:
        frontier = self.steps.frontier
        if start < frontier < stop:
            # Losses of new steps are added up, and losses of steps that ran before are only compared: use two
            # tapes.
            self._record(start, frontier)
            start = frontier
        is_new = start >= frontier
        with self.context.cast_again():
            tape = self.steps.record(start, stop)
        self.tapes.append(tape)
        if self._verifier is None or is_new:
            return
        self._verifier.reach(stop, self.state.read())
        if self.steps.compares_terms:
            self._verifier.compare_terms(start, stop, tape.terms)

    def _load(self, checkpoint: Checkpoint) -> None:
        overwritten = checkpoint.find_overwritten()
        if overwritten:
            raise LateStateError(
                f"{overwritten[0].name} is written in place by a later step", written=overwritten
            )
        self.state.load(checkpoint)

    def _backward(self, start: int, stop: int) -> None:
        # No step runs on from here. The state would outlive the tape that it is part of.
        self.state.passed.value = None
        end = stop
        while end > start:
            tape = self.tapes.pop()
            if tape.start < start:
                raise InputError(
                    f"reverses steps {start} to {stop}, which were recorded together with those from "
                    f"{tape.start}",
                    field="schedule",
                    accepted="a Backward that begins where a Record does",
                )
            terms = [*tape.terms, *tape.final_terms]
            if self._verifier is not None and isinstance(self.outputs, SummedLoss) and terms:
                self._recorded_total += float(torch.stack([term.detach() for term in terms]).double().sum())
            self.steps.reverse(tape, self._incoming)
            end = tape.start
        if self._verifier is not None:
            self._verifier.forget(start, stop)

    def take_results(self) -> list[Tensor]:
        """Return the loss or the stacked outputs."""
        results = self.outputs.release()
        if self._verifier is not None:
            self._verifier.allow(result.dtype for result in results)
        if isinstance(self.outputs, SummedLoss):
            self._swept_total = float(results[0])
        return results

    def list_results(self) -> list[tuple[int, Tensor]]:
        """Return the tensors of the final state that are results, with their numbers.

        These are all tensors that steps pass on. A tensor in a place is a result if it may carry gradients and
        if no place held it before the call.
        """
        assert self.final is not None  # noqa: S101 - there was a sweep
        return [
            (number, leaf)
            for number, (leaf, part) in enumerate(self.final.pair())
            if part.is_passed or (part.is_carried(leaf) and id(leaf) not in self._held_before)
        ]

    def close(self) -> None:
        """Release checkpoints, tapes and graphs."""
        self.tapes.clear()
        for store in self.stores.values():
            store.close()
        self.steps.close()
        self.state.passed.value = None


def _make_written_error(name: str) -> RuntimeError:
    return RuntimeError(
        f"{name} was written in place (as an optimizer does) between the forward and the backward pass, so "
        "that steps cannot run again as they did"
    )


def _refuse_reading(part: StatePart) -> None:
    """Raise LateStateError for a part of the state that no earlier step read."""
    raise LateStateError(f"{part.name} is read by a later step before it is written", reading=[part])
