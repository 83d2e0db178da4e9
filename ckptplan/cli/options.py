"""Options that several commands share, in groups, what a shell offers for them, and what they are read as."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ckptplan.cli.command import GROUPS, Read, WrittenBeside
from ckptplan.errors import InputError, refuse
from ckptplan.storage.library import Shelf, list_names
from ckptplan.units import MAX_STEPS, parse_duration, parse_fraction

if TYPE_CHECKING:
    from ckptplan.cost.case import Case
    from ckptplan.model.progress import Progress
    from ckptplan.model.workload import Workload
    from ckptplan.planning.request import Request

#: What is planned if nothing is named; tables then say so of the workload.
DEFAULT_PROFILE, DEFAULT_WORKLOAD = "ipu-mk2", "paper-snn"
#: The most of anything that is counted, but for steps.
MOST = 10**9


def option(metavar: str, told: str, *names: str, **more: Any) -> Any:
    """Return an option with a value, of a kind that ``metavar`` tells.

    ``told`` is its help, ``names`` are needed if its parameter does not tell them, and ``more`` is as in typer.
    """
    return typer.Option(*names, metavar=metavar, help=told, **more)


def count(told: str, *, least: int = 1, most: int = MOST) -> Any:
    """Return an option with a whole number, written without unit, sign or separators."""
    accepted = f"a whole number from {least} to {most:,}, without unit"

    def parse(given: str | int) -> int:
        text = str(given)
        if not (text.isascii() and text.removeprefix("-").isdecimal()):
            raise refuse(text, "is not a whole number", accepted=accepted)
        value = int(text) if len(text) < 20 else most + 1  # Python refuses thousands of digits
        if not least <= value <= most:
            raise refuse(text, "is out of range", accepted=accepted)
        return value

    return option("INTEGER", told, parser=parse)


def describe_strategies() -> dict[str, str]:
    """Return each strategy and each group of strategies that --strategies takes, with what it is."""
    from ckptplan.strategies.registry import all_strategies

    about = {
        name: (type(one).__doc__ or "").strip().partition("\n")[0] for name, one in all_strategies().items()
    }
    return {**{name: text.rstrip(".") for name, text in about.items()}, **GROUPS}


def complete_list(known: Callable[[], Mapping[str, str] | list[str]]) -> Callable[[str], list[tuple[str, str]]]:
    """Return what completes the last name of a list with commas, in which no name is offered twice.

    ``known`` returns the names, or also a few words on each for shells that show them.
    """

    def complete(incomplete: str) -> list[tuple[str, str]]:
        # A shell replaces all that was typed.
        head, comma, _ = incomplete.rpartition(",")
        names = known()
        about = names if isinstance(names, Mapping) else dict.fromkeys(names, "")
        return [(f"{head}{comma}{name}", text) for name, text in about.items() if name not in head.split(",")]

    return complete


def split_names(text: str) -> list[Read]:
    """Return names or paths that commas separate; a file may have a comma in its name."""
    if Path(text).is_file():
        return [Read(text)]
    return [Read(part.strip()) for part in text.split(",") if part.strip()]


def pick(shelf: Shelf, told: str, *names: str, several: bool = False) -> Any:
    """Return an option that names a file, which may be built in; or ``several``, which commas separate."""

    def complete() -> list[str]:
        # All names: typer keeps those that begin as what was typed.
        return list_names(shelf)

    if several:
        return option("NAMES|PATHS", told, *names, autocompletion=complete_list(complete), parser=split_names)
    return option("NAME|PATH", told, *names, autocompletion=complete, parser=Read)


def join_names(given: list[Any] | None, *, default: str, option: str, shelf: Shelf) -> list[str]:
    """Return each name of a list option once, those of all built-in files for 'all'. Raises InputError.

    ``given`` is a list of lists of names, as ``split_names`` returns them.
    """
    named = [default] if given is None else [str(name) for names in given for name in names]
    found = [name for one in named for name in (list_names(shelf) if one == "all" else [one])]
    if not found:
        raise InputError("names nothing", field=option, value=",", accepted="names, paths or 'all'")
    return list(dict.fromkeys(found))


def parse_above_zero(parse: Callable[[str], float], *, most: float, accepted: str) -> Callable[[str], float]:
    """Return what reads a number above 0 and at most ``most``, and raises InputError for others."""

    def parse_one(text: str) -> float:
        value = parse(text)
        if not 0 < value <= most:
            raise refuse(text, "is out of range", accepted=accepted)
        return value

    return parse_one


parse_tolerance = parse_above_zero(parse_fraction, most=1, accepted="more than 0 %, up to 100 %")
parse_limit = parse_above_zero(parse_duration, most=inf, accepted="more than 0 s, as '300' or '5 min'")


Model = Annotated[
    Literal["exact", "paper"],
    typer.Option(help="Choose by the exact model or by the paper's printed equations."),
]
PLAN = typer.Argument(
    metavar="PLAN",
    help="A plan file, as optimize -o writes it; '-' for standard input.",
    parser=Read,
    show_default=False,
)
PlanFile = Annotated[str, PLAN]
Threads = Annotated[int | None, count("Threads of PyTorch (default: its own choice).", most=4096)]
Trace = Annotated[
    str | None,
    option(
        "FILE",
        "Write the timeline for Perfetto, as JSON: simulated, and measured if there is one.",
        parser=WrittenBeside,
    ),
]


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """A workload on a profile."""

    steps: Annotated[int | None, count("Time steps T (default: the workload's).", most=MAX_STEPS)] = None
    profile: Annotated[str, pick("hardware_profiles", "Hardware profile; see: ckptplan profiles list.")] = (
        DEFAULT_PROFILE
    )
    workload: Annotated[
        str | None, pick("workloads", "Workload (default: paper-snn); see: ckptplan workloads list.")
    ] = None
    batch: Annotated[int | None, count("Batch, for a workload with a network.")] = None
    neurons: Annotated[int | None, count("Neurons, for a workload with a network.")] = None

    def load(self) -> Case:
        """Load workload and profile and apply the other options. Raises InputError."""
        from ckptplan.cost.case import Case
        from ckptplan.storage.toml_files import load_profile

        profile = load_profile(self.profile)
        return Case(workload=self.load_workload(self.workload), profile=profile)

    def load_workload(self, name: str | None) -> Workload:
        """Load a workload, or the default, and change its sizes. Raises InputError."""
        from ckptplan.storage.toml_files import load_workload

        loaded = load_workload(name or DEFAULT_WORKLOAD)
        if self.batch is not None:
            loaded = loaded.with_batch(self.batch)
        if self.neurons is not None:
            loaded = loaded.with_neurons(self.neurons)
        return loaded if self.steps is None else loaded.with_steps(self.steps)


@dataclass(frozen=True, kw_only=True)
class MachinesOptions(JobOptions):
    """A workload on one profile or several."""

    profile: Annotated[
        list[Any] | None,
        pick(
            "hardware_profiles",
            "Hardware profiles, separated by commas, or 'all' (default: ipu-mk2).",
            "--profile",
            "--profiles",
            several=True,
        ),
    ] = None  # type: ignore[assignment]  # names in place of one

    @property
    def profiles(self) -> list[str]:
        """The names of the profiles, each once. Raises InputError if there are none."""
        return join_names(self.profile, default=DEFAULT_PROFILE, option="--profile", shelf="hardware_profiles")


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """Wishes of every command that plans: memory budgets and strategies. Subclasses add more."""

    local_bytes: Annotated[
        str | None, option("SIZE", "Local budget of one unit, as '300 KiB' (default: the profile's).")
    ] = None
    headroom: Annotated[
        str | None,
        option(
            "SHARE",
            "Share of local memory to leave free, as '10%' (default: the profile's; none of --local-bytes).",
        ),
    ] = None
    remote_bytes: Annotated[
        str | None, option("SIZE", "Remote budget of all units, as '16 GiB', or 'unbounded'.")
    ] = None
    strategies: Annotated[
        str | None,
        option(
            "NAMES",
            "Names separated by commas, or 'paper', 'regular', 'closed', 'all'.",
            autocompletion=complete_list(describe_strategies),
        ),
    ] = None

    def read(self) -> dict[str, Any]:
        """Return the wishes as keyword arguments of a use case, which reads texts; ``command`` included."""
        return {**vars(self), "command": command_line()}


@dataclass(frozen=True, kw_only=True)
class LimitOptions(BudgetOptions):
    """Wishes of commands that may search for long, and for little time over base's."""

    max_overhead: Annotated[
        float | None, option("SHARE", "Limit on the time over base's, as '10%' or 0.1.", parser=parse_fraction)
    ] = None
    effort: Annotated[
        Literal["quick", "thorough"],
        option(
            "NAME",
            "How long to search for optimal schedules: quick (tenths of a second) or thorough (a minute).",
        ),
    ] = "quick"


@dataclass(frozen=True, kw_only=True)
class WishOptions(LimitOptions):
    """Every wish there is."""

    objective: Annotated[
        Literal["time", "memory", "balanced"],
        option("NAME", "Least time, least local memory, or balanced: the knee between both."),
    ] = "time"
    model: Model = "exact"


def make_request(job: JobOptions, wishes: BudgetOptions, *, progress: Progress | None) -> Request:
    """Return the request of a command. Raises InputError."""
    from ckptplan.planning.request import Request

    case = job.load()
    return Request.of(case.workload, case.profile, **wishes.read(), progress=progress)


def keep_apart(given: Mapping[str, object]) -> None:
    """Raise InputError, for the first option that is given, if the last one is given, too.

    None, False and an empty list are not given; zero and an empty text are.
    """
    *others, (last, chosen) = given.items()
    for name, value in others:
        if _is_given(value) and _is_given(chosen):
            raise InputError(
                f"does not go together with {last}", field=name, value=value, accepted="one of them"
            )


def _is_given(value: object) -> bool:
    return value is not None and value is not False and value != []


def command_line() -> str:
    """Return the command line as typed, for a result's provenance; characters that cannot be seen escaped."""
    import shlex

    from ckptplan.wording import escape_controls

    return escape_controls(shlex.join(["ckptplan", *sys.argv[1:]]))
