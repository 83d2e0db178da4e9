"""What a terminal shows of a validation."""

import io

from rich.console import Console

from ckptplan import Plan
from ckptplan.calibration.validation import Validation
from ckptplan.cli.wording import as_option
from ckptplan.report.validation import view_validation


def shown_table(plan: Plan, found: Validation, *, width: int = 80) -> str:
    """What a terminal shows, with single spaces."""
    console = Console(file=io.StringIO(), width=width)
    view_validation(plan, found, wording=as_option).table(console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(len(line.rstrip()) <= width or line.startswith(("plan", "ran", "on")) for line in lines)
    return " ".join(" ".join(lines).split())
