"""What a terminal shows of a validation."""

from ckptplan.calibration.validation import Validation
from ckptplan.cli.command import as_option
from ckptplan.report.validation import view_validation
from ckptplan.wording import arguments_as
from tests.support import told


def shown_table(found: Validation, *, width: int = 80) -> str:
    """What a terminal shows, with single spaces."""
    with arguments_as(as_option):
        lines = told(view_validation(found).blocks(), width=width).splitlines()
    assert all(len(line.rstrip()) <= width or line.startswith(("plan", "ran", "on")) for line in lines)
    return " ".join(" ".join(lines).split())
