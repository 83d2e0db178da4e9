"""What changes between the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import torch

from tests.torch.impure.cases import Cell, add_case, call, case, make_class, weaken
from tests.torch.tables import Call

BETWEEN = "changed between forward and backward"

_level = 1.0
_in_context: ContextVar[float] = ContextVar("_in_context", default=1.0)


class Weakened(Cell):
    """A cell with a level, which only gradients see."""

    level = 0.9

    def after(self, state: torch.Tensor) -> Any:
        return weaken(state, self.level)


def _weaken_by(level: Callable[[], float], **options: Any) -> Call:
    """Return a call of a cell that weakens gradients by what a function returns."""
    return call(make_class("WeakenedBy", lambda _, state: weaken(state, level()))(), **options)


def _weaken_output(_: Any, __: Any, output: torch.Tensor) -> Any:
    return weaken(output, 0.6)


def _patch_class() -> Call:
    kind = type("Patched", (Weakened,), {"level": 0.7, "after": Weakened.after, "__module__": __name__})
    return call(kind(), between=lambda: setattr(kind, "after", lambda _, state: weaken(state, 0.2)))


def _change(change: Callable[[Any], object]) -> Callable[[], Call]:
    """Return a function that makes a call of a cell, to which something happens between the passes."""

    def make() -> Call:
        cell = Weakened()
        cell.level = 0.8
        return call(cell, between=lambda: change(cell))

    return make


_CHANGES: dict[str, tuple[str, Callable[[], Call]]] = {
    "changed_attribute": ("an attribute of the module", _change(lambda cell: setattr(cell, "level", 0.5))),
    "changed_elsewhere": ("an attribute that no step reads", _change(lambda cell: setattr(cell, "epoch", 3))),
    "added_hook": (
        "a forward hook that is added",
        _change(lambda cell: cell.inner.register_forward_hook(_weaken_output)),
    ),
    "patched_method": (
        "a method that is patched",
        _change(lambda cell: setattr(cell, "after", lambda state: weaken(state, 0.2))),
    ),
    "patched_class": ("a method of the class that is patched", _patch_class),
}
for _name, (_what, _make) in _CHANGES.items():
    add_case(_name, BETWEEN, _what, _make)


@case(BETWEEN, "an attribute of an object that the module holds")
def changed_object() -> Call:
    options = SimpleNamespace(level=0.9)
    return _weaken_by(lambda: options.level, between=lambda: setattr(options, "level", 0.4))


@case(BETWEEN, "a global")
def changed_global() -> Call:
    def change(level: float) -> None:
        global _level  # noqa: PLW0603 - what the case is about
        _level = level

    return _weaken_by(lambda: _level, between=lambda: change(0.5), finish=lambda: change(1.0))


@case(BETWEEN, "a number in a list")
def changed_list() -> Call:
    levels = [0.9, 0.8]
    return _weaken_by(lambda: levels[1], between=lambda: levels.pop(0))


@case(BETWEEN, "a forward hook that is removed after a with block")
def removed_hook() -> Call:
    cell = Cell()
    hook = cell.inner.register_forward_hook(_weaken_output)
    return call(cell, between=hook.remove)


@case(BETWEEN, "a context variable")
def changed_context() -> Call:
    return _weaken_by(
        _in_context.get, between=lambda: _in_context.set(0.5), finish=lambda: _in_context.set(1.0)
    )


@case(BETWEEN, "the mode of the module")
def changed_mode() -> Call:
    cell = make_class("Mode", lambda self, state: weaken(state, 0.9 if self.training else 0.4))()
    return call(cell, between=cell.eval)


@case(BETWEEN, "the mode of a module that is in a list")
def changed_mode_in_list() -> Call:
    dropped = [torch.nn.Dropout(0.0)]
    kind = make_class("Mode", lambda _, state: weaken(dropped[0](state), 0.9 if dropped[0].training else 0.4))
    return call(kind(), between=dropped[0].eval)


@case(BETWEEN, "the default type, and deterministic algorithms")
def changed_settings() -> Call:
    return _weaken_by(
        lambda: 0.9 if torch.get_default_dtype() is torch.float32 else 0.4,
        between=lambda: torch.set_default_dtype(torch.float64),
        finish=lambda: torch.set_default_dtype(torch.float32),
    )
