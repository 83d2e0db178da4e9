"""Off-chip memory, measured: ``offload=`` a folder, host memory, or nothing, at the same ``memory=``.

Run alone, since disks and memory are shared: python -m benchmarks.offload. Wall time, one thread. ``--seconds``
limits the whole run: rows that would take longer by their prediction are left out, and named. ``--folder`` is
where checkpoints go, a new folder in the system's for temporary files by itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import ckptplan
from benchmarks.harness import DOCS, MIB, Setting, clean, find_difference, put_section, read, table, write
from ckptplan import Plan, Schedule
from ckptplan.cost.case import Case
from ckptplan.execution.advice import find_limit
from ckptplan.planning.playback import actions, schedule_of
from ckptplan.schedule.actions import Backward, Record
from ckptplan.schedule.simulator import play
from ckptplan.schedule.timeline import COMPUTE, Event, Sink
from ckptplan.torch import bptt, plan_for
from ckptplan.torch.meters import LiveBytes
from ckptplan.torch.offload import OffloadPlace, find_links
from ckptplan.torch.staged_store import Files, StagedStore
from ckptplan.torch.stores import Store

PAGE, PICTURE = DOCS / "offload.md", "pictures/offload.png"
#: What must hold: the gain over local plans with few states, the errors, and the share that is hidden.
MOST_STATES, LEAST_GAIN, MOST_TIME_ERROR, MOST_BYTES_ERROR, LEAST_HIDDEN = 8, 1.5, 0.2, 0.05, 0.7
WAYS = ("local", "host", "folder")


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

    def find_limit(self, states: int) -> int:
        """Return the limit that has room for so many states besides the workspace."""
        work = plan_for(*self.arguments(100), memory="1 TB").workload
        # Steps that are recorded together need one tape at least.
        room = max(states * work.state_bytes, work.tape_bytes + work.state_bytes)
        return find_limit(work.workspace_bytes + room)


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


def run(setting: Setting, folder: Path) -> dict[str, Any]:
    """Measure bytes, what is hidden, a timeline, and then all rows, as far as there is time."""
    jobs = make_jobs(setting)
    lengths, sizes = setting.pick((12, 16), (100, 300), (100, 300)), setting.pick((4,), (4, 8, 16), (4, 8, 16))
    few, checks = setting.pick(8, 24, 24), []
    for job in jobs:
        limit = job.find_limit(min(sizes))
        checks.append({"network": job.name, **_measure_bytes(job, few, limit, folder)})
        checks[-1].update(_measure_hidden(job, few, limit, folder))
    found: dict[str, Any] = {"checks": checks, "timeline": _trace(jobs[1], few, folder), "rows": []}
    rows = [(steps, job, states) for steps in lengths for job in jobs for states in sizes]
    for steps, job, states in rows:
        found["rows"].append(_measure_row(job, steps, states, folder, setting))
        setting.save(found)
        clean(setting)
    return found


def _measure_row(job: Job, steps: int, states: int, folder: Path, setting: Setting) -> dict[str, Any]:
    limit = job.find_limit(states)
    row: dict[str, Any] = {"network": job.name, "steps": steps, "states": states, "limit_bytes": limit}
    first: list[torch.Tensor] = []
    for way, offload in zip(WAYS, (None, "host", folder), strict=True):
        # Measures the network, and times the place, if it is the first row of its kind.
        plan = plan_for(*job.arguments(steps), memory=limit, offload=offload)
        row["state_bytes"] = plan.workload.state_bytes
        row[way] = {
            "strategy": plan.strategy,
            "parameters": dict(plan.parameters),
            "overlaps": plan.profile.overlaps_compute,
            "remote_bytes": plan.predicted.remote_peak_bytes,
            "predicted_seconds": plan.predicted.seconds,
        }
        if plan.predicted.seconds > setting.seconds_left:
            row[way]["seconds"] = None
            continue
        _, row[way]["seconds"], gradients = job.train(steps, memory=limit, offload=offload)
        first = first or gradients
        row[way]["gradient_difference"] = find_difference(gradients, first)
    return row


def _measure_bytes(job: Job, steps: int, limit: int, folder: Path) -> dict[str, Any]:
    """Return the peaks of a run with a folder, beside what was planned, and how far its gradients are off."""
    plain = bptt(
        *job.arguments(steps), plan=Schedule(steps=steps, actions=(Record(0, steps), Backward(0, steps)))
    )
    theirs = list(torch.autograd.grad(plain.loss, list(job.net.parameters())))
    # The first call of a kind is checked and measured, which takes some tapes of its own.
    with LiveBytes():
        job.train(steps, memory=limit, offload=folder)
    with LiveBytes() as live, _watch_remote() as remote:
        plan, _, ours = job.train(steps, memory=limit, offload=folder)
    return {
        "limit_bytes": limit,
        "peak_bytes": live.peak,
        "predicted_bytes": plan.predicted.local_peak_bytes,
        "remote_bytes": max(remote, default=0),
        "predicted_remote_bytes": plan.predicted.remote_peak_bytes,
        "gradient_difference": find_difference(ours, theirs),
    }


@contextmanager
def _watch_remote() -> Iterator[list[int]]:
    """Note the bytes that remote stores hold after each write."""
    seen: list[int] = []
    put = Store.put

    def note(store: Store, *given: Any, **more: Any) -> None:
        put(store, *given, **more)
        if isinstance(store, StagedStore):
            seen.append(store.bytes)

    Store.put = note  # type: ignore[assignment, method-assign]
    try:
        yield seen
    finally:
        Store.put = put  # type: ignore[method-assign]


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
        (Files, "write"): "write",
        (Files, "read"): "read",
        (StagedStore, "_put"): "wait",
        (StagedStore, "_get"): "wait",
    }
    kept = {(owner, name): getattr(owner, name) for owner, name in places}
    bars = Bars()
    for (owner, name), track in places.items():
        setattr(owner, name, bars.watch(track, kept[owner, name]))
    try:
        yield bars
    finally:
        for (owner, name), function in kept.items():
            setattr(owner, name, function)


def _run_schedule(job: Job, plan: Plan, folder: Path, *, overlaps: bool) -> tuple[float, Bars]:
    """Return the seconds of a plan's actions with transfers beside compute, or between."""
    schedule = dataclasses.replace(schedule_of(plan), overlaps=overlaps)
    with _watch_transfers() as bars:
        _, seconds, _ = job.train(plan.steps, plan=schedule, remote_dir=folder)
    return seconds, bars


def _measure_hidden(job: Job, steps: int, limit: int, folder: Path) -> dict[str, Any]:
    """Return the share of the shorter of compute and transfer that is hidden, as planned and as measured."""
    plan = _plan_beside(job, steps, limit, folder)
    rounds = [
        (_run_schedule(job, plan, folder, overlaps=False), _run_schedule(job, plan, folder, overlaps=True)[0])
        for _ in range(3)
    ]
    serial = statistics.median(seconds for (seconds, _), _ in rounds)
    moved = statistics.median(bars.sum("write", "read") for (_, bars), _ in rounds)
    beside = statistics.median(seconds for _, seconds in rounds)
    apart = _simulate(plan, overlaps=False)
    together = _simulate(plan, overlaps=True)
    planned_moved = apart - _count_compute(plan)
    return {
        "planned_hidden_share": _share(apart, together, planned_moved),
        "hidden_share": _share(serial, beside, moved),
        "serial_seconds": serial,
        "beside_seconds": beside,
        "transfer_seconds": moved,
    }


def _share(apart: float, together: float, moved: float) -> float | None:
    shorter = min(moved, apart - moved)
    return (apart - together) / shorter if shorter > 0 else None


def _plan_beside(job: Job, steps: int, limit: int, folder: Path) -> Plan:
    """Return the quickest plan whose transfers overlap compute, within the limit and the two buffers."""
    workload = plan_for(*job.arguments(steps), memory=limit).workload
    room = limit + 4 * workload.state_bytes
    link, *_ = find_links(
        OffloadPlace(folder=folder),
        state_bytes=workload.state_bytes,
        steps=steps,
        device=torch.device("cpu"),
        local_bytes=room,
    )
    return ckptplan.optimize(workload, link.make_profile(room, overlaps=True), strategies=["remote", "double"])


def _simulate(plan: Plan, *, overlaps: bool, sink: Sink | None = None) -> float:
    profile = plan.profile.replace_numbers(overlaps_compute=overlaps)
    return play(actions(plan), costs=Case(workload=plan.workload, profile=profile).costs, sink=sink).seconds


def _count_compute(plan: Plan) -> float:
    """Return the seconds of a plan without transfers."""
    seconds = 0.0

    def add(event: Event) -> None:
        nonlocal seconds
        if event.track == COMPUTE:
            seconds += event.end - event.start

    _simulate(plan, overlaps=False, sink=add)
    return seconds


def _trace(job: Job, steps: int, folder: Path) -> dict[str, Any]:
    """Return the bars of a run beside those of its plan, as simulated."""
    plan = _plan_beside(job, steps, job.find_limit(4), folder)
    seconds, bars = _run_schedule(job, plan, folder, overlaps=True)
    simulated: dict[str, list[tuple[float, float]]] = {}

    def note(event: Event) -> None:
        if event.end > event.start:
            track = "wait" if event.stall else event.track
            simulated.setdefault(track, []).append((event.start, event.end))

    planned = _simulate(plan, overlaps=True, sink=note)
    return {
        "network": job.name,
        "strategy": plan.strategy,
        "parameters": dict(plan.parameters),
        "measured": {"seconds": seconds, **bars.of},
        "simulated": {"seconds": planned, **simulated},
    }


def draw(timeline: dict[str, Any], path: Path) -> None:
    """Draw the measured timeline beside the simulated one."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, all_ = plt.subplots(2, 1, figsize=(8, 3.6), sharex=True, layout="constrained")
    for axes, name in zip(all_, ("measured", "simulated"), strict=True):
        found = timeline[name]
        for row, (track, colour) in enumerate((("read", "C2"), ("write", "C1"), ("wait", "0.6"))):
            bars = [(start, end - start) for start, end in found.get(track, ())]
            axes.broken_barh(bars, (row - 0.4, 0.8), color=colour)
        axes.broken_barh([(0, found["seconds"])], (2.6, 0.8), color="C0")
        axes.set_yticks(range(4), ("read", "write", "compute waits", "whole run"))
        axes.set_title(f"{name}: {found['seconds']:.2f} s", loc="left", fontsize=10)
    all_[1].set_xlabel("seconds")
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def judge(results: dict[str, Any]) -> list[str]:
    """Return what does not hold of what must."""
    missed = []
    for row in results["rows"]:
        name = f"{row['network']}, T = {row['steps']}, {row['states']} states"
        for way in WAYS:
            one = row[way]
            if one["seconds"] and abs(one["predicted_seconds"] / one["seconds"] - 1) > MOST_TIME_ERROR:
                missed.append(
                    f"{name}, {way}: {one['seconds']:.2f} s, predicted {one['predicted_seconds']:.2f} s"
                )
        gain = _gain(row)
        if gain is not None and row["states"] <= MOST_STATES and gain < LEAST_GAIN:
            missed.append(f"{name}: the folder is {gain:.2f} times as quick as local plans")
    for check in results["checks"]:
        for one in ("bytes", "remote_bytes"):
            peak, predicted = check["peak_bytes" if one == "bytes" else one], check[f"predicted_{one}"]
            if predicted and abs(predicted / max(peak, 1) - 1) > MOST_BYTES_ERROR:
                missed.append(f"{check['network']}: {one} {peak:,}, predicted {predicted:,}")
        if check["peak_bytes"] > check["limit_bytes"]:
            missed.append(f"{check['network']}: {check['peak_bytes']:,} bytes are more than the limit")
        planned, hidden = check["planned_hidden_share"], check["hidden_share"]
        if planned is not None and planned >= LEAST_HIDDEN and (hidden or 0) < LEAST_HIDDEN:
            missed.append(f"{check['network']}: {hidden:.0%} hidden, planned {planned:.0%}")
    return missed


def _gain(row: dict[str, Any]) -> float | None:
    local, remote = row["local"]["seconds"], row["folder"]["seconds"]
    return local / remote if local and remote else None


def document(results: dict[str, Any]) -> str:
    """Return the tables of the page."""
    head = ["network", "state", "T", "states in RAM", *(f"{way}, predicted" for way in WAYS), "local / folder"]
    rows = []
    for row in results["rows"]:
        times = [
            f"{'not run' if row[way]['seconds'] is None else format(row[way]['seconds'], '.2f') + ' s'}, "
            f"{row[way]['predicted_seconds']:.2f}"
            for way in WAYS
        ]
        gain = _gain(row)
        rows.append(
            [
                row["network"],
                f"{row['state_bytes'] / MIB:.0f} MiB",
                str(row["steps"]),
                str(row["states"]),
                *times,
                "" if gain is None else f"{gain:.2f}",
            ]
        )
    parts = [table(head, rows)]
    rows = [
        [
            one["network"],
            f"{one['peak_bytes'] / MIB:.1f} of {one['limit_bytes'] / MIB:.1f} MiB",
            f"{one['predicted_bytes'] / MIB:.1f} MiB",
            f"{one['remote_bytes'] / MIB:.0f} MiB",
            f"{one['predicted_remote_bytes'] / MIB:.0f} MiB",
            "" if one["hidden_share"] is None else f"{one['hidden_share']:.0%}",
            "" if one["planned_hidden_share"] is None else f"{one['planned_hidden_share']:.0%}",
            f"{one['gradient_difference']:.0e}",
        ]
        for one in results["checks"]
    ]
    head = [
        "network",
        "live peak",
        "planned",
        "in the folder",
        "planned",
        "hidden",
        "planned",
        "gradients off by",
    ]
    parts.append(table(head, rows))
    missed = judge(results)
    text = "\n".join(f"- {one}" for one in missed)
    parts.append(f"Missed:\n\n{text}" if missed else "All that must hold does.")
    return "\n\n".join(parts) + "\n"


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="sizes that run in seconds; nothing is written")
    parser.add_argument("--show", action="store_true", help="print the tables of the last run, measure nothing")
    parser.add_argument("--seconds", type=float, default=600.0, help="the longest that the whole run may take")
    parser.add_argument("--folder", type=Path, help="where checkpoints go")
    options = parser.parse_args()
    if options.show:
        print(document(read("offload")))
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="ckptplan-offload-", dir=options.folder) as folder:
        results = run(Setting(small=options.small, seconds=options.seconds), Path(folder))
    print(document(results))
    if not options.small:
        write("offload", results)
        put_section(PAGE, "offload", f"{document(results)}\n![The timeline of a run]({PICTURE})\n")
        draw(results["timeline"], DOCS / PICTURE)


if __name__ == "__main__":
    _main()
