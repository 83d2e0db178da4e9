"""Rehearses steps of a call: their gradients under a small plan against plain backpropagation.

A plan runs steps again, records them in shorter runs than a plain loop does, and finds what later steps left in
the surroundings. A cell and a loss that depend on their arguments alone give the same gradients all the same,
whatever they are made of. So the first steps of a call run twice from the same surroundings: as a plain loop,
and under a schedule with recorded runs of one, two and more steps, of which all but the last run again. One
more step is taken in the middle of the sequence, where a network is active: in the surroundings there, in those
from before the sequence, and in those at its end, where steps begin to run again. If losses or gradients
differ, the steps run a few times more, to say why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import cycle, pairwise
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.ambient import Autocast, RandomState
from ckptplan.torch.call import Call, Losses
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.chunk_check import StepByStep, find_active, make_reverse_error, run_chunks
from ckptplan.torch.digests import REORDERED, find_rounding, is_close
from ckptplan.torch.graphs import as_graph_roots, compute_gradients
from ckptplan.torch.inputs import detach_inputs
from ckptplan.torch.losses import check_scalar
from ckptplan.torch.pages import keep_tapes_in_file
from ckptplan.torch.probe import Probed
from ckptplan.torch.surroundings.snapshot import (
    Place,
    Snapshot,
    Surroundings,
    aside,
    list_changes,
    mix_in,
    put_back,
)
from ckptplan.torch.trees import are_equal_constants, byte_size, flatten, is_differentiable
from ckptplan.torch.trial import (
    ROUNDING,
    HiddenState,
    Reduced,
    gather,
    list_differences,
    make_direction,
    make_hidden_state,
    make_unfound,
    reduce_tensor,
    refuse_lost_changes,
)

#: The first steps that are rehearsed: as many as there is room for, within these bounds.
_LEAST, MOST = 2, 12
#: The share of a limit that their tapes take, beside a state and what a backward pass works with.
_SHARE = 0.3
#: Lengths of the recorded runs that run again, in turn.
_LENGTHS = (1, 2, 3, 4)
#: Losses that are smaller beside the sum may be nothing but rounding.
_LEAST_SHARE = 1e-4
#: Executes a call under its plan, given what is known of its steps; returns its results.
Execute = Callable[[Call, Probed], tuple[torch.Tensor, ...]]


def count_steps(probed: Probed, *, steps: int, room: int) -> int:
    """Return how many first steps have room for their tapes, at least two of T ``steps``."""
    having = (count for count in range(MOST, _LEAST, -1) if probed.found.count_tapes(count) <= room)
    return min(next(having, _LEAST), steps)


def make_schedule(steps: int) -> Schedule:
    """Return a schedule with recorded runs of one, two and more steps; all but the last step run again."""
    cuts = [0]
    for length in cycle(_LENGTHS):
        if cuts[-1] >= steps - 1:
            break
        cuts.append(min(cuts[-1] + length, steps - 1))
    runs, local = list(pairwise(cuts)), Tier.LOCAL
    actions: list[Action] = []
    for start, stop in runs:
        actions += [Save(start, local), Advance(start, stop)]
    actions += [Record(steps - 1, steps), Backward(steps - 1, steps)]
    for start, stop in reversed(runs):
        actions += [Load(start, local), Free(start, local), Record(start, stop), Backward(start, stop)]
    return Schedule(steps=steps, actions=tuple(actions), local_states=len(cuts), chunk_size=max(_LENGTHS))


def make_single_record(steps: int) -> Schedule:
    """Return the schedule of plain backpropagation."""
    actions = (Record(0, steps), Backward(0, steps))
    return Schedule(steps=steps, actions=actions, local_states=1, chunk_size=steps)


class _Objective:
    """The losses of a call and, beside them, a fixed sum of what steps return: some losses see the end only.

    Arguments:
        losses: of the call, by the names of their arguments.
        start: the step of the call that is the first one here.
    """

    def __init__(self, losses: Losses, start: int) -> None:
        self._given, self._start = losses, start
        #: What the sum counts: no more than the losses of the first run do, which may be small.
        self.share: float | None = None
        self._name = "chunk_loss" if "chunk_loss" in losses else "loss"
        #: The types of what steps return.
        self.dtypes: set[torch.dtype] = set()
        #: What the losses and the sum were in the present run; of steps that run again, each time.
        self.lost = self.sums = 0.0
        #: What has no gradient: the constants, and numbers of the integers, each time.
        self.whole: list[Any] = []

    def choose_share(self) -> float:
        """Return the share of the sum, given what the losses and the sum are in the first run."""
        if self.share is None:
            small = _LEAST_SHARE * abs(self.sums) < abs(self.lost) < abs(self.sums)
            self.share = abs(self.lost / self.sums) if small else 1.0
        return self.share

    @property
    def losses(self) -> dict[str, Any]:
        """Losses to execute a call with; they begin to count anew."""
        self.lost, self.sums, self.whole = 0.0, 0.0, []
        return {
            self._name: lambda step, output: self._count(self._name, self._start + step, output),
            "final_loss": partial(self._count, "final_loss"),
        }

    def _count(self, name: str, *given: Any) -> torch.Tensor:
        """Return a loss of some arguments, if there is one, with the part of the sum that the last one is."""
        part = self._add_up(given[-1], stacked=name == "chunk_loss")
        self.sums += float(part.detach())
        total: torch.Tensor = _Weighed.apply(part, self)  # type: ignore[no-untyped-call]
        if name in self._given:
            term = gather(check_scalar(self._given[name](*given), name))
            self.lost += float(term.detach())
            total = total + term
        return total

    def _add_up(self, tree: Any, *, stacked: bool = False) -> torch.Tensor:
        """Return the mean of all elements in a fixed direction, as a number of at least fp32."""
        given, nest = flatten(tree)
        floats = [gather(one) for one in given if is_differentiable(one) and one.numel()]
        self.whole += nest.plain
        self.whole += [reduce_tensor(one) for one in given if not is_differentiable(one) and one.numel()]
        leaves = [torch.view_as_real(one.resolve_conj()) if one.is_complex() else one for one in floats]
        self.dtypes |= {leaf.dtype for leaf in leaves}
        if not leaves:
            return torch.zeros(())
        sums: list[torch.Tensor] = [_Projected.apply(leaf, place, stacked) for place, leaf in enumerate(leaves)]  # type: ignore[no-untyped-call]
        total: torch.Tensor = sum(sums[1:], sums[0])
        return total


class _Projected(torch.autograd.Function):
    """The mean of a tensor's elements in a fixed direction, which is made again for the gradient.

    Kept for the backward pass, it would take as much as what the steps return.
    """

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, place: int, stacked: bool) -> torch.Tensor:
        """Return the mean; of ``stacked`` steps, time first, the sum of their means."""
        ctx.place, ctx.whole, ctx.dtype = place, leaf.shape, leaf.dtype
        ctx.shape = leaf.shape[1:] if stacked else leaf.shape
        part = make_direction(leaf[0] if stacked else leaf, place) * leaf
        wide = part.float() if part.dtype in (torch.float16, torch.bfloat16) else part
        return wide.flatten(1).mean(1).sum() if stacked else wide.mean()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return the direction, in proportion."""
        share = (gradients[0] / ctx.shape.numel()).to(ctx.dtype)
        found = make_direction(share.expand(ctx.shape), ctx.place).mul_(share)
        return found.expand(ctx.whole), None, None


class _Weighed(torch.autograd.Function):
    """A part of the sum with its share, which is chosen after the steps of the first run."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, objective: _Objective) -> torch.Tensor:
        """Return the part times its share, itself as long as that is not known: its gradient knows better."""
        ctx.objective = objective
        return part * (1.0 if objective.share is None else objective.share)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Multiply by the share."""
        return gradients[0] * ctx.objective.choose_share(), None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What steps gave, as numbers: nothing of it is kept."""

    #: The total loss, and the part that is the fixed sum of what steps return.
    total: float
    sums: float
    #: Of each gradient, in the order of the wanted tensors, its norm and its product with a fixed direction.
    gradients: list[Reduced]
    #: The positions of those that there are.
    present: frozenset[int]
    #: The constants and integers among what steps return.
    whole: list[Any]


@dataclass(kw_only=True)
class Rehearsal:
    """Some steps of a call, from a state.

    Arguments:
        call: the call.
        probed: what is known of its steps.
        execute: executes a call under its plan.
        state: the state that the steps begin with.
        before: what a ``ChunkCell`` needs of the steps before, None at the first step.
        start: the first one of the steps.
        steps: their number.
        surroundings: what the steps can reach.
        world: what they find there.
    """

    call: Call
    probed: Probed
    execute: Execute
    state: Any
    start: int
    steps: int
    surroundings: Surroundings
    world: Snapshot
    before: Any = None
    #: Whether the tape of a plain loop is kept in a file: there is no room for that of several steps.
    spills: bool = False
    #: The states of the random generators before the first one.
    drawn: RandomState = field(init=False)
    _objective: _Objective = field(init=False)

    def __post_init__(self) -> None:
        self.drawn = self.probed.generators.state()
        self._objective = _Objective(self.call.losses, self.start)

    def play(self, *, graph: bool = True) -> Seen:
        """Run the steps as a plain loop, in the present surroundings; there are gradients with a ``graph``."""
        cell, plain = self.call.cell, make_single_record(self.steps)
        states: Any = ()
        if isinstance(cell, ChunkCell):
            self.probed.generators.restore(self.drawn)
            given = cell, self.state, self.call.sequence
            states = run_chunks(*given, self.start, self.start + self.steps, before=self.before)
        known = (*self.call.leaves, *self.probed.parameters)
        with keep_tapes_in_file(known) if self.spills else nullcontext():
            return self.perform(plain, StepByStep(cell, states), graph=graph, at_once=True)

    @cached_property
    def usual(self) -> Seen:
        """What the steps give as a plain loop in their world, which is the present one."""
        return self.play()

    def perform(
        self, schedule: Schedule, cell: Any = None, *, graph: bool = True, at_once: bool = False
    ) -> Seen:
        """Run the steps under a schedule, of the call's cell or another, in the present surroundings.

        If it records all steps ``at_once``, there is one gradient of a parameter at a time: what is compared
        later runs beside the gradients of the sequence.
        """
        call, probed, objective = self.call, self.probed, self._objective
        leaves, structure = flatten(self.state)
        given, nest = call.sequence.piece(self.start, self.start + self.steps)
        inputs = detach_inputs(given)
        roots = as_graph_roots(leaves)
        self.probed.generators.restore(self.drawn)
        reduced: dict[int, Reduced] = {}

        def see(place: int, gradient: torch.Tensor) -> None:
            reduced[place] = reduce_tensor(gradient)

        inner = Call(
            cell=call.cell if cell is None else cell,
            inputs=nest.fill(inputs),
            state=structure.fill(roots),
            plan=schedule,
            losses=objective.losses,
            parameters=call.parameters,
            verify=call.verify,
            before=self.before,
            see_gradient=see if at_once else None,
            room=call.room,
        )
        with torch.set_grad_enabled(graph):
            total, *_ = self.execute(inner, probed)
            lost, sums, value = objective.lost, objective.sums, float(total.detach())
            if objective.share is None:
                value = lost + objective.choose_share() * sums
            wanted = [leaf for leaf in (*roots, *inputs) if leaf.requires_grad]
            # Without a graph there are none.
            found = compute_gradients([(total, torch.ones_like(total))], [*wanted, *probed.parameters])
        # Places of parameters count from zero, and those of the state and the inputs come before.
        for place, gradient in enumerate(found, -len(wanted)):
            if gradient is not None and place not in reduced:
                reduced[place] = reduce_tensor(gradient)
        return Seen(
            total=value,
            sums=sums,
            gradients=[reduced.get(place, (0.0, 0.0)) for place, _ in enumerate(found, -len(wanted))],
            present=frozenset(place + len(wanted) for place in reduced),
            whole=objective.whole,
        )

    @cached_property
    def _names(self) -> list[str]:
        """The names of the wanted tensors."""
        given, _ = self.call.sequence.piece(self.start, self.start + 1)
        states = [leaf for leaf in flatten(self.state)[0] if is_differentiable(leaf)]
        inputs = [leaf for leaf in given if leaf.requires_grad and is_differentiable(leaf)]
        return [
            *("the state" for _ in states),
            *("the inputs" for _ in inputs),
            *self.probed.list_parameter_names(),
        ]

    @property
    def _rounding(self) -> float:
        leaves = (*self.call.leaves, *self.probed.parameters)
        given = {one.dtype for one in leaves} | self._objective.dtypes | self.probed.found.dtypes
        found = REORDERED * find_rounding((*given, *Autocast.present(self.probed.found.device).dtypes))
        # Chunks of several lengths are computed otherwise.
        return max(found, ROUNDING) if isinstance(self.call.cell, ChunkCell) else found

    def _list_roundings(self, cell: ChunkCell) -> list[float]:
        """Return the rounding of the gradient of each wanted tensor, where a cell runs in chunks.

        Chunks are not cast, and inputs of a less precise type round their own gradients alone.
        """
        states, inputs = flatten(self.state)[0], self.call.sequence.leaves
        own = [*cell.parameters()]
        known, types = {id(one) for one in own}, {one.dtype for one in (*states, *own)} | self._objective.dtypes

        def find(*more: torch.dtype) -> float:
            return REORDERED * find_rounding((*types, *more))

        return [
            *(find() for one in states if is_differentiable(one)),
            *(find(one.dtype) for one in inputs if one.requires_grad and is_differentiable(one)),
            *(find() if id(one) in known else self._rounding for one in self.probed.parameters),
        ]

    def _describe_gradients(self, one: Seen, other: Seen) -> str:
        """Return which gradients of two runs differ beyond rounding, as text; nothing if they are the same."""
        cell, pairs = self.call.cell, list(zip(one.gradients, other.gradients, strict=True))
        if not isinstance(cell, ChunkCell):
            found = list_differences(pairs, roundings=[self._rounding] * len(pairs))
            place, share = max(found, key=lambda pair: pair[1], default=(0, 0.0))
            return f"the gradient of {self._names[place]} differs by {share:.1%} of its norm" if found else ""
        found = list_differences(pairs, roundings=self._list_roundings(cell), least=ROUNDING)
        missing = [(place, 1.0) for place in one.present - other.present if one.gradients[place][0]]
        for place, share in sorted([*found, *missing]):
            # Those of inputs are zero where a cell returns none.
            how = f"differs by {share:.1%} of its norm" if other.gradients[place][0] else "is missing"
            return f"the gradient of {self._names[place]} {how}"
        return ""

    def describe_difference(self, one: Seen, other: Seen) -> str:
        """Return what of two runs differs beyond rounding, as text; nothing if they are the same."""
        if gradients := self._describe_gradients(one, other):
            return gradients
        size = max(abs(one.total), abs(other.total), abs(one.sums))
        return "" if is_close(one.total, other.total, self._rounding * size) else "the loss differs"

    def rehearse(self) -> None:
        """Run the steps as a plain loop and under a schedule, and compare. Raises InputError."""
        surroundings, usual = self.surroundings, self.usual
        late = surroundings.take(copies=True, since=self.world)
        places = list_changes(self.world, late)
        surroundings.find_more(places)
        refuse_lost_changes(surroundings, places)
        put_back(self.world)
        seen: Seen | None = None
        error: Exception | None = None
        try:
            seen = self.perform(make_schedule(self.steps))
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as other:
            error = other
        what = str(error) if seen is None else self.describe_difference(usual, seen)
        if what or seen is None:
            found = self.explain(late, places, what)
            cell = self.call.cell
            if isinstance(cell, ChunkCell):
                raise found or error or make_reverse_error(cell, what)
            # Noise is forgiven where nothing is compared.
            if self.call.verify or isinstance(found, HiddenState):
                raise found or error or self._make_start_error(what)
        # The sweep of a schedule takes each step first in order.
        if (
            seen is None
            or what
            or not are_equal_constants(usual.whole, seen.whole[: len(usual.whole)], ROUNDING)
        ):
            replace(self, steps=min(_LEAST, self.steps)).repeat()

    def repeat(self) -> None:
        """Run the steps twice as a plain loop, and compare. Raises InputError."""
        put_back(self.world)
        usual = self.usual
        put_back(self.world)
        again = self.play()
        what = self.describe_difference(usual, again)
        if what or not are_equal_constants(usual.whole, again.whole, ROUNDING):
            raise make_unfound(self.call, "first steps", what or "a constant differs")

    def compare(self, others: Snapshot, places: list[Place]) -> None:
        """Run the steps with some places as in other surroundings. Raises InputError if that differs."""
        seen = self.play_in(others, places)
        what = "it failed" if seen is None else self.describe_difference(self.usual, seen)
        if what:
            found = self.explain(others, places, what)
            if self.call.verify or isinstance(found, HiddenState):
                raise found or self._make_start_error(what)

    def explain(self, others: Snapshot, places: list[Place], what: str) -> InputError | None:
        """Return why steps differ, None if nothing tells.

        Arguments:
            others: surroundings in which they gave something else than a plain loop in their own, perhaps.
            places: those in which the two differ.
            what: what differs, as text.
        """
        usual = self.usual
        # Twice, as noise may be the same once.
        again = [self.play_in() for _ in range(2)]
        if any(one is None or self.describe_difference(usual, one) for one in again):
            return make_unfound(self.call, "steps", what)
        if self._sees_grad_mode():
            return InputError(
                "returns another result under torch.no_grad(), where steps run that are run again later",
                field="cell or loss" if self.call.losses else "cell",
                accepted="a result that does not depend on torch.is_grad_enabled()",
            )

        def find_reader(some: list[Place]) -> str:
            """Return the argument that reads places, nothing if none does."""
            seen = self.play_in(others, some)
            if seen is None:
                return "cell or loss"
            if not self.describe_difference(usual, seen):
                return ""
            if not is_close(usual.sums, seen.sums, self._rounding * abs(usual.sums)):
                return "cell"
            if not is_close(usual.total, seen.total, self._rounding * abs(usual.total)):
                return "loss"
            return "cell or loss" if self.call.losses else "cell"

        reader = find_reader(places) if places else ""
        if not reader:
            return None
        # They may be read together only, as a counter and the list that it counts.
        read = [place for place in places if find_reader([place])] or places
        return make_hidden_state(self.surroundings, read, field=reader)

    def _sees_grad_mode(self) -> bool:
        """Return whether the steps return something else without a graph than they did with one."""
        usual, seen = self.usual, self.play_in(graph=False)
        if seen is None:
            return True
        near = partial(is_close, limit=self._rounding * max(abs(usual.total), abs(usual.sums)))
        return not (near(usual.total, seen.total) and near(usual.sums, seen.sums))

    def _make_start_error(self, what: str) -> InputError:
        """Return the error for steps that differ for no reason that can be found in the surroundings."""
        causes = [
            "a cell depends on where a recorded run of steps begins (is_leaf, grad_fn or hooks of its state)",
            *(["a chunk_loss depends on how the sequence is cut"] if "chunk_loss" in self.call.losses else []),
            "a backward pass draws random numbers or keeps something",
        ]
        return InputError(
            f"steps {self.start} to {self.start + self.steps - 1} give something else under a plan than in a "
            f"plain loop ({what}): {', or '.join(causes)}",
            field="cell or loss" if self.call.losses else "cell",
            accepted="a cell, a loss and a backward pass that depend on their arguments alone",
        )

    def play_in(
        self, others: Snapshot | None = None, places: Iterable[Place] = (), *, graph: bool = True
    ) -> Seen | None:
        """Run the steps as a plain loop, with some places as in other surroundings; None if they fail."""
        put_back(self.world)
        mix_in(others or {}, places)
        try:
            return self.play(graph=graph)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception:
            return None
        finally:
            put_back(self.world)


def rehearse_first(call: Call, probed: Probed, execute: Execute, *, limit: int, repeats: bool = False) -> None:
    """Rehearse the first steps of a call, and leave everything as it was. Raises InputError.

    Arguments:
        call: the call.
        probed: what is known of its steps.
        execute: executes a call under its plan.
        limit: bytes that they may take: tapes, beside two gradients of the parameters.
        repeats: whether steps run twice as a plain loop, for a plan that runs none again.
    """
    generators, cell = probed.generators, call.cell
    room = int(_SHARE * (limit - 2 * byte_size(probed.parameters)))
    # The trial has shown that steps leave parameters alone: a copy of them would not be within a limit.
    reached = probed.situation.reached
    with aside(reached, generators, room=call.room, spares_parameters=True) as (surroundings, world):
        count = count_steps(probed, steps=call.plan.steps, room=0 if repeats else room)
        spills = not repeats and room < probed.found.count_tapes(count)
        first = Rehearsal(
            call=call,
            probed=probed,
            execute=execute,
            state=call.state,
            start=0,
            steps=count,
            surroundings=surroundings,
            world=world,
            spills=spills,
        )
        if repeats:
            first.repeat()
            return
        try:
            first.rehearse()
        except (InputError, RuntimeError) as error:
            if not first.spills or isinstance(error, torch.OutOfMemoryError):
                raise
            # What a file gives back may be told from what was kept, as noise that is filled in afterwards; or
            # something forbids it, as transforms of torch.func do.
            put_back(world)
            generators.restore(first.drawn)
            first = replace(first, spills=False)
            first.rehearse()
        if not isinstance(cell, ChunkCell):
            return
        put_back(world)
        start, state, before = find_active(cell, call.state, call.sequence, each=count, steps=call.plan.steps)
        if start:
            # A gradient of a weight that nothing uses yet is zero, whatever it is computed from.
            steps = min(count, call.plan.steps - start)
            replace(first, state=state, before=before, start=start, steps=steps).rehearse()
