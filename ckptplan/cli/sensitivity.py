"""``ckptplan sensitivity``: the effect of each input on the best plan, and its error bars."""

from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.html import Html, check_html, explained, write_page
from ckptplan.cli.options import BudgetOptions, JobOptions, OutputOptions
from ckptplan.cli.output import note, write_view
from ckptplan.cli.wording import named_by_option


@takes_groups
def command(
    *,
    job: JobOptions,
    budgets: BudgetOptions,
    model: options.Model = "exact",
    uncertainty: Annotated[
        str | None,
        typer.Option(
            "--uncertainty", metavar="SHARE", help="Add error bars: the uncertainty of every time, as '10%'."
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw a tornado, as .png, .svg or .pdf.",
            callback=options.named_file,
        ),
    ] = None,
    size: options.PictureSize = "page",
    html: Html = None,
    output: OutputOptions,
) -> None:
    """Show how the best plan's time changes with each input, and where another strategy is better.

    Each input is halved, doubled and so on by itself, and the job is planned again; the table compares this
    with the original plan. Strategies are those that answer at once ('closed'), unless --strategies names
    others.
    """
    from ckptplan.cli.progress import progress_bar
    from ckptplan.report.sensitivity import SensitivityView
    from ckptplan.report.style import picture_format
    from ckptplan.studies.sensitivity import sensitivity

    if plot:
        picture_format(plot, option="--plot")
    check_html(html)
    outputs = {"--output": output.file, "--plot": plot, "--html": html}
    options.keep_inputs(outputs, job.profile, job.workload)
    with explained(html, job.load), named_by_option(), progress_bar("varying the inputs") as progress:
        case = job.load()
        study = sensitivity(
            case.workload,
            case.profile,
            **budgets.read(),
            model=model,
            uncertainty=uncertainty,
            progress=progress,
        )
    view = SensitivityView(study)
    write_view(view, output, unnamed=job.workload is None)
    if plot:
        from ckptplan.report.style import SIZES, save_picture, styled
        from ckptplan.report.tornado_plot import draw_tornado

        with styled(SIZES[size]):
            save_picture(draw_tornado(study, SIZES[size]), plot, option="--plot")
        note(f"picture written to {plot}")
    if html:
        from ckptplan.report.html.pages import make_sensitivity_page

        write_page(html, lambda: make_sensitivity_page(view))
