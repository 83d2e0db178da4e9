"""Options that several commands share, in groups, with their parsers and completions for shells."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ckptplan.cli.command import Read, parse_side_file
from ckptplan.cost.case import Case
from ckptplan.errors import InputError, refuse
from ckptplan.model.goal import CacheName, EffortName, Model, ObjectiveName
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.storage.library import Shelf, list_names
from ckptplan.storage.toml_files import load_profile, load_workload
from ckptplan.units import MAX_STEPS, parse_duration, parse_fraction
from ckptplan.wording import escape_controls

#: The default profile and workload.
DEFAULT_PROFILE, DEFAULT_WORKLOAD = "ipu-mk2", "paper-snn"


def option(metavar: str, about: str, *names: str, **details: Any) -> Any:
    """Return an option with a value. ``metavar`` names the kind of value in the help.

    ``about`` is the help of the option. ``names`` replace the name that follows from its parameter, and
    ``details`` are as in typer.
    """
    return typer.Option(*names, metavar=metavar, help=about, **details)


def count(about: str, *, least: int = 1, most: int = 10**9) -> Any:
    """Return an option that takes a whole number, written without unit, sign or separators."""
    accepted = f"a whole number from {least} to {most:,}, without unit"

    def parse(given: str | int) -> int:
        text = str(given)
        if not (text.isascii() and text.removeprefix("-").isdecimal()):
            raise refuse(text, "is not a whole number", accepted=accepted)
        value = int(text) if len(text) < 20 else most + 1  # Python refuses thousands of digits
        if not least <= value <= most:
            raise refuse(text, "is out of range", accepted=accepted)
        return value

    return option("INTEGER", about, parser=parse)


def above_zero(metavar: str, about: str, parse: Callable[[str], float], *, most: float, accepted: str) -> Any:
    """Return an option that takes a number above 0 and at most ``most``, read by ``parse``."""

    def parse_positive(text: str) -> float:
        value = parse(text)
        if not 0 < value <= most:
            raise refuse(text, "is out of range", accepted=accepted)
        return value

    return option(metavar, about, parser=parse_positive)


def tolerance(about: str) -> Any:
    """Return an option that takes a share by which measurements may differ."""
    return above_zero("SHARE", about, parse_fraction, most=1, accepted="more than 0 %, up to 100 %")


def time_limit(about: str) -> Any:
    """Return an option that takes the longest time of a measurement."""
    return above_zero("TIME", about, parse_duration, most=inf, accepted="more than 0 s, as '300' or '5 min'")


def describe_strategies() -> Mapping[str, str]:
    """Return each strategy and each group of strategies that --strategies takes, with a description."""
    from ckptplan.strategies import registry

    return registry.describe_strategies()


def complete_list(describe: Callable[[], Mapping[str, str]]) -> Callable[[str], list[tuple[str, str]]]:
    """Return a function that completes the last name of a list with commas, and offers no name twice.

    ``describe`` returns the names with descriptions, '' for none. Some shells show descriptions.
    """

    def complete(incomplete: str) -> list[tuple[str, str]]:
        # A shell replaces the whole text with the completion.
        head, comma, _ = incomplete.rpartition(",")
        typed = head.split(",")
        return [(f"{head}{comma}{name}", about) for name, about in describe().items() if name not in typed]

    return complete


def split_names(text: str) -> list[Read]:
    """Return names or paths that commas separate. The name of an existing file may have a comma."""
    names = [text] if Path(text).is_file() else text.split(",")
    return [Read(name.strip()) for name in names if name.strip()]


def pick(shelf: Shelf, about: str, *names: str) -> Any:
    """Return an option that takes a built-in name or a path."""
    return option("NAME|PATH", about, *names, autocompletion=lambda: list_names(shelf), parser=Read)


def pick_several(shelf: Shelf, about: str, *names: str) -> Any:
    """Return an option that takes built-in names and paths, separated by commas."""
    complete = complete_list(lambda: dict.fromkeys(list_names(shelf), ""))
    return option("NAME|PATH", about, *names, autocompletion=complete, parser=split_names)


_ABOUT_PLAN = "A plan file, as optimize -o writes it; '-' for standard input."
PLAN = typer.Argument(metavar="PLAN", help=_ABOUT_PLAN, parser=Read, show_default=False)
PlanFile = Annotated[str, PLAN]
Objective = Annotated[ObjectiveName, option("NAME", "Least time, least memory, or balanced: the knee of both.")]
Threads = Annotated[int | None, count("Threads of PyTorch (default: its own choice).", most=4096)]
_ABOUT_TRACE = "Write the timeline for Perfetto, as JSON: simulated, and measured if there is one."
Trace = Annotated[str | None, option("FILE", _ABOUT_TRACE, parser=parse_side_file)]


_Loaded = TypeVar("_Loaded")
_ABOUT_PROFILE = f"Hardware profile (default: {DEFAULT_PROFILE}). compare and sweep take several, or 'all'."
_ABOUT_WORKLOAD = f"Workload (default: {DEFAULT_WORKLOAD}). sweep takes several, or 'all'."


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """A workload on a profile; some commands take several of each."""

    steps: Annotated[int | None, count("Time steps T (default: the workload's).", most=MAX_STEPS)] = None
    profile: Annotated[
        list[Any] | None, pick_several("hardware_profiles", _ABOUT_PROFILE, "--profile", "--profiles")
    ] = None
    workload: Annotated[list[Any] | None, pick_several("workloads", _ABOUT_WORKLOAD)] = None
    batch: Annotated[int | None, count("Batch, for a workload with a network.")] = None
    neurons: Annotated[int | None, count("Neurons, for a workload with a network.")] = None

    def load(self) -> Case:
        """Return the workload on the profile. Raises InputError if there are several."""
        return Case(workload=self.load_workload(), profile=_take_only(self.load_profiles(), "--profile"))

    def load_workload(self) -> Workload:
        """Load the workload. Raises InputError if there are several."""
        return _take_only(self.load_workloads(), "--workload")

    def load_profiles(self) -> list[HardwareProfile]:
        """Load the profiles, each once. Raises InputError."""
        names = _join_names(self.profile or [[DEFAULT_PROFILE]], "--profile", "hardware_profiles")
        return [load_profile(name) for name in names]

    def load_workloads(self) -> list[Workload]:
        """Load the workloads, each once, and change their sizes. Raises InputError."""
        workloads = []
        for name in _join_names(self.workload or [[DEFAULT_WORKLOAD]], "--workload", "workloads"):
            workload = load_workload(name)
            if self.batch is not None:
                workload = workload.with_batch(self.batch)
            if self.neurons is not None:
                workload = workload.with_neurons(self.neurons)
            workloads.append(workload if self.steps is None else workload.with_steps(self.steps))
        return workloads


def _take_only(loaded: list[_Loaded], option: str) -> _Loaded:
    if len(loaded) > 1:
        raise InputError("names several, but this command takes one", field=option, accepted="one name or path")
    return loaded[0]


def _join_names(given: list[list[str]], option: str, shelf: Shelf) -> list[str]:
    """Return the names in the values of an option, each once, with all built-in names for 'all'."""
    named = [str(name) for names in given for name in names]
    expanded = [name for value in named for name in (list_names(shelf) if value == "all" else [value])]
    if not expanded:
        raise InputError("names nothing", field=option, value=",", accepted="names, paths or 'all'")
    return list(dict.fromkeys(expanded))


_ABOUT_STRATEGIES = "Names separated by commas, or 'paper', 'regular', 'closed', 'all'."
_ABOUT_CACHE = "Steps whose caches stay: all, last, segment, none; or offloaded (default: the best)."


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """Options of every command that plans: memory budgets and strategies. Subclasses add more."""

    local_bytes: Annotated[str | None, option("SIZE", "Local budget of a unit (default: the profile's).")] = (
        None
    )
    headroom: Annotated[str | None, option("SHARE", "Memory to leave free (default: the profile's).")] = None
    remote_bytes: Annotated[str | None, option("SIZE", "Remote budget, as '16 GiB', or 'unbounded'.")] = None
    strategies: Annotated[
        str | None, option("NAMES", _ABOUT_STRATEGIES, autocompletion=complete_list(describe_strategies))
    ] = None
    cache: Annotated[CacheName | None, option("NAME", _ABOUT_CACHE)] = None

    def read(self) -> dict[str, Any]:
        """Return the options, and the ``command`` line, as keyword arguments for functions that plan."""
        return {**vars(self), "command": command_line()}


@dataclass(frozen=True, kw_only=True)
class LimitOptions(BudgetOptions):
    """Options of commands that may search for long, and that limit the time over base's."""

    max_overhead: Annotated[
        float | None, option("SHARE", "Limit on the time over base's, as '10%' or 0.1.", parser=parse_fraction)
    ] = None
    effort: Annotated[
        EffortName,
        option("NAME", "Search for tenths of a second (quick) or a minute (thorough)."),
    ] = "quick"


@dataclass(frozen=True, kw_only=True)
class WishOptions(LimitOptions):
    """All options of a plan: budgets, limits, objective and model."""

    objective: Objective = "time"
    model: Annotated[Model, typer.Option(help="Choose by the exact model, or by the paper's equations.")] = (
        "exact"
    )


def keep_apart(given: Mapping[str, object]) -> None:
    """Raise InputError for the first option that is given together with the last one.

    None, False and an empty list count as not given. Zero and an empty text count as given.
    """
    named = {name: value for name, value in given.items() if value not in (None, []) and value is not False}
    last = [*given][-1]
    if last in named and len(named) > 1:
        name, value = next(iter(named.items()))
        raise InputError(f"does not go together with {last}", field=name, value=value, accepted="one of them")


def command_line() -> str:
    """Return the command line as typed, for the provenance of a result, with invisible characters escaped."""
    return escape_controls(shlex.join(["ckptplan", *sys.argv[1:]]))
