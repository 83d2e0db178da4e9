"""Inspects graphs that autograd recorded, and computes gradients through them.

Their leaves, the bytes they keep for the backward pass; gradients of the state, the parameters and the inputs,
accumulated while a sequence is reversed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import zip_longest
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import torch
from torch.utils.weak import TensorWeakRef

from ckptplan.errors import InputError
from ckptplan.torch.digests import full_precision
from ckptplan.torch.meters import mark_growing
from ckptplan.torch.trees import Leaves, is_differentiable

#: The operation that stands for a leaf.
_Leaf: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


def walk_nodes(outputs: Iterable[torch.Tensor], *, until: Iterable[torch.Tensor] = ()) -> Iterator[Any]:
    """Yield the operations that lead to ``outputs``, each once, without those that lead to ``until``."""
    ends = {tensor.grad_fn for tensor in until}
    nodes: list[Any] = list({tensor.grad_fn for tensor in outputs} - ends - {None})
    met = {None, *nodes, *ends}
    # The list grows while it is gone through: it holds what is to come, too.
    for node in nodes:
        yield node
        for following, _ in node.next_functions:
            if following not in met:
                met.add(following)
                nodes.append(following)


def find_graph_leaves(
    outputs: Iterable[torch.Tensor], *, until: Iterable[torch.Tensor] = ()
) -> Iterator[torch.Tensor]:
    """Yield the leaves that require a gradient in the graphs of ``outputs``."""
    for node in walk_nodes(outputs, until=until):
        if isinstance(node, _Leaf):
            yield node.variable


def find_outer_node(
    outputs: Iterable[torch.Tensor], *, before: int, until: Iterable[torch.Tensor] = ()
) -> str | None:
    """Return the name of an operation that was recorded ``before`` a sequence number, None if there is none."""
    nodes = (node for node in walk_nodes(outputs, until=until) if not isinstance(node, _Leaf))
    return next((str(node.name()) for node in nodes if node._sequence_nr() < before), None)


def count_saved_bytes(
    outputs: Iterable[torch.Tensor],
    *,
    end: Iterable[torch.Tensor],
    without: Iterable[torch.Tensor],
    known: frozenset[int],
) -> int:
    """Return the bytes of the distinct storages that a graph saved, including the state at its end.

    Storages of ``without`` (the initial state and the inputs), of leaves that require a gradient (parameters)
    and ``known`` ones (of targets, by their numbers) are not counted, since they exist without the graph too.
    """
    outputs = tuple(outputs)
    left_out = {storage_of(tensor) for tensor in without} | known
    kept: dict[int, int] = {}
    for tensor in (*end, *find_kept_tensors(outputs)):
        place = storage_of(tensor)
        if place not in left_out and not isinstance(tensor, torch.nn.Parameter):
            kept[place] = tensor.untyped_storage().nbytes() if _has_storage(tensor) else 0
    parameters = {storage_of(leaf) for leaf in find_graph_leaves(outputs)}
    return sum(size for place, size in kept.items() if place not in parameters)


#: Options of operations that give sparse gradients.
_SPARSE = ("_saved_sparse", "_saved_sparse_grad")


def gives_sparse(outputs: Iterable[torch.Tensor]) -> bool:
    """Return whether operations of a graph give sparse gradients."""
    kinds = ((node, name) for node in walk_nodes(outputs) for name in _list_saved(node.__class__, "_saved_"))
    return any(getattr(node, name) for node, name in kinds if name in _SPARSE)


def storage_of(tensor: torch.Tensor) -> int:
    """Return a number that identifies a tensor's storage.

    A tensor of a class with operations of its own, as ``DTensor``, may hold its numbers in others.
    """
    is_plain: bool = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return tensor.untyped_storage().data_ptr() if is_plain and _has_storage(tensor) else id(tensor)


def _has_storage(tensor: torch.Tensor) -> bool:
    """Return whether there is one storage that can be read.

    Sparse tensors have several, and the zeros of forward mode, as within ``torch.func.jvp``, have none.
    """
    return tensor.layout is torch.strided and not tensor._is_zerotensor()


#: What stands for a tensor that an operation saved.
_Saved: Any = torch._C._autograd.SavedTensor
#: Whether PyTorch shows what hooks packed; older versions tell only what is unpacked.
_SHOWS_PACKED = hasattr(_Saved, "data")


def find_kept_tensors(outputs: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the tensors that the nodes of a graph keep alive; where hooks packed them, what the hooks hold.

    To unpack them may take memory, as under ``torch.utils.checkpoint``, which runs again what made them. There
    it is the hook, a function, that holds the arguments of what runs again.
    """
    for node in walk_nodes(outputs):
        for kept in _list_kept(node):
            yield from find_held_tensors(kept)


def _list_kept(node: Any) -> Iterator[Any]:
    """Yield what a node of a graph saved, as it is packed; what is unpacked is made one at a time."""
    if hasattr(type(node), "saved_tensors"):
        # A function written in Python, which may keep tensors as attributes, too.
        yield vars(node)
        if not _SHOWS_PACKED:
            yield node.saved_tensors
    for name in _list_saved(node.__class__, "_raw_saved_" if _SHOWS_PACKED else "_saved_"):
        yield getattr(node, name)


def find_node(tensor: torch.Tensor) -> Any:
    """Return the node of a tensor; a part of a tensor that was written into since has none that can be read."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


#: The most objects in which tensors are looked for.
_MOST_OBJECTS = 4096


def find_held_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that a value holds: in containers, attributes of objects and closures of functions."""
    # With the objects, whose ids others might have once they are gone.
    waiting, met = [(value, False)], dict[int, Any]()
    while waiting and len(met) < _MOST_OBJECTS:
        one, in_hook = waiting.pop()
        own: Iterable[Any] = ()
        if isinstance(one, torch.Tensor):
            yield one
            # Up to PyTorch 2.11, torch.utils.checkpoint keeps arguments as what the node of a tensor saved.
            node = find_node(one) if in_hook else None
            if node is not None and hasattr(type(node), "saved_tensors") and id(node) not in met:
                met[id(node)] = node
                own = _list_kept(node)
        elif isinstance(one, _Saved) and _SHOWS_PACKED:
            hook = getattr(one, "unpack_hook", None)
            waiting.append((one.data, in_hook))
            # An object's method would lead to all that the object holds.
            own, in_hook = (hook,) if isinstance(hook, FunctionType) else (), True
        elif id(one) not in met and not _is_apart(one):
            met[id(one)] = one
            # A function's globals are not its own.
            own = (
                (one.__closure__, one.__defaults__) if isinstance(one, FunctionType) else gc.get_referents(one)
            )
        waiting += [(part, in_hook) for part in own]


def _is_apart(value: Any) -> bool:
    """Return whether a value is no part of what refers to it: a module, a class, or this package's own."""
    own = type(value).__module__.partition(".")[0] == __name__.partition(".")[0]
    return own or isinstance(value, type | ModuleType | torch.nn.Module)


@lru_cache(maxsize=1024)
def _list_saved(kind: Any, begin: str) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(begin))


def as_graph_roots(leaves: Leaves) -> Leaves:
    """Return a detached state as the beginning of a graph: every float requires a gradient."""
    detached = tuple(leaf.detach() for leaf in leaves)
    for leaf in detached:
        if is_differentiable(leaf):
            leaf.requires_grad_()
    return detached


#: A hook on the gradient of a tensor.
Hook: TypeAlias = Callable[[torch.Tensor], Any]
Hooks: TypeAlias = tuple[Hook, ...]


def list_hooks(roots: Leaves) -> list[Hooks]:
    """Return the hooks that steps registered on the state that they were given, where a graph begins.

    In plain backpropagation such a hook sees the whole gradient of that state, also what the loss of the step
    before adds, which belongs to the graph before.
    """
    return [tuple((root._backward_hooks or {}).values()) for root in roots]


def hand_over_hooks(hooks: Iterable[Hooks], ends: Leaves) -> None:
    """Register hooks of the state where a graph begins on the same state where the graph before ends."""
    for some, end in zip(hooks, ends, strict=False):
        if end.requires_grad:
            for hook in some:
                end.register_hook(hook)


def refuse_hooks(roots: Leaves) -> None:
    """Raise InputError if steps that were compiled registered hooks where their graph begins."""
    if any(list_hooks(roots)):
        raise InputError(
            "registers a hook on the state that it is given, which compiled steps do not hand on",
            field="cell",
            accepted="a hook on the state that the step returns, or compile=None",
        )


#: Sees the gradient of a parameter, given its place among them.
SeeGradient: TypeAlias = Callable[[int, torch.Tensor], object]
Gradient = torch.Tensor | None
#: Tensors through which gradients enter, with these.
GivenPairs: TypeAlias = list[tuple[torch.Tensor, Gradient]]


class Gradients:
    """The gradients so far; those of the parameters are sums over the reversed steps.

    Arguments:
        parameters: whose gradients are wanted.
        inputs: the tensors of the inputs.
        wanted: for each of these, whether its gradient is wanted.
        sparse: whether gradients of parameters may be sparse, and their sums, too.
        single: whether there is one step, whose gradients are the sums.
        see: sees the gradient of each parameter, of which nothing is kept then; all steps are reversed at once.
    """

    def __init__(
        self,
        *,
        parameters: Sequence[torch.Tensor],
        inputs: Leaves,
        wanted: Sequence[bool],
        sparse: bool = False,
        single: bool = False,
        see: SeeGradient | None = None,
    ) -> None:
        #: Gradients of the state at the end of the next steps to reverse; empty if there are none.
        self.state: list[Gradient] = []
        self.parameters: list[Gradient] = [None] * len(parameters)
        self.inputs: list[Gradient] = [None] * len(inputs)
        self._parameters, self._inputs, self._wanted = parameters, inputs, wanted
        self._adds, self._see = not (sparse or single), see

    def begin(self, final: Sequence[Gradient]) -> None:
        """Set the gradient of the final state, and allocate those of the inputs."""
        self.state = list(final)
        self.inputs = [
            torch.zeros_like(leaf) if wanted else None
            for leaf, wanted in zip(self._inputs, self._wanted, strict=True)
        ]

    def backpropagate(self, pairs: GivenPairs, wanted: Sequence[torch.Tensor]) -> tuple[Gradient, ...]:
        """Return the gradients of ``wanted``, and add those of the parameters; ``pairs`` are used up.

        Autograd gets the sums so far, as gradients that the parameters have besides, and adds in place what it
        finds: so there is one more gradient of a parameter at a time, and not one of each. At first they are
        zeros, since autograd adds to no view, as the gradient of a transposed weight is one.
        """
        fresh: dict[int, _Zeros] = {}
        for place, parameter in enumerate(self._parameters):
            total = self.parameters[place]
            if total is None and self._adds and _may_grow(parameter):
                total = torch.zeros_like(parameter)
                fresh[place] = _Zeros(total)
            if total is not None:
                mark_growing(total)
            pairs.append((parameter, total))
        total, self.parameters = None, []
        hooks: list[Hook | None] = [None] * len(wanted)
        if self._see is not None:
            places = range(len(self._parameters))
            hooks += [partial(_show, self._see, place, fresh.get(place)) for place in places]
        found = compute_gradients(pairs, (*wanted, *self._parameters), hooks)
        self.parameters = [*found[len(wanted) :]]
        for place, zeros in fresh.items():
            if zeros.are(self.parameters[place]):
                self.parameters[place] = None
        return found[: len(wanted)]

    def put(self, start: int, stop: int, parts: Sequence[Gradient]) -> None:
        """Store the gradients of the inputs of some steps, given where these lie along the first axis."""
        for whole, part in zip(self.inputs, parts, strict=False):
            if part is not None and whole is not None:
                whole[start:stop] = part

    def release(self) -> tuple[list[Gradient], list[Gradient], list[Gradient]]:
        """Return the gradients of state, inputs and parameters, so that nothing else holds them."""
        found = self.state, self.inputs, self.parameters
        self.state, self.inputs, self.parameters = [], [], []
        return found


class _Zeros:
    """Where the sum of a parameter's gradients begins."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._version = TensorWeakRef(tensor), tensor._version

    def are(self, total: Gradient) -> bool:
        """Return whether a sum is these, and nothing was added.

        An address would not tell: where something watches operations, autograd adds out of place, and a later
        sum may lie where the zeros did.
        """
        return total is not None and total is self._tensor() and total._version == self._version


def _show(see: SeeGradient, place: int, zeros: _Zeros | None, gradient: torch.Tensor) -> Gradient:
    """Let the gradient of a parameter be seen, and return one number in its stead, if that can be."""
    if zeros is not None and zeros.are(gradient):
        return None
    see(place, gradient)
    return gradient.new_zeros(()).expand_as(gradient) if _may_grow(gradient) else None


def _may_grow(parameter: torch.Tensor) -> bool:
    """Return whether autograd adds in place to a sum of the gradients of a parameter."""
    plain = type(parameter) in (torch.Tensor, torch.nn.Parameter)
    return plain and parameter.layout is torch.strided and parameter.numel() > 0


def compute_gradients(
    pairs: GivenPairs, wanted: Sequence[torch.Tensor], hooks: Sequence[Hook | None] = ()
) -> tuple[Gradient, ...]:
    """Return the gradients of ``wanted``, None where there is none; hooks of these do not run.

    ``pairs`` are tensors through which gradients enter, with these. They are used up: autograd alone holds the
    gradients then, and adds to them in place. ``hooks`` are for those of ``wanted``.
    """
    live = [(one, gradient) for one, gradient in pairs if gradient is not None and one.requires_grad]
    pairs.clear()
    if not live or not wanted:
        return (None,) * len(wanted)
    given = [gradient for _, gradient in live]
    device = live[0][0].device
    # The gradient of a scalar need not be given. PyTorch checks given gradients with symbolic shapes, which
    # would import sympy. As outside of autocast, types are those of the forward pass.
    own = _Pass()
    mine = [hook and partial(own.call, hook) for hook in hooks]
    with torch.enable_grad(), full_precision(device), with_hooks(wanted, mine):
        root = GivenGradients.apply(own, given, *(one for one, _ in live))  # type: ignore[no-untyped-call]
        del live, given
        try:
            found: tuple[Gradient, ...] = torch.autograd.grad(root, wanted, allow_unused=True)
        except BaseException:
            _release_waiting()
            raise
        return found


def _release_waiting() -> None:
    """Release the nodes that waited when a pass failed: PyTorch does so when another one begins."""
    leaf = torch.zeros((), requires_grad=True)
    torch.autograd.grad(leaf.clone(), leaf)


class _Pass:
    """A backward pass: a step may run another one, to which hooks of this one do not belong."""

    def __init__(self) -> None:
        self._number: int | None = None

    def begin(self) -> None:
        """Note which one it is."""
        self._number = torch._C._current_graph_task_id()

    def call(self, hook: Hook, gradient: torch.Tensor) -> Any:
        """Call a hook within this pass."""
        return hook(gradient) if torch._C._current_graph_task_id() == self._number else None


class GivenGradients(torch.autograd.Function):
    """A scalar that passes given gradients to its inputs, whatever its own gradient is."""

    @staticmethod
    def forward(ctx: Any, own: _Pass, gradients: list[torch.Tensor], *outputs: torch.Tensor) -> torch.Tensor:
        """Return a scalar."""
        ctx.own, ctx.gradients = own, gradients
        return torch.zeros((), device=outputs[0].device)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        """Pass the gradients on, without keeping them."""
        ctx.own.begin()
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, *gradients


@contextmanager
def with_hooks(tensors: Sequence[torch.Tensor], hooks: Sequence[Hook | None]) -> Iterator[None]:
    """Let tensors have hooks in the block, in the place of their own, which see the whole gradient later."""
    pairs = zip_longest(tensors, hooks)
    given: list[tuple[Any, Any]] = [(one, hook) for one, hook in pairs if one._backward_hooks or hook]
    changed = [(tensor, tensor._backward_hooks) for tensor, _ in given]
    for tensor, hook in given:
        tensor._backward_hooks = None if hook is None else {0: hook}
    try:
        yield
    finally:
        for tensor, own in changed:
            tensor._backward_hooks = own
