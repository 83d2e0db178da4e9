"""Plans gradient checkpointing for recurrent and spiking networks under a memory limit.

It takes a hardware profile and a workload, and returns the best strategy with its parameters as a plan
that a trainer executes. Start with ``optimize`` and ``compare``.
"""

from __future__ import annotations

from importlib import import_module

from ckptplan.model.display import register_display
from ckptplan.version import __version__

#: In place of typing's: importing typing would double the time until the program handles Ctrl-C.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from ckptplan.errors import CkptplanError, Infeasible, InputError, MissingExtra
    from ckptplan.execution.execute import execute
    from ckptplan.execution.measure import measure
    from ckptplan.execution.online import OnlineSchedule, online
    from ckptplan.model.plan import Plan
    from ckptplan.model.profile import HardwareProfile
    from ckptplan.model.workload import Workload
    from ckptplan.planning.optimize import compare, optimize
    from ckptplan.planning.playback import actions, save_schedule, simulate
    from ckptplan.schedule.schedule import Schedule
    from ckptplan.schedule.simulator import IllegalAction, Trace
    from ckptplan.storage.plans import load_plan, save_plan
    from ckptplan.storage.schedules import load_schedule
    from ckptplan.storage.toml_files import load_profile, load_workload, save_profile, save_workload
    from ckptplan.studies.largest import LargestValues, Reach, largest
    from ckptplan.studies.machines import MachineComparison, compare_machines
    from ckptplan.studies.pareto import ParetoFront, pareto
    from ckptplan.studies.sensitivity import sensitivity
    from ckptplan.studies.sweep import SweepResult, sweep

__all__ = [
    "CkptplanError",
    "HardwareProfile",
    "IllegalAction",
    "Infeasible",
    "InputError",
    "LargestValues",
    "MachineComparison",
    "MissingExtra",
    "OnlineSchedule",
    "ParetoFront",
    "Plan",
    "Reach",
    "Schedule",
    "SweepResult",
    "Trace",
    "Workload",
    "__version__",
    "actions",
    "compare",
    "compare_machines",
    "execute",
    "largest",
    "load_plan",
    "load_profile",
    "load_schedule",
    "load_workload",
    "measure",
    "online",
    "optimize",
    "pareto",
    "save_plan",
    "save_profile",
    "save_schedule",
    "save_workload",
    "sensitivity",
    "simulate",
    "sweep",
]

#: Module -> the public names that it defines.
_PUBLIC = {
    "ckptplan.errors": ("CkptplanError", "Infeasible", "InputError", "MissingExtra"),
    "ckptplan.execution.execute": ("execute",),
    "ckptplan.execution.measure": ("measure",),
    "ckptplan.execution.online": ("OnlineSchedule", "online"),
    "ckptplan.model.plan": ("Plan",),
    "ckptplan.model.profile": ("HardwareProfile",),
    "ckptplan.model.workload": ("Workload",),
    "ckptplan.planning.optimize": ("compare", "optimize"),
    "ckptplan.planning.playback": ("actions", "save_schedule", "simulate"),
    "ckptplan.schedule.schedule": ("Schedule",),
    "ckptplan.schedule.simulator": ("IllegalAction", "Trace"),
    "ckptplan.storage.plans": ("load_plan", "save_plan"),
    "ckptplan.storage.schedules": ("load_schedule",),
    "ckptplan.storage.toml_files": ("load_profile", "load_workload", "save_profile", "save_workload"),
    "ckptplan.studies.largest": ("LargestValues", "Reach", "largest"),
    "ckptplan.studies.machines": ("MachineComparison", "compare_machines"),
    "ckptplan.studies.pareto": ("ParetoFront", "pareto"),
    "ckptplan.studies.sensitivity": ("sensitivity",),
    "ckptplan.studies.sweep": ("SweepResult", "sweep"),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``ckptplan --help`` does not load numpy."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'ckptplan' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    if hasattr(value, "model_rebuild"):
        # pydantic builds models on first use, but help() needs their signature before that.
        value.model_rebuild()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


# The modules that show results are imported when a notebook or a caller asks for them.
register_display(
    show_as_html=lambda result: import_module("ckptplan.report.formats").show_as_html(result),
    plot=lambda result, target: import_module("ckptplan.report.plots").plot_result(result, target),
)
