"""``ckptplan profiles`` and ``workloads``: list, show and check built-in and other files, and write new ones.

Options give the numbers of a new file. On a terminal, the program asks for missing numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_type_hints

import typer

from ckptplan.cli import options
from ckptplan.cli.command import Read, Written, option_of
from ckptplan.cli.measure import CellName, CellOptions, name_content, write_counted
from ckptplan.cli.options import count, option
from ckptplan.cli.output import FormatOption, OutputOptions, note, publish
from ckptplan.cost.roofline import make_workload
from ckptplan.errors import InputError
from ckptplan.model.network import Network
from ckptplan.model.profile import HardwareProfile, Source
from ckptplan.report.formats import make_view
from ckptplan.report.inputs import view_checks, view_profiles, view_workloads
from ckptplan.storage.files import write_text
from ckptplan.storage.library import Shelf, list_names
from ckptplan.storage.place import measure_folder
from ckptplan.storage.toml_files import commented_text, load_profile, load_workload
from ckptplan.units import MAX_BYTES, parse_bytes, parse_fraction, parse_seconds
from ckptplan.wording import Argument

Kind: TypeAlias = Literal["gru", "lstm", "snn", "convlstm"]
_WORKLOAD_HEAD = """A training job, for ckptplan (docs/workloads.md): sizes follow from the network.
Step times are {times}
Plan with it: ckptplan optimize --workload ./{file} --profile nvidia-h200"""
_PROFILE_HEAD = """A machine and its memory, for ckptplan (docs/machines.md): edit any number.
Say where a number comes from in a table of its own, as
  [local_bytes]
  value = "24 GB"
  grade = "A"  # A vendor, B measured by others, C secondary, D derived, M measured here, X assumed
  source = "https://..."
Plan with it: ckptplan optimize --profile ./{file}"""


def _named(shelf: Shelf, about: str = "A built-in name, or a .toml file.", metavar: str = "NAME|PATH") -> Any:
    """Return an argument that takes built-in names or paths."""
    return typer.Argument(metavar=metavar, help=about, autocompletion=lambda: list_names(shelf), parser=Read)


def list_profiles(*, output: OutputOptions) -> None:
    """List the built-in hardware profiles."""
    publish(view_profiles([load_profile(name) for name in list_names("hardware_profiles")]), output)


def show_profiles(*, name: Annotated[str, _named("hardware_profiles")], output: OutputOptions) -> None:
    """Show every number of a hardware profile, with its source and grade."""
    publish(make_view(load_profile(name)), output)


def check_profiles(
    *,
    paths: Annotated[
        list[str] | None, _named("hardware_profiles", "Profiles; all built-in ones if none.", "[NAME|PATH]...")
    ] = None,
    output: OutputOptions,
) -> None:
    """Check that hardware profiles are complete and valid; exits 2 at the first that is not."""
    publish(view_checks([load_profile(path) for path in paths or list_names("hardware_profiles")]), output)


def list_workloads(*, output: OutputOptions) -> None:
    """List the built-in workloads."""
    publish(view_workloads([load_workload(name) for name in list_names("workloads")]), output)


def show_workloads(*, name: Annotated[str, _named("workloads")], output: OutputOptions) -> None:
    """Show every number of a workload, and how it was obtained."""
    publish(make_view(load_workload(name)), output)


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(CellOptions):
    """A cell to count, or a kind of network whose sizes follow by formulas."""

    cell: CellName = ""
    kind: Annotated[Kind | None, option("NAME", "Sizes by formulas: gru, lstm, snn or convlstm.")] = None
    nir: Annotated[str | None, option("PATH", "A network in a NIR file.", parser=Read)] = None
    layers: Annotated[int, count("Layers of --kind, which share --neurons.")] = 1
    height: Annotated[int | None, count("Rows of the images of a convlstm.")] = None
    width: Annotated[int | None, count("Columns of the images of a convlstm.")] = None
    kernel: Annotated[int | None, count("Rows of the filters of a convlstm.")] = None
    input_bits: Annotated[int | None, count("Bits of an input value; 1 for spikes.", most=64)] = None
    input_storage: Annotated[
        Literal["streamed", "generated"] | None, option("NAME", "Inputs come from remote memory, or from code.")
    ] = None
    outputs: Annotated[int | None, count("Output values per step that are kept.")] = None
    output_bits: Annotated[int | None, count("Bits of an output value; 1 for spikes.", most=64)] = None
    output_storage: Annotated[Literal["streamed"] | None, option("NAME", "Outputs go to remote memory.")] = None
    activity: Annotated[
        float | None, option("SHARE", "Most neurons of an snn that spike in a step.", parser=parse_fraction)
    ] = None
    dtype: Annotated[
        Literal["float64", "float32", "float16", "bfloat16"], option("NAME", "Type of numbers of --kind.")
    ] = "float32"
    profile: Annotated[str, option("NAME|PATH", "Estimate times for it.", parser=Read)] = "nvidia-a100-80gb"


def _time(about: str) -> Any:
    """Return an option with a time of a step."""
    return option("TIME", about, parser=parse_seconds)


@dataclass(frozen=True, kw_only=True)
class TimeOptions:
    """Known times of a step, which replace estimates."""

    forward_seconds: Annotated[float | None, _time("A forward step, as '80 us'.")] = None
    backward_seconds: Annotated[float | None, _time("A backward step (default: twice).")] = None
    recompute_seconds: Annotated[float | None, _time("A step again (default: the same).")] = None
    record_overhead_seconds: Annotated[float | None, _time("What recording adds (default: 0).")] = None


def new_workloads(
    *,
    network: NetworkOptions,
    times: TimeOptions,
    format_: FormatOption = "table",
    output: Annotated[str, option("FILE", "The workload.", parser=Written)] = "my-workload.toml",
) -> None:
    """Write a workload to plan with at once: of a kind of network, a cell, or a network in a NIR file.

    The sizes of a kind follow by formulas, and its times are estimated for --profile. The sizes of a cell are
    counted, and its times are the least of a few short runs. Times that are given replace both.
    ckptplan calibrate measures them. Without --kind and --cell, questions are asked on a terminal.
    """
    choices = {"--kind": network.kind, "--cell": network.cell or None, "--nir": network.nir}
    for pair in combinations(choices, 2):
        options.keep_apart({name: choices[name] for name in pair})
    if network.cell or network.nir:
        _refuse_fields(network, allowed=("activity",) if network.nir else ())
    given = {name: value for name, value in vars(times).items() if value is not None}
    if network.cell:
        write_counted(network, output=output, format_=format_, times=given)
        return

    chosen = network if network.kind or network.nir else _ask_for_network(network)
    job: dict[str, Any] = {
        "name": name_content(output),
        "steps": chosen.steps,
        "profile": load_profile(chosen.profile),
        "times": given,
    }
    if chosen.nir:
        from ckptplan.interop import workload_from_nir

        activity = chosen.activity or 0.0
        workload = workload_from_nir(
            chosen.nir, batch=chosen.batch, activity=activity, dtype=chosen.dtype, **job
        )
    else:
        sizes = {
            field: getattr(chosen, field)
            for field in Network.model_fields
            if getattr(chosen, field, None) is not None
        }
        workload = make_workload(Network(**sizes), **job)
    origin = f"given for {workload.timed_on}"
    if workload.basis["forward_seconds"].kind == "estimated":
        origin = f"estimated for {workload.timed_on}, within a factor of three"
    head = _WORKLOAD_HEAD.format(times=f"{origin}.", file=Path(output).name)
    write_text(output, commented_text(workload, head=head))
    note(f"workload written to {output}; its times are {origin}")
    publish(make_view(workload), OutputOptions(format=format_))


#: Options that only --kind takes.
_OF_KIND = (
    "height", "width", "kernel", "input_bits", "input_storage", "outputs", "output_bits", "output_storage",
    "activity",
)  # fmt: skip


def _refuse_fields(network: NetworkOptions, *, allowed: tuple[str, ...]) -> None:
    """Raise InputError if an option of --kind is given together with a cell or a NIR file."""
    for field in _OF_KIND:
        value = getattr(network, field)
        if value is not None and field not in allowed:
            raise InputError("describes a network of a --kind", field=str(Argument(field)), value=value)


def _check_terminal(field: str, problem: str, accepted: str) -> None:
    """Raise InputError for a missing option unless a user at a terminal can answer questions."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError(problem, field=field, accepted=accepted)


def _ask(group: type[Any], proposed: Mapping[str, Any]) -> dict[str, Any]:
    """Ask on the terminal for options of a group, and return the answers in the types of the proposed ones."""
    hints = get_type_hints(group, include_extras=True)
    questions = {field: f"{option_of(field)}: {get_args(hints[field])[1].help}" for field in proposed}
    return {field: typer.prompt(questions[field], default=proposed[field], err=True) for field in proposed}


def _ask_for_network(given: NetworkOptions) -> NetworkOptions:
    """Ask on a terminal for the kind and sizes of a network. Raises InputError if there is no terminal."""
    names = ", ".join(get_args(Kind))
    _check_terminal("--kind", "is missing: name a kind of network, or a cell with --cell", names)
    chosen = _ask(NetworkOptions, {"kind": "gru"})
    sizes = ("inputs", "neurons", "batch", "steps", "layers")
    images = {"inputs": 1, "height": 64, "width": 64} if chosen["kind"] == "convlstm" else {}
    proposed = {**{name: getattr(given, name) for name in sizes}, **images, "profile": str(given.profile)}
    return replace(given, **chosen, **_ask(NetworkOptions, proposed))


@dataclass(frozen=True, kw_only=True)
class ProfileNumbers:
    """The numbers of a profile, as text; None takes the number of the profile of --like, or the default."""

    description: Annotated[str | None, option("TEXT", "What the machine is.")] = None
    units: Annotated[int | None, count("Tiles or cores with memory of their own.")] = None
    local_bytes: Annotated[str | None, option("SIZE", "Memory of one unit, as '24 GB'.")] = None
    headroom: Annotated[str | None, option("SHARE", "Share of it to leave free, as '10%'.")] = None
    remote_bytes: Annotated[str | None, option("SIZE", "Remote memory in all, or 'unbounded'.")] = None
    write_bytes_per_second: Annotated[str | None, option("RATE", "Local to remote, as '12 GB/s'.")] = None
    read_bytes_per_second: Annotated[str | None, option("RATE", "Remote to local.")] = None
    latency_seconds: Annotated[str | None, option("TIME", "Start of a message, as '10 us'.")] = None
    float32_flops_per_second: Annotated[str | None, option("RATE", "Peak, as '19.5 TFLOP/s'.")] = None
    float16_flops_per_second: Annotated[str | None, option("RATE", "Peak, also of bfloat16.")] = None
    local_bytes_per_second: Annotated[str | None, option("RATE", "Peak of local memory.")] = None
    launch_seconds: Annotated[str | None, option("TIME", "Start of a kernel, as '5 us'.")] = None
    power_watts: Annotated[float | None, option("NUMBER", "Power under load, in watts.")] = None
    price_per_hour: Annotated[float | None, option("NUMBER", "Price of an hour.")] = None


#: The numbers that the program asks for on a terminal, each with the proposed answer.
_PROPOSED = {
    "local_bytes": "24 GB",
    "remote_bytes": "unbounded",
    "write_bytes_per_second": "12 GB/s",
    "read_bytes_per_second": "12 GB/s",
    "latency_seconds": "10 us",
    "float32_flops_per_second": "20 TFLOP/s",
    "local_bytes_per_second": "1 TB/s",
    "launch_seconds": "5 us",
}


def new_profiles(
    *,
    profile: Annotated[
        str | None, options.pick("hardware_profiles", "Take what is not given from this profile.", "--like")
    ] = None,
    measure: Annotated[str | None, option("DIR", "Time this folder, which is remote memory.")] = None,
    state_bytes: Annotated[
        int,
        options.above_zero(
            "SIZE", "States of --measure.", parse_bytes, most=MAX_BYTES, accepted="more than 0 B"
        ),
    ] = 2**24,
    numbers: ProfileNumbers,
    format_: FormatOption = "table",
    output: Annotated[str, option("FILE", "The profile.", parser=Written)] = "my-machine.toml",
) -> None:
    """Write a profile with a comment on each number, from options, another profile (--like) or --measure.

    Without --local-bytes and --like, questions are asked on a terminal.
    """
    given = {name: value for name, value in vars(numbers).items() if value is not None}
    given["name"] = name_content(output)
    sources: dict[str, Source] = {}
    if measure is not None:
        timed, origins = measure_folder(measure, state_bytes=state_bytes, field="--measure")
        sources = {field: source for field, source in origins.items() if field not in given}
        given = {**timed, **given}
    if profile is not None:
        like = load_profile(profile)
        changed = [field for field in given if field not in ("description", "name")]
        if changed:
            # The description of the other profile does not describe the changed one.
            given = {"description": f"like {like.name}, but for {', '.join(changed)}", **given}
        new_profile = like.replace_numbers(**given)
        new_profile = new_profile.replace(sources={**new_profile.sources, **sources})
    else:
        if numbers.local_bytes is None:
            _check_terminal("--local-bytes", "is missing", "a size, as '24 GB', or another profile with --like")
            missing = {field: answer for field, answer in _PROPOSED.items() if field not in given}
            given |= _ask(ProfileNumbers, missing)
        new_profile = HardwareProfile(**given, sources=sources)
    head = _PROFILE_HEAD.format(file=Path(output).name)
    write_text(output, commented_text(new_profile, head=head))
    note(f"profile written to {output}")
    publish(make_view(new_profile), OutputOptions(format=format_))
