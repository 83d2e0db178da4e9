"""``ckptplan calibrate``: measure a cell on this machine, and write a workload and a profile."""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.options import OutputOptions
from ckptplan.cli.output import note, write_view
from ckptplan.cli.wording import as_option, named_by_option
from ckptplan.errors import InputError
from ckptplan.units import MAX_STEPS, format_share

if TYPE_CHECKING:
    from ckptplan.calibration.calibrate import Calibrated


#: Quartiles need at least this many rounds.
LEAST_REPEATS = 3


class Device(enum.StrEnum):
    """Where PyTorch runs."""

    cpu = "cpu"
    cuda = "cuda"


def command(
    *,
    cell: Annotated[
        str,
        typer.Option(
            "--cell",
            metavar="NAME|MODULE:FACTORY",
            help="lif, gru, lstm, rnn, or a factory of your own (docs/accuracy.md).",
        ),
    ],
    batch: Annotated[str, typer.Option("--batch", metavar="INTEGER", help="Samples per batch.")] = "32",
    neurons: Annotated[str, typer.Option("--neurons", metavar="INTEGER", help="Neurons, or units.")] = "256",
    inputs: Annotated[str, typer.Option("--inputs", metavar="INTEGER", help="Inputs per step.")] = "64",
    steps: Annotated[
        str, typer.Option("--T", "--steps", metavar="INTEGER", help="Time steps T of the workload.")
    ] = "4096",
    device: Annotated[Device, typer.Option("--device", help="Where to run.")] = Device.cpu,
    threads: options.Threads = None,
    repeats: options.Repeats = "5",
    tolerance: Annotated[
        str,
        typer.Option(
            "--tolerance",
            metavar="SHARE",
            help="Tolerance of later validations; rounds may differ by half of it.",
        ),
    ] = "10%",
    seed: Annotated[
        int, typer.Option("--seed", help="Random seed of weights and data.", min=0, max=2**63 - 1)
    ] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Write the results even if the machine is noisy.")
    ] = False,
    format_: options.FormatOption = "table",
    output: Annotated[
        str,
        typer.Option("-o", "--output", metavar="FILE", help="The workload.", callback=options.named_file),
    ] = "my-workload.toml",
    profile_out: Annotated[
        str,
        typer.Option("--profile-out", metavar="FILE", help="The profile.", callback=options.named_file),
    ] = "my-machine.toml",
) -> None:
    """Measure a cell on this machine: bytes are counted, times fitted over several sizes.

    Writes a workload and a profile to plan with. Exits 4, and writes nothing, if the machine is too noisy.
    """
    options.keep_inputs({"--output": output, "--profile-out": profile_out})
    options.check_folders({"--output": output, "--profile-out": profile_out})
    name, profile_name = _name_content(output, "--output"), _name_content(profile_out, "--profile-out")
    sizes = {
        "batch": options.plain_integer(batch, option="--batch", most=10**9),
        "inputs": options.plain_integer(inputs, option="--inputs", most=10**9),
        "neurons": options.plain_integer(neurons, option="--neurons", most=10**9),
        "steps": options.plain_integer(steps, option="--T", most=MAX_STEPS),
    }
    rounds = _read_repeats(repeats, force=force)
    thread_count = options.thread_count(threads)
    share = options.tolerance(tolerance, option="--tolerance")
    options.need_torch()
    from ckptplan.calibration.calibrate import calibrate
    from ckptplan.calibration.cells import CellSpec
    from ckptplan.cli.progress import progress_bar
    from ckptplan.report.calibration import view_calibration

    with named_by_option(), progress_bar("measuring") as progress:
        calibrated = calibrate(
            CellSpec(name=cell, inputs=sizes["inputs"], neurons=sizes["neurons"]),
            batch=sizes["batch"],
            steps=sizes["steps"],
            repeats=rounds,
            thread_count=thread_count,
            tolerance=share,
            name=name,
            profile_name=profile_name,
            device=device.value,
            seed=seed,
            progress=progress,
        )
    _check_noise(calibrated, force=force)
    _write(calibrated, output, profile_out)
    _warn_of_uncertainty(calibrated, tolerance=share)
    write_view(view_calibration(calibrated, wording=as_option), OutputOptions(format=format_))


def _read_repeats(text: str, *, force: bool) -> int:
    """Return the number of rounds. Raises InputError for too few, unless they are forced."""
    repeats = options.plain_integer(text, option="--repeats", most=1000)
    if repeats < LEAST_REPEATS and not force:
        raise InputError(
            f"{repeats} rounds are too few to measure their spread",
            field="--repeats",
            value=text,
            accepted=f"{LEAST_REPEATS} or more, or fewer with --force",
        )
    return repeats


def _check_noise(calibrated: "Calibrated", *, force: bool) -> None:
    """Raise Noisy if the machine was too noisy; only warn if the results are written anyway."""
    if calibrated.noisy is None:
        return
    if not force:
        calibrated.noisy.add_note("nothing was written; --force writes the results anyway")
        raise calibrated.noisy
    note(f"ckptplan: warning: {calibrated.noisy.text}; written anyway (--force)")


def _warn_of_uncertainty(calibrated: "Calibrated", *, tolerance: float) -> None:
    uncertainty = calibrated.steps.uncertainty
    if uncertainty > tolerance:
        note(
            f"ckptplan: warning: predicted times are only known to {format_share(uncertainty)}, more than the "
            f"tolerance of {format_share(tolerance)}: a step takes longer in some chunks than in others"
        )


def _name_content(path: str, option: str) -> str:
    """Return the name that the content of a file gets from the file. Raises InputError for an unusable name."""
    from ckptplan.model.quantities import check_name

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


def _write(calibrated: "Calibrated", output: str, profile_out: str) -> None:
    """Write both files, or neither."""
    from ckptplan.storage.files import replace_file
    from ckptplan.storage.toml_files import profile_text, workload_text

    workload, profile = workload_text(calibrated.workload), profile_text(calibrated.profile)
    with replace_file(output) as first, replace_file(profile_out) as second:
        first.write(workload)
        second.write(profile)
    note(f"workload written to {output}, profile to {profile_out}")
