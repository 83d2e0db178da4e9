"""Wraps modules that keep their state: one call a time step becomes one call a sequence."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.schedule.schedule import check_count
from ckptplan.torch.adapters.adapter import find_class
from ckptplan.torch.budget import count_steps, read_limit
from ckptplan.torch.call import Call, check_losses
from ckptplan.torch.entry import as_entry
from ckptplan.torch.graphs import find_held_tensors, find_node
from ckptplan.torch.inputs import iterate_steps, make_sequence
from ckptplan.torch.losses import stack_outputs
from ckptplan.torch.probe import probe
from ckptplan.torch.rehearsal import make_single_record
from ckptplan.torch.run import bptt_call, rehearse
from ckptplan.torch.surroundings.walk import walk
from ckptplan.torch.trees import can_be_held, detach_state, flatten, map_tensors
from ckptplan.torch.trial import HiddenState, list_names
from ckptplan.torch.wrapping.slots import (
    LateFinding,
    Slot,
    StatefulCell,
    find_held_slots,
    find_slots,
    has_gradient,
    refuse_shared,
)
from ckptplan.torch.wrapping.wrapped import Wrapped

#: How often a sequence is begun with what was found of the state meanwhile.
_MOST_TRIES = 16
#: Bytes that the tapes of the steps may take that look for the state.
_ROOM = 2**26


class _Memory:
    """The slots that were found in some modules; a copy of the module has others."""

    def __init__(self, modules: tuple[int, ...] = ()) -> None:
        self.modules = modules
        self.slots: dict[Any, Slot] = {}
        #: Whether steps have run from these slots as they do in a plain loop.
        self.is_searched = False

    def __reduce__(self) -> Any:
        return _Memory, ()

    def add(self, slots: Iterable[Slot]) -> bool:
        """Add slots; return whether there was a new one."""
        before = len(self.slots)
        for slot in slots:
            self.slots.setdefault(slot.identity, slot)
        return len(self.slots) > before


class StatefulSequence(Wrapped):
    """A module that keeps its state, as a module over sequences: (T, B, ...) in, outputs stacked over time.

    What steps change and later steps read is the state, wherever it is. What refuses it as hidden in other
    cells finds it: here it becomes a slot, and the sequence begins again. It is carried on from call to call,
    as it would be in a loop.

    Arguments are those of ``wrap``.
    """

    _reset: Callable[..., object] | None
    _detach: bool
    _memory_of_state: _Memory
    #: That of the last call, and the final one, as it is returned and as it is left.
    _held_states = 3
    _accepted = Wrapped._accepted | {"reset", "detach"}

    def __init__(
        self,
        net: torch.nn.Module,
        *,
        reset: Callable[..., object] | None = None,
        detach: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        if reset is not None and not callable(reset):
            raise InputError(
                f"{quote_value(reset)} cannot be called",
                field="reset",
                accepted="what takes the module, as snntorch.utils.reset, SpikingJelly's functional.reset_net, "
                "or its own method, as net.reset",
            )
        self.__dict__.update(_reset=reset, _detach=detach, _memory_of_state=_Memory())

    @as_entry
    def forward(self, *inputs: Any, steps: int | None = None, **constants: Any) -> Any:
        """Return the outputs of all time steps, stacked.

        Arguments:
            inputs: tensors of shape (T, ...), or nests of these; the module is called with their time steps.
            steps: T, for inputs without a time axis: each step gets the same.
            constants: keyword arguments that the module is called with in each step.

        Raises InputError, also if no plan fits the limit.
        """
        x = self._begin(inputs, steps)
        if not torch.is_grad_enabled():
            return self._loop(x, constants)

        def run(cell: StatefulCell, state: Any) -> tuple[Any, Any]:
            return self._unroll(cell, x, state, parameters=self._name_parameters(constants))

        return self._run(x, constants, run)

    @as_entry
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
        x = self._begin(inputs, steps)

        def run(cell: StatefulCell, state: Any) -> tuple[Any, Any]:
            parameters = self._name_parameters(constants)
            result = bptt_call(self._settle_plan(cell, x, state, losses=losses, parameters=parameters))
            self._note(result.plan)
            return result.loss, result.state

        roots = [one for one in self.net.parameters() if one.requires_grad and torch.is_grad_enabled()]

        def leave(slot: Slot, value: Any) -> None:
            slot.leave_guarded(value, roots)

        found: torch.Tensor = self._run(x, constants, run, leave)
        return found

    def _begin(self, inputs: Any, steps: int | None) -> Any:
        """Reset the module; return the inputs of the sequence."""
        if not inputs:
            raise InputError("are missing", field="inputs", accepted="tensors of shape (T, ...)")
        _refuse_sequences(self.net)
        if self._reset is not None:
            # ``net.reset`` knows its module; functions of libraries are given it.
            own = getattr(self._reset, "__self__", None) is self.net
            self._reset() if own else self._reset(self.net)
        if steps is not None:
            check_count("steps", steps)
            leaves, nest = flatten(inputs)
            inputs = nest.fill([leaf.expand(steps, *leaf.shape) for leaf in leaves])
        count_steps(inputs, None)
        return inputs

    def _name_parameters(self, constants: dict[str, Any]) -> list[torch.Tensor]:
        """Return the tensors that gradients reach besides the module's: they may have graphs of their own."""
        return [*self._options["parameters"], *(leaf for leaf in flatten(constants)[0] if leaf.requires_grad)]

    def _loop(self, x: Any, constants: dict[str, Any]) -> Any:
        """Return the outputs of all steps, where no gradient is wanted."""
        count = count_steps(x, None)
        leaves, nest = make_sequence(x, steps=count).piece(0, count)
        return stack_outputs([self.net(*one, **constants) for one in iterate_steps(leaves, nest)])

    def _run(
        self,
        x: Any,
        constants: dict[str, Any],
        run: Callable[[StatefulCell, Any], tuple[Any, Any]],
        leave: Callable[[Slot, Any], None] = Slot.leave,
    ) -> Any:
        """Run a sequence from the present state, and leave the final one; state that shows late is added."""
        memory = self._recall()
        for attempt in range(_MOST_TRIES):
            slots = list(memory.slots.values())
            if self._detach:
                _detach_slots(slots)
            initial = tuple(slot.read() for slot in slots)
            refuse_shared(slots, initial)
            for slot, value in zip(slots, initial, strict=True):
                slot.has_graph = slot.has_graph or has_gradient(value)
            wanted = has_gradient(initial)
            # In containers of its own: those of the module are filled with the final state.
            first = () if wanted else map_tensors(lambda leaf: leaf, initial)
            cell = StatefulCell(self.net, constants, slots, first)
            final = None
            try:
                # Steps load the state. Other numbers there would make each call look like another kind of call.
                for slot in slots:
                    slot.clear()
                if not memory.is_searched:
                    memory.is_searched = self._search(cell, x, initial if wanted else None)
                outputs, final = run(cell, initial if wanted else None)
                return outputs
            except (LateFinding, HiddenState) as error:
                known = isinstance(error, HiddenState) and not memory.add(_read_slots(error))
                if known or attempt == _MOST_TRIES - 1:
                    raise
            finally:
                for slot, value, before in zip(slots, final or initial, initial, strict=True):
                    slot.write(before)
                    if final is not None:
                        leave(slot, value)
        raise AssertionError("the last attempt returns or raises")

    def _recall(self) -> _Memory:
        """Return what is known of the state; nothing if other modules or objects took the places of some."""
        memory, modules = self._memory_of_state, tuple(map(id, self.net.modules()))
        if memory.modules != modules or not _are_reached(memory.slots.values(), self.net):
            self._memory_of_state = memory = _Memory(modules)
            memory.add(find_held_slots(self.net))
        return memory

    def _search(self, cell: StatefulCell, x: Any, state: Any) -> bool:
        """Rehearse the first steps, whatever the plan; return whether that shows what they keep.

        Raises HiddenState for what they keep besides the slots, and InputError if they keep nothing.
        """
        options = {**self._options, "parameters": self._name_parameters(cell.constants)}
        plan = make_single_record(count_steps(x, None))
        call = Call(cell=cell, inputs=x, state=state, plan=plan, **options).measured
        try:
            with torch.enable_grad():
                probed = probe(call, anew=False)
                if not probed.wants_gradients:
                    return False
                if not probed.found.rehearsed:
                    limit = _ROOM if self._memory is None else read_limit(self._memory, call.device)
                    rehearse(call, probed, limit=min(_ROOM, limit))
        except (InputError, torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in call.sequence.leaves)
            error.add_note(
                f"ckptplan: raised by the first time steps of inputs of shape {shapes}: the first axis is "
                "time. Inputs that are the same in each step need no such axis: net(x, steps=100)"
            )
            raise
        if not cell.places:
            raise _not_recurrent()
        return True

    def detach(self) -> None:
        """Keep the numbers of the state, without their graph: the next call does not lead into this one."""
        _detach_slots(self._memory_of_state.slots.values())

    def __deepcopy__(self, memo: dict[int, Any]) -> StatefulSequence:
        """Return a copy; its state has the same numbers, without their graph, which cannot be copied."""
        slots = (*self._memory_of_state.slots.values(), *find_held_slots(self.net))
        # A list, so that no other object gets the id of one of them meanwhile.
        held = [*find_held_tensors([slot.read() for slot in slots])]
        memo |= {id(one): one.detach().clone() for one in held if find_node(one) is not None}
        made = object.__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made


def _are_reached(slots: Iterable[Slot], net: torch.nn.Module) -> bool:
    """Return whether slots are still those of a module: a reset may put other objects in their places."""
    others = {slot.identity[0] for slot in slots if not slot.is_of_module}
    return not others or others <= {id(holder.thing) for holder in walk({"net": net}).holders}


def _detach_slots(slots: Iterable[Slot]) -> None:
    for slot in slots:
        value = slot.read()
        if has_gradient(value):
            slot.replace(detach_state(value))


def _read_slots(error: HiddenState) -> list[Slot]:
    """Return the slots of the places that hold state. Raises InputError if a checkpoint cannot hold it."""
    found = find_slots(error.surroundings, error.places)
    names = [slot.name for slot in found if not can_be_held(slot.read())]
    things = (place.holder.thing for place in error.places)
    # The graph that a step has left in a view cannot be taken from it.
    names += ["a view" for one in things if isinstance(one, torch.Tensor) and one._is_view() and one.grad_fn]
    if names:
        raise InputError(
            f"keeps a part of its state in {list_names(names)}, which a checkpoint cannot hold",
            field="net",
            accepted="a module that keeps its state in attributes, buffers or variables, as tensors, numbers, "
            "and containers of these; not in parameters, views that steps write into, arrays of NumPy, or sets",
        ) from error
    return found


def _not_recurrent() -> InputError:
    return InputError(
        "keeps nothing from one time step to the next: it is not recurrent, takes its state as an argument and "
        "returns it, or loops over time itself",
        field="net",
        accepted="a module that takes one time step a call and keeps its state, torch.nn.LSTM, GRU or RNN, or "
        "a network of Norse; for cell(state, x), ckptplan.torch.scan or unroll",
    )


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
