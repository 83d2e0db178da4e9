"""The register of impure cells and losses: each case is a function that builds a call anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch

from ckptplan import InputError
from tests.torch import support
from tests.torch.support import gru
from tests.torch.tables import STEPS, Call, build, differentiate


@dataclass(frozen=True, kw_only=True)
class Case:
    """A way to be impure."""

    family: str
    #: What it does, in words.
    what: str
    build: Callable[[], Call]


CASES: dict[str, Case] = {}


def case(family: str, what: str) -> Callable[[Callable[[], Call]], Callable[[], Call]]:
    """Register a function that builds a call; its name is that of the case."""

    def register(make: Callable[[], Call]) -> Callable[[], Call]:
        add_case(getattr(make, "__name__", ""), family, what, make)
        return make

    return register


def cell_case(family: str, what: str) -> Callable[[type], type]:
    """Register a class of cells that need no arguments."""

    def register(cell: type) -> type:
        add_case(cell.__name__, family, what, lambda: call(cell()))
        return cell

    return register


def add_case(name: str, family: str, what: str, make: Callable[[], Call]) -> None:
    """Register a case."""
    assert name not in CASES
    CASES[name] = Case(family=family, what=what, build=make)


class Cell(torch.nn.Module):
    """A GRU; ``after`` changes the state that comes of it, from what the module keeps."""

    #: The method that a case overrides.
    changes: ClassVar[str] = "after"

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.GRUCell(5, 7).double()
        self.kept: Any = None
        self.calls = 0
        self.begin()

    def begin(self) -> None:
        """Set what it keeps at first."""

    def after(self, state: torch.Tensor) -> Any:
        """Return what it makes of the state."""
        return state

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        """Take a step."""
        state = self.after(self.inner(x, state))
        self.calls += 1
        return state, state


class Bare(Cell):
    """A GRU without a counter of calls, which would change, too."""

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        """Take a step."""
        state = self.after(self.inner(x, state))
        return state, state


class Given(Cell):
    """A GRU; ``before`` changes the state that it is given."""

    changes = "before"

    def before(self, state: torch.Tensor) -> Any:
        """Return what the step starts from."""
        return state

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        """Take a step."""
        return super().forward(self.before(state), x)


class Timed(Cell):
    """A GRU whose state has the number of the step: no attribute counts; ``then`` changes what comes of it."""

    changes = "then"

    def then(self, state: torch.Tensor, step: int) -> Any:
        """Return what it makes of the state."""
        del step
        return state

    def forward(self, state: Any, x: torch.Tensor) -> Any:
        """Take a step."""
        hidden, step = state
        hidden = self.then(self.inner(x, hidden), step)
        return (hidden, step + 1), hidden


class _Does(NamedTuple):
    what: str
    kept: Callable[[], Any]
    method: Callable[..., Any]


def does(what: str, kept: Callable[[], Any] = lambda: None) -> Callable[[Callable[..., Any]], Any]:
    """Make a case of a method: it changes the state. ``kept()`` is what the cell keeps at first."""
    return lambda method: _Does(what, kept, method)


def family(name: str) -> Callable[[type[Cell]], type[Cell]]:
    """Register the methods of a class: each becomes the method of a cell of its own that changes the state."""

    def register(methods: type[Cell]) -> type[Cell]:
        for case_name, member in list(vars(methods).items()):
            if isinstance(member, _Does):
                cell = make_class(case_name, member.method, kept=member.kept, base=methods.__bases__[0])
                setattr(methods, case_name, cell)
                add_case(case_name, name, member.what, lambda cell=cell: call(cell()))  # type: ignore[misc]
        return methods

    return register


def make_class(
    name: str, method: Callable[..., Any], *, kept: Callable[[], Any] = lambda: None, base: type[Cell] = Cell
) -> type[Cell]:
    """Return a class of cells with a method that changes the state."""

    def begin(cell: Any) -> None:
        # A buffer or a parameter cannot take the name of an attribute.
        del cell.kept
        cell.kept = kept()

    return type(name, (base,), {base.changes: method, "begin": begin, "__module__": __name__})


def call(cell: Any, **options: Any) -> Call:
    """Return a call of a cell. The state of a timed one counts steps."""
    if isinstance(cell, Timed):
        options.setdefault("state", (support.job(STEPS)[1], 0))
    return Call(cell=cell, relative=1e-9, **options)


def apply(change: Callable[[torch.Tensor], Any], **options: Any) -> Call:
    """Return a call of a function that applies another function to the state of a GRU."""
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = change(inner(state, x)[0])
        return state, state

    # The first steps of a cell are tried if no cell with its code has run before.
    cell.__code__ = cell.__code__.replace(co_name=change.__qualname__)
    return call(cell, parameters=[*parameters, *options.pop("parameters", ())], **options)


def weaken(state: torch.Tensor, level: Any) -> Any:
    """Return the state, with a gradient that is smaller by a factor."""
    return state - (1 - level) * (state - state.detach())


@dataclass(frozen=True)
class Outcome:
    """What became of a case: right, refused with a message, or (a fault) different."""

    kind: Literal["right", "refused", "different"]
    message: str = ""


def run(tried: Case, strategies: Iterable[str]) -> dict[str, Outcome]:
    """Return what becomes of a case under each strategy, by ``bptt``. Other errors than refusals are raised."""
    theirs = differentiate(build(tried.build), None)
    return {strategy: _compare(tried, strategy, theirs) for strategy in strategies}


def _compare(tried: Case, strategy: str, theirs: Sequence[torch.Tensor]) -> Outcome:
    try:
        ours = differentiate(build(tried.build), strategy)
    except InputError as error:
        return Outcome("refused", str(error))
    except RuntimeError as error:
        if "between the forward and the backward pass" not in str(error):
            raise
        return Outcome("refused", str(error))
    try:
        support.assert_close(ours, theirs, relative=1e-9)
    except AssertionError:
        return Outcome("different")
    return Outcome("right")
