"""The result of ``bptt``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of ``bptt``: the loss, which can be differentiated, and the final state, which cannot."""

    loss: torch.Tensor
    state: Any
    #: The plan that was executed: the given plan or schedule, or the plan that was made for ``memory``.
    plan: Plan | Schedule
    #: The steps of the compiled pieces that ran, None if steps ran as they are written.
    piece: int | None = None
