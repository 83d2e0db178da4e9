"""Options that several commands share, in groups, and what they are read as."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ckptplan.cli.completion import complete_profile, complete_strategies, complete_workload
from ckptplan.cli.wording import option_of
from ckptplan.errors import InputError, MissingExtra, quote_value
from ckptplan.report.formats import FORMATS, format_of_file
from ckptplan.units import MAX_STEPS, parse_bytes, parse_fraction, parse_headroom

if TYPE_CHECKING:
    from ckptplan.calibration.cell_spec import CellSpec
    from ckptplan.cost.case import Case
    from ckptplan.model.profile import HardwareProfile
    from ckptplan.model.progress import Progress
    from ckptplan.model.workload import Workload
    from ckptplan.planning.request import Request


if TYPE_CHECKING:
    FormatName = str
else:
    # Any that is registered; typer reads the choices off the type.
    FormatName = Literal[tuple(FORMATS)]


Steps = Annotated[
    str | None,
    typer.Option("--T", "--steps", metavar="INTEGER", help="Time steps T (default: the workload's)."),
]
Profile = Annotated[
    str,
    typer.Option(
        "--profile",
        metavar="NAME|PATH",
        help="Hardware profile; see: ckptplan profiles list.",
        autocompletion=complete_profile,
    ),
]
WorkloadName = Annotated[
    str | None,
    typer.Option(
        "--workload",
        metavar="NAME|PATH",
        help="Workload (default: paper-snn); see: ckptplan workloads list.",
        autocompletion=complete_workload,
    ),
]
Batch = Annotated[
    str | None, typer.Option("--batch", metavar="INTEGER", help="Batch, for a workload with a network.")
]
Neurons = Annotated[
    str | None, typer.Option("--neurons", metavar="INTEGER", help="Neurons, for a workload with a network.")
]
LocalBytes = Annotated[
    str | None,
    typer.Option(
        "--local-bytes", metavar="SIZE", help="Local budget of one unit, as '300 KiB' (default: the profile's)."
    ),
]
Headroom = Annotated[
    str | None,
    typer.Option(
        "--headroom",
        metavar="SHARE",
        help="Share of local memory to leave free, as '10%' (default: the profile's; none of --local-bytes).",
    ),
]
RemoteBytes = Annotated[
    str | None,
    typer.Option(
        "--remote-bytes", metavar="SIZE", help="Remote budget of all units, as '16 GiB', or 'unbounded'."
    ),
]
Strategies = Annotated[
    str | None,
    typer.Option(
        "--strategies",
        metavar="NAMES",
        help="Names separated by commas, or 'paper', 'regular', 'closed', 'all'.",
        autocompletion=complete_strategies,
    ),
]
Objective = Annotated[
    Literal["time", "memory", "balanced"],
    typer.Option("--objective", help="Least time, least local memory, or the knee between both."),
]
Model = Annotated[
    Literal["exact", "paper"],
    typer.Option("--model", help="Choose by the exact model or by the paper's printed equations."),
]
Effort = Annotated[
    Literal["quick", "thorough"],
    typer.Option("--effort", help="How long to search for optimal schedules: tenths of a second, or a minute."),
]
MaxOverhead = Annotated[
    str | None,
    typer.Option("--max-overhead", metavar="SHARE", help="Limit on the time over base's, as '10%' or 0.1."),
]
PlanFile = Annotated[
    str, typer.Argument(metavar="PLAN", help="A plan file, as optimize -o writes it; '-' for standard input.")
]
Threads = Annotated[
    str | None,
    typer.Option("--threads", metavar="INTEGER", help="Threads of PyTorch (default: its own choice)."),
]
Repeats = Annotated[str, typer.Option("--repeats", metavar="INTEGER", help="Rounds; times are their medians.")]
PictureSize = Annotated[
    Literal["column", "page", "slide"],
    typer.Option("--size", help="Size of the picture: 3.4 inches wide, 6.9, or a slide."),
]
FormatOption = Annotated[FormatName, typer.Option("--format", help="How the result is written.")]
Basis = Annotated[
    bool, typer.Option("--basis", help="List every input of the estimate with its origin, below the table.")
]


def named_file(context: typer.Context, parameter: typer.CallbackParam, name: str | None) -> str | None:  # noqa: ARG001 - typer's signature
    """Return the name of a file. Raises InputError for '', usually a shell variable that was never set."""
    if name == "":
        raise InputError("an empty name is no file", field=max(parameter.opts, key=len), value=name)
    return name


OutputFile = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write to a file, '-' for standard output.",
        callback=named_file,
    ),
]


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """A workload on a profile."""

    steps: Steps = None
    profile: Profile = "ipu-mk2"
    workload: WorkloadName = None
    batch: Batch = None
    neurons: Neurons = None

    def load(self) -> Case:
        """Load workload and profile and apply the other options. Raises InputError."""
        from ckptplan.cost.case import Case

        profile = load_profile(self.profile)
        return Case(
            workload=load_workload(self.workload, steps=self.steps, batch=self.batch, neurons=self.neurons),
            profile=profile,
        )


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """Wishes of every command that plans: memory budgets and strategies. Subclasses add more."""

    local_bytes: LocalBytes = None
    headroom: Headroom = None
    remote_bytes: RemoteBytes = None
    strategies: Strategies = None

    def read(self) -> dict[str, Any]:
        """Return the wishes as keyword arguments of a use case, ``command`` included.

        Raises InputError that names the option.
        """
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        read = {name: parsed(option_of(name), _PARSERS.get(name, str), text) for name, text in given.items()}
        return {**read, "command": command_line()}


@dataclass(frozen=True, kw_only=True)
class WishOptions(BudgetOptions):
    """Every wish there is."""

    objective: Objective = "time"
    model: Model = "exact"
    max_overhead: MaxOverhead = None
    effort: Effort = "quick"


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How and where a result is written."""

    format: FormatOption = "table"
    file: OutputFile = None
    basis: Basis = False

    def by_name(self) -> OutputOptions:
        """Return these options with the format that the file's name implies, unless --format was given."""
        found = format_of_file(self.file) if self.file and self.format == "table" else None
        return self if found is None else replace(self, format=found.name)


def make_request(job: JobOptions, wishes: BudgetOptions, *, progress: Progress | None) -> Request:
    """Return the request of a command. Raises InputError."""
    from ckptplan.planning.request import Request

    case = job.load()
    return Request.of(case.workload, case.profile, **wishes.read(), progress=progress)


def _parse_remote_bytes(text: str) -> int | str:
    return text if text == "unbounded" else parse_bytes(text)


#: How wishes are read that are not plain text.
_PARSERS: Mapping[str, Callable[[str], object]] = {
    "local_bytes": parse_bytes,
    "headroom": parse_headroom,
    "remote_bytes": _parse_remote_bytes,
    "max_overhead": parse_fraction,
}


def plain_integer(text: str, *, option: str, most: int, least: int = 1) -> int:
    """Return a count written without unit, sign or separators. Raises InputError."""
    accepted = f"a whole number from {least} to {most:,}, without unit"
    if not (text.isascii() and text.removeprefix("-").isdecimal()):
        raise InputError(
            f"{quote_value(text)} is not a whole number", field=option, value=text, accepted=accepted
        )
    value = int(text) if len(text) < 20 else most + 1  # Python refuses thousands of digits
    if not least <= value <= most:
        raise InputError(f"{quote_value(text)} is out of range", field=option, value=text, accepted=accepted)
    return value


def split_names(text: str) -> list[str]:
    """Return names or paths that commas separate; a file may have a comma in its name."""
    return [text] if Path(text).is_file() else [part.strip() for part in text.split(",") if part.strip()]


def thread_count(text: str | None) -> int | None:
    """Return a number of threads, None if it is not given. Raises InputError."""
    return None if text is None else plain_integer(text, option="--threads", most=4096)


def tolerance(text: str, *, option: str) -> float:
    """Return a share above 0 and at most 1. Raises InputError."""
    share: float = parsed(option, parse_fraction, text)
    if not 0 < share <= 1:
        raise InputError(
            f"{quote_value(text)} is out of range",
            field=option,
            value=text,
            accepted="more than 0 %, up to 100 %",
        )
    return share


def need_runtime(spec: CellSpec) -> None:
    """Raise MissingExtra if what runs a cell is not installed."""
    from importlib.util import find_spec

    if find_spec(spec.runtime) is None:
        raise MissingExtra(spec.runtime, package=spec.runtime)


def check_jax_device(device: str | None) -> None:
    """Raise InputError for a device on which cells of JAX are not measured."""
    if device not in (None, "cpu"):
        raise InputError(
            "cells of JAX are measured on processors only", field="--device", value=device, accepted="cpu"
        )


def load_profile(name: str, *, option: str = "--profile") -> HardwareProfile:
    """Load the profile that an option names. Raises InputError."""
    from ckptplan.storage import toml_files

    loaded: HardwareProfile = _named(option, toml_files.load_profile, name)
    return loaded


#: The workload that is planned if none is named; tables then say so.
DEFAULT_WORKLOAD = "paper-snn"


def load_workload(name: str | None, *, steps: str | None, batch: str | None, neurons: str | None) -> Workload:
    """Load the workload that an option names, or the default, and change its sizes. Raises InputError."""
    from ckptplan.storage import toml_files

    loaded: Workload = _named("--workload", toml_files.load_workload, name or DEFAULT_WORKLOAD)
    if batch is not None:
        loaded = loaded.with_batch(plain_integer(batch, option="--batch", most=10**9))
    if neurons is not None:
        loaded = loaded.with_neurons(plain_integer(neurons, option="--neurons", most=10**9))
    if steps is not None:
        loaded = loaded.with_steps(plain_integer(steps, option="--T", most=MAX_STEPS))
    return loaded


def keep_inputs(outputs: Mapping[str, str | None], *inputs: str | None) -> None:
    """Raise InputError if an output would overwrite an input or another output.

    ``outputs`` maps options to the files they name.
    """
    read = {_locate(name) for name in inputs if name and Path(name).is_file()}
    written: dict[Path | str, str] = {}
    for option, name in outputs.items():
        if not name:
            continue
        path = "-" if name == "-" else _locate(name)
        if path in read:
            raise InputError("is read by this command and would be lost", field=option, value=name)
        if path in written:
            raise InputError(f"is also what {written[path]} writes", field=option, value=name)
        written[path] = option


def _locate(name: str) -> Path:
    """Return the file that a name leads to. Raises InputError if its links go round in a circle."""
    from ckptplan.storage.files import resolve

    try:
        return resolve(name)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", source=name) from None


def check_folders(outputs: Mapping[str, str | None]) -> None:
    """Raise InputError if a file cannot be written, before anything is measured."""
    for option, name in outputs.items():
        if name and name != "-" and Path(name).is_dir():
            raise InputError(f"{quote_value(name)} cannot be written: it is a folder", field=option, value=name)
        if name and name != "-" and not (Path(name).parent.is_dir() and os.access(Path(name).parent, os.W_OK)):
            raise InputError(
                f"cannot be written: the folder of {quote_value(name)} does not exist or is not writable",
                field=option,
                value=name,
            )


def command_line() -> str:
    """Return the command line as typed, for a result's provenance; characters that cannot be seen escaped."""
    import shlex

    from ckptplan.wording import escape_controls

    return escape_controls(shlex.join(["ckptplan", *sys.argv[1:]]))


def _named(option: str, load: Any, name: str) -> Any:
    try:
        return load(name)
    except InputError as error:
        if error.source is None:
            raise InputError(error.message, field=option, value=error.value, accepted=error.accepted) from None
        raise


def parsed(option: str, parse: Any, text: str | None) -> Any:
    """Return the value of an option, None if it is not given. Raises InputError that names the option."""
    if text is None:
        return None
    try:
        return parse(text)
    except InputError as error:
        raise error.inside(prefix=option) from None
