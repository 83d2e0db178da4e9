"""Runs the first step aside, to find what it uses and whether steps can run again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.torch.ambient import Autocast, Generators
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.graphs import find_graph_leaves, find_outer_node, read_sequence_number
from ckptplan.torch.inputs import Sequence, iterate_steps
from ckptplan.torch.losses import SummedLoss
from ckptplan.torch.modules import WatchedModules
from ckptplan.torch.trees import Leaves, Structure, flatten

Parameters = tuple[torch.Tensor, ...]
Modules = tuple[torch.nn.Module, ...]
_ACCEPTED = (
    "cell(state, x) -> (state, output); ckptplan.torch.adapters has those of torch.nn, snnTorch, Norse and "
    "SpikingJelly"
)
#: Relative difference that rounding may cause between calls, or for a chunk; hidden state causes more.
_ROUNDING = 1e-3


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The findings of the first step."""

    parameters: Parameters
    #: The number of tensors requiring a gradient that each step creates.
    temporary: int
    #: The cell and the losses, if they are modules, and all modules that were called.
    modules: Modules
    output: Structure
    device: torch.device
    #: Random generators that the cell and the losses hold, besides the default ones.
    generators: tuple[object, ...] = ()


def probe(
    cell: Callable[..., Any],
    state: Any,
    inputs: Sequence,
    *,
    things: Iterable[object],
    named: Parameters,
    losses: SummedLoss | None,
    device: torch.device,
    replays_randomness: bool,
) -> ProbeResult:
    """Run the first step twice, and its loss, and restore everything. Raises InputError.

    Arguments:
        cell: ``cell(state, x)`` returns (state, output).
        state: the initial state.
        inputs: the inputs of all steps.
        things: the cell and the losses, whose modules are watched.
        named: the parameters named by the caller.
        losses: the losses, None if there are none.
        device: the device on which the cell will probably run.
        replays_randomness: whether steps that run again draw the same random numbers.
    """
    leaves, structure = flatten(state)
    generators, watched = Generators(device, wanted=True), WatchedModules(things)
    casts = Autocast.present(device).cast_anew()
    with generators.aside(), torch.enable_grad(), casts, watched.enter():
        pieces, nest = inputs.piece(0, 1)
        first, steps = _copy(leaves), _copy(pieces)
        begun, drawn = read_sequence_number(), generators.state()
        x = next(iterate_steps(steps, nest, 1))
        after, output = _take_step(cell, structure.fill(first), x, leaves=(*first, *steps))
        generators.restore(drawn)
        again = _repeat_step(cell, structure.fill(_copy(leaves)), nest, _copy(pieces), (after, output))
        if isinstance(cell, ChunkCell):
            _check_chunk(cell, structure.fill(_copy(leaves)), nest, _copy(pieces))
        watch = generators if replays_randomness else None
        terms = [] if losses is None else _take_losses(losses, after, output, watch)
        results = (*flatten(after)[0], *flatten(output)[0])
        reached = [*results, *terms]
    _check_outer(reached, begun=begun, named=named)
    inner = {id(leaf) for leaf in (*first, *steps)}
    found = [leaf for leaf in find_graph_leaves(reached, until=named) if id(leaf) not in inner]
    # A cell may create tensors that require a gradient, such as initial states; each run creates new ones.
    lasting = {id(leaf) for leaf in find_graph_leaves(again, until=named)}
    lasting |= {id(leaf) for leaf in find_graph_leaves(terms, until=(*named, *results))}
    temporary = [leaf for leaf in found if id(leaf) not in lasting]
    found = [leaf for leaf in found if id(leaf) in lasting]
    return ProbeResult(
        parameters=_collect_parameters(watched.modules, named, found),
        temporary=len(temporary),
        modules=watched.modules,
        output=flatten(output)[1],
        device=_find_device(flatten(after)[0], flatten(output)[0], default=device),
    )


def _copy(leaves: Leaves) -> Leaves:
    return tuple(leaf.detach().clone() for leaf in leaves)


def _versions(leaves: Leaves) -> list[int]:
    """Return the counters of in-place changes; tensors of inference mode have none."""
    return [0 if leaf.is_inference() else leaf._version for leaf in leaves]


def _take_step(cell: Callable[..., Any], state: Any, x: Any, *, leaves: Leaves) -> tuple[Any, Any]:
    """Take a step. Raises InputError if it changes its arguments, or returns another structure."""
    versions = _versions(leaves)
    given = len(flatten(state)[0])
    after, output = check_result(_call(cell, state, x))
    if versions != _versions(leaves):
        which = "state" if versions[:given] != _versions(leaves[:given]) else "input"
        raise InputError(
            f"changes its {which} in place, so that steps cannot run again from a checkpoint",
            field="cell",
            accepted="a cell that returns a new state, and leaves its input alone",
        )
    returned = len(flatten(after)[0])
    if given and returned != given:
        raise InputError(
            f"takes a state of {given} tensors and returns one of {returned}",
            field="cell",
            accepted="a state that is the same structure at every step",
        )
    return after, output


def _call(cell: Callable[..., Any], state: Any, x: Any) -> Any:
    try:
        return cell(state, x)
    except TypeError as error:
        if "argument" not in str(error) or not _is_of_the_call(error):
            _explain(error, state, x)
            raise
        raise InputError(
            f"cannot be called as cell(state, x): {error}", field="cell", accepted=_ACCEPTED
        ) from error
    except Exception as error:
        _explain(error, state, x)
        raise


def _explain(error: Exception, state: Any, x: Any) -> None:
    """Add a note to a cell's own error: what the cell was called with."""
    error.add_note(
        f"ckptplan: raised by the first step, cell(state, x) with state {_describe(state)} and x "
        f"{_describe(x)}. Accepted: {_ACCEPTED}"
    )


def _describe(tree: Any) -> str:
    leaves = flatten(tree)[0]
    if not leaves:
        return quote_value(tree)
    return ", ".join(f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}" for leaf in leaves)


def _is_of_the_call(error: TypeError) -> bool:
    """Return whether the call itself raised an error, and not the body of the cell."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = "" if trace is None else trace.tb_frame.f_code.co_filename
    return file == __file__ or Path(file).parts[-3:] == ("nn", "modules", "module.py")


def check_result(result: object) -> tuple[Any, Any]:
    """Return what a cell returned. Raises InputError if it is not (state, output)."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise InputError(
            f"returned {quote_value(type(result).__name__)}"
            + (f" of {len(result)}" if isinstance(result, tuple) else ""),
            field="cell",
            accepted=_ACCEPTED,
        )
    return result


def check_reached(outputs: Leaves, inner: Leaves, *, parameters: Parameters, temporary: int = 0) -> None:
    """Raise InputError if a recorded graph reaches a tensor that is not a known parameter.

    ``inner`` are the leaves where the graph begins: a state and inputs. Up to ``temporary`` leaves may be
    unknown.
    """
    known = {id(one) for one in (*parameters, *inner)}
    computed = tuple(one for one in parameters if one.grad_fn is not None)
    missing = [leaf for leaf in find_graph_leaves(outputs, until=computed) if id(leaf) not in known]
    if len(missing) > temporary:
        raise InputError(
            f"the cell or the loss uses {len(missing)} tensors that require a gradient and were not found "
            f"in the first step, the first one of shape {tuple(missing[0].shape)}",
            field="parameters",
            accepted="parameters=[...] with all of them; for the last step alone, final_loss; what a step "
            "needs of an earlier one goes through the state",
        )


def _repeat_step(
    cell: Callable[..., Any], state: Any, nest: Structure, pieces: Leaves, seen: tuple[Any, Any]
) -> Leaves:
    """Run the same step again and return its tensors. Raises InputError if the result differs."""
    again = check_result(cell(state, next(iterate_steps(pieces, nest, 1))))
    (ones, structure), (others, nested) = flatten(seen), flatten(again)
    if not _are_equal(ones, others) or structure.plain != nested.plain:
        raise InputError(
            "returned another result when its first step ran again: it has a hidden state, or its own random "
            "generator",
            field="cell",
            accepted="a cell whose result depends on its state, its input and PyTorch's default generators",
        )
    return others


def _check_chunk(cell: ChunkCell, state: Any, nest: Structure, pieces: Leaves) -> None:
    """Raise InputError if a chunk differs from a step, e.g. because a subclass changes only the step."""
    with torch.no_grad(), torch.autocast(device_type=pieces[0].device.type, enabled=False):
        states, saved = cell.run(state, nest.fill(pieces), None)
        after, output = cell(state, next(iterate_steps(pieces, nest, 1)))
        chunk = [leaf[0] for leaf in flatten((states, cell.dense(saved)))[0]]
    if not _are_equal(flatten((after, output))[0], chunk):
        raise InputError(
            f"{type(cell).__name__}: a chunk of one step, by run, is not what its step returns, by forward",
            field="cell",
            accepted="a ChunkCell whose methods say the same; wrap a cell in a function to change its outputs",
        )


def _are_equal(ones: Any, others: Any) -> bool:
    """Return whether tensors are equal except for rounding."""
    if len(ones) != len(others):
        return False
    for one, other in zip(ones, others, strict=True):
        if one.shape != other.shape:
            return False
        difference = (one.detach().double() - other.detach().double()).abs().nan_to_num(0.0, posinf=0.0)
        scale = one.detach().double().abs().nan_to_num(0.0, posinf=0.0)
        if one.numel() and float(difference.max()) > _ROUNDING * float(scale.max()):
            return False
    return True


def _take_losses(
    losses: SummedLoss, state: Any, output: Any, generators: Generators | None
) -> list[torch.Tensor]:
    """Return the losses of the first step. Raises InputError if they could not be computed again."""
    leaves = flatten(output)[0]
    versions = _versions(leaves)
    drawn = None if generators is None else generators.state()
    fresh = SummedLoss(loss=losses.loss, chunk_loss=losses.chunk_loss, final_loss=losses.final_loss)
    terms = fresh.take(0, [output], first_time=True)
    field = "loss" if losses.loss is not None else "chunk_loss"
    if versions != _versions(leaves):
        raise InputError(
            "changes an output in place, which may be part of the next state",
            field=field,
            accepted="a loss that leaves outputs alone",
        )
    if generators is not None and drawn is not None and generators.moved_since(drawn):
        raise InputError(
            "draws random numbers, which are not replayed when steps run again",
            field=field,
            accepted="a loss without dropout or noise; within the cell, whose output may be that of a readout, "
            "the same is drawn again",
        )
    return terms + fresh.probe_final(state)


def _check_outer(reached: list[torch.Tensor], *, begun: int, named: Parameters) -> None:
    """Raise InputError if the step uses an outer graph, which each chunk would backpropagate through again."""
    node = find_outer_node(reached, before=begun, until=named)
    if node is not None:
        raise InputError(
            f"the cell or the loss uses a tensor that was computed outside (by {node}) and has its own graph",
            field="parameters",
            accepted="parameters=[...] with that tensor, or the tensor as an input or in the state",
        )
    for one in named:
        behind = {id(leaf) for leaf in find_graph_leaves([one])} if one.grad_fn is not None else set()
        if behind & {id(leaf) for leaf in find_graph_leaves(reached, until=named)}:
            raise InputError(
                "names a tensor that was computed from a parameter which the cell or the loss also uses",
                field="parameters",
                accepted="one of the two, so that no gradient is counted twice",
            )


def _collect_parameters(modules: Modules, named: Parameters, found: list[torch.Tensor]) -> Parameters:
    """Return the parameters of modules, those named, and those that the first step reached, each once."""
    behind = {id(leaf) for one in named if one.grad_fn is not None for leaf in find_graph_leaves([one])}
    own = (one for module in modules for one in module.parameters() if id(one) not in behind)
    return tuple({id(one): one for one in (*own, *named, *found) if one.requires_grad}.values())


def _find_device(*groups: Leaves, default: torch.device) -> torch.device:
    """Return the CUDA device of a step's results, or ``default``. Raises InputError for other devices."""
    devices = {leaf.device for leaves in groups for leaf in leaves}
    for device in devices:
        if device.type not in ("cpu", "cuda"):
            raise InputError(
                f"is on {device.type}, which is not supported", field="state", accepted="tensors on cpu or cuda"
            )
    return next((device for device in devices if device.type == "cuda"), default)
