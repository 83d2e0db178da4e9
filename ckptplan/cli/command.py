"""A command of the program: options in groups, checked names of files, and errors that name options.

Messages name parameters for Python users and options for users of the command line. This module translates.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Self, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

from ckptplan.errors import InputError, did_you_mean, quote_value
from ckptplan.wording import Argument

#: Options whose names differ from their parameters' names. Messages use the first name.
_NAMES = {
    "steps": ("--T", "--steps"),
    "thread_count": ("--threads",),
    "output": ("-o", "--output"),
    "file": ("-o", "--output"),
}


def _list_names(parameter: str) -> tuple[str, ...]:
    return _NAMES.get(parameter, (f"--{parameter.rstrip('_').replace('_', '-')}",))


def option_of(parameter: str) -> str:
    """Return the option of a parameter, as ``--local-bytes``."""
    return _list_names(parameter)[0]


def as_option(argument: Argument) -> str:
    """Return an argument as users type it: ``--local-bytes 4096``, ``--restart``."""
    option, value = option_of(argument.name), argument.value
    if value is None or value is True:
        return option
    # A share above 1 must be typed as a percentage. Quotes keep a shell from splitting a text.
    return f"{option} {f'{value * 100:.1f}%' if isinstance(value, float) else shlex.quote(str(value))}"


class _PlainFlags:
    """A command or a group whose help shows no type for flags, since flags have no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = parameter.metavar or ""
        return parameters


class Command(_PlainFlags, TyperCommand):
    """A command whose errors name its options, and which never overwrites a file that it reads."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line. Raises InputError for a value that is not accepted."""
        with self._naming_options():
            remaining = super().parse_args(ctx, args)
            if not ctx.resilient_parsing:
                check_files({_name(parameter): ctx.params[parameter.name] for parameter in self.params})
        return remaining

    def invoke(self, ctx: Any) -> Any:
        """Run the command. An InputError about a parameter names its option."""
        with self._naming_options():
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help. For a command with ``--strategies``, it ends with the names of all strategies."""
        if any(parameter.name == "strategies" for parameter in self.params):
            from ckptplan.strategies.registry import GROUPS, all_strategies

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
            raise _convert_error(_name(error.param), error.__cause__) from None
        except InputError as error:
            options = {param.name: _name(param) for param in self.params if param.param_type_name == "option"}
            parameter, _, path = (error.field or "").partition(".")
            if error.source is not None or parameter not in options or (path and parameter != "over"):
                raise
            raise error.inside(field=f"{options[parameter]} {path}".rstrip()) from None


class Group(_PlainFlags, TyperGroup):
    """A group of commands. Its error for an unknown command lists the known commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return a command with its arguments."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            problem = f"No such command {quote_value(args[0])}.{did_you_mean(args[0], self.commands)}"
            ctx.fail(f"{problem} (accepted: {', '.join(self.commands)})")
        return super().resolve_command(ctx, args)


def _name(parameter: Any) -> str:
    """Return the name of a parameter in messages: its first long option, as ``--T``, or its argument."""
    return str(next((name for name in parameter.opts if name.startswith("--")), parameter.name))


def _convert_error(option: str, refused: Any) -> InputError:
    """Convert pydantic's error ``refused`` to an InputError that names the option."""
    fault = refused.errors(include_url=False)[0]
    reason = fault.get("ctx", {}).get("error")
    if hasattr(reason, "errors"):  # the error of a value in a list
        return _convert_error(option, reason)
    if isinstance(reason, InputError):
        return reason.inside(field=option)
    value, text = fault["input"], fault["msg"].removeprefix("Value error, ")
    if fault["type"] != "value_error":  # A value_error quotes the value.
        text = f"{quote_value(value)} is not accepted: {text[0].lower()}{text[1:]}"
    return InputError(text, field=option, value=value)


class Read(str):
    """The name of a file that a command reads, or of a built-in file; '-' is standard input."""

    def __new__(cls, name: str) -> Self:
        """Refuse an empty name, which usually is a shell variable that was never set. Raises InputError."""
        if not name:
            raise InputError("an empty name is no file", value=name)
        return super().__new__(cls, name)


class Written(Read):
    """The name of a file that a command writes; '-' is standard output."""

    def __new__(cls, name: str) -> Self:
        """Check, before anything is computed, that the file can be written. Raises InputError."""
        file = super().__new__(cls, name)
        # Use os.path, since methods of Path raise for names that are too long.
        if os.path.isdir(name):  # noqa: PTH112
            raise InputError(f"{quote_value(name)} cannot be written: it is a folder", value=name)
        # Devices and pipes are opened directly. Files are replaced, so their folder must be writable.
        is_replaced = name != "-" and (not os.path.exists(name) or os.path.isfile(name))  # noqa: PTH110, PTH113
        if is_replaced and not os.access(Path(name).parent, os.W_OK):
            problem = f"the folder of {quote_value(name)} does not exist or is not writable"
            raise InputError(f"cannot be written: {problem}", value=name)
        try:
            os.lstat(name)
        except FileNotFoundError:
            return file
        except OSError as reason:  # The name is too long, for example.
            raise InputError(f"{quote_value(name)} cannot be written: {reason.strerror}", value=name) from None
        return file


def parse_side_file(name: str) -> Written:
    """Return the name of an additional output file. Raises InputError for '-', where the result is printed."""
    if name == "-":
        raise InputError("standard output carries the result", value=name, accepted="a file")
    return Written(name)


def check_files(given: Mapping[str, Any]) -> None:
    """Raise InputError if an output would overwrite an input or another output. ``given`` maps options."""
    files = [(option, name) for option, value in given.items() for name in _find_files(value)]
    # As above, use os.path, which accepts names that are too long and links in a circle.
    inputs = [name for _, name in files if not isinstance(name, Written)]
    sources = {os.path.realpath(name) for name in inputs if os.path.isfile(name)}  # noqa: PTH113
    writers: dict[str, str] = {}
    for option, name in files:
        if isinstance(name, Written):
            path = name if name == "-" else os.path.realpath(name)
            if path in sources:
                raise InputError("is read by this command and would be lost", field=option, value=name)
            if path in writers:
                raise InputError(f"is also written by {writers[path]}", field=option, value=name)
            writers[path] = option


def _find_files(value: object) -> list[Read]:
    if isinstance(value, list):
        return [name for member in value for name in _find_files(member)]
    return [value] if isinstance(value, Read) else []


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer: each parameter that is a group is replaced by the options of the group.

    A group is a frozen dataclass whose fields are options: ``name: Annotated[type, typer.Option(...)]``, with
    the option's default. An option is named after its parameter unless it names itself. The order is that of
    the parameters and, within a group, of its fields.
    Parameters of the command are keyword-only. Raises ValueError if two options have the same name.
    """
    hints = get_type_hints(command)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    # typer reads the signature and the annotations.
    options = _list_options(command)
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


@cache
def _list_options(taker: Callable[..., Any]) -> list[Parameter]:
    """Return the options of a command or of a group, including the options of the groups in it."""
    hints = get_type_hints(taker, include_extras=True)
    options: list[Parameter] = []
    for name, parameter in signature(taker).parameters.items():
        if is_dataclass(hints[name]):
            options += _list_options(hints[name])
        else:
            options.append(_add_names(parameter.replace(annotation=hints[name])))
    return options


def _add_names(option: Parameter) -> Parameter:
    """Return an option with names derived from its parameter, unless it already has names."""
    type_, *details = get_args(option.annotation)
    # typer keeps the first name of an option in ``default``.
    if not details or not isinstance(details[0], OptionInfo) or details[0].default is not ...:
        return option
    named = copy(details[0])
    named.param_decls = _list_names(option.name)
    return option.replace(annotation=Annotated[type_, named])
