"""``ckptplan calibrate``: measure a cell on this machine, and write a workload and a profile."""

import shlex
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
from ckptplan.units import format_bytes, format_share

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
        int | None,
        count(f"Rounds; more follow while they differ (default: {REPEATS}).", least=LEAST_REPEATS, most=1000),
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="A few seconds: few rounds and sizes; times to 10 % at best.")
    ] = False,
    remote_dir: Annotated[
        str | None, option("DIR", "Measure this folder as remote memory, not host memory; in wall time.")
    ] = None,
    bytes_only: Annotated[
        bool, typer.Option(help="Count sizes only: times are assumed, no profile is written.")
    ] = False,
    tolerance: Annotated[
        float,
        option(
            "SHARE",
            "Tolerance of later validations; rounds that differ by half of it are noisy.",
            parser=options.parse_tolerance,
        ),
    ] = 0.1,
    strict: Annotated[bool, typer.Option(help="Write nothing, and exit 4, if the machine is noisy.")] = False,
    format_: FormatOption = "table",
    output: Annotated[str, option("FILE", "The workload.", parser=Written)] = "my-workload.toml",
    profile_out: Annotated[
        str | None, option("FILE", f"The profile (default: {_PROFILE_OUT}).", parser=Written)
    ] = None,
) -> None:
    """Measure a cell on this machine: bytes are counted, times fitted over several sizes.

    Says first how long it takes. Writes a workload and a profile to plan with, and prints the next command. On
    a noisy machine more rounds follow, and intervals are wide. Ctrl-C keeps what was measured: after three
    rounds the result of these rounds, before them the sizes.
    """
    options.keep_apart({"--repeats": repeats, "--quick": quick})
    measured = {
        "--repeats": repeats,
        "--quick": quick,
        "--remote-dir": remote_dir,
        "--profile-out": profile_out,
    }
    for named, given in measured.items():
        options.keep_apart({named: given, "--bytes-only": bytes_only})
    if bytes_only:
        write_counted(cell, output=output, format_=format_)
        return
    profile_out = Written(profile_out or _PROFILE_OUT)
    tell_files_apart({"--output": output, "--profile-out": profile_out})
    name, profile_name = name_content(output), name_content(profile_out, "--profile-out")
    arguments = cell.read()
    from ckptplan.calibration.calibrate import calibrate as measure_cell
    from ckptplan.report.calibration import view_calibration

    counted: list[Workload] = []
    with _keep_sizes(counted, output), progress_bar("measuring") as progress:
        calibrated = measure_cell(
            **arguments,
            remote_dir=remote_dir,
            repeats=repeats or REPEATS,
            quick=quick,
            tolerance=tolerance,
            name=name,
            profile_name=profile_name,
            announce=progress.say,
            keep=counted.append,
            progress=progress,
        )
    if strict and calibrated.noisy is not None:
        calibrated.noisy.add_note("nothing was written, as --strict asks")
        raise calibrated.ended_by or calibrated.noisy
    _write(calibrated, output, profile_out)
    if calibrated.left_out:
        note(f"ckptplan: warning: not a whole calibration: {'; '.join(calibrated.left_out)}")
    budget = find_budget(calibrated.workload)
    _warn_of_uncertainty(calibrated, tolerance=tolerance, budget=budget)
    write_view(view_calibration(calibrated), OutputOptions(format=format_))
    if calibrated.ended_by is not None:
        # The program ends as it does without a result, with the exit code of what ended it.
        raise calibrated.ended_by
    files = (("--workload", output), ("--profile", profile_out))
    job = " ".join(f"{name} {shlex.quote(_as_path(path))}" for name, path in files)
    note(f"next: ckptplan optimize {job} --local-bytes {budget} -o plan.json")


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


#: The share of base's tapes for which a plan is proposed.
_SHARE = 0.1


def find_budget(workload: "Workload") -> int:
    """Return a local budget with room for a tenth of base's tapes, in bytes of two digits."""
    resident = workload.resident_bytes + workload.steps * workload.resident_bytes_per_step
    resident += workload.workspace_bytes + workload.chunk_workspace_bytes
    whole = resident + max(_SHARE * workload.steps, 4.0) * (workload.tape_bytes + workload.state_bytes)
    return int(float(f"{1.05 * whole:.1e}"))


def _as_path(path: str) -> str:
    """Return a file that no command takes for the name of a built-in one."""
    return path if Path(path).parent != Path() or path.startswith("./") else f"./{path}"


def _warn_of_uncertainty(calibrated: "Calibrated", *, tolerance: float, budget: int) -> None:
    """Say what it means for a plan if times are not known to within the tolerance."""
    from ckptplan.planning.optimize import INTERVAL, optimize

    calibration = calibrated.workload.calibration
    known = 0.0 if calibration is None else calibration.uncertainty
    if known <= tolerance and calibrated.noisy is None:
        return
    plan = optimize(calibrated.workload, calibrated.profile, local_bytes=budget)
    told = next((entry.text for entry in plan.estimate_basis if entry.field == INTERVAL), "")
    note(
        f"ckptplan: warning: times of steps are only known to within {format_share(known)}, as rounds, or "
        f"chunks of several sizes, differ; a plan for {format_bytes(budget)} takes {told}"
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
