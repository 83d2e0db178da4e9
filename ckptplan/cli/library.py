"""``ckptplan profiles`` and ``workloads``: built-in files and those of users, listed, shown, checked and begun.

A new file is made of options, and of answers to questions for what is not given.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

import typer

from ckptplan.cli import options
from ckptplan.cli.cells import CellName, CellOptions, name_content, write_counted
from ckptplan.cli.command import Read, Written
from ckptplan.cli.options import count, option
from ckptplan.cli.output import FormatName, FormatOption, OutputOptions, note, write_view
from ckptplan.errors import InputError
from ckptplan.storage.files import write_text
from ckptplan.storage.library import Shelf, list_names
from ckptplan.units import MAX_BYTES, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from ckptplan.model.profile import HardwareProfile

Kind: TypeAlias = Literal["gru", "lstm", "snn", "convlstm"]
#: The machine for which times are estimated unless another is named.
_MACHINE = "nvidia-a100-80gb"
_WORKLOAD_HEAD = """A training job, for ckptplan (docs/workloads.md): sizes follow from the network.
Step times are {times}
Plan with it: ckptplan optimize --workload ./{file} --profile nvidia-h200"""
_PROFILE_HEAD = """A machine and its memory, for ckptplan (docs/profiles.md): edit any number.
Say where a number comes from in a table of its own, as
  [local_bytes]
  value = "24 GB"
  grade = "A"  # A vendor, B measured by others, C secondary, D derived, M measured here, X assumed
  source = "https://..."
Plan with it: ckptplan optimize --profile ./{file}"""


def _named(shelf: Shelf, *, metavar: str = "NAME|PATH", told: str = "A built-in name, or a .toml file.") -> Any:
    """Return the argument that names files, which may be built in."""
    return typer.Argument(metavar=metavar, help=told, autocompletion=lambda: list_names(shelf), parser=Read)


def list_profiles(*, output: OutputOptions) -> None:
    """List the built-in hardware profiles."""
    from ckptplan.report.inputs import view_profiles
    from ckptplan.storage.toml_files import load_profile

    write_view(view_profiles([load_profile(name) for name in list_names("hardware_profiles")]), output)


def show_profile(
    *,
    name: Annotated[str, _named("hardware_profiles")],
    output: OutputOptions,
) -> None:
    """Show every number of a hardware profile, with its source and grade."""
    from ckptplan.report.inputs import view_profile
    from ckptplan.storage.toml_files import load_profile

    write_view(view_profile(load_profile(name)), output)


def check_profiles(
    *,
    paths: Annotated[
        list[str] | None,
        _named("hardware_profiles", metavar="[NAME|PATH]...", told="Profiles; all built-in ones if none."),
    ] = None,
    output: OutputOptions,
) -> None:
    """Check that hardware profiles are complete and valid; exits 2 at the first that is not."""
    from ckptplan.report.inputs import view_checks
    from ckptplan.storage.toml_files import load_profile

    write_view(view_checks([load_profile(path) for path in paths or list_names("hardware_profiles")]), output)


def list_workloads(*, output: OutputOptions) -> None:
    """List the built-in workloads."""
    from ckptplan.report.inputs import view_workloads
    from ckptplan.storage.toml_files import load_workload

    write_view(view_workloads([load_workload(name) for name in list_names("workloads")]), output)


def show_workload(
    *,
    name: Annotated[str, _named("workloads")],
    output: OutputOptions,
) -> None:
    """Show every number of a workload, and how it was obtained."""
    from ckptplan.report.inputs import view_workload
    from ckptplan.storage.toml_files import load_workload

    write_view(view_workload(load_workload(name)), output)


@dataclass(frozen=True, kw_only=True)
class NewCellOptions(CellOptions):
    """A cell to count, which may be left out for a kind of network."""

    cell: CellName = ""


@dataclass(frozen=True, kw_only=True)
class KindOptions:
    """A kind of network, whose sizes follow by formulas."""

    kind: Annotated[
        Kind | None,
        option(
            "NAME",
            "Derive the sizes of such a network by formulas, without PyTorch: gru, lstm, snn or convlstm.",
        ),
    ] = None
    layers: Annotated[int, count("Layers of --kind, which share --neurons.")] = 1
    height: Annotated[int | None, count("Rows of the images of a convlstm.")] = None
    width: Annotated[int | None, count("Columns of the images of a convlstm.")] = None
    kernel: Annotated[int | None, count("Rows of the filters of a convlstm.")] = None
    dtype: Annotated[
        Literal["float64", "float32", "float16", "bfloat16"],
        option("NAME", "Type of numbers of --kind: float64, float32, float16 or bfloat16."),
    ] = "float32"
    profile: Annotated[str, option("NAME|PATH", "The machine for which times are estimated.", parser=Read)] = (
        _MACHINE
    )


def _time(told: str) -> Any:
    """Return an option with a time of a step."""
    return option("TIME", told, parser=parse_seconds)


@dataclass(frozen=True, kw_only=True)
class TimeOptions:
    """Times of a step that are known."""

    forward_seconds: Annotated[float | None, _time("A forward step, as '80 us'.")] = None
    backward_seconds: Annotated[float | None, _time("A backward step (default: twice).")] = None
    recompute_seconds: Annotated[float | None, _time("A step again (default: the same).")] = None
    record_overhead_seconds: Annotated[float | None, _time("What recording adds (default: 0).")] = None


def new_workload(
    *,
    cell: NewCellOptions,
    kind: KindOptions,
    times: TimeOptions,
    format_: FormatOption = "table",
    output: Annotated[str, option("FILE", "The workload.", parser=Written)] = "my-workload.toml",
) -> None:
    """Write a workload to plan with at once: of a kind of network (--kind), or of a cell (--cell).

    The sizes of a kind follow by formulas, and its times are estimated for --profile. The sizes of a cell are
    counted, and its times are the least of a few short runs. Times that are given replace both.
    ckptplan calibrate measures them. Without --kind and --cell, questions are asked on a terminal.
    """
    given = _keep_given(times)
    options.keep_apart({"--kind": kind.kind, "--cell": cell.cell or None})
    if cell.cell:
        write_counted(cell, output=output, format_=format_, times=given)
        return
    if not kind.kind:
        cell, kind = _ask_for_network(cell, kind)
    _write_network(cell, kind, times=given, output=output, format_=format_)


def _keep_given(group: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(group).items() if value is not None}


def _can_ask() -> bool:
    """Return whether somebody sits at a terminal and can answer questions."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _ask(question: str, default: Any) -> Any:
    """Return the answer to a question on the terminal, of the type of the default."""
    return typer.prompt(question, default=default, err=True)


def _ask_for_network(cell: NewCellOptions, kind: KindOptions) -> tuple[NewCellOptions, KindOptions]:
    """Ask on a terminal for what makes a network. Raises InputError where nobody can be asked."""
    names = ", ".join(get_args(Kind))
    if not _can_ask():
        raise InputError(
            "is missing: name a kind of network, or a cell with --cell", field="--kind", accepted=names
        )
    chosen = _ask(f"Kind of network ({names})", "gru")
    images = chosen == "convlstm"
    cell = replace(
        cell,
        inputs=_ask("Input channels" if images else "Inputs per step", 1 if images else cell.inputs),
        neurons=_ask("Channels of all layers" if images else "Neurons of all layers", cell.neurons),
        batch=_ask("Samples per batch", cell.batch),
        steps=_ask("Time steps T", cell.steps),
    )
    kind = replace(
        kind,
        kind=chosen,
        layers=_ask("Layers", kind.layers),
        height=_ask("Rows of an image", 64) if images else None,
        width=_ask("Columns of an image", 64) if images else None,
        profile=_ask("Machine for the estimate of times", str(kind.profile)),
    )
    return cell, kind


def _write_network(
    cell: NewCellOptions,
    kind: KindOptions,
    *,
    times: Mapping[str, float],
    output: str,
    format_: FormatName,
) -> None:
    """Write the workload of a kind of network and show it. Raises InputError."""
    from ckptplan.cost.roofline import make_workload
    from ckptplan.model.network import Network
    from ckptplan.report.inputs import view_workload
    from ckptplan.storage.toml_files import commented_text, load_profile

    sizes = {name: number for name, number in _keep_given(kind).items() if name != "profile"}
    workload = make_workload(
        Network(neurons=cell.neurons, batch=cell.batch, inputs=cell.inputs, **sizes),
        name=name_content(output),
        steps=cell.steps,
        profile=load_profile(kind.profile),
        times=times,
    )
    estimated = f"given for {workload.timed_on}"
    if workload.basis["forward_seconds"].kind == "estimated":
        estimated = f"estimated for {workload.timed_on}, within a factor of three"
    head = _WORKLOAD_HEAD.format(times=f"{estimated}.", file=output.rpartition("/")[2])
    write_text(output, commented_text(workload, head=head))
    note(f"workload written to {output}; its times are {estimated}")
    write_view(view_workload(workload), OutputOptions(format=format_))


@dataclass(frozen=True, kw_only=True)
class ProfileNumbers:
    """The numbers of a profile, as text; None where the other profile's, or the default, holds."""

    description: Annotated[str | None, option("TEXT", "What the machine is.")] = None
    units: Annotated[int | None, count("Tiles or cores with memory of their own.")] = None
    local_bytes: Annotated[str | None, option("SIZE", "Memory of one unit, as '24 GB'.")] = None
    headroom: Annotated[str | None, option("SHARE", "Share of it to leave free, as '10%'.")] = None
    remote_bytes: Annotated[str | None, option("SIZE", "Remote memory in all, or 'unbounded'; 0 for none.")] = (
        None
    )
    write_bytes_per_second: Annotated[str | None, option("RATE", "Local to remote, as '12 GB/s'.")] = None
    read_bytes_per_second: Annotated[str | None, option("RATE", "Remote to local.")] = None
    latency_seconds: Annotated[str | None, option("TIME", "Start of a message, as '10 us'.")] = None
    float32_flops_per_second: Annotated[str | None, option("RATE", "Peak, as '19.5 TFLOP/s'.")] = None
    float16_flops_per_second: Annotated[str | None, option("RATE", "Peak, also of bfloat16.")] = None
    local_bytes_per_second: Annotated[str | None, option("RATE", "Peak of local memory.")] = None
    launch_seconds: Annotated[str | None, option("TIME", "Start of a kernel, as '5 us'.")] = None
    power_watts: Annotated[float | None, option("NUMBER", "Power under load, in watts.")] = None
    price_per_hour: Annotated[float | None, option("NUMBER", "Price of an hour.")] = None


#: What is asked for on a terminal, with an answer to start from.
_QUESTIONS = {
    "local_bytes": ("Local memory of one unit", "24 GB"),
    "remote_bytes": ("Remote memory in all, 'unbounded' or 0", "unbounded"),
    "write_bytes_per_second": ("Rate from local to remote memory", "12 GB/s"),
    "read_bytes_per_second": ("Rate from remote to local memory", "12 GB/s"),
    "latency_seconds": ("Time to start a message", "10 us"),
    "float32_flops_per_second": ("Peak rate in float32", "20 TFLOP/s"),
    "local_bytes_per_second": ("Peak rate of local memory", "1 TB/s"),
    "launch_seconds": ("Time to start a kernel", "5 us"),
}


def new_profile(
    *,
    profile: Annotated[
        str | None, options.pick("hardware_profiles", "Take what is not given from this profile.", "--like")
    ] = None,
    measure: Annotated[
        str | None, option("DIR", "Time this folder: it is remote memory, at the rates of its device.")
    ] = None,
    state_bytes: Annotated[
        int,
        option(
            "SIZE",
            "Of the states that --measure writes and reads.",
            parser=options.parse_above_zero(parse_bytes, most=MAX_BYTES, accepted="more than 0 B, as '16 MiB'"),
        ),
    ] = 2**24,
    numbers: ProfileNumbers,
    format_: FormatOption = "table",
    output: Annotated[str, option("FILE", "The profile.", parser=Written)] = "my-machine.toml",
) -> None:
    """Write a profile with a comment on each number, from options, another profile (--like) or --measure.

    Without --local-bytes and --like, questions are asked on a terminal.
    """
    from ckptplan.model.profile import HardwareProfile
    from ckptplan.report.inputs import view_profile
    from ckptplan.storage.toml_files import commented_text, load_profile

    given = {**_keep_given(numbers), "name": name_content(output)}
    sources: dict[str, Any] = {}
    if measure is not None:
        measured, sources = _measure_folder(measure, state_bytes)
        sources = {field: one for field, one in sources.items() if field not in given}
        given = {**measured, **given}
    if profile is not None:
        given = _take_from(load_profile(profile), given)
    elif numbers.local_bytes is None:
        if not _can_ask():
            raise InputError(
                "is missing",
                field="--local-bytes",
                accepted="a size, as '24 GB', or another profile with --like",
            )
        given = {
            **{name: _ask(*question) for name, question in _QUESTIONS.items() if name not in given},
            **given,
        }
    made = HardwareProfile(**{**given, "sources": {**given.get("sources", {}), **sources}})
    write_text(output, commented_text(made, head=_PROFILE_HEAD.format(file=output.rpartition("/")[2])))
    note(f"profile written to {output}")
    write_view(view_profile(made), OutputOptions(format=format_))


def _measure_folder(folder: str, state_bytes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the numbers of a folder as remote memory, and their sources. Raises InputError."""
    from ckptplan.model.profile import Source
    from ckptplan.storage.place import time_now
    from ckptplan.storage.remote_folder import make_parent

    place = make_parent(folder, field="--measure").resolve()
    link = time_now(place, state_bytes=state_bytes, field="--measure")
    margin = Source(grade="M", source=f"free space of {place}, less a margin for others")
    within = Source(grade="M", source=f"{link.source.source}; contained in the rates")
    numbers = {
        "remote_bytes": (link.capacity, margin),
        "write_bytes_per_second": (_round(state_bytes / link.rates.write), link.source),
        "read_bytes_per_second": (_round(state_bytes / link.rates.read), link.source),
        **dict.fromkeys(("latency_seconds", "synchronisation_seconds"), (0.0, within)),
    }
    # A profile that says what a state takes would not use the rates.
    found: dict[str, Any] = dict.fromkeys(("transfer_write_seconds", "transfer_read_seconds"))
    found.update({field: value for field, (value, _) in numbers.items()})
    return found, {field: source for field, (_, source) in numbers.items()}


def _round(rate: float) -> float:
    return float(f"{rate:.4g}")


def _take_from(other: HardwareProfile, given: dict[str, Any]) -> dict[str, Any]:
    """Return numbers of a profile: those that are given, with the others of another profile."""
    start: dict[str, Any] = {field: getattr(other, field) for field in type(other).model_fields}
    changed = [field for field in given if field not in ("description", "name")]
    if changed:
        # What the other one is called no longer describes it.
        start["description"] = f"like {other.name}, but for {', '.join(changed)}"
    start["sources"] = {field: one for field, one in other.sources.items() if field not in given}
    return {**start, **given}
