"""Options of commands that measure a cell, and workloads whose sizes are counted and times assumed."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptplan.cli import options
from ckptplan.cli.completion import complete_cell
from ckptplan.cli.output import note, write_view
from ckptplan.cli.wording import named_by_option
from ckptplan.errors import InputError, quote_value
from ckptplan.units import MAX_STEPS, parse_seconds

if TYPE_CHECKING:
    from ckptplan.calibration.cell_spec import CellSpec
    from ckptplan.model.workload import Workload


class Device(enum.StrEnum):
    """Where a cell runs."""

    cpu = "cpu"
    cuda = "cuda"


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """A cell, where it runs, and how long it may be measured."""

    cell: Annotated[
        str,
        typer.Option(
            "--cell",
            metavar="NAME|MODULE:FACTORY",
            help="lif, gru, lstm, rnn, or a factory of your own (docs/calibrate.md); jax:lif and so on in JAX.",
            autocompletion=complete_cell,
        ),
    ]
    batch: Annotated[str, typer.Option("--batch", metavar="INTEGER", help="Samples per batch.")] = "32"
    neurons: Annotated[str, typer.Option("--neurons", metavar="INTEGER", help="Neurons, or units.")] = "256"
    inputs: Annotated[str, typer.Option("--inputs", metavar="INTEGER", help="Inputs per step.")] = "64"
    steps: Annotated[
        str, typer.Option("--T", "--steps", metavar="INTEGER", help="Time steps T of the workload.")
    ] = "4096"
    compile: Annotated[
        str | None,
        typer.Option(
            "--compile",
            metavar="INTEGER",
            help="Compile pieces of so many steps; the workload's steps are then pieces.",
        ),
    ] = None
    device: Annotated[Device, typer.Option("--device", help="Where to run.")] = Device.cpu
    threads: options.Threads = None
    seed: Annotated[str, typer.Option("--seed", metavar="INTEGER", help="Random seed of weights and data.")] = (
        "0"
    )
    tape: Annotated[
        str | None,
        typer.Option(
            "--tape", metavar="KIND", help="Of a cell of JAX: residuals, products or states (docs/jax.md)."
        ),
    ] = None
    max_seconds: Annotated[
        str,
        typer.Option(
            "--max-seconds",
            metavar="TIME",
            help="Measure less if all of it takes longer, and say what is left out.",
        ),
    ] = "120"

    def read(self) -> dict[str, Any]:
        """Return the arguments of what measures or counts a cell. Raises InputError that names the option."""
        sizes = {
            name: options.plain_integer(getattr(self, name), option=f"--{name}", most=10**9)
            for name in ("batch", "inputs", "neurons")
        }
        steps = options.plain_integer(self.steps, option="--T", most=MAX_STEPS)
        threads = options.thread_count(self.threads)
        max_seconds = _read_max_seconds(self.max_seconds)
        piece = None if self.compile is None else _read_piece(self.compile, steps=steps)
        from ckptplan.calibration.cell_spec import CellSpec

        spec = CellSpec.named(self.cell, inputs=sizes["inputs"], neurons=sizes["neurons"], compile=piece)
        options.need_runtime(spec)
        return {
            "spec": spec,
            "batch": sizes["batch"],
            "steps": steps // (piece or 1),
            "seed": options.plain_integer(self.seed, option="--seed", least=0, most=2**63 - 1),
            "max_seconds": max_seconds,
            **self._read_runtime(spec, threads=threads),
        }

    def _read_runtime(self, spec: CellSpec, *, threads: int | None) -> dict[str, Any]:
        """Return the arguments that differ between PyTorch and JAX."""
        if spec.runtime == "jax":
            from ckptplan.calibration.in_jax.threads import set_threads

            if spec.compile is not None:
                raise InputError("is for cells of PyTorch", field="--compile", value=self.compile)
            options.check_jax_device(self.device.value)
            with named_by_option():
                return {"threads": set_threads(threads), "tape": self.tape or "residuals"}
        if self.tape is not None:
            raise InputError(
                "is for cells of JAX", field="--tape", value=self.tape, accepted=f"--cell jax:{spec.name}"
            )
        return {"device": self.device.value, "thread_count": threads}


def _read_piece(text: str, *, steps: int) -> int:
    """Return the steps of a compiled piece. Raises InputError unless pieces make up all steps."""
    piece: int = options.plain_integer(text, option="--compile", most=MAX_STEPS)
    if steps % piece:
        raise InputError(
            f"pieces of {piece:,} steps leave {steps % piece:,} of {steps:,} over",
            field="--compile",
            value=text,
            accepted="a divisor of --T, as 16",
        )
    return piece


def _read_max_seconds(text: str) -> float:
    seconds: float = options.parsed("--max-seconds", parse_seconds, text)
    if seconds <= 0:
        raise InputError(
            f"{quote_value(text)} is out of range",
            field="--max-seconds",
            value=text,
            accepted="more than 0 s, as '300' or '5 min'",
        )
    return seconds


def name_content(path: str, option: str) -> str:
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
    cell: CellOptions, *, output: str, format_: options.FormatName, times: Mapping[str, float] | None = None
) -> None:
    """Count the sizes of a cell, write the workload and show it. Raises InputError."""
    options.check_folders({"--output": output})
    name, arguments = name_content(output, "--output"), cell.read()
    from ckptplan.cli.progress import progress_bar
    from ckptplan.report.inputs import view_workload
    from ckptplan.storage.toml_files import save_workload

    with named_by_option(), progress_bar("counting") as progress:
        workload = _choose_counter(arguments["spec"])(
            **arguments, name=name, times=times, announce=progress.say if progress else None, progress=progress
        )
    save_workload(workload, output)
    note(f"workload written to {output}; {describe_times(workload)}")
    write_view(view_workload(workload), options.OutputOptions(format=format_))


def _choose_counter(spec: CellSpec) -> Callable[..., Workload]:
    """Return what counts the sizes of a cell."""
    if spec.runtime == "jax":
        from ckptplan.calibration.in_jax.counted import count_jax

        return count_jax
    from ckptplan.calibration.counted import count_sizes

    return count_sizes


def describe_times(workload: Workload) -> str:
    """Return where the times of a counted workload come from."""
    return f"its times are assumed ({workload.basis['forward_seconds'].why})"
