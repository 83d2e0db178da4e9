"""Options of commands that measure a cell, and workloads whose sizes are counted and times assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from ckptplan.cli import options
from ckptplan.cli.options import count, option
from ckptplan.cli.output import FormatName, OutputOptions, note, write_view
from ckptplan.cli.progress import progress_bar
from ckptplan.errors import InputError
from ckptplan.units import MAX_STEPS

if TYPE_CHECKING:
    from ckptplan.model.workload import Workload

#: What runs.
CellName = Annotated[
    str,
    option(
        "NAME|MODULE:FACTORY",
        "A cell: lif, gru, lstm, rnn, or a factory of your own (docs/calibrate.md); jax:lif and so on in JAX.",
        autocompletion=lambda: ["gru", "lif", "lstm", "rnn"],
    ),
]
#: Where a cell runs.
Device: TypeAlias = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """A cell, where it runs, and how long it may be measured."""

    cell: CellName
    batch: Annotated[int, count("Samples per batch.")] = 32
    neurons: Annotated[int, count("Neurons, or units.")] = 256
    inputs: Annotated[int, count("Inputs per step.")] = 64
    steps: Annotated[int, count("Time steps T of the workload.", most=MAX_STEPS)] = 4096
    compile: Annotated[
        int | None,
        count("Compile pieces of so many steps; the workload's steps are then pieces.", most=MAX_STEPS),
    ] = None
    device: Annotated[Device, typer.Option(help="Where to run.")] = "cpu"
    thread_count: options.Threads = None
    seed: Annotated[int, count("Random seed of weights and data.", most=2**63 - 1, least=0)] = 0
    tape: Annotated[
        str | None, option("KIND", "Of a cell of JAX: residuals, products or states (docs/jax.md).")
    ] = None
    max_seconds: Annotated[
        float,
        option(
            "TIME",
            "Measure less if all of it takes longer, and say what is left out.",
            parser=options.parse_limit,
        ),
    ] = 120

    def read(self) -> dict[str, Any]:
        """Return the arguments of what measures or counts a cell. Raises InputError that names the option."""
        from ckptplan.calibration.cell_spec import CellSpec

        piece = self.compile or 1
        if self.steps % piece:
            raise InputError(
                f"pieces of {piece:,} steps leave {self.steps % piece:,} of {self.steps:,} over",
                field="--compile",
                value=piece,
                accepted="a divisor of --T, as 16",
            )
        spec = CellSpec.named(self.cell, inputs=self.inputs, neurons=self.neurons, compile=self.compile)
        return {
            "spec": spec,
            "batch": self.batch,
            "steps": self.steps // piece,
            "seed": self.seed,
            "max_seconds": self.max_seconds,
            "device": self.device,
            "thread_count": self.thread_count,
            "tape": self.tape,
        }


def name_content(path: str, option: str = "--output") -> str:
    """Return the name that the content of a file gets from the file. Raises InputError for an unusable name."""
    from ckptplan.model.checked import check_name

    stem = Path(path).name.removesuffix(".toml")
    if path == "-" or not stem:
        raise InputError("is not a file", field=option, value=path, accepted="a file, as my-workload.toml")
    try:
        check_name(stem)
    except InputError as error:
        raise InputError(
            f"its content is named after it, and {error.message}",
            field=option,
            value=path,
            accepted=error.accepted,
        ) from None
    return stem


def write_counted(
    cell: CellOptions, *, output: str, format_: FormatName, times: Mapping[str, float] | None = None
) -> None:
    """Count the sizes of a cell, write the workload and show it. Raises InputError."""
    from ckptplan.calibration.calibrate import count_sizes
    from ckptplan.report.inputs import view_workload
    from ckptplan.storage.toml_files import save_workload

    name, arguments = name_content(output), cell.read()
    with progress_bar("counting") as progress:
        workload = count_sizes(**arguments, name=name, times=times, announce=progress.say, progress=progress)
    save_workload(workload, output)
    note(f"workload written to {output}; {describe_times(workload)}")
    write_view(view_workload(workload), OutputOptions(format=format_))


def describe_times(workload: Workload) -> str:
    """Return where the times of a counted workload come from."""
    return f"its times are assumed ({workload.basis['forward_seconds'].why})"
