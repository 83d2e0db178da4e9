"""``ckptplan calibrate``: measure a cell on this machine, and write a workload and a profile."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.cells import CellOptions, describe_times, name_content, write_counted
from ckptplan.cli.command import Written, tell_files_apart
from ckptplan.cli.options import count, option
from ckptplan.cli.output import FormatOption, OutputOptions, note, write_view
from ckptplan.cli.progress import progress_bar
from ckptplan.errors import InputError
from ckptplan.units import format_share

if TYPE_CHECKING:
    from ckptplan.calibration.calibrate import Calibrated
    from ckptplan.model.workload import Workload

#: The default number of rounds, and the least, which quartiles need.
REPEATS, LEAST_REPEATS = 5, 3
_PROFILE_OUT = "my-machine.toml"


def calibrate(
    *,
    cell: CellOptions,
    repeats: Annotated[
        int | None, count(f"Rounds; times are their medians (default: {REPEATS}).", most=1000)
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="A few seconds: few rounds and sizes; times to 10 % at best.")
    ] = False,
    bytes_only: Annotated[
        bool, typer.Option(help="Count sizes only: times are assumed, no profile is written.")
    ] = False,
    tolerance: Annotated[
        float,
        option(
            "SHARE",
            "Tolerance of later validations; rounds may differ by half of it.",
            parser=options.parse_tolerance,
        ),
    ] = 0.1,
    force: Annotated[bool, typer.Option(help="Write the results even if the machine is noisy.")] = False,
    format_: FormatOption = "table",
    output: Annotated[str, option("FILE", "The workload.", parser=Written)] = "my-workload.toml",
    profile_out: Annotated[
        str | None, option("FILE", f"The profile (default: {_PROFILE_OUT}).", parser=Written)
    ] = None,
) -> None:
    """Measure a cell on this machine: bytes are counted, times fitted over several sizes.

    Says first how long it takes. Writes a workload and a profile to plan with. Exits 4, and writes nothing,
    if the machine is too noisy. Ctrl-C keeps what was measured: after three rounds the result of these
    rounds, before them the sizes.
    """
    _check_together(quick=quick, bytes_only=bytes_only, repeats=repeats, profile_out=profile_out)
    if bytes_only:
        write_counted(cell, output=output, format_=format_)
        return
    profile_out = Written(profile_out or _PROFILE_OUT)
    tell_files_apart({"--output": output, "--profile-out": profile_out})
    name, profile_name = name_content(output), name_content(profile_out, "--profile-out")
    if repeats is not None and repeats < LEAST_REPEATS and not force:
        raise InputError(
            f"{repeats} rounds are too few to measure their spread",
            field="--repeats",
            value=repeats,
            accepted=f"{LEAST_REPEATS} or more, or fewer with --force",
        )
    arguments = cell.read()
    from ckptplan.calibration.calibrate import calibrate as measure_cell
    from ckptplan.report.calibration import view_calibration

    counted: list[Workload] = []
    with _keep_sizes(counted, output):
        with progress_bar("measuring") as progress:
            calibrated = measure_cell(
                **arguments,
                repeats=repeats or REPEATS,
                quick=quick,
                tolerance=tolerance,
                name=name,
                profile_name=profile_name,
                announce=progress.say,
                keep=counted.append,
                progress=progress,
            )
        if calibrated.noisy is not None and calibrated.ended_by is not None and not force:
            # Too noisy for times: only the sizes are kept, as before three rounds.
            note(f"ckptplan: warning: {calibrated.noisy.text}")
            raise calibrated.ended_by
    _check_noise(calibrated, force=force)
    _write(calibrated, output, profile_out)
    if calibrated.left_out:
        note(f"ckptplan: warning: not a whole calibration: {'; '.join(calibrated.left_out)}")
    _warn_of_uncertainty(calibrated, tolerance=tolerance)
    write_view(view_calibration(calibrated), OutputOptions(format=format_))
    if calibrated.ended_by is not None:
        # The program ends as it does without a result, with the exit code of what ended it.
        raise calibrated.ended_by


def _check_together(*, quick: bool, bytes_only: bool, repeats: int | None, profile_out: str | None) -> None:
    """Raise InputError for options that contradict each other."""
    options.keep_apart({"--repeats": repeats, "--quick": quick})
    for named, given in (("--repeats", repeats), ("--quick", quick), ("--profile-out", profile_out)):
        options.keep_apart({named: given, "--bytes-only": bytes_only})


@contextmanager
def _keep_sizes(counted: "list[Workload]", output: str) -> Iterator[None]:
    """Write the sizes, if they are known, when Ctrl-C or a signal ends the measurement before its times."""
    try:
        yield
    except Exception:
        raise
    except BaseException:
        if counted:
            _write_sizes(counted[0], output)
        raise


def _write_sizes(workload: "Workload", output: str) -> None:
    from ckptplan.storage.toml_files import save_workload

    if Path(output).exists():
        note(f"sizes were counted, but {output} exists: it was left as it was")
        return
    save_workload(workload, output)
    note(f"sizes written to {output}, as with --bytes-only; {describe_times(workload)}")


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


def _write(calibrated: "Calibrated", output: str, profile_out: str) -> None:
    """Write both files, or neither."""
    from ckptplan.storage.files import replace_file
    from ckptplan.storage.toml_files import profile_text, workload_text

    workload, profile = workload_text(calibrated.workload), profile_text(calibrated.profile)
    with replace_file(output) as first, replace_file(profile_out) as second:
        first.write(workload)
        second.write(profile)
    note(f"workload written to {output}, profile to {profile_out}")
