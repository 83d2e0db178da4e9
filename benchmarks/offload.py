"""Off-chip memory, measured: ``offload=`` a folder, host memory, or nothing, at the same ``memory=``.

Run alone, since disks and memory are shared: python -m benchmarks.offload. Wall time, one thread. Checkpoints
go to a new folder in the system's for temporary files, which TMPDIR names.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import ckptplan
from benchmarks.harness import DOCS, MIB, Setting, clean, find_difference, main, pivot
from benchmarks.pictures import draw_offload
from ckptplan import HardwareProfile, Infeasible, Plan, Schedule, Workload
from ckptplan.cost.case import Case
from ckptplan.execution.advice import find_limit
from ckptplan.planning.playback import actions, schedule_of
from ckptplan.report.plots.figures import save_figure
from ckptplan.schedule.actions import Backward, Record, Tier
from ckptplan.schedule.simulator import Trace, play
from ckptplan.schedule.timeline import Event, Sink
from ckptplan.storage.place import OffloadPlace
from ckptplan.storage.remote_folder import StateFiles
from ckptplan.torch import bptt, plan_for
from ckptplan.torch.device.meters import LiveBytes
from ckptplan.torch.run.executor import Executor
from ckptplan.torch.store import place
from ckptplan.torch.store.files import FileStore
from ckptplan.torch.store.place import find_links, make_store

PICTURE = "pictures/offload.png"
#: What must hold: the gain over local plans with few states, the errors, and the share that is hidden.
MOST_STATES, LEAST_GAIN, MOST_TIME_ERROR, MOST_BYTES_ERROR, LEAST_HIDDEN = 8, 1.5, 0.2, 0.05, 0.7
#: The share of a run that transfers take at least, if hiding them shows.
LEAST_MOVED = 0.1
WAYS = ("local", "host", "folder")
#: Whether files are written through to the device and read back cold, as where RAM is short.
FILES = {"in the cache": False, "on the device": True}
#: Runs of a row of which the median counts, if fewer do not take so many seconds together.
_ROUNDS, _ENOUGH = 5, 4.0
#: Rounds at most that measure what is hidden.
_MOST_ROUNDS = 40
#: Calls before them: of runs that take less than so many seconds, and of longer ones.
_FIRST, _LONG, _FIRST_LONG = 2, 10.0, 1
#: When something was at work, in seconds, by track.
Bars = dict[str, list[tuple[float, float]]]


class Cell(torch.nn.Module):
    """A cell of which a function is the step, with a weight for each neuron or point."""

    def __init__(self, step: Callable[..., Any], value: float, *shape: int) -> None:
        super().__init__()
        self.step, self.weight = step, torch.nn.Parameter(torch.full(shape, value))

    def forward(self, state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Take a step."""
        following, output = self.step(self.weight, state, x)
        return following, output


def spike(decay: torch.Tensor, potential: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Take a step of leaky neurons with a soft threshold, reset by subtraction."""
    potential = decay * potential + x
    spikes = torch.sigmoid(4 * (potential - 1))
    return potential - spikes, spikes.mean()


def oscillate(speed: torch.Tensor, state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """Take a step of the wave equation on a square grid with an unknown medium.

    The state is the field now and before.
    """
    before, now = state
    padded = torch.nn.functional.pad(now[None, None], (1, 1, 1, 1))[0, 0]
    around = padded[1:-1, :-2] + padded[1:-1, 2:] + padded[:-2, 1:-1] + padded[2:, 1:-1]
    after = 2 * now - before + speed * (around - 4 * now) + x
    return (now, after), after[::64, ::64].square().mean()


def change_rates(
    weight: torch.Tensor, rates: torch.Tensor, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take a step of rate neurons."""
    rates = torch.tanh(weight * rates + x)
    return rates, rates[::64].mean()


@dataclass(frozen=True, kw_only=True)
class Job:
    """A network, and its initial state."""

    name: str
    net: torch.nn.Module
    state: Any

    def arguments(self, steps: int) -> tuple[Any, ...]:
        """Return the arguments of ``bptt`` without its options."""
        inputs = torch.linspace(0.0, 0.2, steps).reshape(steps, 1, 1)
        return self.net, inputs, self.state, _take

    def train(self, steps: int, **options: Any) -> tuple[Plan, float, list[torch.Tensor]]:
        """Return the plan, the seconds and the gradients of a training step."""
        weights = list(self.net.parameters())
        began = time.perf_counter()
        result = bptt(*self.arguments(steps), **options)
        gradients = list(torch.autograd.grad(result.loss, weights))
        seconds = time.perf_counter() - began
        return result.plan, seconds, gradients  # type: ignore[return-value]

    def find_limit(self, states: int, *, steps: int) -> int:
        """Return the limit that has room for so many states besides the workspace, and what steps keep."""
        work = plan_for(*self.arguments(steps), memory="1 TB").workload
        # Steps that are recorded together need one tape at least.
        room = max(states * work.state_bytes, work.tape_bytes + work.state_bytes)
        return find_limit(work.workspace_bytes + room + steps * work.resident_bytes_per_step)


def _take(_: int, output: torch.Tensor) -> torch.Tensor:
    return output


def make_jobs(setting: Setting) -> list[Job]:
    """Return networks with states of 1, 8 and 32 MiB."""
    divide = setting.pick(16, 1, 1)
    width = setting.pick(128, 1024, 1024)
    still = torch.zeros(width, width)
    return [
        Job(
            name="spiking neurons",
            net=Cell(spike, 0.9, 16_384 // divide),
            state=torch.zeros(16, 16_384 // divide),
        ),
        Job(name="wave equation", net=Cell(oscillate, 0.1, width, width), state=(still, still.clone())),
        Job(
            name="rate neurons",
            net=Cell(change_rates, 0.9, 32_768 // divide),
            state=torch.zeros(256, 32_768 // divide),
        ),
    ]


def run(setting: Setting) -> dict[str, Any]:
    """Measure bytes, what is hidden, a timeline, and then all rows."""
    jobs = make_jobs(setting)
    lengths, sizes = setting.pick((12, 16), (100, 300), (100, 300)), setting.pick((4,), (4, 8, 16), (4, 8, 16))
    few = setting.pick(8, 24, 24)
    with tempfile.TemporaryDirectory(prefix="ckptplan-offload-") as name:
        folder = Path(name)
        checks = [_check(job, few, folder) for job in jobs]
        measured = [(one["network"], hidden) for one in checks for hidden in one["hidden"].values() if hidden]
        timelines = {network: hidden.pop("timeline") for network, hidden in measured}
        timeline = timelines.get("wave equation")
        found: dict[str, Any] = {"checks": checks, "timeline": timeline, "rows": []}
        for steps, job, states in product(lengths, jobs, sizes):
            found["rows"].append(_measure_row(job, steps, states, folder))
            clean(setting)
    if timeline and not setting.small:
        save_figure(draw_offload(timeline), str(DOCS / PICTURE))
    return found


def _measure_row(job: Job, steps: int, states: int, folder: Path) -> dict[str, Any]:
    limit = job.find_limit(states, steps=steps)
    row: dict[str, Any] = {"network": job.name, "steps": steps, "states": states, "limit_bytes": limit}
    first: list[torch.Tensor] = []
    for way, offload in zip(WAYS, (None, "host", folder), strict=True):
        plan = plan_for(*job.arguments(steps), memory=limit, offload=offload)
        # A first call tells its times, and another plan may be chosen after it. It also takes memory and files
        # that are new to the machine, which may be several times slower.
        for _ in range(_FIRST if plan.predicted.seconds < _LONG else _FIRST_LONG):
            job.train(steps, memory=limit, offload=offload)
        plan = plan_for(*job.arguments(steps), memory=limit, offload=offload)
        row["state_bytes"] = plan.workload.state_bytes
        row[way] = {
            "strategy": plan.strategy,
            "parameters": dict(plan.parameters),
            "overlaps": plan.profile.overlaps_compute,
            "remote_bytes": plan.predicted.remote_peak_bytes,
            "predicted_seconds": plan.predicted.seconds,
        }
        rounds: list[float] = []
        # Short runs, until they take some seconds together.
        while not rounds or (len(rounds) < _ROUNDS and sum(rounds) < _ENOUGH):
            _, seconds, gradients = job.train(steps, memory=limit, offload=offload)
            rounds.append(seconds)
        row[way]["seconds"] = statistics.median(rounds)
        first = first or gradients
        row[way]["gradient_difference"] = find_difference(gradients, first)
    return row


def _check(job: Job, steps: int, folder: Path) -> dict[str, Any]:
    """Return the peaks of a run with a folder, the error of its gradients, and the share that is hidden."""
    limit = job.find_limit(4, steps=steps)
    at_once = Schedule(steps=steps, actions=(Record(0, steps), Backward(0, steps)))
    _, _, theirs = job.train(steps, plan=at_once)
    remote_bytes = [0]

    def observe(_: object, executor: Executor) -> None:
        remote_bytes.append(executor.stores[Tier.REMOTE].bytes)

    # The first call of a kind is checked and measured, which takes some tapes of its own.
    with LiveBytes():
        job.train(steps, memory=limit, offload=folder)
    with LiveBytes() as live:
        plan, _, ours = job.train(steps, memory=limit, offload=folder)
    job.train(steps, plan=plan, remote_dir=folder, observer=observe)
    return {
        "network": job.name,
        "limit_bytes": limit,
        "peak_bytes": live.peak,
        "predicted_bytes": plan.predicted.local_peak_bytes,
        "remote_bytes": max(remote_bytes),
        "predicted_remote_bytes": plan.predicted.remote_peak_bytes,
        "gradient_difference": find_difference(ours, theirs),
        "hidden": {way: _measure_hidden(job, steps, folder, through=through) for way, through in FILES.items()},
    }


@contextmanager
def _watch_transfers() -> Iterator[Bars]:
    """Note when files are written and read, and when compute waits in the store."""
    places = {
        (StateFiles, "write"): "write",
        (StateFiles, "read"): "read",
        (FileStore, "_write"): "wait",
        (FileStore, "_read"): "wait",
    }
    bars: Bars = defaultdict(list)
    began = time.perf_counter()

    def watch(track: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **more: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*given, **more)
            finally:
                bars[track].append((start - began, time.perf_counter() - began))

        return run

    with ExitStack() as stack:
        for (owner, name), track in places.items():
            stack.enter_context(patch.object(owner, name, watch(track, getattr(owner, name))))
        yield bars


def _run_schedule(job: Job, plan: Plan, folder: Path, *, overlaps: bool, through: bool) -> tuple[float, Bars]:
    """Return the seconds of a plan's actions with transfers beside compute, or between."""
    schedule = dataclasses.replace(schedule_of(plan), overlaps=overlaps)
    with (
        _watch_transfers() as bars,
        patch.object(place, "make_store", partial(make_store, through=through)),
    ):
        _, seconds, _ = job.train(plan.steps, plan=schedule, remote_dir=folder)
    return seconds, bars


def _measure_hidden(job: Job, steps: int, folder: Path, *, through: bool) -> dict[str, Any] | None:
    """Return the share of the shorter of compute and transfer that is hidden, as planned and as measured.

    None if transfers are too short for threads. The timeline has the bars of a run beside those of its plan.
    """
    workload = plan_for(*job.arguments(steps), memory="1 TB").workload
    link, *_ = find_links(
        OffloadPlace(folder=folder),
        state_bytes=workload.state_bytes,
        steps=steps,
        device=torch.device("cpu"),
        # A call that takes all memory leaves no room for files in the system's cache.
        local_bytes=2**60 if through else 0,
    )
    if not link.overlaps:
        return None
    plan = _plan_beside(workload, link.make_profile(2**40, overlaps=True))
    once = partial(_run_schedule, job, plan, folder, through=through)
    # The first rounds write to memory that is new to the system's cache. Short runs vary more, and are repeated
    # more often.
    took, bars = min((once(overlaps=True) for _ in range(_FIRST)), key=itemgetter(0))
    count = min(max(_ROUNDS, int(_ENOUGH / took)), _MOST_ROUNDS)
    rounds = [(once(overlaps=False), once(overlaps=True)[0]) for _ in range(count)]
    serial = statistics.median(seconds for (seconds, _), _ in rounds)
    moved = statistics.median(
        sum(end - start for start, end in bars["write"] + bars["read"]) for (_, bars), _ in rounds
    )
    beside = statistics.median(seconds for _, seconds in rounds)
    simulated: Bars = defaultdict(list)

    def note(event: Event) -> None:
        if event.end > event.start:
            simulated["wait" if event.stall else event.track].append((event.start, event.end))

    apart, together = _simulate(plan, overlaps=False), _simulate(plan, overlaps=True, sink=note)
    work = Case(workload=plan.workload, profile=plan.profile).costs.compute_seconds(apart)
    return {
        "planned_hidden_share": _share(apart.seconds, together.seconds, apart.seconds - work),
        "hidden_share": _share(serial, beside, moved),
        "serial_seconds": serial,
        "beside_seconds": beside,
        "transfer_seconds": moved,
        "timeline": {
            "measured": {"seconds": took, **bars},
            "simulated": {"seconds": together.seconds, **simulated},
        },
    }


def _share(apart: float, together: float, moved: float) -> float | None:
    shorter = min(moved, apart - moved)
    return (apart - together) / shorter if shorter > 0 else None


def _plan_beside(workload: Workload, profile: HardwareProfile) -> Plan:
    """Return a plan whose transfers overlap compute, in so little memory that it moves as much as any does."""
    try:
        return ckptplan.optimize(workload, profile, strategies=["remote"], local_bytes=1)
    except Infeasible as error:
        least = int(error.need) + workload.state_bytes
        return ckptplan.optimize(workload, profile, strategies=["remote"], local_bytes=least)


def _simulate(plan: Plan, *, overlaps: bool, sink: Sink | None = None) -> Trace:
    profile = plan.profile.replace_numbers(overlaps_compute=overlaps)
    return play(actions(plan), costs=Case(workload=plan.workload, profile=profile).costs, sink=sink)


def judge(results: dict[str, Any]) -> list[str]:
    """Return, for each thing that must hold, how often it does, and the worst case."""
    rows, checks = results["rows"], results["checks"]
    gains = [row["local"]["seconds"] / row["folder"]["seconds"] for row in rows if row["states"] <= MOST_STATES]
    times = {way: [row[way]["predicted_seconds"] / row[way]["seconds"] for row in rows] for way in WAYS}
    sizes = {
        tier: [check[f"predicted_{size}"] / check[measured] for check in checks]
        for tier, size, measured in (
            ("local", "bytes", "peak_bytes"),
            ("remote", "remote_bytes", "remote_bytes"),
        )
    }
    hidden = [
        one["hidden_share"]
        for check in checks
        for one in check["hidden"].values()
        if one
        and one["transfer_seconds"] >= LEAST_MOVED * one["serial_seconds"]
        and one["planned_hidden_share"] >= LEAST_HIDDEN
    ]
    within = _count(check["peak_bytes"] <= check["limit_bytes"] for check in checks)
    return [
        f"folder at least {LEAST_GAIN} times as quick as local plans, up to {MOST_STATES} states: "
        f"{_count(gain >= LEAST_GAIN for gain in gains)} rows, least {min(gains):.2f}",
        f"times predicted within {MOST_TIME_ERROR:.0%}: {_count_errors(times, MOST_TIME_ERROR)}",
        f"bytes predicted within {MOST_BYTES_ERROR:.0%}: {_count_errors(sizes, MOST_BYTES_ERROR)}",
        f"live tensors within the limit: {within} networks",
        f"at least {LEAST_HIDDEN:.0%} of the shorter of compute and transfer hidden as planned: "
        f"{_count(share >= LEAST_HIDDEN for share in hidden)} runs that move enough to tell",
    ]


def _count(held: Iterable[bool]) -> str:
    all_ = list(held)
    return f"{sum(all_)} of {len(all_)}"


def _count_errors(ratios: dict[str, list[float]], most: float) -> str:
    """Return, for each kind of plan, how many errors are within the bound, and the worst."""
    errors = {kind: [abs(ratio - 1) for ratio in of_kind] for kind, of_kind in ratios.items()}
    return ", ".join(
        f"{kind} {_count(error <= most for error in of_kind)} (worst {max(of_kind):.0%})"
        for kind, of_kind in errors.items()
    )


def document(results: dict[str, Any]) -> str:
    """Return the times of the longest sequences, and what must hold in all rows."""
    longest = max(row["steps"] for row in results["rows"])
    cells = (
        (
            f"{row['network']}, {row['state_bytes'] / MIB:.0f} MiB",
            f"{row['states']} states in RAM",
            ", ".join(f"{row[way]['seconds']:.1f}" for way in WAYS) + " s",
        )
        for row in results["rows"]
        if row["steps"] == longest
    )
    parts = [
        pivot(f"network, state, T = {longest}: {', '.join(WAYS)}", cells),
        "Which claims held, over all rows:\n\n" + "\n".join(f"- {line}" for line in judge(results)),
        f"![A measured run beside the simulated one]({PICTURE})",
    ]
    return "\n\n".join(parts) + "\n"


PAGES = {DOCS / "offload.md": document}

if __name__ == "__main__":
    main("offload", run, PAGES, about=__doc__)
