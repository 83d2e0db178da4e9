"""Plans gradient checkpointing for recurrent and spiking networks under a memory limit.

Hardware profile and workload in; the best strategy and its parameters out, as a plan that a trainer
executes. See ``optimize`` and ``compare``.
"""

from ckptplan.errors import CkptplanError, Infeasible, InputError
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planner import compare, optimize
from ckptplan.storage.plans import load_plan, save_plan
from ckptplan.storage.profiles import load_profile
from ckptplan.storage.workloads import load_workload
from ckptplan.version import __version__

__all__ = [
    "CkptplanError",
    "HardwareProfile",
    "Infeasible",
    "InputError",
    "Plan",
    "Workload",
    "__version__",
    "compare",
    "load_plan",
    "load_profile",
    "load_workload",
    "optimize",
    "save_plan",
]
