"""A command of the program: options in groups, files that are told apart, and errors that name options.

Python users read parameters in messages, command-line users options: here one becomes the other.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Self, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

from ckptplan.errors import InputError, did_you_mean, quote_value
from ckptplan.storage.files import resolve
from ckptplan.wording import Argument

#: Names of several strategies.
GROUPS: Mapping[str, str] = {
    "paper": "those of the paper",
    "regular": "those that loops with fixed strides run",
    "closed": "those that a few parameters determine, which answer at once",
    "all": "every strategy",
}


#: Options whose names differ from their parameters', the first one for messages.
_NAMES = {
    "steps": ("--T", "--steps"),
    "thread_count": ("--threads",),
    "output": ("-o", "--output"),
    "file": ("-o", "--output"),
}


def _names_of(parameter: str) -> tuple[str, ...]:
    return _NAMES.get(parameter, (f"--{parameter.rstrip('_').replace('_', '-')}",))


def option_of(parameter: str) -> str:
    """Return the option of a parameter, as ``--local-bytes``."""
    return _names_of(parameter)[0]


def as_option(argument: Argument) -> str:
    """Return an argument as it is typed: ``--local-bytes 4096``, ``--restart``."""
    option, value = option_of(argument.name), argument.value
    if value is None or value is True:
        return option
    # A share of more than 1 must be typed as a percentage; a shell would take some texts apart.
    shown = f"{value * 100:.1f}%" if isinstance(value, float) else shlex.quote(str(value))
    return f"{option} {shown}"


class _PlainFlags:
    """A command or a group in whose help flags have no type, as nobody types one."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in parameters:
            if getattr(one, "is_flag", False):
                one.metavar = one.metavar or ""
        return parameters


class Command(_PlainFlags, TyperCommand):
    """A command whose errors name its options, and which never writes a file that it reads."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line. Raises InputError for a value that is not accepted."""
        with self._naming_options():
            rest = super().parse_args(ctx, args)
            if not ctx.resilient_parsing:
                tell_files_apart({find_option(one): ctx.params[one.name] for one in self.params})
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises InputError that names an option where it names its parameter."""
        with self._naming_options():
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, with the names of strategies if the command takes any."""
        if any(one.name == "strategies" for one in self.params):
            from ckptplan.strategies.registry import all_strategies

            names = f"Strategies: {', '.join(all_strategies())}; groups: {', '.join(GROUPS)}."
            self.epilog = f"{self.epilog}\n\n{names}"
        super().format_help(ctx, formatter)

    @contextmanager
    def _naming_options(self) -> Iterator[None]:
        try:
            yield
        except typer.BadParameter as error:
            if error.param is None or error.__cause__ is None:
                raise
            raise _explain(error.param, error.__cause__) from None
        except InputError as error:
            options = {one.name: find_option(one) for one in self.params if one.param_type_name == "option"}
            name, _, path = (error.field or "").partition(".")
            if error.source is not None or name not in options or (path and name != "over"):
                raise
            raise error.inside(field=f"{options[name]} {path}".rstrip()) from None


class Group(_PlainFlags, TyperGroup):
    """A group of commands, which names them where it has not the one that is asked for."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return a command with its arguments."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            problem = f"No such command {quote_value(args[0])}.{did_you_mean(args[0], self.commands)}"
            ctx.fail(f"{problem} (accepted: {', '.join(self.commands)})")
        return super().resolve_command(ctx, args)


def find_option(parameter: Any) -> str:
    """Return what a parameter is called in messages: its first long option, as ``--T``; or its argument."""
    return str(next((name for name in parameter.opts if name.startswith("--")), parameter.name))


def _explain(parameter: Any, refused: Any) -> InputError:
    """Return why a parameter's value is not accepted; ``refused`` is pydantic's error."""
    fault = refused.errors(include_url=False)[0]
    reason = fault.get("ctx", {}).get("error")
    if hasattr(reason, "errors"):  # of a value in a list
        return _explain(parameter, reason)
    option = find_option(parameter)
    if isinstance(reason, InputError):
        return reason.inside(field=option)
    value, message = fault["input"], fault["msg"]
    if fault["type"] == "value_error":  # not one of the choices, which the message names
        return InputError(message.removeprefix("Value error, "), field=option, value=value)
    return InputError(
        f"{quote_value(value)} is not accepted: {message[0].lower()}{message[1:]}",
        field=option,
        value=value,
    )


class FileName(str):
    """The name of a file; ``-`` is standard input or output. Raises InputError."""

    __slots__ = ()

    def __new__(cls, name: str) -> Self:
        """Refuse '', usually a shell variable that was never set."""
        if not name:
            raise InputError("an empty name is no file", value=name)
        return super().__new__(cls, name)


class Read(FileName):
    """The name of a file that a command reads, or of a built-in one."""

    __slots__ = ()


class Written(FileName):
    """The name of a file that a command writes.

    Raises InputError if it cannot be written, before anything is computed.
    """

    __slots__ = ()

    def __new__(cls, name: str) -> Self:
        """Check the name and its folder."""
        made = super().__new__(cls, name)
        if os.path.isdir(name):  # noqa: PTH112 - Path raises for names that are too long
            raise InputError(f"{quote_value(name)} cannot be written: it is a folder", value=name)
        # Devices and pipes are written as they are, files are replaced.
        replaced = name != "-" and (not os.path.exists(name) or os.path.isfile(name))  # noqa: PTH110, PTH113 - as above
        if replaced and not os.access(Path(name).parent, os.W_OK):
            raise InputError(
                f"cannot be written: the folder of {quote_value(name)} does not exist or is not writable",
                value=name,
            )
        return made


class WrittenBeside(Written):
    """The name of a file that is written besides the result, which goes to standard output."""

    __slots__ = ()

    def __new__(cls, name: str) -> Self:
        """Check the name, which must be one."""
        if name == "-":
            raise InputError("standard output carries the result", value=name, accepted="a file")
        return super().__new__(cls, name)


def tell_files_apart(given: Mapping[str, Any]) -> None:
    """Raise InputError if an output would overwrite an input or another output; ``given`` is by option."""
    named = [(option, name) for option, value in given.items() for name in _list_names(value)]
    read = {_locate(name) for _, name in named if isinstance(name, Read) and os.path.isfile(name)}  # noqa: PTH113 - Path raises for names that are too long
    written: dict[Path | str, str] = {}
    for option, name in named:
        if isinstance(name, Written):
            path = name if name == "-" else _locate(name)
            if path in read:
                raise InputError("is read by this command and would be lost", field=option, value=name)
            if path in written:
                raise InputError(f"is also what {written[path]} writes", field=option, value=name)
            written[path] = option


def _list_names(value: object) -> Iterable[Read | Written]:
    if isinstance(value, list | tuple):
        return [name for one in value for name in _list_names(one)]
    return [value] if isinstance(value, Read | Written) else []


def _locate(name: str) -> Path:
    """Return the file that a name leads to. Raises InputError if its links go round in a circle."""
    try:
        return resolve(name)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", source=name) from None


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer, in which a parameter that is a group is replaced by the group's options.

    A group is a frozen dataclass whose fields are options: ``name: Annotated[type, typer.Option(...)]``, with
    the option's default. An option is called as its parameter unless it has a name. The options keep the order
    of the parameters, and within a group that of its fields.
    Parameters of the command are keyword-only. Raises ValueError if two options have the same name.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = signature(command).parameters
    groups = {name: hints[name] for name in parameters if is_dataclass(hints[name])}
    options: list[Parameter] = []
    for name, parameter in parameters.items():
        options += (
            _list_options(groups[name]) if name in groups else [parameter.replace(annotation=hints[name])]
        )

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    # What typer reads.
    run.__signature__ = Signature([_name(option) for option in options])  # type: ignore[attr-defined]
    run.__annotations__ = {name: option.annotation for name, option in signature(run).parameters.items()}
    return run


def _name(option: Parameter) -> Parameter:
    """Return an option with the names that follow from its parameter, if it has none."""
    type_, *more = get_args(option.annotation)
    # Where typer keeps the first name.
    if not more or not isinstance(more[0], OptionInfo) or more[0].default is not ...:
        return option
    named = copy(more[0])
    named.param_decls = _names_of(option.name)
    return option.replace(annotation=Annotated[type_, named])


@cache
def _list_options(group: type[Any]) -> list[Parameter]:
    """Return the fields of a group as parameters of a command."""
    hints, empty = get_type_hints(group, include_extras=True), Parameter.empty
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
