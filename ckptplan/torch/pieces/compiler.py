"""Compiles a function with PyTorch's compiler, and counts the compilations."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch
import torch._dynamo.config
import torch.compiler.config
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException, Unsupported, UserError
from torch._inductor import list_mode_options
from torch._inductor.compile_fx import compile_fx
from torch._inductor.exc import InvalidCxxCompiler
from torch.utils._pytree import tree_map_only

from ckptplan.torch.pieces.compiled_steps import VARIABLE, NotCompiled, Product, run_steps

#: The most graphs of one function. A change of a hook, a method or a number that steps read makes a new one.
_MOST_GRAPHS = 4


class CompiledFunction:
    """``run_steps``, compiled at its first call, and again when values that were compiled in have changed.

    Raises NotCompiled in place of errors of the compiler, before any step has run.
    """

    def __init__(self, *, mode: str) -> None:
        self.graphs = 0
        #: Whether each run overwrites the results of the run before, as CUDA graphs do.
        self.reuses_memory = bool(list_mode_options(mode).get("triton.cudagraphs"))
        self._options = {
            **list_mode_options(mode),
            # Draw random numbers as PyTorch does, so that both graphs and uncompiled steps draw the same.
            "fallback_random": True,
        }
        # Copy the code object, with which the compiler keeps its compiled code.
        function = FunctionType(run_steps.__code__.replace(), run_steps.__globals__, run_steps.__name__)
        self._run = torch.compile(function, backend=self._compile, dynamic=False, fullgraph=True)

    def __call__(self, *args: Any, product: Product) -> Any:
        try:
            results = self._run(*args, product=product)
        except TorchDynamoException as error:
            raise explain_error(error) from error
        # Checkpoints live longer than until the next run, and the next run takes the state as its input.
        return tree_map_only(torch.Tensor, _copy_from_graph, results) if self.reuses_memory else results

    def _compile(self, graph: Any, examples: Sequence[Any]) -> Any:
        self.graphs += 1
        if self.graphs > _MOST_GRAPHS:
            raise NotCompiled(
                "pieces were compiled again and again, since a number that is to be a tensor differs"
            )
        return compile_fx(graph, list(examples), config_patches=self._options)


def _copy_from_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that the next run of a CUDA graph does not overwrite; a CPU has no such graphs."""
    return tensor.clone() if tensor.is_cuda else tensor


@contextmanager
def set_compiler() -> Iterator[None]:
    """Run the block with PyTorch's compiler set for pieces.

    Hooks are guarded. Graphs are not cut where DistributedDataParallel sends gradients, since a sequence has
    one gradient for each parameter. The number of a step is a variable (since torch 2.8).
    """
    config: Any = torch.compiler.config
    with ExitStack() as stack:
        # The compiler looks at the gradient of each tensor that a graph is made for, also of a state that is no
        # leaf, and uses deprecated functions.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
        warnings.simplefilter("ignore", DeprecationWarning)
        stack.enter_context(torch._dynamo.config.patch(skip_nnmodule_hook_guards=False, optimize_ddp=False))
        if hasattr(config, "dynamic_sources"):
            stack.enter_context(config.patch(dynamic_sources=f"L['{VARIABLE}']"))
        yield


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
