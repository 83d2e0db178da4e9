"""What changes between the forward and the backward pass."""

from __future__ import annotations

from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import torch

from tests.torch.impure.cases import Job, case
from tests.torch.impure.modules import Cell

BETWEEN = "changed between forward and backward"

_level = 1.0
_in_context: ContextVar[float] = ContextVar("_in_context", default=1.0)


def _weaken(state: torch.Tensor, level: float) -> Any:
    """Return the state, with a gradient that is smaller by a factor."""
    return state - (1 - level) * (state - state.detach())


class Weakened(Cell):
    """A cell with a level, which only gradients see."""

    level = 0.9

    def after(self, state: torch.Tensor) -> Any:
        return _weaken(state, self.level)


@case(BETWEEN, "an attribute of the module")
def changed_attribute() -> Job:
    cell = Weakened()
    cell.level = 0.8

    def change() -> None:
        cell.level = 0.5

    return Job(cell=cell, between=change)


@case(BETWEEN, "an attribute of an object that the module holds")
def changed_object() -> Job:
    options = SimpleNamespace(level=0.9)

    class Held(Cell):
        def after(self, state: torch.Tensor) -> Any:
            return _weaken(state, options.level)

    def change() -> None:
        options.level = 0.4

    return Job(cell=Held(), between=change)


@case(BETWEEN, "an attribute that no step reads")
def changed_elsewhere() -> Job:
    cell = Weakened()
    return Job(cell=cell, between=lambda: setattr(cell, "epoch", 3))


@case(BETWEEN, "a global")
def changed_global() -> Job:
    class Global(Cell):
        def after(self, state: torch.Tensor) -> Any:
            return _weaken(state, _level)

    def change() -> None:
        global _level  # noqa: PLW0603 - what the case is about
        _level = 0.5

    def finish() -> None:
        global _level  # noqa: PLW0603 - as above
        _level = 1.0

    return Job(cell=Global(), between=change, finish=finish)


@case(BETWEEN, "a number in a list")
def changed_list() -> Job:
    levels = [0.9, 0.8]

    class Listed(Cell):
        def after(self, state: torch.Tensor) -> Any:
            return _weaken(state, levels[1])

    return Job(cell=Listed(), between=lambda: levels.pop(0))


@case(BETWEEN, "a forward hook that is removed after a with block")
def removed_hook() -> Job:
    cell = Cell()
    hook = cell.inner.register_forward_hook(lambda _, __, output: _weaken(output, 0.6))
    return Job(cell=cell, between=hook.remove)


@case(BETWEEN, "a forward hook that is added")
def added_hook() -> Job:
    cell = Cell()
    return Job(
        cell=cell,
        between=lambda: cell.inner.register_forward_hook(lambda _, __, output: _weaken(output, 0.6)),
    )


@case(BETWEEN, "a method that is patched")
def patched_method() -> Job:
    cell = Weakened()
    return Job(cell=cell, between=lambda: setattr(cell, "after", lambda state: _weaken(state, 0.2)))


@case(BETWEEN, "a method of the class that is patched")
def patched_class() -> Job:
    class Patched(Weakened):
        def after(self, state: torch.Tensor) -> Any:
            return _weaken(state, 0.7)

    return Job(cell=Patched(), between=lambda: setattr(Patched, "after", lambda _, state: _weaken(state, 0.2)))


@case(BETWEEN, "a context variable")
def changed_context() -> Job:
    class Context(Cell):
        def after(self, state: torch.Tensor) -> Any:
            return _weaken(state, _in_context.get())

    return Job(cell=Context(), between=lambda: _in_context.set(0.5), finish=lambda: _in_context.set(1.0))


@case(BETWEEN, "the mode of the module")
def changed_mode() -> Job:
    class Mode(Cell):
        def after(self, state: torch.Tensor) -> Any:
            return _weaken(state, 0.9 if self.training else 0.4)

    cell = Mode()
    return Job(cell=cell, between=cell.eval)


@case(BETWEEN, "the mode of a module that is in a list")
def changed_mode_in_list() -> Job:
    dropped = [torch.nn.Dropout(0.0)]

    class Mode(Cell):
        def after(self, state: torch.Tensor) -> Any:
            return _weaken(dropped[0](state), 0.9 if dropped[0].training else 0.4)

    return Job(cell=Mode(), between=dropped[0].eval)


@case(BETWEEN, "the default type, and deterministic algorithms")
def changed_settings() -> Job:
    class Settings(Cell):
        def after(self, state: torch.Tensor) -> Any:
            return _weaken(state, 0.9 if torch.get_default_dtype() is torch.float32 else 0.4)

    return Job(
        cell=Settings(),
        between=lambda: torch.set_default_dtype(torch.float64),
        finish=lambda: torch.set_default_dtype(torch.float32),
    )
