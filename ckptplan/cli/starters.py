"""Options of commands that write a workload or a profile to start from, and questions for what is not given."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from ckptplan.cli import options
from ckptplan.cli.cells import CellOptions, name_content
from ckptplan.cli.output import note, write_view
from ckptplan.cli.wording import option_of
from ckptplan.errors import InputError, quote_value
from ckptplan.units import MAX_STEPS

if TYPE_CHECKING:
    from ckptplan.model.network import Network
    from ckptplan.model.workload import Workload

Kind = Literal["gru", "lstm", "snn", "convlstm"]
#: The machine for which times are estimated unless another is named.
_MACHINE = "nvidia-a100-80gb"
_WORKLOAD_HEAD = """A training job, for ckptplan (docs/workloads.md): sizes follow from the network.
Step times are {times}
Plan with it: ckptplan optimize --workload ./{file} --profile nvidia-h200"""


@dataclass(frozen=True, kw_only=True)
class NewCellOptions(CellOptions):
    """A cell to count, which may be left out for a kind of network."""

    cell: Annotated[
        str,
        typer.Option(
            "--cell",
            metavar="NAME|MODULE:FACTORY",
            help="Count a cell: lif, gru, lstm, rnn, or a factory of your own (docs/calibrate.md).",
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class KindOptions:
    """A kind of network, whose sizes follow by formulas."""

    kind: Annotated[
        Kind | None,
        typer.Option("--kind", help="Derive the sizes of such a network by formulas, without PyTorch."),
    ] = None
    layers: Annotated[
        str, typer.Option("--layers", metavar="INTEGER", help="Layers of --kind, which share --neurons.")
    ] = "1"
    height: Annotated[
        str | None, typer.Option("--height", metavar="INTEGER", help="Rows of the images of a convlstm.")
    ] = None
    width: Annotated[
        str | None, typer.Option("--width", metavar="INTEGER", help="Columns of the images of a convlstm.")
    ] = None
    kernel: Annotated[
        str | None, typer.Option("--kernel", metavar="INTEGER", help="Rows of the filters of a convlstm.")
    ] = None
    dtype: Annotated[
        Literal["float64", "float32", "float16", "bfloat16"],
        typer.Option("--dtype", help="Type of numbers of --kind."),
    ] = "float32"
    profile: Annotated[
        str,
        typer.Option("--profile", metavar="NAME|PATH", help="The machine for which times are estimated."),
    ] = _MACHINE


def can_ask() -> bool:
    """Return whether somebody sits at a terminal and can answer questions."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str, default: str) -> str:
    """Return the answer to a question on the terminal."""
    return str(typer.prompt(question, default=default, err=True))


def ask_for_network(cell: NewCellOptions, kind: KindOptions) -> tuple[NewCellOptions, KindOptions]:
    """Ask on a terminal for what makes a network. Raises InputError where nobody can be asked."""
    known: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    names = ", ".join(known)
    if not can_ask():
        raise InputError(
            "is missing: name a kind of network, or a cell with --cell", field="--kind", accepted=names
        )
    chosen = known.get(answer := ask(f"Kind of network ({names})", "gru"))
    if chosen is None:
        raise InputError(f"{quote_value(answer)} is not a kind", field="--kind", value=answer, accepted=names)
    images = chosen == "convlstm"
    cell = replace(
        cell,
        inputs=ask("Input channels" if images else "Inputs per step", "1" if images else cell.inputs),
        neurons=ask("Channels of all layers" if images else "Neurons of all layers", cell.neurons),
        batch=ask("Samples per batch", cell.batch),
        steps=ask("Time steps T", cell.steps),
    )
    kind = replace(
        kind,
        kind=chosen,
        layers=ask("Layers", kind.layers),
        height=ask("Rows of an image", "64") if images else None,
        width=ask("Columns of an image", "64") if images else None,
        profile=ask("Machine for the estimate of times", kind.profile),
    )
    return cell, kind


def write_network(
    cell: NewCellOptions,
    kind: KindOptions,
    *,
    times: Mapping[str, float],
    output: str,
    format_: options.FormatName,
) -> None:
    """Write the workload of a kind of network and show it. Raises InputError."""
    from ckptplan.planning.starters import make_workload
    from ckptplan.report.inputs import view_workload
    from ckptplan.storage.files import write_text
    from ckptplan.storage.toml_files import commented_workload

    options.check_folders({"--output": output})
    options.keep_inputs({"--output": output}, kind.profile)
    name = name_content(output, "--output")
    steps = options.plain_integer(cell.steps, option="--T", most=MAX_STEPS)
    profile = options.load_profile(kind.profile)
    try:
        workload = make_workload(
            _read_network(cell, kind), name=name, steps=steps, profile=profile, times=times
        )
    except InputError as error:
        if error.source is not None or error.field is None or error.field.startswith("-"):
            raise
        raise InputError(
            error.message, field=option_of(error.field), value=error.value, accepted=error.accepted
        ) from None
    write_text(output, commented_workload(workload, head=_head(workload, output)))
    note(f"workload written to {output}; its times are {_times(workload)}")
    write_view(view_workload(workload), options.OutputOptions(format=format_))


def _read_network(cell: NewCellOptions, kind: KindOptions) -> Network:
    from ckptplan.model.network import Network

    given = {
        "neurons": cell.neurons,
        "layers": kind.layers,
        "batch": cell.batch,
        "inputs": cell.inputs,
        "height": kind.height,
        "width": kind.width,
        "kernel": kind.kernel,
    }
    read: dict[str, Any] = {
        field: options.plain_integer(text, option=f"--{field}", most=10**9)
        for field, text in given.items()
        if text is not None
    }
    return Network(**{"kind": kind.kind, "dtype": kind.dtype, **read})


def _head(workload: Workload, output: str) -> str:
    return _WORKLOAD_HEAD.format(times=f"{_times(workload)}.", file=output.rpartition("/")[2])


def _times(workload: Workload) -> str:
    basis = workload.basis["forward_seconds"]
    if basis.kind == "estimated":
        return f"estimated for {workload.timed_on}, within a factor of three"
    return f"given for {workload.timed_on}"
