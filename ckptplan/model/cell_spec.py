"""Reads the names of cells: built-in ones, and factories of the user's own modules, for PyTorch or for JAX."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeAlias

from ckptplan.errors import CkptplanError, InputError, did_you_mean, quote_value
from ckptplan.model.workload import Workload
from ckptplan.wording import Argument

#: Receives lines about a measurement: how long it takes, and what is left out.
Announce: TypeAlias = Callable[[str], None]
#: The framework that runs a cell; a name without a prefix means PyTorch.
Runtime = Literal["torch", "jax"]
_PREFIX = "jax:"
#: Cells that every runtime has.
BUILT_IN = ("gru", "lif", "lstm", "rnn")
_TEXT = re.compile(r"(?P<name>[\w.:]+)\s*(\((?P<settings>[^()]*)\))?")
_SETTINGS = ("inputs", "neurons", "compile")
#: The default number of inputs of a cell.
INPUTS = 64
#: The largest number of inputs or neurons.
_MOST = 10**9
_FORM = (
    f"NAME(inputs=N, neurons=N, compile=K), where NAME is {', '.join(BUILT_IN)} or package.module:factory, "
    "with jax: before it for a cell of JAX"
)


@dataclass(frozen=True, kw_only=True)
class CellSpec:
    """A cell and its sizes, as in the field ``cell`` of a workload: ``gru(inputs=64, neurons=256)``.

    With ``compile=K``, a step is a compiled piece of K steps.
    """

    name: str
    inputs: int
    neurons: int
    compile: int | None = None
    runtime: Runtime = "torch"

    def __str__(self) -> str:
        compiled = "" if self.compile is None else f", compile={self.compile}"
        return f"{self.full_name}(inputs={self.inputs}, neurons={self.neurons}{compiled})"

    @property
    def full_name(self) -> str:
        """The name with its runtime, as it is written."""
        return f"{_PREFIX}{self.name}" if self.runtime == "jax" else self.name

    @classmethod
    def named(cls, name: str, *, inputs: int, neurons: int, compile: int | None = None) -> CellSpec:  # noqa: A002 - as the setting
        """Return the spec of a cell; the prefix of its name selects the runtime. Raises InputError."""
        runtime: Runtime = "jax" if name.startswith(_PREFIX) else "torch"
        if compile is not None and runtime == "jax":
            raise InputError("is for cells of PyTorch", field="compile", value=compile)
        return cls(
            name=name.removeprefix(_PREFIX), inputs=inputs, neurons=neurons, compile=compile, runtime=runtime
        )

    @classmethod
    def parse(cls, text: str, *, neurons: int | None = None) -> CellSpec:
        """Parse the text form; ``neurons`` is the default for a name without sizes. Raises InputError."""

        def refuse(problem: str) -> InputError:
            return InputError(problem, field="cell", value=text, accepted=_FORM)

        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise refuse(f"{quote_value(text)} is not a cell")
        given: dict[str, int] = {} if neurons is None else {"neurons": neurons}
        for part in filter(None, (match["settings"] or "").replace(" ", "").split(",")):
            name, _, value = part.partition("=")
            if name not in _SETTINGS or not _is_count(value):
                raise refuse(f"{quote_value(part)} is not a setting of a cell")
            given[name] = int(value)
        if "neurons" not in given:
            raise refuse(f"{quote_value(text)} does not say how many neurons")
        return cls.named(match["name"], **{"inputs": INPUTS, **given})

    @classmethod
    def of(cls, workload: Workload, *, trust: bool = False) -> CellSpec:
        """Return the cell that a workload names.

        A workload can come from anybody's file, so a factory that it names is only accepted with ``trust``.
        Raises InputError.
        """
        if workload.cell is None:
            raise InputError(
                f"workload {workload.name!r} names no cell to run",
                field="workload.cell",
                accepted=f"a workload that `calibrate` measured, or {Argument('cell')}",
            )
        try:
            spec = cls.parse(
                workload.cell, neurons=None if workload.network is None else workload.network.neurons
            )
        except InputError as error:
            raise error.inside(prefix="workload") from None
        if not trust and ":" in spec.name:
            raise InputError(
                f"workload {workload.name!r} asks to import and call {quote_value(spec.name, limit=200)}; "
                "code that a file names only runs if you say so",
                field="workload.cell",
                value=workload.cell,
                accepted=f"{', '.join(BUILT_IN)}; or, if you trust that code, {Argument('trust_cell', True)}, "
                f"or {Argument('cell', str(spec))}",
            )
        return spec


def _is_count(text: str) -> bool:
    """Return whether a text is a whole number from 1 to 10^9."""
    return text.isascii() and text.isdecimal() and len(text) < 20 and 1 <= int(text) <= _MOST


def import_factory(name: str, *, factory: str) -> Callable[..., Any]:
    """Return the factory ``package.module:factory``, also from the current folder. Raises InputError.

    Importing runs code, so the name must come from the caller, or be trusted (``CellSpec.of``).
    ``factory`` describes a valid factory in the message of an error.
    """
    module, _, attribute = name.partition(":")

    def refuse(problem: str, accepted: str = f"{', '.join(BUILT_IN)}, or package.module:factory") -> InputError:
        return InputError(problem, field="cell", value=name, accepted=accepted)

    if not attribute:
        raise refuse(f"there is no cell {quote_value(name)}.{did_you_mean(name, BUILT_IN)}")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - as Python itself puts it there
        # An installed program does not search the current folder.
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        imported = getattr(import_module(module), attribute)
    except Exception as error:
        # An import may raise anything.
        likely = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        hint = "" if likely == module else f". Did you mean '{likely}:{attribute}'?"
        text = f"{quote_value(name)} cannot be imported: {type(error).__name__}: {error}{hint}"
        raise refuse(text) from error
    if not callable(imported):
        raise refuse(f"{quote_value(name)} cannot be called", accepted=factory)
    return imported  # type: ignore[no-any-return]


#: The subject of the error of ``blame_cell`` if the first step of a cell fails.
FIRST_STEP = "its first step, or the mean square of its first output,"


@contextmanager
def blame_cell(what: str, *, accepted: str, note: str = "") -> Iterator[None]:
    """Turn any exception of the block into InputError: '``what`` raised ...', followed by ``note``."""
    try:
        yield
    except CkptplanError:
        raise
    except Exception as error:
        cause = " ".join(str(error).split())
        text = f"{what} raised {type(error).__name__}: {cause}{note}"
        raise InputError(text, field="cell", accepted=accepted) from error


def call_factory(
    spec: CellSpec,
    built_in: Mapping[str, Callable[..., Any]],
    *,
    settings: Mapping[str, Any],
    parts: int,
    factory: str,
) -> tuple[Any, ...]:
    """Call the factory of a built-in cell, or of the user's, with the settings that its signature accepts.

    Returns its first ``parts`` results, the first of which is callable, and its function of inputs, or None.
    ``factory`` describes a valid factory in the message of an error. Raises InputError.
    """
    make = built_in.get(spec.name) or import_factory(spec.name, factory=factory)
    with blame_cell(spec.full_name, accepted=factory):
        made = make(**_choose_settings(make, settings))
    if not isinstance(made, tuple) or len(made) not in (parts, parts + 1) or not callable(made[0]):
        raise InputError(
            f"{spec.full_name} returned {quote_value(type(made).__name__)}", field="cell", accepted=factory
        )
    make_inputs = made[parts] if len(made) > parts else None
    if make_inputs is not None and not callable(make_inputs):
        raise InputError(
            f"{spec.full_name} returned {quote_value(type(make_inputs).__name__)} as its inputs",
            field="cell",
            accepted=factory,
        )
    return (*made[:parts], make_inputs)


def _choose_settings(make: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a factory's signature accepts; none if its signature cannot be read."""
    try:
        accepted_names = inspect.signature(make).parameters
    except (TypeError, ValueError):  # as for some builtins
        return {}
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted_names.values()):
        return dict(settings)
    return {name: value for name, value in settings.items() if name in accepted_names}
