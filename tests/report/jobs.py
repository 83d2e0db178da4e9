"""Jobs unlike each other, of which every picture must be legible."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import ckptplan
from ckptplan import HardwareProfile, Plan, Workload
from ckptplan.paper.setting import load_paper_setting
from ckptplan.studies.pareto import ParetoFront

JETSON = ckptplan.load_profile("nvidia-jetson-orin-nano")
#: The tape of all steps is larger than the memory of a Jetson.
LSTM = ckptplan.load_workload("lstm-stack").with_steps(4000)
SHD = ckptplan.load_workload("snn-shd")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A workload on a machine, and what else is asked for."""

    workload: Workload
    profile: HardwareProfile
    wishes: dict[str, Any] = field(default_factory=dict)


def _paper(steps: int, **wishes: Any) -> Job:
    workload = load_paper_setting().workload.with_steps(steps)
    return Job(workload=workload, profile=ckptplan.load_profile("ipu-mk2"), wishes=wishes)


@cache
def jobs() -> dict[str, Job]:
    """Return the jobs by name."""
    ours = _paper(4096)
    a100 = ckptplan.load_profile("nvidia-a100-80gb")
    long = ours.workload.model_copy(update={"steps": 10**6, "network": None, "resident_bytes_per_step": 0})
    names = {"name": "a-workload-whose-name-is-as-long-as-names-can-be".ljust(100, "x")}
    return {
        "ours": ours,
        "LSTM on a Jetson": Job(workload=LSTM, profile=JETSON),
        "SHD on an A100": Job(workload=SHD, profile=a100),
        "T = 64": _paper(64),
        "T = 10^6": Job(
            workload=long, profile=ours.profile, wishes={"resolution": 0.02, "strategies": "closed"}
        ),
        "one strategy fits": _paper(64, strategies="base,remote", max_overhead=0),
        "one point": _paper(64, strategies="base", local_bytes="1 GB"),
        "nothing resident": Job(
            workload=SHD.model_copy(
                update={"resident_bytes": 0, "resident_bytes_per_step": 0, "network": None}
            ),
            profile=a100,
            wishes={"local_bytes": "100 MB"},
        ),
        "a trifle beside what stays": Job(
            workload=SHD.model_copy(update={"resident_bytes": 65 * 10**9, "state_bytes": 64, "tape_bytes": 64}),
            profile=a100,
        ),
        "a long name": Job(workload=ours.workload.model_copy(update=names), profile=ours.profile),
        "every strategy": _paper(48, strategies="all", local_bytes="230 kB"),
    }


@cache
def front_of(name: str) -> ParetoFront:
    """Return the front of a job."""
    job = jobs()[name]
    return ckptplan.pareto(job.workload, job.profile, **job.wishes)


@cache
def plan_of(name: str, strategy: str | None = None) -> Plan:
    """Return the best plan of a job."""
    job = jobs()[name]
    wishes = {key: value for key, value in job.wishes.items() if key != "resolution"}
    if strategy is not None:
        wishes["strategies"] = strategy
    return ckptplan.optimize(job.workload, job.profile, **wishes)
