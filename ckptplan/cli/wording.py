"""The option of each parameter: Python users read parameters in messages, command-line users options."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ckptplan.errors import CkptplanError, InputError
from ckptplan.wording import Argument, Phrase, put_into_words

#: Options whose names differ from their parameters'.
_SPELLINGS = {"steps": "--T", "thread_count": "--threads", "output": "-o"}
#: Parameters whose errors name the option. Other fields are those of files.
_GIVEN_BY_OPTIONS = (
    "cell",
    "device",
    "batch",
    "neurons",
    "compile",
    "local_bytes",
    "headroom",
    "remote_bytes",
    "strategies",
    "objective",
    "max_overhead",
    "model",
    "effort",
    "resolution",
    "uncertainty",
    "regret",
    "max_seconds",
    "gantt",
    "deadline",
    "forward_seconds",
    "backward_seconds",
    "recompute_seconds",
    "record_overhead_seconds",
)


def option_of(parameter: str) -> str:
    """Return the option of a parameter, as ``--local-bytes``."""
    return _SPELLINGS.get(parameter, f"--{parameter.replace('_', '-')}")


def as_option(argument: Argument) -> str:
    """Return an argument as it is typed: ``--local-bytes 4096``, ``--restart``."""
    option, value = option_of(argument.name), argument.value
    if value is None or value is True:
        return option
    # A share of more than 1 must be typed as a percentage; a shell would take some texts apart.
    shown = f"{value * 100:.1f}%" if isinstance(value, float) else shlex.quote(str(value))
    return f"{option} {shown}"


def message_of(error: CkptplanError) -> str:
    """Return an error's message with options in place of parameters."""
    text = error.args[0] if error.args else ""
    return "\n".join([put_into_words(text, as_option), *getattr(error, "__notes__", ())])


def details_of(error: CkptplanError) -> dict[str, Any]:
    """Return an error's details with options in place of parameters."""
    return _in_options(error.details())


def _in_options(details: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: put_into_words(value, as_option) if isinstance(value, Phrase) else value
        for name, value in details.items()
    }


@contextmanager
def named_by_option() -> Iterator[None]:
    """Re-raise errors about a parameter with the name of its option."""
    try:
        yield
    except InputError as error:
        if error.source is None and error.field in _GIVEN_BY_OPTIONS:
            raise InputError(
                error.message, field=option_of(error.field), value=error.value, accepted=error.accepted
            ) from None
        raise
