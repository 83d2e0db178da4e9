"""Defines the result of a calibration, and when it is too noisy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ckptplan.calibration.action_times import ActionTimes
from ckptplan.calibration.transfer_times import TransferTimes
from ckptplan.errors import CkptplanError
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.units import format_share
from ckptplan.wording import Argument, Phrase


class Noisy(CkptplanError):  # noqa: N818 - what the machine is
    """The machine was too noisy for times within the requested tolerance."""

    exit_code: ClassVar[int] = 4
    kind: ClassVar[str] = "noisy"

    def __init__(self, *, field: str, spread: float, most: float) -> None:
        self.field, self.spread, self.most = field, spread, most
        self.text = (
            f"the machine is noisy: rounds of {field} differ by {format_share(spread)} about their median, "
            f"and a tolerance of {format_share(2 * most)} needs {format_share(most)} at most"
        )
        super().__init__(
            Phrase(
                f"{self.text}; close other programs, lower ",
                Argument("thread_count"),
                ", or raise ",
                Argument("repeats"),
                " or ",
                Argument("tolerance"),
            )
        )

    def details(self) -> dict[str, Any]:
        """Return the quantity, its spread and the largest acceptable spread."""
        return {"field": self.field, "spread": self.spread, "most": self.most}


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The result of a calibration; ``noisy`` is an error if the machine was too noisy."""

    workload: Workload
    profile: HardwareProfile
    #: The range of the workspaces of several runs, as a share of the peak.
    workspace_residual: float
    steps: ActionTimes
    transfers: TransferTimes
    noisy: Noisy | None
    #: What was left out of a whole calibration, and why; the basis of each time says it, too.
    left_out: tuple[str, ...] = ()
    #: What ended the measurement before its last round, such as KeyboardInterrupt.
    ended_by: BaseException | None = None


def judge_noise(times: ActionTimes, *, tolerance: float) -> Noisy | None:
    """Return what is noisy: a time whose rounds spread by more than half of the tolerance, else None."""
    field, spread = times.widest
    return Noisy(field=field, spread=spread, most=tolerance / 2) if spread > tolerance / 2 else None
