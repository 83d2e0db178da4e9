"""Commands that measure on this machine: ``calibrate`` a cell, and ``validate`` a plan."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

import ckptplan
from ckptplan.cli import options
from ckptplan.cli.command import Written, check_files
from ckptplan.cli.options import count, option
from ckptplan.cli.output import FormatName, FormatOption, OutputOptions, PageOptions, note, publish
from ckptplan.cli.plans import traced
from ckptplan.cli.progress import progress_bar
from ckptplan.errors import InputError
from ckptplan.model.cell_spec import CellSpec
from ckptplan.model.checked import check_name
from ckptplan.model.workload import Workload
from ckptplan.report.formats import make_view
from ckptplan.storage.toml_files import save_job, save_workload
from ckptplan.units import MAX_STEPS

#: The default number of rounds, and the least number, which quartiles need.
REPEATS, LEAST_REPEATS = 5, 3
_ABOUT_CELL = "A cell: lif, gru, lstm, rnn, or a factory of your own (docs/accuracy.md); in JAX, jax:lif."
CellName = Annotated[
    str, option("NAME|MODULE:FACTORY", _ABOUT_CELL, autocompletion=lambda: ["gru", "lif", "lstm", "rnn"])
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
    compile: Annotated[int | None, count("Compile pieces of so many steps.", most=MAX_STEPS)] = None
    device: Annotated[Device, typer.Option(help="Where to run.")] = "cpu"
    thread_count: options.Threads = None
    seed: Annotated[int, count("Random seed of weights and data.", most=2**63 - 1, least=0)] = 0
    tape: Annotated[str | None, option("KIND", "In JAX: residuals, products or states.")] = None
    max_seconds: Annotated[float, options.time_limit("Measure nothing if it would take longer.")] = 120

    def read(self) -> dict[str, Any]:
        """Return keyword arguments to measure or count the cell. Raises InputError that names the option."""
        given = {field.name: getattr(self, field.name) for field in fields(CellOptions)}
        sizes = {field: given.pop(field) for field in ("inputs", "neurons", "compile")}
        spec = CellSpec.named(given.pop("cell"), **sizes)
        pieces, remainder = divmod(self.steps, self.compile or 1)
        if remainder:
            problem = f"pieces of {self.compile:,} steps leave {remainder:,} of {self.steps:,} over"
            raise InputError(problem, field="--compile", value=self.compile, accepted="a divisor of --T, as 16")
        return {**given, "spec": spec, "steps": pieces}


def calibrate(
    *,
    cell: CellOptions,
    repeats: Annotated[
        int | None, count(f"Rounds (default: {REPEATS}).", least=LEAST_REPEATS, most=1000)
    ] = None,
    quick: Annotated[bool, typer.Option(help="A few seconds; times to 10 % at best.")] = False,
    remote_dir: Annotated[str | None, option("DIR", "Measure this folder as remote memory.")] = None,
    bytes_only: Annotated[bool, typer.Option(help="Count sizes only: no profile is written.")] = False,
    tolerance: Annotated[float, options.tolerance("Rounds that differ by half of it are noisy.")] = 0.1,
    strict: Annotated[bool, typer.Option(help="Write nothing, and exit 4, if the machine is noisy.")] = False,
    format_: FormatOption = "table",
    output: Annotated[str, option("FILE", "The workload.", parser=Written)] = "my-workload.toml",
    profile_out: Annotated[str | None, option("FILE", "The profile.", parser=Written)] = None,
) -> None:
    """Measure a cell on this machine: bytes are counted, times fitted over several sizes.

    Says first how long it takes. Writes a workload and a profile to plan with, and prints the next command. On
    a noisy machine, intervals are wide. Ctrl-C keeps what was measured: after three rounds the result of these
    rounds, before them the sizes.
    """
    rounds = {"--repeats": repeats, "--quick": quick}
    options.keep_apart(rounds)
    time_options = {"--remote-dir": remote_dir, "--profile-out": profile_out}
    options.keep_apart({**rounds, **time_options, "--bytes-only": bytes_only})
    if bytes_only:
        write_counted(cell, output=output, format_=format_)
        return
    profile_out = Written(profile_out or "my-machine.toml")
    check_files({"--output": output, "--profile-out": profile_out})
    name, profile_name = name_content(output), name_content(profile_out, "--profile-out")
    arguments = cell.read()
    from ckptplan.calibration.calibrate import calibrate as measure_cell

    counted: list[Workload] = []
    try:
        with progress_bar("measuring") as progress:
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
    except BaseException as error:
        # Ctrl-C or a signal ended the measurement before there were times. Keep the sizes.
        if counted and not isinstance(error, Exception):
            _write_sizes(counted[0], output)
        raise
    if strict and calibrated.noisy is not None:
        calibrated.noisy.add_note("nothing was written, as --strict asks")
        raise calibrated.ended_by or calibrated.noisy
    save_job(calibrated.workload, output, calibrated.profile, profile_out)
    note(f"workload written to {output}, profile to {profile_out}")
    if calibrated.left_out:
        note(f"ckptplan: warning: not a whole calibration: {'; '.join(calibrated.left_out)}")
    budget = calibrated.propose_budget()
    if warning := calibrated.explain_uncertainty(tolerance=tolerance, budget=budget):
        note(f"ckptplan: warning: {warning}")
    publish(make_view(calibrated), OutputOptions(format=format_))
    if calibrated.ended_by is not None:
        # End the program with the exit status of the interruption, though there is a result.
        raise calibrated.ended_by
    files = f"--workload {_quote_path(output)} --profile {_quote_path(profile_out)}"
    note(f"next: ckptplan optimize {files} --local-bytes {budget} -o plan.json")


def name_content(path: str, option: str = "--output") -> str:
    """Return the name of a workload or profile, taken from its file. Raises InputError for an unusable name."""
    stem = Path(path).name.removesuffix(".toml")
    if path == "-" or not stem:
        raise InputError("is not a file", field=option, value=path, accepted="a file, as my-workload.toml")
    try:
        check_name(stem)
    except InputError as error:
        problem = f"its content is named after it, and {error.message}"
        raise InputError(problem, field=option, value=path, accepted=error.accepted) from None
    return stem


def write_counted(
    cell: CellOptions, *, output: str, format_: FormatName, times: Mapping[str, float] | None = None
) -> None:
    """Count the sizes of a cell, write the workload and show it. Raises InputError."""
    from ckptplan.calibration.calibrate import count_sizes

    name, arguments = name_content(output), cell.read()
    with progress_bar("counting") as progress:
        workload = count_sizes(**arguments, name=name, times=times, announce=progress.say, progress=progress)
    save_workload(workload, output)
    note(f"workload written to {output}; {_describe_times(workload)}")
    publish(make_view(workload), OutputOptions(format=format_))


def _write_sizes(workload: Workload, output: str) -> None:
    if Path(output).exists():
        note(f"sizes were counted, but {output} exists: it was left as it was")
        return
    save_workload(workload, output)
    note(f"sizes written to {output}, as with --bytes-only; {_describe_times(workload)}")


def _describe_times(workload: Workload) -> str:
    return f"its times are assumed ({workload.basis['forward_seconds'].why})"


def _quote_path(path: str) -> str:
    """Quote a path for a shell. A leading './' keeps commands from taking it for a built-in name."""
    return shlex.quote(path if Path(path).parent != Path() or path.startswith("./") else f"./{path}")


#: Exit status if a prediction is outside its tolerance.
OUTSIDE = 4


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a plan runs, and how far measurements may be from predictions."""

    tolerance: Annotated[float, options.tolerance("Tolerance of times beyond their intervals.")] = 0.1
    overhead_tolerance: Annotated[float, options.tolerance("Tolerance of the time added to base.")] = 0.03
    memory_tolerance: Annotated[float, options.tolerance("How far the live peak may be off.")] = 0.05
    regret: Annotated[bool, typer.Option(help="Run the best plan of each other strategy, too.")] = False
    repeats: Annotated[int, count("Rounds; times are their lower quartiles.", most=1000)] = 5
    device: Annotated[Device | None, typer.Option(help="Where to run (default: as calibrated).")] = None
    thread_count: options.Threads = None
    remote_dir: Annotated[str | None, option("DIR", "Keep remote checkpoints in this folder.")] = None
    max_seconds: Annotated[float | None, options.time_limit("Run nothing if it would take longer.")] = None


def validate(
    *,
    plan: options.PlanFile,
    runs: RunOptions,
    strict: Annotated[bool, typer.Option(help="Exit 4 if anything is too noisy to judge, too.")] = False,
    cell: Annotated[str | None, option("NAME(...)", "Run this cell: 'gru(neurons=256)'.")] = None,
    trust_cell: Annotated[bool, typer.Option(help="Run the factory that the plan names.")] = False,
    trace: options.Trace = None,
    page: PageOptions,
    output: OutputOptions,
) -> None:
    """Run a plan and base on the same weights and data: predicted against measured, part by part.

    Exits 4 if anything is outside the tolerance, and names it; what is too noisy to judge is only named. Ctrl-C
    shows what was compared so far.

    Of a plan for other hardware, only counts, bytes and gradients are compared, of a smaller cell if the plan's
    cell does not fit or takes too long.
    """
    from ckptplan.calibration.validate import choose_cell
    from ckptplan.calibration.validate import validate as compare_with_runs

    loaded = ckptplan.load_plan(plan)
    spec = choose_cell(loaded.workload, cell=cell, trust=trust_cell)
    if spec.runtime == "jax" and trace is not None:
        raise InputError(
            "a compiled program of JAX has no times of its actions",
            field="--trace",
            value=trace,
            accepted="`ckptplan simulate` with --trace, for the simulated timeline alone",
        )
    with progress_bar("running") as progress:
        validation = compare_with_runs(
            loaded,
            spec=spec,
            **vars(runs),
            progress=progress,
            tell=lambda text: progress.say(f"ckptplan: {text}"),
        )
    publish(make_view(validation), output, page)
    if trace is not None:
        machine = validation.environment.machine
        with traced(loaded, trace) as chrome:
            ckptplan.simulate(loaded, sink=chrome.add)
            chrome.beside(
                process=f"{loaded.strategy} on {machine}, measured (checkpoints and tapes)", resident_bytes=0
            )
            for event in validation.timeline:
                chrome.add(event)
        if not validation.repeats:
            note("ckptplan: the measured times of the trace are from a run whose bytes were counted")
    if validation.off:
        note(f"ckptplan: outside the tolerance: {', '.join(validation.off)}")
    if validation.noisy:
        note(f"ckptplan: too noisy to judge: {', '.join(validation.noisy)}")
    if validation.interrupted:
        # End the program as after any Ctrl-C, though there is a result.
        raise KeyboardInterrupt
    if validation.off or (strict and validation.noisy):
        raise typer.Exit(OUTSIDE)
