"""``ckptplan pareto``: what more local memory buys."""

from typing import TYPE_CHECKING, Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.options import Effort, Model, Objective
from ckptplan.cli.output import note, write_plan, write_view
from ckptplan.cli.wording import as_option, named_by_option
from ckptplan.errors import Infeasible, InputError

if TYPE_CHECKING:
    from ckptplan.studies.pareto import ParetoFront


def command(
    steps: options.Steps = None,
    profile: options.Profile = "ipu-mk2",
    workload: options.WorkloadName = "paper-snn",
    batch: options.Batch = None,
    neurons: options.Neurons = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="SIZE", help="Pick the plan of the front within this local memory."),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw the fronts, as .png, .svg or .pdf.",
            callback=options.named_file,
        ),
    ] = None,
    local_bytes: options.LocalBytes = None,
    remote_bytes: options.RemoteBytes = None,
    strategies: options.Strategies = None,
    max_overhead: options.MaxOverhead = None,
    resolution: Annotated[
        str | None,
        typer.Option(
            "--resolution",
            metavar="SHARE",
            help="Leave out plans that differ by less, as '1%' (default: none, up to 2,000,000 steps).",
        ),
    ] = None,
    effort: options.EffortOption = Effort.quick,
    format_: options.FormatOption = "table",
    output: options.Output = None,
) -> None:
    """Show the front of local memory and time, of each strategy and of all together.

    By default of the strategies whose cost is a closed form (--strategies closed); others, as optimal, are
    solved budget by budget, which takes longer. With --at, the plan is printed, and written with -o.
    """
    from ckptplan.cli.progress import progress_bar
    from ckptplan.report.style import picture_format
    from ckptplan.studies.pareto import pareto
    from ckptplan.units import parse_bytes

    if plot:
        picture_format(plot, option="--plot")
    if at is not None and local_bytes is not None:
        raise InputError(
            "is given beside --at, which is a budget, too", field="--local-bytes", value=local_bytes
        )
    options.keep_inputs({"--output": output, "--plot": plot}, profile, workload)
    with named_by_option():
        task, hardware = options.job(
            steps=steps, batch=batch, neurons=neurons, workload=workload, profile=profile
        )
        wishes = options.wishes(
            strategies=strategies,
            objective=Objective.time,
            model=Model.exact,
            max_overhead=max_overhead,
            local_bytes=local_bytes,
            remote_bytes=remote_bytes,
            effort=effort,
        )
        if at is not None:
            # The budget that is drawn, and one of those that a solved strategy is solved for.
            wishes["local_bytes"] = options.parsed("--at", parse_bytes, at)
        del wishes["objective"], wishes["model"]
        with progress_bar("solving budget by budget") as progress:
            front = pareto(task, hardware, **wishes, resolution=resolution, progress=progress)
    if not len(front):
        # Nothing fits the limits of remote memory or overhead: the plan that cannot be says why.
        front.at(2**62)
    if at is None:
        format_ = options.format_by_name(format_, output)
    if at is not None:
        _pick(front, at, format_=format_, output=output)
    else:
        _show(front, format_=format_, output=output)
    if plot:
        _draw(front, plot)


def _pick(front: "ParetoFront", at: str, *, format_: str, output: str | None) -> None:
    from ckptplan.model.plan import Plan
    from ckptplan.report.plan import view_plan

    plan = front.at(at)

    def strategies() -> "dict[str, Plan | Infeasible]":
        found = {name: one.lacks(at) or one.at(at) for name, one in front.by_strategy.items()}
        plans = {name: result for name, result in found.items() if isinstance(result, Plan)}
        ranked = sorted(plans, key=lambda name: plans[name].predicted.seconds)
        return {name: found[name] for name in (*ranked, *(name for name in found if name not in plans))}

    view = view_plan(plan, strategies, wording=as_option)
    write_plan(plan, view, format_=format_, output=output)


def _show(front: "ParetoFront", *, format_: str, output: str | None) -> None:
    from ckptplan.report.front import view_front

    write_view(view_front(front, wording=as_option), format_=format_, output=output)
    if format_ != "table" and output not in (None, "-"):
        note(f"front written to {output}")


def _draw(front: "ParetoFront", path: str) -> None:
    from ckptplan.report.front_plot import draw_front
    from ckptplan.report.style import save_picture, styled

    with styled():
        save_picture(draw_front(front), path, option="--plot")
    note(f"picture written to {path}")
