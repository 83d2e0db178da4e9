"""Wraps modules that keep their state: one call a time step becomes one call a sequence."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.torch.adapters.adapter import find_class
from ckptplan.torch.budget import count_steps
from ckptplan.torch.call import check_losses
from ckptplan.torch.inputs import iterate_steps, make_sequence
from ckptplan.torch.measurement import find_device
from ckptplan.torch.run import Result
from ckptplan.torch.surroundings.snapshot import Place, Surroundings
from ckptplan.torch.surroundings.walk import walk
from ckptplan.torch.trees import flatten
from ckptplan.torch.trial import HiddenState
from ckptplan.torch.wrapping.slots import LateGraph, ModuleStep, Slot, StatefulCell, find_slots, merge_flags
from ckptplan.torch.wrapping.state_search import StateSearch
from ckptplan.torch.wrapping.wrapped import Wrapped

#: How often a sequence is begun again with state that showed during it.
_MOST_TRIES = 4


class _Memory:
    """The slots that were found, and for what; a copy of the module has others."""

    def __init__(self) -> None:
        self.slots: dict[Any, Slot] = {}
        self.others: dict[Any, Slot] = {}
        self.kinds: set[Any] = set()
        self.modules: tuple[int, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Memory:
        return _Memory()

    def __reduce__(self) -> Any:
        return _Memory, ()

    def add(self, slots: Iterable[Slot]) -> bool:
        """Add slots; return whether there was a new one."""
        before = len(self.slots)
        for slot in slots:
            known = self.slots.setdefault(slot.identity, slot)
            # Found again for inputs of another kind.
            known.graphs = merge_flags(known.graphs, slot.graphs)
            known.written_in_place |= slot.written_in_place
            known.without_graph |= slot.without_graph
        return len(self.slots) > before


class StatefulSequence(Wrapped):
    """A module that keeps its state, as a module over sequences: (T, B, ...) in, outputs stacked over time.

    What steps change and later steps read is the state, wherever it is; it is found in the first call. It is
    carried on from call to call, as it would be in a loop.

    Arguments:
        net: the module; called once for each time step.
        memory: the memory that a call may take.
        plan: a plan in place of a limit.
        reset: called with ``net`` before each call, e.g. ``snntorch.utils.reset``; or a method of ``net``.
        detach: whether a call begins with the numbers of the state that the last one left, without its graph:
            truncated backpropagation through time.
        options: other arguments of ``unroll``.
    """

    _reset: Callable[..., object] | None
    _detach: bool
    _memory_of_state: _Memory
    #: That of the last call, and the final one, as it is returned and as it is left.
    _held_states = 3

    def __init__(
        self,
        net: torch.nn.Module,
        *,
        memory: int | str | None = None,
        plan: Any = None,
        reset: Callable[..., object] | None = None,
        detach: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(net, memory=memory, plan=plan, **options)
        if reset is not None and not callable(reset):
            raise InputError(
                f"{quote_value(reset)} cannot be called",
                field="reset",
                accepted="a function that is called with the module, as snntorch.utils.reset and "
                "spikingjelly.activation_based.functional.reset_net",
            )
        self.__dict__.update(_reset=reset, _detach=detach, _memory_of_state=_Memory())

    def forward(self, *inputs: Any, steps: int | None = None, **constants: Any) -> Any:
        """Return the outputs of all time steps, stacked.

        Arguments:
            inputs: tensors of shape (T, ...), or nests of these; the module is called with their time steps.
            steps: T, for inputs without a time axis: each step gets the same.
            constants: keyword arguments that the module is called with in each step.

        Raises InputError, also if no plan fits the limit.
        """
        x, step = self._begin(inputs, steps, constants)
        if not torch.is_grad_enabled():
            return self._loop(step, x)

        def run(cell: StatefulCell, state: Any) -> tuple[Any, Any]:
            return self._unroll(cell, x, state, parameters=self._name_parameters(constants))

        return self._run(step, x, run)

    def bptt(
        self,
        *inputs: Any,
        loss: Callable[[int, Any], torch.Tensor] | None = None,
        chunk_loss: Callable[[int, Any], torch.Tensor] | None = None,
        steps: int | None = None,
        **constants: Any,
    ) -> torch.Tensor:
        """Return the sum of a loss over the time steps, without keeping their outputs.

        The state that it leaves has no graph: a gradient of it is refused. The next call has to begin with a
        reset, or with ``detach``.

        Arguments:
            inputs: as for the call.
            loss: ``loss(t, output)`` for each step.
            chunk_loss: ``chunk_loss(start, outputs)`` for runs of steps.
            steps: as for the call.
            constants: as for the call.

        Raises InputError, also if no plan fits the limit.
        """
        losses = check_losses(loss=loss, chunk_loss=chunk_loss, final_loss=None)
        x, step = self._begin(inputs, steps, constants)

        def run(cell: StatefulCell, state: Any) -> tuple[Any, Any]:
            parameters = self._name_parameters(constants)
            result: Result = self._bptt(cell, x, state, losses, parameters=parameters)
            return result.loss, result.state

        roots = [one for one in self.net.parameters() if one.requires_grad]

        def leave(slot: Slot, value: Any) -> None:
            slot.leave_guarded(value, roots)

        found: torch.Tensor = self._run(step, x, run, leave if torch.is_grad_enabled() else Slot.leave)
        return found

    def _begin(self, inputs: Any, steps: int | None, constants: dict[str, Any]) -> tuple[Any, ModuleStep]:
        """Reset the module; return the inputs of the sequence, and what takes a step."""
        if not inputs:
            raise InputError("are missing", field="inputs", accepted="tensors of shape (T, ...)")
        _refuse_sequences(self.net)
        if self._reset is not None:
            # ``net.reset`` knows its module; functions of libraries are given it.
            own = getattr(self._reset, "__self__", None) is self.net
            self._reset() if own else self._reset(self.net)
        if steps is not None:
            leaves, nest = flatten(inputs)
            inputs = nest.fill([leaf.expand(steps, *leaf.shape) for leaf in leaves])
        count_steps(inputs, None)
        return inputs, ModuleStep(self.net, constants)

    def _name_parameters(self, constants: dict[str, Any]) -> list[torch.Tensor]:
        """Return the tensors that gradients reach besides the module's: they may have graphs of their own."""
        named = self._options.get("parameters", ())
        return [*named, *(leaf for leaf in flatten(constants)[0] if leaf.requires_grad)]

    def _loop(self, step: ModuleStep, x: Any) -> Any:
        """Return the outputs of all steps, where no gradient is wanted."""
        count = count_steps(x, None)
        leaves, nest = make_sequence(x, steps=count).piece(0, count)
        outputs = [flatten(step(one)) for one in iterate_steps(leaves, nest, count)]
        return outputs[0][1].fill(
            [torch.stack(parts) for parts in zip(*(one for one, _ in outputs), strict=True)]
        )

    def _run(
        self,
        step: ModuleStep,
        x: Any,
        run: Callable[[StatefulCell, Any], tuple[Any, Any]],
        leave: Callable[[Slot, Any], None] = Slot.leave,
    ) -> Any:
        """Run a sequence from the present state, and leave the final one; state that shows late is added."""
        memory = self._search(step, x)
        for attempt in range(_MOST_TRIES):
            slots = list(memory.slots.values())
            if self._detach:
                _detach_slots(slots)
            initial = tuple(slot.read() for slot in slots)
            wanted = any(leaf.requires_grad for leaf in flatten(initial)[0])
            others = tuple(memory.others.values())
            cell = StatefulCell(step, slots, () if wanted else initial, others, checks_graphs=True)
            final = None
            try:
                # Steps load the state. Other numbers there would make each call look like another kind of call.
                for slot in slots:
                    slot.clear()
                outputs, final = run(cell, initial if wanted else None)
                return outputs
            except LateGraph:
                if attempt == _MOST_TRIES - 1:
                    raise
            except HiddenState as error:
                known = not memory.add(_find_late_slots(error.surroundings, error.places))
                if known or attempt == _MOST_TRIES - 1:
                    raise
            finally:
                for slot, value, before in zip(slots, final or initial, initial, strict=True):
                    slot.write(before)
                    if final is not None:
                        leave(slot, value)
        raise AssertionError("the last attempt returns or raises")

    def _search(self, step: ModuleStep, x: Any) -> _Memory:
        """Find the state for inputs and modes of this kind, if that was not done. Raises InputError."""
        memory, modules = self._memory_of_state, list(self.net.modules())
        ids = tuple(map(id, modules))
        if memory.modules != ids or not _are_reached(memory.slots.values(), self.net):
            self._memory_of_state = memory = _Memory()
            memory.modules = ids
        count = count_steps(x, None)
        sequence = make_sequence(x, steps=count)
        kind = (
            tuple((leaf.shape[1:], leaf.dtype, leaf.device, leaf.requires_grad) for leaf in sequence.leaves),
            tuple(module.training for module in modules),
            tuple(sorted(step.constants)),
        )
        if kind in memory.kinds:
            return memory
        device = find_device((*sequence.leaves, *self.net.parameters()))
        found = StateSearch(step=step, inputs=sequence, steps=count, device=device).run()
        memory.add(found.state)
        memory.others |= {slot.identity: slot for slot in found.others}
        memory.kinds.add(kind)
        return memory

    def detach(self) -> None:
        """Keep the numbers of the state, without their graph: the next call does not lead into this one."""
        _detach_slots(self._memory_of_state.slots.values())

    def __deepcopy__(self, memo: dict[int, Any]) -> StatefulSequence:
        """Return a copy; its state has the same numbers, without their graph, which cannot be copied."""
        slots = list(self._memory_of_state.slots.values())
        values = [slot.read() for slot in slots]
        _detach_slots(slots)
        try:
            made = object.__new__(type(self))
            memo[id(self)] = made
            made.__dict__.update(copy.deepcopy(self.__dict__, memo))
            return made
        finally:
            for slot, value in zip(slots, values, strict=True):
                slot.write(value)


def _are_reached(slots: Iterable[Slot], net: torch.nn.Module) -> bool:
    """Return whether slots are still those of a module: a reset may put other objects in their places."""
    others = {slot.identity[0] for slot in slots if not slot.is_of_module}
    return not others or others <= {id(holder.thing) for holder in walk({"net": net}).holders}


def _detach_slots(slots: Iterable[Slot]) -> None:
    for slot in slots:
        leaves, nest = flatten(slot.read())
        if any(leaf.requires_grad for leaf in leaves):
            slot.write(nest.fill([leaf.detach() for leaf in leaves]))


def _find_late_slots(surroundings: Surroundings, places: list[Place]) -> list[Slot]:
    """Return the slots of places that hold state; not those of the cell, which is made for one call."""
    return [slot for slot in find_slots(surroundings, places) if not slot.name.startswith("cell.initial")]


def _refuse_sequences(net: torch.nn.Module) -> None:
    """Raise InputError for layers of SpikingJelly in multi-step mode, or that know no other."""
    for name, one in net.named_modules():
        modes = {vars(one).get("_step_mode"), vars(one).get("step_mode")}
        if "m" in modes or find_class(one, "spikingjelly", frozenset({"MultiStepModule"})):
            raise InputError(
                f"has {type(one).__name__}{f' ({name})' if name else ''}, which is in multi-step mode and "
                "takes whole sequences: a call is one time step",
                field="net",
                accepted='functional.set_step_mode(net, "s"), which computes the same, with a time step as its '
                "input; layers that know no other mode outside of wrap",
            )
