"""Explains exhausted memory: the predicted and the available bytes, and a plan that should fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import Any, ClassVar

import torch

import ckptplan
from ckptplan.errors import CkptplanError, Infeasible
from ckptplan.model.plan import Plan, find_given_memory
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.memory import find_free_memory
from ckptplan.units import format_bytes, sizes_like
from ckptplan.wording import Argument

#: Share of free memory for a plan; the rest is for gradients, workspaces and fragmentation.
_SHARE = 0.7
#: Texts of other errors than OutOfMemoryError: of the C library, of CUDA, and of its libraries' workspaces.
_EXHAUSTED = (
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
#: The advice if there is no plan, and so no sizes.
_SMALLER = "a smaller batch, or a schedule that keeps less at a time, needs less"


class OutOfMemory(CkptplanError, MemoryError):  # noqa: N818 - what it is, not what it says
    """Memory ran out while a plan was executed. Everything that the run held has been released.

    ``predicted`` is None if a schedule was executed without a plan.
    """

    kind: ClassVar[str] = "memory"

    def __init__(self, *, predicted: int | None, available: int | None, suggestion: str, cause: str) -> None:
        self.predicted, self.available = predicted, available
        free = "an unknown amount is" if available is None else f"{format_bytes(available)} are"
        expected = (
            "nothing is predicted without a plan"
            if predicted is None
            else f"the plan predicts {format_bytes(predicted)} of local memory besides weights, "
            "inputs and gradients"
        )
        super().__init__(f"memory ran out: {expected}, {free} available; {suggestion} ({cause})")

    def details(self) -> dict[str, Any]:
        """Return the predicted and the available bytes."""
        return {"predicted": self.predicted, "available": self.available}


@contextmanager
def explain_exhaustion(plan: Plan | Schedule, device: torch.device) -> Iterator[None]:
    """Turn an allocator's error into OutOfMemory. The block must release what it holds."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_exhausted(error):
            raise
        cause = str(error).strip().partition("\n")[0]
        # The frames of the traceback hold states and graphs.
        clear_frames(error.__traceback__)
        available = available_bytes(device)
        with sizes_like(find_given_memory(plan) if isinstance(plan, Plan) else None):
            raise OutOfMemory(
                predicted=plan.predicted.local_peak_bytes if isinstance(plan, Plan) else None,
                available=available,
                suggestion=_suggest_plan(plan, available) if isinstance(plan, Plan) else _SMALLER,
                cause=cause,
            ) from None


def _is_exhausted(error: BaseException) -> bool:
    if isinstance(error, OutOfMemory):
        return False
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        text in str(error) for text in _EXHAUSTED
    )


def available_bytes(device: torch.device) -> int | None:
    """Return the bytes available for tensors on a device, None if the system does not report them."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        # torch.cuda.set_per_process_memory_fraction limits what the allocator may take.
        allowed = int(torch.cuda.get_per_process_memory_fraction(number_device(device)) * total)
        return int(max(0, min(free, allowed - reserved)) + reserved - torch.cuda.memory_allocated(device))
    return find_free_memory()


def number_device(device: torch.device) -> int:
    """Return the number of a CUDA device; ``torch.device("cuda")`` has the number of the current one."""
    number: int | None = device.index
    return torch.cuda.current_device() if number is None else number


def _suggest_plan(plan: Plan, available: int | None) -> str:
    """Return text that suggests a plan that should fit, by the model."""
    budget = plan.predicted.local_peak_bytes - 1
    budget = max(1, int(_SHARE * (budget if available is None else min(available, budget))))
    try:
        smaller = ckptplan.optimize(plan.workload, plan.profile, strategies=["closed"], local_bytes=budget)
    except Infeasible as error:
        return f"no plan fits {format_bytes(budget)}: {error}"
    settings = ", ".join(f"{name} {value}" for name, value in smaller.parameters.items())
    # For a plan that was made for a limit, suggest a smaller limit.
    within = f"memory={budget}" if plan.workload.limited else f"a plan for {Argument('local_bytes', budget)}"
    return (
        f"{within} should fit: {smaller.strategy}{f' ({settings})' if settings else ''}, "
        f"{format_bytes(smaller.predicted.local_peak_bytes)}, {smaller.predicted.overhead:+.0%} time over base"
    )
