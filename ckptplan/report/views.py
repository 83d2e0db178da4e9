"""Finds the function that describes a result for the console, JSON, CSV, pages and notebooks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptplan.report.formats import View

#: The module and the function that describe a type of results.
_VIEWS = {
    "Calibrated": "calibration.view_calibration",
    "Compared": "plan.view_comparison",
    "HardwareProfile": "inputs.view_profile",
    "LargestValues": "largest.view_largest",
    "MachineComparison": "machines.view_machines",
    "OnlineFactors": "online.view_online",
    "ParetoFront": "front.view_front",
    "Plan": "plan.view_plan",
    "Sensitivity": "sensitivity.view_sensitivity",
    "Summary": "sweep.view_sweep",
    "Validation": "validation.view_validation",
    "Workload": "inputs.view_workload",
}


def has_view(result: Any) -> bool:
    """Return whether a result can be shown in every format."""
    return type(result).__name__ in _VIEWS


def make_view(result: Any, **details: Any) -> View:
    """Return the view of a result. ``details`` are keyword arguments of the function that describes it."""
    module, _, name = _VIEWS[type(result).__name__].partition(".")
    view: View = getattr(import_module(f"{__package__}.{module}"), name)(result, **details)
    return view


def find_memory(result: Any) -> float | None:
    """Return the local memory of the job of a result in bytes, None if the result has no view."""
    return make_view(result).memory if has_view(result) else None
