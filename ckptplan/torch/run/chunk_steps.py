"""Runs cells that run whole chunks, replay them from saved outputs, and have their own backward pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as torch_module
from torch.utils._pytree import tree_leaves

from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.actions import Action, Tier
from ckptplan.torch.chunk_cell import ChunkCell, ChunkGradients, make_gradients_error
from ckptplan.torch.run.caches import CacheLog, RemoteCaches, find_cuts, runs_in_full_again
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.context import ForwardContext
from ckptplan.torch.run.gradients import Gradient
from ckptplan.torch.run.outputs import SummedLoss
from ckptplan.torch.run.steps import Steps, Tape
from ckptplan.torch.state.nests import Nest, fill, flatten, is_differentiable, map_leaves
from ckptplan.torch.state.places import Place
from ckptplan.torch.state.reach import is_generator
from ckptplan.torch.store.store import TensorStore

#: The most steps that run at a time, and the most whose outputs and adjoints exist at a time.
MAX_PIECE, MAX_WORKING = 64, 16
#: Within a limit: the number of states that each working step beyond the first takes, and the ratio of the
#: limit to all these states.
_WORKING_STATES, _LIMIT_DIVISOR = 6, 8
#: How many times more steps run at a time than work at a time within a limit, since saved outputs take a byte
#: for each number.
_PIECE_FACTOR = 4
#: The first step of a part, and the step after its last one.
_Cut = tuple[int, int]


def choose_working_steps(state_bytes: int, limit: int) -> int:
    """Return how many steps may have outputs and adjoints at a time within a limit."""
    return 1 + min(MAX_WORKING - 1, limit // _LIMIT_DIVISOR // (_WORKING_STATES * max(1, state_bytes)))


def count_working_bytes(working: int, *, state_bytes: int, cache_bytes: int) -> int:
    """Return the bytes that ``working`` steps work with, beyond the measured bytes of a single step.

    Caches are released in blocks of the steps that run at a time.
    """
    piece = min(_PIECE_FACTOR * working, MAX_PIECE)
    return ((working - 1) * _WORKING_STATES + _PIECE_FACTOR) * state_bytes + piece * cache_bytes


def choose_piece_sizes(call: Call, plan: Plan | None, working: int = 1) -> Call:
    """Return a call whose chunks run as many steps at a time as a plan has room for.

    ``working`` steps have outputs and adjoints at a time.
    """
    if not call.has_own_backward:
        return call
    # The states of a piece become the tape or are dropped, so that a piece may be as large as a chunk. The
    # states of a few steps fit in memory that the backward pass uses later.
    chunk = 1 if plan is None else schedule_of(plan).chunk_size
    piece = min(max(chunk, working, _PIECE_FACTOR), _PIECE_FACTOR * working, MAX_PIECE)
    return replace(call, steps_type=partial(call.steps_type, piece=piece, working=working))


def cut_chunks(call: Call, actions: Callable[[], Iterable[Action]]) -> Call:
    """Return a call that cuts runs without caches at the same steps each time, if a schedule repeats such runs.

    Raises InputError if its cell needs the caches of all steps.
    """
    if not call.has_own_backward:
        return call
    if not runs_in_full_again(actions()):
        return call
    if not getattr(call.cell, "runs_from_state", False):
        raise InputError(
            f"keeps the caches of some steps only, and {type(call.cell).__name__} keeps those of all",
            field="plan",
            accepted="a plan with cache='all', or a ChunkCell with runs_from_state = True",
        )
    return replace(call, steps_type=partial(call.steps_type, cuts=find_cuts(actions())))


def refuse_hooks(cell: ChunkCell) -> None:
    """Raise InputError for hooks on the forward or the backward pass of a cell, which chunks do not call."""
    for direction in ("forward", "backward"):
        kinds = (f"_{direction}_hooks", f"_{direction}_pre_hooks")
        is_global = any(getattr(torch_module, f"_global{kind}") for kind in kinds)
        hooked = [
            f"{type(cell).__name__}{'.' * bool(name)}{name}"
            for name, module in cell.named_modules()
            if is_global or any(getattr(module, kind) for kind in kinds)
        ]
        if hooked:
            of_all = " (one of all modules)" if is_global else ""
            raise InputError(
                f"{hooked[0]} has a hook on its {direction} pass{of_all}: "
                f"chunks have a {direction} pass of their own, which does not call it",
                field="cell",
                accepted="hooks on the parameters; or cell=lambda state, x: cell(state, x), which runs step "
                "by step under autograd",
            )


def _order_like(value: Any, like: Any) -> Any:
    """Return a value with the keys of its dicts in the order of ``like``, which is nested in the same way."""
    if isinstance(value, dict) and isinstance(like, dict) and value.keys() == like.keys():
        return {key: _order_like(value[key], like[key]) for key in like}
    if type(value) is tuple and type(like) is tuple and len(value) == len(like):
        return tuple(map(_order_like, value, like))
    return value


class _ChunkPart(torch.autograd.Function):
    """An operation of autograd for steps that have run. Its backward pass is the backward pass of the cell.

    Its arguments are the steps; the cut of the part, the state before it and the states after each of its
    steps, outside of any graph; and tensors with gradients: the state before, parameters and inputs. It returns
    the tensors of the state after the part, and a scalar that stands for the outputs. The backward pass writes
    gradients of inputs into ``input_gradients`` itself.
    """

    @staticmethod
    def forward(
        ctx: Any, steps: ChunkSteps, part: tuple[_Cut, list[Tensor], list[Tensor]], *_: Any
    ) -> tuple[Tensor, ...]:
        """Return the state after the last step, in the memory of ``states``, and the scalar."""
        ctx.set_materialize_grads(False)
        ctx.steps, (ctx.cut, ctx.begin, ctx.states) = steps, part
        # Views would share the version counters of the states, which the backward pass overwrites.
        end = tuple(leaf.new_empty(0).set_(leaf[-1]) for leaf in ctx.states)
        ctx.mark_non_differentiable(*(leaf for leaf in end if not is_differentiable(leaf)))
        return *end, torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Gradient) -> Any:
        """Return the gradients of the state and of the parameters, and None for the inputs."""
        begin, states, ctx.begin, ctx.states = ctx.begin, ctx.states, None, None
        state, parameters = ctx.steps.reverse_part(ctx.cut, begin, states, gradients[:-1])
        input_count = len(ctx.needs_input_grad) - 2 - len(state) - len(parameters)
        return None, None, *state, *parameters, *[None] * input_count


class ChunkSteps(Steps):
    """The steps of a ``ChunkCell``, a part of a chunk at a time.

    Arguments:
        args, options: those of ``Steps``.
        piece: the most steps that run at a time.
        working: the most steps whose outputs and adjoints exist at a time.
        cuts: steps at which a run is cut if its steps are not replayed from caches, so that they run again in
            the same parts.
    """

    has_own_backward = True

    def __init__(
        self,
        *args: Any,
        piece: int = MAX_PIECE,
        working: int = MAX_WORKING,
        cuts: Sequence[int] = (),
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if self.inputs.is_made:
            piece = min(piece, self.inputs.cut_steps)
        self._piece, self._working, self._cuts = piece, working, cuts
        places = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        cell: Any = self.cell
        #: The number of each parameter of the cell among all parameters, None if it has none.
        self._parameter_numbers = [places.get(id(parameter)) for parameter in cell.parameters()]
        #: The random generators that steps or losses draw from.
        self._generators = [
            part.place.holder
            for part in self.state.parts
            if isinstance(part.place, Place) and is_generator(part.place)
        ]
        self._sequence_cell: ChunkCell = cell.for_sequence()
        self._log = CacheLog()
        self._remote_caches = RemoteCaches()
        #: The number of steps that have run.
        self._steps_run = 0
        #: The step after the last run in full, and the result of ``last`` for that run.
        self._last_full_run: tuple[int, Any] = (0, None)
        #: Whether the steps that run now keep their caches.
        self._keeps_caches = True
        #: Of the parts whose caches were dropped, the largest mean of bytes per step.
        self._dropped_bytes = 0
        self._incoming: Sequence[Gradient] = ()
        self._context: ForwardContext | None = None
        self._nest: Nest | None = None

    @property
    def saved_bytes(self) -> int:
        return self._log.bytes

    @property
    def cached_steps(self) -> int:
        """The number of steps whose caches are kept now."""
        return self._log.steps

    @property
    def cache_bytes(self) -> int:
        return max(self._dropped_bytes, -(-self._log.bytes // max(1, self._log.steps)))

    def advance(self, start: int, stop: int, cached: int | None = None) -> None:
        keep = start if cached is None else stop - cached
        if start < keep:
            self._keeps_caches = False
            try:
                super().advance(start, keep)
            finally:
                self._keeps_caches = True
            self._log.take(start, keep)
        if keep < stop:
            super().advance(keep, stop)

    def move_caches(self, steps: tuple[int, int], store: TensorStore[Any], target: Tier) -> None:
        if target is Tier.LOCAL:
            self._log.put(self._remote_caches.fetch(*steps, store))
            return
        blocks = self._log.take(*steps)
        if self._last_full_run[0] == steps[1]:
            # The next steps begin with a copy, which does not keep the memory of the caches alive.
            first, last, saved = blocks[-1]
            last_output = saved.part(last - first - 1, last - first).moved(torch.clone)
            self._last_full_run = last, self._sequence_cell.last(last_output)
        for block in blocks:
            self._remote_caches.keep(block, store, message_size=len(blocks) + 1)

    def number_caches(self, steps: tuple[int, int]) -> list[int]:
        return self._remote_caches.number(*steps)

    def _find_end(self, start: int, stop: int) -> int:
        # End after whole pieces: steps that are recorded later then run in the same parts.
        parts = max(1, self.inputs.cut_steps // self._piece)
        return min(self._find_cut(start, stop), start + parts * self._piece)

    def _find_cut(self, step: int, stop: int) -> int:
        """Return the next step at which runs in full are cut."""
        following = bisect_right(self._cuts, step)
        return min([stop, *self._cuts[following : following + 1]])

    def run(self, leaves: Sequence[Tensor], nest: Nest, start: int, stop: int) -> list[Tensor]:
        records, terms = torch.is_grad_enabled(), list[Tensor]()
        state, shape = flatten(self.state.passed.value)
        begin = [leaf.detach() for leaf in state]
        for first, last in self._list_parts(start, stop):
            inputs = fill(nest, [leaf[first - start : last - start].detach() for leaf in leaves])
            states = self._run_or_replay(fill(shape, begin), inputs, (first, last))
            if not records:
                state = begin = [leaf[-1].clone() for leaf in states]
                continue
            for cut in range(first, last, self._working):
                end = min(last, cut + self._working)
                part = [leaf[cut - first : end - first] for leaf in states]
                results = _ChunkPart.apply(  # type: ignore[no-untyped-call]
                    self, ((cut, end), begin, part), *state, *self.parameters, *leaves
                )
                state, begin = list(results[:-1]), [leaf[-1] for leaf in part]
                terms.append(results[-1])
        self.state.passed.value = fill(shape, state)
        return terms

    def _list_parts(self, start: int, stop: int) -> Iterator[_Cut]:
        """Yield parts of steps that are replayed from one block of caches, or that run in full together."""
        while start < stop:
            is_cached, end = self._log.find(start)
            last = min(stop, start + self._piece, stop if end is None else end)
            if not is_cached:
                last = self._find_cut(start, last)
                last = min(last, self._steps_run) if start < self._steps_run else last
            yield start, last
            start = last

    def _run_or_replay(self, state: Any, inputs: Any, cut: _Cut) -> list[Tensor]:
        """Return the tensors of the states after each step, time first; new steps have their losses taken."""
        start, stop = cut
        with self._without_autograd():
            if self._log.find(start)[0]:
                replayed = self._sequence_cell.replay(state, inputs, self._log.cut(*cut))
                return [leaf.detach() for leaf in self._flatten(_order_like(replayed, state))]
            end, before = self._last_full_run
            new_states, outputs = self._sequence_cell.run(state, inputs, before if end == start else None)
            states = [leaf.detach() for leaf in self._flatten(_order_like(new_states, state))]
            if self._keeps_caches:
                saved = self._log.add(start, stop, outputs)
            else:
                # Keep a copy of the last step alone, so that the memory of the other steps is freed.
                saved = outputs.part(stop - start - 1, stop - start).moved(torch.clone)
                if stop - start >= self._piece:
                    self._dropped_bytes = max(self._dropped_bytes, -(-outputs.bytes // (stop - start)))
            # The result of ``last`` may share the memory of the outputs that are kept.
            self._last_full_run = stop, self._sequence_cell.last(saved)
        if start >= self._steps_run:
            self._steps_run = stop
            self._take_losses(outputs, cut)
        return states

    def _take_losses(self, outputs: Any, cut: _Cut) -> None:
        """Take the losses of new steps. Raises InputError if they draw random numbers."""
        start, stop = cut
        with torch.no_grad():
            for first in range(start, stop, self._working):
                last = min(stop, first + self._working)
                part = outputs.part(first - start, last - start)
                drawn = [(holder, holder.read()) for holder in self._generators]
                values = self.outputs.take_stacked(first, self._read_outputs(part), is_new=True)
                if any(holder.list_changes(before, holder.read()) for holder, before in drawn):
                    raise InputError(
                        f"draws random numbers, and {type(self.cell).__name__} has its losses "
                        "computed again in the backward pass, from other random numbers",
                        field="loss",
                        accepted="a loss that draws none, or cell=lambda state, x: cell(state, x), which runs "
                        "step by step under autograd",
                    )
                self.outputs.add(values)

    def _flatten(self, states: Any) -> list[Tensor]:
        leaves, self._nest = flatten(states)
        return leaves

    def _read_outputs(self, saved: Any) -> Any:
        with self._without_autograd():
            return self._sequence_cell.dense(saved)

    @property
    def compares_terms(self) -> bool:
        # Steps are replayed, or run in full from the same state.
        return False

    def end_new_run(self, start: int, stop: int, terms: Sequence[Tensor]) -> None:
        """Do nothing: ``_take_losses`` added the losses of each part."""

    def record(self, start: int, stop: int) -> Tape:
        tape = super().record(start, stop)
        # A copy, since the working state may outlive the states of the tape.
        self.state.passed.value = map_leaves(torch.clone, self.state.passed.value)
        return tape

    def reverse(self, tape: Tape, incoming: Sequence[Gradient]) -> None:
        self._incoming, self._context = incoming, ForwardContext(self._device.type)
        super().reverse(tape, incoming)
        self._log.forget(tape.start)

    def list_gradients(self, tape: Tape, incoming: Sequence[Gradient]) -> list[Gradient]:
        # Each part computes the gradients of its outputs itself.
        is_reached = any(gradient is not None for gradient in incoming)
        return [torch.zeros(()) if is_reached else None] * len(tape.terms)

    @property
    def _device(self) -> torch.device:
        return next(iter(self._sequence_cell.parameters()), torch.empty(0)).device

    @contextmanager
    def _without_autograd(self) -> Iterator[None]:
        """Disable autograd and autocast."""
        with torch.no_grad(), torch.autocast(device_type=self._device.type, enabled=False):
            yield

    def reverse_part(
        self, cut: _Cut, begin: list[Tensor], states: list[Tensor], gradients: Sequence[Gradient]
    ) -> tuple[list[Gradient], list[Gradient]]:
        """Return the gradients of the state before a part, and of the parameters; write those of inputs.

        Arguments:
            cut: the steps of the part.
            begin: the tensors of the state before the part.
            states: the tensors of the states after each step, time first; they may be overwritten.
            gradients: the gradients of the state after the last step.

        Raises InputError if the cell does not return ChunkGradients that fit.
        """
        assert self._nest is not None  # noqa: S101 - the steps ran
        leaves, nest = self.inputs.cut(*cut)
        wants_inputs = any(leaf.requires_grad for leaf in leaves)
        outputs, parameters = self._reverse_outputs(cut)
        state, inputs = fill(self._nest, begin), fill(nest, [leaf.detach() for leaf in leaves])
        with self._without_autograd():
            reversed_part = self._sequence_cell.reverse(
                state,
                fill(self._nest, states),
                inputs,
                self._log.cut(*cut),
                output_gradients=outputs,
                state_gradients=fill(self._nest, gradients),
                wants_inputs=wants_inputs,
            )
        if not isinstance(reversed_part, ChunkGradients):
            raise make_gradients_error(self._sequence_cell, f"returned {type(reversed_part).__name__}")
        if wants_inputs:
            parts = self._flatten_gradients(reversed_part.inputs, inputs, "the inputs")
            for whole, part in zip(self.input_gradients, parts, strict=False):
                if whole is not None and part is not None:
                    whole[slice(*cut)] = part
        named = dict(self._sequence_cell.named_parameters())
        cell_gradients = self._flatten_gradients(
            reversed_part.parameters, tuple(named.values()), f"the parameters ({', '.join(named)})"
        )
        for place, gradient in zip(self._parameter_numbers, cell_gradients, strict=True):
            if place is not None and gradient is not None:
                loss_gradient = parameters[place]
                parameters[place] = gradient if loss_gradient is None else loss_gradient + gradient
        return self._flatten_gradients(reversed_part.state, state, "the state"), parameters

    def _reverse_outputs(self, cut: _Cut) -> tuple[Any | None, list[Gradient]]:
        """Compute the loss of saved outputs again; return the gradients of outputs and parameters."""
        if all(gradient is None for gradient in self._incoming):
            return None, [None] * len(self.parameters)
        assert self._context is not None  # noqa: S101 - it reverses
        leaves, nest = flatten(self._read_outputs(self._log.cut(*cut)))
        leaves = [leaf.detach().requires_grad_(is_differentiable(leaf)) for leaf in leaves]
        with torch.enable_grad(), self._context.enter():
            terms = self.outputs.take_stacked(cut[0], fill(nest, leaves), is_new=False)
        if isinstance(self.outputs, SummedLoss) and terms:
            values = torch.stack([term.detach() for term in terms]).double()
            self.recomputed_loss += float(values.sum())
            self.recomputed_scale += float(values.abs().sum())
        given = self.outputs.list_gradients(*cut, self._incoming, len(terms))
        pairs = zip(terms, given, strict=True)
        live = [(term, gradient) for term, gradient in pairs if gradient is not None and term.requires_grad]
        wanted = [*(leaf for leaf in leaves if leaf.requires_grad), *self.parameters]
        if not live:
            return None, [None] * len(self.parameters)
        ends, ones = zip(*live, strict=True)
        leaf_gradients: list[Gradient] = list(torch.autograd.grad(ends, wanted, ones, allow_unused=True))
        output_gradients = [leaf_gradients.pop(0) if leaf.requires_grad else None for leaf in leaves]
        return fill(nest, output_gradients), leaf_gradients

    def _flatten_gradients(self, given: Any, like: Any, name: str) -> list[Gradient]:
        """Return the gradients in ``given`` as a list, one for each tensor of ``like``. Raises InputError."""
        tensors = [like] if isinstance(like, Tensor) else tree_leaves(like)
        flat = (
            [None] * len(tensors)
            if given is None
            else [given]
            if isinstance(like, Tensor)
            else tree_leaves(_order_like(given, like))
        )
        if len(flat) != len(tensors):
            raise make_gradients_error(
                self._sequence_cell, f"returned {len(flat)} gradients of {name}, which are {len(tensors)}"
            )
        pairs = [pair for pair in zip(flat, tensors, strict=True) if isinstance(pair[1], Tensor)]
        for gradient, tensor in pairs:
            if gradient is not None and getattr(gradient, "shape", None) != tensor.shape:
                shape = tuple(getattr(gradient, "shape", ()))
                raise make_gradients_error(
                    self._sequence_cell,
                    f"returned a gradient of shape {shape} for {tuple(tensor.shape)}, one of {name}",
                )
        return [gradient for gradient, _ in pairs]

    def close(self) -> None:
        self._log, self._last_full_run = CacheLog(), (0, None)
