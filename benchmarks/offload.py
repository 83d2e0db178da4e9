"""Off-chip memory, measured: ``offload=`` a folder, host memory, or nothing, at the same ``memory=``.

Run alone, since disks and memory are shared: python -m benchmarks.offload. Wall time, one thread. Checkpoints
go to a new folder in the system's for temporary files, which TMPDIR names.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import ckptplan
from benchmarks.harness import DOCS, MIB, Setting, clean, find_difference, main, tabulate
from benchmarks.pictures import draw_offload
from ckptplan import Infeasible, Plan, Schedule
from ckptplan.cost.case import Case
from ckptplan.execution.advice import find_limit
from ckptplan.planning.playback import actions, schedule_of
from ckptplan.report.plots.figures import save_figure
from ckptplan.schedule.actions import Backward, Record, Tier
from ckptplan.schedule.simulator import Trace, play
from ckptplan.schedule.timeline import Event, Sink
from ckptplan.storage.place import Link, OffloadPlace
from ckptplan.storage.remote_folder import StateFiles
from ckptplan.torch import bptt, plan_for
from ckptplan.torch.device.meters import LiveBytes
from ckptplan.torch.run.executor import Executor
from ckptplan.torch.store import place
from ckptplan.torch.store.files import FileStore
from ckptplan.torch.store.place import find_links, make_store

PAGE, PICTURE = DOCS / "offload.md", "pictures/offload.png"
#: What must hold: the gain over local plans with few states, the errors, and the share that is hidden.
MOST_STATES, LEAST_GAIN, MOST_TIME_ERROR, MOST_BYTES_ERROR, LEAST_HIDDEN = 8, 1.5, 0.2, 0.05, 0.7
#: Transfers that take a smaller share of a run say nothing about what is hidden.
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


class Spiking(torch.nn.Module):
    """Leaky neurons with a soft threshold, reset by subtraction."""

    def __init__(self, neurons: int) -> None:
        super().__init__()
        self.decay = torch.nn.Parameter(torch.full((neurons,), 0.9))

    def forward(self, potential: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a step."""
        potential = self.decay * potential + x
        spikes = torch.sigmoid(4 * (potential - 1))
        return potential - spikes, spikes.mean()


class Wave(torch.nn.Module):
    """The wave equation on a square grid with an unknown medium; the state is the field now and before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.speed = torch.nn.Parameter(torch.full((width, width), 0.1))

    def forward(self, state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Take a step."""
        before, now = state
        padded = torch.nn.functional.pad(now[None, None], (1, 1, 1, 1))[0, 0]
        around = padded[1:-1, :-2] + padded[1:-1, 2:] + padded[:-2, 1:-1] + padded[2:, 1:-1]
        after = 2 * now - before + self.speed * (around - 4 * now) + x
        return (now, after), after[::64, ::64].square().mean()


class Rate(torch.nn.Module):
    """Rate neurons with a weight each."""

    def __init__(self, neurons: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((neurons,), 0.9))

    def forward(self, rates: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a step."""
        rates = torch.tanh(self.weight * rates + x)
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
    return [
        Job(
            name="spiking neurons",
            net=Spiking(16_384 // divide),
            state=torch.zeros(16, 16_384 // divide),
        ),
        Job(
            name="wave equation", net=Wave(width), state=(torch.zeros(width, width), torch.zeros(width, width))
        ),
        Job(name="rate neurons", net=Rate(32_768 // divide), state=torch.zeros(256, 32_768 // divide)),
    ]


def run(setting: Setting) -> dict[str, Any]:
    """Measure bytes, what is hidden, a timeline, and then all rows."""
    jobs = make_jobs(setting)
    lengths, sizes = setting.pick((12, 16), (100, 300), (100, 300)), setting.pick((4,), (4, 8, 16), (4, 8, 16))
    few = setting.pick(8, 24, 24)
    with tempfile.TemporaryDirectory(prefix="ckptplan-offload-") as name:
        folder = Path(name)
        found: dict[str, Any] = {
            "checks": [_check(job, few, folder) for job in jobs],
            "timeline": _trace(jobs[1], few, folder),
            "rows": [],
        }
        for steps, job, states in product(lengths, jobs, sizes):
            found["rows"].append(_measure_row(job, steps, states, folder))
            clean(setting)
    if not setting.small:
        save_figure(draw_offload(found["timeline"]), str(DOCS / PICTURE))
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


@dataclass
class Bars:
    """When something was at work, in seconds, by track."""

    began: float = field(default_factory=time.perf_counter)
    of: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def watch(self, track: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same, and notes when."""

        def run(*given: Any, **more: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*given, **more)
            finally:
                self.of.setdefault(track, []).append((start - self.began, time.perf_counter() - self.began))

        return run

    def sum(self, *tracks: str) -> float:
        """Return the seconds of some tracks together."""
        return sum(end - start for track in tracks for start, end in self.of.get(track, ()))


@contextmanager
def _watch_transfers() -> Iterator[Bars]:
    """Note when files are written and read, and when compute waits in the store."""
    places = {
        (StateFiles, "write"): "write",
        (StateFiles, "read"): "read",
        (FileStore, "_write"): "wait",
        (FileStore, "_read"): "wait",
    }
    bars = Bars()
    with ExitStack() as stack:
        for (owner, name), track in places.items():
            stack.enter_context(patch.object(owner, name, bars.watch(track, getattr(owner, name))))
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

    None if transfers are too short for threads.
    """
    link = _find_link(job, steps, folder, through=through)
    if not link.overlaps:
        return None
    plan = _plan_beside(job, steps, link)
    once = partial(_run_schedule, job, plan, folder, through=through)
    # The first rounds write to memory that is new to the system's cache. Short runs vary more, and are repeated
    # more often.
    took = min(once(overlaps=True)[0] for _ in range(_FIRST))
    count = min(max(_ROUNDS, int(_ENOUGH / took)), _MOST_ROUNDS)
    rounds = [(once(overlaps=False), once(overlaps=True)[0]) for _ in range(count)]
    serial = statistics.median(seconds for (seconds, _), _ in rounds)
    moved = statistics.median(bars.sum("write", "read") for (_, bars), _ in rounds)
    beside = statistics.median(seconds for _, seconds in rounds)
    apart = _simulate(plan, overlaps=False)
    together = _simulate(plan, overlaps=True)
    work = Case(workload=plan.workload, profile=plan.profile).costs.compute_seconds(apart)
    return {
        "planned_hidden_share": _share(apart.seconds, together.seconds, apart.seconds - work),
        "hidden_share": _share(serial, beside, moved),
        "serial_seconds": serial,
        "beside_seconds": beside,
        "transfer_seconds": moved,
    }


def _share(apart: float, together: float, moved: float) -> float | None:
    shorter = min(moved, apart - moved)
    return (apart - together) / shorter if shorter > 0 else None


def _find_link(job: Job, steps: int, folder: Path, *, through: bool) -> Link:
    """Return how a folder is used, through the system's cache or not."""
    link, *_ = find_links(
        OffloadPlace(folder=folder),
        state_bytes=plan_for(*job.arguments(steps), memory="1 TB").workload.state_bytes,
        steps=steps,
        device=torch.device("cpu"),
        # A call that takes all memory leaves no room for files in the system's cache.
        local_bytes=2**60 if through else 0,
    )
    return link


def _plan_beside(job: Job, steps: int, link: Link) -> Plan:
    """Return a plan whose transfers overlap compute, in so little memory that it moves as much as any does."""
    workload = plan_for(*job.arguments(steps), memory="1 TB").workload
    profile = link.make_profile(2**40, overlaps=True)
    try:
        return ckptplan.optimize(workload, profile, strategies=["remote"], local_bytes=1)
    except Infeasible as error:
        least = int(error.need) + workload.state_bytes
        return ckptplan.optimize(workload, profile, strategies=["remote"], local_bytes=least)


def _simulate(plan: Plan, *, overlaps: bool, sink: Sink | None = None) -> Trace:
    profile = plan.profile.replace_numbers(overlaps_compute=overlaps)
    return play(actions(plan), costs=Case(workload=plan.workload, profile=profile).costs, sink=sink)


def _trace(job: Job, steps: int, folder: Path) -> dict[str, Any]:
    """Return the bars of a run beside those of its plan, as simulated."""
    plan = _plan_beside(job, steps, _find_link(job, steps, folder, through=True))
    seconds, bars = _run_schedule(job, plan, folder, overlaps=True, through=True)
    simulated: dict[str, list[tuple[float, float]]] = {}

    def note(event: Event) -> None:
        if event.end > event.start:
            track = "wait" if event.stall else event.track
            simulated.setdefault(track, []).append((event.start, event.end))

    planned = _simulate(plan, overlaps=True, sink=note).seconds
    return {
        "network": job.name,
        "strategy": plan.strategy,
        "parameters": dict(plan.parameters),
        "measured": {"seconds": seconds, **bars.of},
        "simulated": {"seconds": planned, **simulated},
    }


def judge(results: dict[str, Any]) -> list[str]:
    """Return, for each thing that must hold, how often it does, and the worst case."""
    rows, checks = results["rows"], results["checks"]
    gains = [_gain(row) for row in rows if row["states"] <= MOST_STATES]
    kept = [
        f"folder at least {LEAST_GAIN} times as quick as local plans, up to {MOST_STATES} states: "
        f"{_count(gain >= LEAST_GAIN for gain in gains)} rows, least {min(gains):.2f}"
    ]
    times = {way: [_find_error(row[way], "seconds") for row in rows] for way in WAYS}
    kept.append(f"times predicted within {MOST_TIME_ERROR:.0%}: {_count_errors(times, MOST_TIME_ERROR)}")
    sizes = {
        tier: [_find_error(check, name) for check in checks]
        for tier, name in (("local", "bytes"), ("remote", "remote_bytes"))
    }
    kept.append(f"bytes predicted within {MOST_BYTES_ERROR:.0%}: {_count_errors(sizes, MOST_BYTES_ERROR)}")
    within = _count(check["peak_bytes"] <= check["limit_bytes"] for check in checks)
    kept.append(f"live tensors within the limit: {within} networks")
    measured = [one for check in checks for one in check["hidden"].values()]
    hidden = [one for one in measured if one and _is_told(one)]
    enough = _count(one["hidden_share"] >= LEAST_HIDDEN for one in hidden)
    kept.append(
        f"at least {LEAST_HIDDEN:.0%} of the shorter of compute and transfer hidden as planned: {enough} runs "
        f"that move enough to tell"
    )
    return kept


def _count(held: Iterable[bool]) -> str:
    all_ = list(held)
    return f"{sum(all_)} of {len(all_)}"


def _count_errors(errors: dict[str, list[float]], most: float) -> str:
    """Return, for each kind of plan, how many errors are within the bound, and the worst."""
    return ", ".join(
        f"{kind} {_count(error <= most for error in of_kind)} (worst {max(of_kind):.0%})"
        for kind, of_kind in errors.items()
    )


def _find_error(found: dict[str, Any], name: str) -> float:
    """Return the error of a prediction as a share of what was measured: a peak, or what its name says."""
    measured, predicted = found["peak_bytes" if name == "bytes" else name], found[f"predicted_{name}"]
    return float(abs(predicted / measured - 1)) if predicted else 0.0


def _moves_enough(found: dict[str, Any]) -> bool:
    """Return whether transfers take so much of a run that hiding them shows."""
    return bool(found["transfer_seconds"] >= LEAST_MOVED * found["serial_seconds"])


def _is_told(found: dict[str, Any]) -> bool:
    """Return whether a plan says that most of the shorter is hidden, and a run can tell."""
    return _moves_enough(found) and bool(found["planned_hidden_share"] >= LEAST_HIDDEN)


def _describe_hidden(check: dict[str, Any], *, way: str) -> str:
    found = check["hidden"][way]
    if found is None:
        return "too short for threads"
    share = f"{found['hidden_share']:.0%}" if _moves_enough(found) else "moves too little"
    return f"{share}, {found['planned_hidden_share']:.0%}"


def _gain(row: dict[str, Any]) -> float:
    return float(row["local"]["seconds"] / row["folder"]["seconds"])


def document(results: dict[str, Any]) -> str:
    """Return the times of the longest sequences, and what must hold in all rows."""
    longest = max(row["steps"] for row in results["rows"])
    pivot: dict[str, dict[Any, Any]] = {}
    for row in results["rows"]:
        if row["steps"] == longest:
            name = f"{row['network']}, {row['state_bytes'] / MIB:.0f} MiB"
            times = ", ".join(f"{row[way]['seconds']:.1f}" for way in WAYS)
            pivot.setdefault(name, {"network": name})[row["states"]] = f"{times} s"
    counts = dict.fromkeys(row["states"] for row in results["rows"])
    rows = tabulate(
        pivot.values(),
        (f"network, state, T = {longest}: {', '.join(WAYS)}", "network"),
        *((f"{states} states in RAM", states) for states in counts),
    )
    parts = [rows, "Which claims held, over all rows:\n\n" + "\n".join(f"- {line}" for line in judge(results))]
    parts.append(f"![A measured run beside the simulated one]({PICTURE})")
    return "\n\n".join(parts) + "\n"


def document_all(results: dict[str, Any]) -> str:
    """Return all rows with their predictions, and the checks."""
    rows = tabulate(
        results["rows"],
        ("network", "network"),
        ("state", "state_bytes", "{:.0f} MiB", 1 / MIB),
        ("T", "steps"),
        ("states in RAM", "states"),
        *((f"{way}, predicted", way, "{0[seconds]:.2f} s, {0[predicted_seconds]:.2f}") for way in WAYS),
        ("local / folder", _gain, "{:.2f}"),
    )
    checks = tabulate(
        results["checks"],
        ("network", "network"),
        ("live peak", lambda one: f"{one['peak_bytes'] / MIB:.1f} of {one['limit_bytes'] / MIB:.1f} MiB"),
        ("planned", "predicted_bytes", "{:.1f} MiB", 1 / MIB),
        ("in the folder", "remote_bytes", "{:.0f} MiB", 1 / MIB),
        ("planned", "predicted_remote_bytes", "{:.0f} MiB", 1 / MIB),
        *((f"hidden {way}, planned", partial(_describe_hidden, way=way)) for way in FILES),
        ("gradients off by", "gradient_difference", "{:.0e}"),
    )
    return f"{rows}\n\n{checks}\n"


if __name__ == "__main__":
    main("offload", run, document, about=__doc__, page=PAGE, shown=document_all)
