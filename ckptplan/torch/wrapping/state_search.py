"""Finds the state of a module: what its steps change and later steps read.

The first steps of a real sequence run, so that neurons are active. Everything that they change is given what it
held at other times, one after the other, and a step runs again: what its output depends on, now or by way of
something else that steps change, is state. The rest are records and statistics. Then the steps run again from
the state found, from the beginning and from the middle, and must return what they returned before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Generators, RandomState
from ckptplan.torch.inputs import Sequence as Inputs
from ckptplan.torch.inputs import iterate_steps
from ckptplan.torch.probe import walk_made
from ckptplan.torch.surroundings.holders import tap_iterators
from ckptplan.torch.surroundings.snapshot import Place, Snapshot, Surroundings
from ckptplan.torch.trees import can_be_held, flatten
from ckptplan.torch.trial import Slopes, are_steeper, detach_state, list_versions, measure_slopes
from ckptplan.torch.wrapping.slots import (
    ModuleStep,
    Slot,
    StatefulCell,
    are_equal_values,
    copy_tensors,
    depends_on,
    find_slots,
    list_parameters_among,
)

#: Whether the output differs, and which slots hold something else after the step.
Effects: TypeAlias = tuple[bool, list[bool]]
#: Gives a slot another value, and returns the leaves of graphs on which this depends.
Change: TypeAlias = Callable[[Slot], list[torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What a step returned and left in the slots, outside of its graph, and its gradients."""

    #: The output, and the value of each slot.
    values: list[Any]
    #: Which of the values are tensors with a graph, and which depend on what was changed.
    with_graph: list[bool]
    dependent: list[bool]
    slopes: Slopes | None


class Influences:
    """Runs one step again and again, each time with another value in one slot.

    Arguments:
        take: runs the step under autograd, and returns its output.
        slots: those that steps change.
        surroundings: what the module can reach.
        world: what it finds there.
    """

    def __init__(
        self, take: Callable[[], Any], slots: Sequence[Slot], surroundings: Surroundings, world: Snapshot
    ) -> None:
        self._take, self._slots = take, slots
        self._surroundings, self._world = surroundings, world
        self._usual = self._see(list)
        #: Those of a change that lets the step fail: it reads what was changed.
        self._all: Effects = (True, [True] * len(slots))

    def find_read(self, change: Change) -> list[bool]:
        """Return of each slot whether it matters to the output, be it by way of another slot."""
        effects = [self._find_effects_of_one(slot, change) for slot in self._slots]
        read = [output for output, _ in effects]
        while True:
            more = [
                mine or any(other and hit for other, hit in zip(read, hits, strict=True))
                for mine, (_, hits) in zip(read, effects, strict=True)
            ]
            if more == read:
                return read
            read = more

    def find_sums(self, change: Change) -> list[bool]:
        """Return of each slot whether it holds a tensor with a graph that goes on from what was there."""
        return [
            one and self._find_effects_of_one(slot, change)[1][number]
            for number, (slot, one) in enumerate(zip(self._slots, self._usual.with_graph[1:], strict=True))
        ]

    def are_read(self, slots: Sequence[Slot], change: Change, known: Sequence[bool]) -> bool:
        """Return whether some slots together matter to the output, or to the slots that are ``known`` to."""
        output, hits = self._find_effects(slots, change) or self._all
        return output or any(hit and one for hit, one in zip(hits, known, strict=True))

    def _find_effects_of_one(self, slot: Slot, change: Change) -> Effects:
        found = self._find_effects([slot], change)
        if found is None and not slot.without_graph:
            # Perhaps because it cannot work on a tensor with a graph there.
            slot.without_graph = True
            found = self._find_effects([slot], change)
            slot.without_graph = found is not None
        return found or self._all

    def _find_effects(self, slots: Sequence[Slot], change: Change) -> Effects | None:
        """Return what is different after a change; None if the step fails."""
        try:
            seen = self._see(lambda: [leaf for slot in slots for leaf in change(slot)])
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception:
            return None
        usual = self._usual
        steeper = (
            usual.slopes is not None and seen.slopes is not None and are_steeper(usual.slopes, seen.slopes)
        )
        output, *hits = (
            depends or not are_equal_values(before, value)
            for depends, before, value in zip(seen.dependent, usual.values, seen.values, strict=True)
        )
        # If only gradients tell, it is not known which results they belong to.
        return output or (steeper and not any(hits)), hits

    def _see(self, change: Callable[[], list[torch.Tensor]]) -> _Seen:
        self._surroundings.put_back(self._world)
        try:
            for slot in self._slots:
                # The step may write into it, which would leave a graph behind.
                slot.write(copy_tensors(slot.read()))
            changed = change()
            values = [self._take(), *(slot.read() for slot in self._slots)]
            tensors = [leaf for value in values for leaf in flatten(value)[0]]
            try:
                slopes = measure_slopes(tensors, ())
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except RuntimeError:
                # Autograd has none; values tell.
                slopes = None
            # The graph is gone when the next step runs.
            return _Seen(
                values=[detach_state(value) for value in values],
                with_graph=[isinstance(one, torch.Tensor) and one.requires_grad for one in values],
                dependent=[depends_on(value, changed) for value in values],
                slopes=slopes,
            )
        finally:
            self._surroundings.put_back(self._world)


#: The most steps that are tried.
_MOST_STEPS = 32
#: Bytes of tensors, besides parameters, that are put back after the search.
_MOST_COPIED_BYTES = 2**30


@dataclass(frozen=True, kw_only=True)
class FoundState:
    """What steps of a module change."""

    #: What later steps read.
    state: list[Slot]
    #: The rest: records, statistics, and what is written before it is read.
    others: list[Slot]


@dataclass(frozen=True, kw_only=True)
class StateSearch:
    """Finds the slots of a module.

    Arguments:
        step: takes a step of the module.
        inputs: the inputs of a sequence.
        steps: T.
        device: the device on which the module probably runs.
    """

    step: ModuleStep
    inputs: Inputs
    steps: int
    device: torch.device

    def run(self) -> FoundState:
        """Return what is found, and leave everything as it was. Raises InputError."""
        leaves, nest = self.inputs.piece(0, 1)
        first = next(iterate_steps(leaves, nest, 1))
        reached = walk_made({"net": self.step.net}, self.device, lambda: self.step(first))
        generators = Generators(self.device, wanted=True, held=reached.generators)
        with ExitStack() as stack:
            stack.enter_context(generators.aside())
            holders = [*reached.holders, *stack.enter_context(tap_iterators(reached.holders))]
            surroundings = Surroundings(holders)
            surroundings.copy_more(_MOST_COPIED_BYTES)
            trial = _Trial(search=self, surroundings=surroundings, generators=generators)
            stack.callback(trial.put_back)
            return trial.find_state()


class _Trial:
    """The first steps of a sequence."""

    def __init__(self, *, search: StateSearch, surroundings: Surroundings, generators: Generators) -> None:
        self._step, self._inputs = search.step, search.inputs
        self._last = search.steps - 1
        self._count = max(2, min(search.steps, _MOST_STEPS))
        self._surroundings, self._generators = surroundings, generators
        self._world = surroundings.take(copies=True)
        self._drawn = generators.state()
        self._outputs: list[Any] = []
        #: Before the first step, after it, and halfway.
        self._worlds = [self._world]

    def put_back(self) -> None:
        """Leave the surroundings as they were."""
        self._surroundings.put_back(self._world)

    def find_state(self) -> FoundState:
        """Return what the steps change. Raises InputError."""
        places, end = self._sweep()
        found = find_slots(self._surroundings, places)
        slots = [slot for slot in found if can_be_held(slot.read())]
        read = self._find_read(slots, end)
        chosen = [slot for slot, one in zip(slots, read, strict=True) if one]
        self._restart(self._world, self._drawn)
        unsuited = [slot.name for slot in found if slot not in slots]
        unsuited += list_parameters_among(self._surroundings, places)
        if not chosen:
            raise _not_recurrent(unsuited)
        # Something may be read in later steps only: then all that changes is taken for state.
        for state in (chosen, slots):
            if self._repeats(state):
                self._note_graphs(state)
                return FoundState(state=state, others=[slot for slot in slots if slot not in state])
        raise _not_repeatable(unsuited or [slot.name for slot in slots])

    def _sweep(self) -> tuple[list[Place], tuple[Snapshot, RandomState]]:
        """Run the steps, and keep their outputs.

        Return the places that they change, and the world before the last step. Raises InputError.
        """
        surroundings, before = self._surroundings, self._world
        changed: dict[Place, None] = {}
        versions: list[list[int]] = []
        end = before, self._drawn
        with torch.no_grad():
            for number in range(self._count):
                self._outputs.append(self._take_first() if number == 0 else self._step(self._input(number)))
                versions.append(list_versions(flatten(self._outputs[-1])[0]))
                # After 1, 2, 4, 8, ... steps: what changes back in the next step is seen, too.
                if (number + 1) & number == 0 or number >= self._count - 2:
                    now = surroundings.take()
                    places = surroundings.list_changes(before, now)
                    changed |= dict.fromkeys(places)
                    if surroundings.find_more(places):
                        now = surroundings.take()
                    before = now
                if number in (0, self._count // 2):
                    self._worlds.append(surroundings.take(copies=True))
                if number == self._count - 2:
                    # There may be no step after the last one, as for weights of each time step.
                    end = surroundings.take(copies=True), self._generators.state()
        if versions != [list_versions(flatten(output)[0]) for output in self._outputs]:
            raise _changes_outputs()
        return list(changed), end

    def _take_first(self) -> Any:
        try:
            return self._step(self._input(0))
        except (InputError, torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in self._inputs.leaves)
            error.add_note(
                f"ckptplan: raised by the first time step of inputs of shape {shapes}: the first axis is "
                "time. Inputs that are the same in each step need no such axis: net(x, steps=100)"
            )
            raise

    def _find_read(self, slots: list[Slot], end: tuple[Snapshot, RandomState]) -> list[bool]:
        """Return of each slot whether the output depends on it, where neurons are active or at the start."""
        times = [self._read_at(world, slots) for world in self._worlds]
        influences = self._influences(slots, self._count - 1, *end)
        changes = [_renew, *(_make_change(values) for values in times), _count_on]
        read = [any(found) for found in zip(*map(influences.find_read, changes), strict=True)]
        recurrent = any(read)
        for change in changes:
            # Some are read together only, as a counter and the list that it counts.
            left = [slot for slot, one in zip(slots, read, strict=True) if not one]
            if left and influences.are_read(left, change, read):
                read = [one or slot in left for slot, one in zip(slots, read, strict=True)]
        if recurrent:
            # Sums over time that a user adds to the loss afterwards.
            read = [one or other for one, other in zip(read, influences.find_sums(_renew), strict=True)]
        # A flag that the first step clears: the first step, run again, must find it set.
        first = self._influences(slots, 0, self._world, self._drawn)
        early = first.find_read(_make_change(times[1]))
        return [one or other for one, other in zip(read, early, strict=True)]

    def _read_at(self, world: Snapshot, slots: list[Slot]) -> dict[tuple[int, Any], Any]:
        """Return the values of slots in a world."""
        self._surroundings.put_back(world)
        return {slot.identity: copy_tensors(slot.read()) for slot in slots}

    def _influences(self, slots: list[Slot], number: int, world: Snapshot, drawn: RandomState) -> Influences:
        def take() -> Any:
            self._generators.restore(drawn)
            with torch.enable_grad():
                return self._step(self._input(number))

        return Influences(take, slots, self._surroundings, world)

    def _repeats(self, slots: list[Slot]) -> bool:
        """Return whether steps from explicit states return what the module did, also when they run again."""
        while True:
            written = sum(slot.written_in_place for slot in slots)
            found = self._repeats_once(slots)
            if sum(slot.written_in_place for slot in slots) == written:
                return found

    def _repeats_once(self, slots: list[Slot]) -> bool:
        self._restart(self._world, self._drawn)
        cell = StatefulCell(self._step, slots, tuple(slot.read() for slot in slots))
        half = self._count // 2
        with torch.no_grad():
            middle = self._run_explicit(cell, None, 0, half)
            if middle is None:
                return False
            drawn = self._generators.state()
            copies = copy_tensors(middle)
            if self._run_explicit(cell, middle, half, self._count) is None:
                return False
            self._generators.restore(drawn)
            return self._run_explicit(cell, copies, half, self._count) is not None

    def _note_graphs(self, slots: list[Slot]) -> None:
        """Note which tensors have a graph after steps, as running statistics do not. Raises InputError."""
        self._restart(self._world, self._drawn)
        cell = StatefulCell(self._step, slots, tuple(slot.read() for slot in slots))
        given: Any = None
        for number in range(self._count):
            with torch.enable_grad():
                after, output = cell(given, self._input(number, graphs=True))
            if number == self._count - 1:
                self._refuse_random_backward((*flatten(after)[0], *flatten(output)[0]))
            leaves, nest = flatten(after)
            flags = [leaf.requires_grad for leaf in leaves]
            given = nest.fill(
                [one.detach().requires_grad_(flag) for one, flag in zip(leaves, flags, strict=True)]
            )
            for slot, value in zip(slots, given, strict=True):
                slot.note_graphs(value)

    def _refuse_random_backward(self, results: tuple[torch.Tensor, ...]) -> None:
        drawn = self._generators.state()
        try:
            measure_slopes(results, ())
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except RuntimeError:
            # The sequence itself will say why.
            return
        if self._generators.moved_since(drawn):
            raise InputError(
                "draws random numbers in its backward pass, as snntorch.surrogate.SSO does: they would not be "
                "those of a plain loop",
                field="net",
                accepted="another surrogate gradient, such as snntorch.surrogate.fast_sigmoid",
            )

    def _run_explicit(self, cell: StatefulCell, state: Any, start: int, stop: int) -> Any:
        """Return the state after some steps, None if one returned something else than before."""
        for number in range(start, stop):
            copies = cell.copy_given(state)
            after, output = cell(state, self._input(number))
            cell.note_writes(state, copies)
            state = after
            if not are_equal_values(output, self._outputs[number]):
                return None
        return state

    def _restart(self, world: Snapshot, drawn: RandomState) -> None:
        self._surroundings.put_back(world)
        self._generators.restore(drawn)

    def _input(self, number: int, *, graphs: bool = False) -> Any:
        number = min(number, self._last)
        leaves, nest = self._inputs.piece(number, number + 1)
        wanted = [graphs and leaf.requires_grad for leaf in self._inputs.leaves]
        pieces = [leaf.detach().requires_grad_(one) for leaf, one in zip(leaves, wanted, strict=True)]
        return next(iterate_steps(tuple(pieces), nest, 1))


def _renew(slot: Slot) -> list[torch.Tensor]:
    """Give a slot what it holds, with a new graph."""
    return slot.put(slot.read())


#: Steps that a counter goes on by: what begins later than the steps that are tried has begun then.
_FAR = 1_000_003


def _count_on(slot: Slot) -> list[torch.Tensor]:
    """Move a whole number on, as many more steps would; other values stay."""
    value = slot.read()
    whole = isinstance(value, torch.Tensor) and value.numel() == 1 and value.dtype in (torch.int32, torch.int64)
    return slot.put(value + _FAR) if whole or type(value) is int else []


def _make_change(values: dict[tuple[int, Any], Any]) -> Change:
    """Return what gives a slot its value of another time."""
    return lambda slot: slot.put(values[slot.identity])


def _not_recurrent(unsuited: list[str]) -> InputError:
    if unsuited:
        return _not_repeatable(unsuited)
    return InputError(
        "keeps nothing from one time step to the next: it is not recurrent, takes its state as an argument and "
        "returns it, or loops over time itself",
        field="net",
        accepted="a module that takes one time step a call and keeps its state, torch.nn.LSTM, GRU or RNN, or "
        "a network of Norse; for cell(state, x), ckptplan.torch.scan or unroll",
    )


def _not_repeatable(names: list[str]) -> InputError:
    return InputError(
        f"returns something else when its steps run again from what they change ({', '.join(names[:4])}): it "
        "keeps something that could not be found, or that a checkpoint cannot hold",
        field="net",
        accepted="a module that keeps its state in attributes, buffers or variables, as tensors, numbers, and "
        "containers of these; not in parameters, arrays of NumPy, or sets",
    )


def _changes_outputs() -> InputError:
    return InputError(
        "returns tensors that its later steps change in place, so that the outputs of all steps become the "
        "last one",
        field="net",
        accepted="a copy, as self.mem.clone(), or steps that make a new tensor, as "
        "self.mem = 0.9 * self.mem + x",
    )
