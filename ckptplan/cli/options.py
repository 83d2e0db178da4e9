"""Options that several commands share, and the job they describe."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ckptplan.errors import InputError, MissingExtra, shown
from ckptplan.report.formats.registry import all_formats, format_of_file
from ckptplan.units import MAX_STEPS, parse_bytes, parse_fraction

if TYPE_CHECKING:
    from ckptplan.model.profile import HardwareProfile
    from ckptplan.model.workload import Workload


if TYPE_CHECKING:
    FormatName = str
else:
    # Any that is registered; typer reads the choices off the type.
    FormatName = Literal[tuple(all_formats())]


class Objective(enum.StrEnum):
    """What is made least."""

    time = "time"
    memory = "memory"
    balanced = "balanced"


class Effort(enum.StrEnum):
    """How much work the search for optimal schedules may be."""

    quick = "quick"
    thorough = "thorough"


class Model(enum.StrEnum):
    """Which cost model chooses."""

    exact = "exact"
    paper = "paper"


Steps = Annotated[
    str | None,
    typer.Option("--T", "--steps", metavar="INTEGER", help="Time steps T (default: the workload's)."),
]
Profile = Annotated[
    str, typer.Option("--profile", metavar="NAME|PATH", help="Hardware profile; see: ckptplan profiles list.")
]
WorkloadName = Annotated[
    str, typer.Option("--workload", metavar="NAME|PATH", help="Workload; see: ckptplan workloads list.")
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
        "--local-bytes", metavar="SIZE", help="Local budget of one unit, as '300 KiB'; not the profile's."
    ),
]
RemoteBytes = Annotated[
    str | None,
    typer.Option("--remote-bytes", metavar="SIZE", help="Remote budget in all, as '16 GiB', or 'unbounded'."),
]
Strategies = Annotated[
    str | None,
    typer.Option(
        "--strategies",
        metavar="NAMES",
        help="Names with commas between, or 'paper', 'regular', 'closed', 'all'.",
    ),
]
ObjectiveOption = Annotated[
    Objective, typer.Option("--objective", help="Least time, least local memory, or the knee between both.")
]
ModelOption = Annotated[
    Model, typer.Option("--model", help="Choose by the exact model or by the paper's printed equations.")
]
EffortOption = Annotated[
    Effort,
    typer.Option("--effort", help="How long to look for optimal schedules: tenths of a second, or a minute."),
]
MaxOverhead = Annotated[
    str | None, typer.Option("--max-overhead", metavar="SHARE", help="Most time over base's, as '10%' or 0.1.")
]
PlanFile = Annotated[
    str, typer.Argument(metavar="PLAN", help="A plan file, as optimize -o writes it; '-' for standard input.")
]
Threads = Annotated[
    str | None,
    typer.Option("--threads", metavar="INTEGER", help="Threads of PyTorch (default: its own number)."),
]
Repeats = Annotated[str, typer.Option("--repeats", metavar="INTEGER", help="Rounds; times are their medians.")]
FormatOption = Annotated[FormatName, typer.Option("--format", help="How the result is written.")]


def named_file(context: typer.Context, parameter: typer.CallbackParam, name: str | None) -> str | None:  # noqa: ARG001 - typer's signature
    """Return the name of a file; '' is most often a variable that was never set. Raises InputError."""
    if name == "":
        raise InputError("an empty name is no file", field=f"--{parameter.name}", value=name)
    return name


Output = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write to a file, '-' for standard output.",
        callback=named_file,
    ),
]


def format_by_name(format_: str, output: str | None) -> str:
    """Return the format that a file's name asks for, where no other one than a table was."""
    found = format_of_file(output) if output and format_ == "table" else None
    return format_ if found is None else found.name


def plain_integer(text: str, *, option: str, most: int) -> int:
    """Return a count that is given without unit, sign or separators. Raises InputError."""
    accepted = f"a whole number from 1 to {most:,}, without unit"
    if not (text.isascii() and text.removeprefix("-").isdecimal()):
        raise InputError(f"{shown(text)} is not a whole number", field=option, value=text, accepted=accepted)
    value = int(text) if len(text) < 20 else most + 1  # Python refuses thousands of digits
    if not 1 <= value <= most:
        raise InputError(f"{shown(text)} is out of range", field=option, value=text, accepted=accepted)
    return value


def thread_count(text: str | None) -> int | None:
    """Return a number of threads, None where it is not given. Raises InputError."""
    return None if text is None else plain_integer(text, option="--threads", most=4096)


def tolerance(text: str, *, option: str) -> float:
    """Return a share of at most 1. Raises InputError."""
    share: float = parsed(option, parse_fraction, text)
    if not 0 < share <= 1:
        raise InputError(
            f"{shown(text)} is out of range", field=option, value=text, accepted="more than 0 %, up to 100 %"
        )
    return share


def need_torch() -> None:
    """Raise MissingExtra where PyTorch is not installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MissingExtra("torch", package="torch")


def job(
    *, steps: str | None, batch: str | None, neurons: str | None, workload: str, profile: str
) -> tuple[Workload, HardwareProfile]:
    """Load the workload and the profile, and change what the options change. Raises InputError."""
    hardware = machine(profile)
    return task(steps=steps, batch=batch, neurons=neurons, workload=workload), hardware


def machine(profile: str) -> HardwareProfile:
    """Load the profile. Raises InputError."""
    from ckptplan.storage.profiles import load_profile

    hardware: HardwareProfile = _named("--profile", load_profile, profile)
    return hardware


def task(*, steps: str | None, batch: str | None, neurons: str | None, workload: str) -> Workload:
    """Load the workload, and change what the options change. Raises InputError."""
    from ckptplan.storage.workloads import load_workload

    loaded: Workload = _named("--workload", load_workload, workload)
    if batch is not None:
        loaded = loaded.with_batch(plain_integer(batch, option="--batch", most=10**9))
    if neurons is not None:
        loaded = loaded.with_neurons(plain_integer(neurons, option="--neurons", most=10**9))
    if steps is not None:
        loaded = loaded.with_steps(plain_integer(steps, option="--T", most=MAX_STEPS))
    return loaded


def wishes(
    *,
    strategies: str | None,
    objective: Objective,
    model: Model,
    max_overhead: str | None,
    local_bytes: str | None,
    remote_bytes: str | None,
    effort: Effort,
) -> dict[str, Any]:
    """Return the arguments of ``ckptplan.optimize``. Raises InputError that names the option."""
    return {
        "strategies": strategies,
        "objective": objective.value,
        "model": model.value,
        "max_overhead": parsed("--max-overhead", parse_fraction, max_overhead),
        "local_bytes": parsed("--local-bytes", parse_bytes, local_bytes),
        "remote_bytes": "unbounded"
        if remote_bytes == "unbounded"
        else parsed("--remote-bytes", parse_bytes, remote_bytes),
        "effort": effort.value,
        "command": command_line(),
    }


def keep_inputs(outputs: Mapping[str, str | None], *inputs: str | None) -> None:
    """Raise InputError if a result would be written over what it is made from, or over another one.

    ``outputs`` are files by the option that names them.
    """
    read = {Path(name).resolve() for name in inputs if name and Path(name).is_file()}
    written: dict[Path | str, str] = {}
    for option, name in outputs.items():
        if not name:
            continue
        path = "-" if name == "-" else Path(name).resolve()
        if path in read:
            raise InputError("is read by this command and would be lost", field=option, value=name)
        if path in written:
            raise InputError(f"is also what {written[path]} writes", field=option, value=name)
        written[path] = option


def check_folders(outputs: Mapping[str, str | None]) -> None:
    """Raise InputError where a file cannot be written: told now, and not when everything was measured."""
    for option, name in outputs.items():
        if name and name != "-" and not (Path(name).parent.is_dir() and os.access(Path(name).parent, os.W_OK)):
            raise InputError(
                f"cannot be written: there is no such folder for {shown(name)}, or no right to",
                field=option,
                value=name,
            )


def command_line() -> str:
    """Return the command as typed, for the provenance of a result."""
    import shlex

    return shlex.join(["ckptplan", *sys.argv[1:]])


def _named(option: str, load: Any, name: str) -> Any:
    try:
        return load(name)
    except InputError as error:
        if error.source is None:
            raise InputError(error.message, field=option, value=error.value, accepted=error.accepted) from None
        raise


def parsed(option: str, parse: Any, text: str | None) -> Any:
    """Return what an option gives, None where it is not given. Raises InputError that names the option."""
    if text is None:
        return None
    try:
        return parse(text)
    except InputError as error:
        raise error.inside(prefix=option) from None
