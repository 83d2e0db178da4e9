"""Compiles pieces with PyTorch's compiler, and explains its errors."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch._dynamo.config
import torch.compiler.config
from torch._dynamo.backends.cudagraphs import cudagraphs
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException, Unsupported, UserError
from torch._inductor import list_mode_options
from torch._inductor.compile_fx import compile_fx
from torch._inductor.exc import InvalidCxxCompiler
from torch.utils._pytree import tree_map_only

from ckptplan.torch.compile_options import CUDA_GRAPHS
from ckptplan.torch.pieces.compiled_steps import VARIABLE, NotCompiled, Product, run_steps
from ckptplan.torch.state.lifted import Checkpoint

#: The most graphs with a tape, and without. A change of a hook, a method or a number that steps read makes a
#: new one.
_MOST_GRAPHS = 4
#: How many pieces run as they are written, to see whether the form of the state stays the same.
_SETTLED = 2


class CompiledPiece:
    """``run_steps`` for K steps, compiled at its first call, and again when values that it depends on changed.

    Arguments:
        length: K.
        product: the values that the compiled function returns besides the state.
        mode: the mode of ``torch.compile``.
    """

    def __init__(self, *, length: int, product: Product, mode: str) -> None:
        self.length, self.product = length, product
        #: The reason why pieces cannot run, None if they can.
        self.failure: NotCompiled | None = None
        # Random numbers are drawn as PyTorch does, so that both graphs and uncompiled steps draw the same.
        options = {"fallback_random": True, **({} if mode == CUDA_GRAPHS else list_mode_options(mode))}
        #: Whether each run overwrites the results of the run before, as CUDA graphs do.
        self.reuses_memory = mode == CUDA_GRAPHS or bool(options.get("triton.cudagraphs"))
        self._make = cudagraphs if mode == CUDA_GRAPHS else partial(compile_fx, config_patches=options)
        #: By whether steps are recorded: the function, and the number of its graphs.
        self._functions = {records: self._make_function(records) for records in (False, True)}
        self._graphs = {False: 0, True: 0}
        #: The values and shapes of the states after two pieces that ran as they are written, and, by whether
        #: steps are recorded, the further properties of states for which the piece is compiled.
        self._shapes: list[Any] = []
        self._kinds: dict[bool, Any] = {}

    def _make_function(self, records: bool) -> Any:
        # Copy the code object, with which the compiler keeps its compiled code.
        function = FunctionType(run_steps.__code__.replace(), run_steps.__globals__, run_steps.__name__)
        return torch.compile(function, backend=partial(self._compile, records), dynamic=False, fullgraph=True)

    def _compile(self, records: bool, graph: Any, examples: Sequence[Any]) -> Any:
        self._graphs[records] += 1
        if self._graphs[records] > _MOST_GRAPHS:
            raise NotCompiled(
                "pieces were compiled again and again, since a number that is to be a tensor differs"
            )
        return self._make(graph, list(examples))

    def run(self, *args: Any, records: bool) -> Any:
        """Run the steps with the arguments of ``run_steps``, with a tape or without.

        Raises NotCompiled in place of errors of the compiler, before any step has run.
        """
        try:
            results = self._functions[records](*args, product=self.product)
        except TorchDynamoException as error:
            raise explain_error(error) from error
        # Checkpoints live longer than until the next run, and the next run takes the state as its input.
        return tree_map_only(torch.Tensor, _copy_from_graph, results) if self.reuses_memory else results

    def learn(self, state: Checkpoint, *, records: bool) -> None:
        """Learn the form of states from a state after steps that ran as they are written."""
        shapes, kinds = _describe_form(state)
        if len(self._shapes) < _SETTLED:
            self._shapes.append(shapes)
        if any(earlier != self._shapes[0] for earlier in self._shapes):
            self.failure = NotCompiled(
                "the state holds numbers outside of tensors, or shapes, that differ from step to step",
                whatever_loss=True,
            )
        self._kinds.setdefault(records, kinds)

    def fits(self, state: Checkpoint, *, records: bool) -> bool:
        """Return whether a state has the form that the piece is compiled for."""
        is_settled = len(self._shapes) == _SETTLED and records in self._kinds
        return is_settled and _describe_form(state) == (self._shapes[0], self._kinds[records])

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Run the block with PyTorch's compiler set for pieces.

        Hooks are guarded. Graphs are not cut where DistributedDataParallel sends gradients, since a sequence
        has one gradient for each parameter. The number of a step is a variable.
        """
        config: Any = torch.compiler.config
        with (
            warnings.catch_warnings(),
            torch._dynamo.config.patch(skip_nnmodule_hook_guards=False, optimize_ddp=False),
            config.patch(dynamic_sources=f"L['{VARIABLE}']"),
        ):
            # The compiler looks at the gradient of each tensor that a graph is made for, also of a state that
            # is no leaf, and uses deprecated functions.
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
            warnings.simplefilter("ignore", DeprecationWarning)
            yield


def _describe_form(state: Checkpoint) -> tuple[Any, Any]:
    """Return the values and shapes of a state, and further properties for which a piece is compiled."""
    leaves = state.leaves
    places = {id(leaf): place for place, leaf in enumerate(leaves)}
    shapes = [(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves]
    kinds = [(leaf.requires_grad, leaf.stride(), places[id(leaf)]) for leaf in leaves]
    return ([nest.describe() for nest in state.nests], shapes), kinds


def _copy_from_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that the next run of a CUDA graph does not overwrite; a CPU has no such graphs."""
    return tensor.clone() if tensor.is_cuda else tensor


#: Finds PyTorch's errors about code whose shapes or branches depend on numbers in tensors.
_DATA = re.compile(
    r"data.dependent|dynamic (shape|output)|Tensor\.item|_local_scalar_dense|unbacked|Dynamic shape operator",
    re.IGNORECASE,
)
_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')


def explain_error(error: BaseException) -> NotCompiled:
    """Return an error that explains an error of the compiler to users."""
    chain = list(_list_causes(error))
    text = str(error)
    place = _find_place(text)
    where = f" at {place}" if place else ""
    explained = next((error for error in chain if isinstance(error, NotCompiled)), None)
    if explained is not None:
        return NotCompiled(explained.text + where)
    if any(isinstance(error, InvalidCxxCompiler) for error in chain) or "InvalidCxxCompiler" in text:
        return NotCompiled(
            "there is no C++ compiler on this machine, which PyTorch's compiler needs (install g++ or "
            "clang, or name one in the environment variable CXX)",
            whatever_loss=True,
        )
    if isinstance(error, Unsupported | UserError):
        depends = "shapes or branches depend on numbers in tensors"
        problem = depends if _DATA.search(text) else "graph break"
        return NotCompiled(f"{problem}{where} ({_first_line(text)})")
    if isinstance(error, BackendCompilerFailed) and chain[-1] is not error:
        text = str(chain[-1])
    return NotCompiled(f"PyTorch's compiler failed{where} ({_first_line(text)})")


def _list_causes(error: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return causes


def _find_place(text: str) -> str:
    """Return the innermost place of the user's code that a message names."""
    part = text.rpartition("from user code:")[2] if "from user code:" in text else ""
    places = [place for place in _PLACE.findall(part) if "/ckptplan/torch/" not in place[0]]
    if not places:
        return ""
    file, line, function = places[-1]
    return f"{file.replace(chr(92), '/').rpartition('/')[2]}:{line} ({function})"


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0].rstrip(".:")[:200] if lines else "no message"
