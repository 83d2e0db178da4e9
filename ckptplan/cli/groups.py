"""Groups of options: one argument of a command, several options of the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer, in which a parameter that is a group is replaced by the group's options.

    A group is a frozen dataclass whose fields are options: ``name: Annotated[type, typer.Option(...)]``, with
    the option's default. The options keep the order of the parameters, and within a group that of its fields.
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
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


@cache
def _list_options(group: type[Any]) -> list[Parameter]:
    """Return the fields of a group as parameters of a command."""
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=_default(field), annotation=hints[field.name])
        for field in fields(group)
    ]


def _default(field: Field[Any]) -> object:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return Parameter.empty if field.default is MISSING else field.default
