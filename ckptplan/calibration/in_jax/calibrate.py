"""Measures a cell of JAX on a machine, and returns a workload and a profile with their basis."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import jax

from ckptplan.calibration.action_times import ActionTimes
from ckptplan.calibration.calibrated import Calibrated, judge_noise
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.counter import RunCounter
from ckptplan.calibration.extent import SHARE, describe_limit
from ckptplan.calibration.host import HEADROOM, HEADROOM_ASSUMPTION, host_memory_bytes, processor_name
from ckptplan.calibration.in_jax.counted import assume_times
from ckptplan.calibration.in_jax.networks import JaxNetwork, build_jax_network
from ckptplan.calibration.in_jax.programs import (
    CompiledLoop,
    compile_forward,
    compile_gradient,
    compile_sweep,
)
from ckptplan.calibration.in_jax.sizes import CompiledSizes, choose_sizes, count_jax_sizes
from ckptplan.calibration.in_jax.threads import choose_jax_clock
from ckptplan.calibration.in_jax.whole_times import ProgramWork, TimedPrograms
from ckptplan.calibration.samples import Sample
from ckptplan.calibration.transfer_times import TransferTimes
from ckptplan.calibration.workloads import make_calibration, make_counted, make_measured, round_digits
from ckptplan.errors import InputError
from ckptplan.jax.tapes import Tape
from ckptplan.model.profile import HardwareProfile, Source
from ckptplan.model.progress import Progress
from ckptplan.model.workload import ACTION_TIMES, TIMES, Basis, Calibration, Workload
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import READ, WRITE
from ckptplan.units import format_bytes, format_share, format_wait
from ckptplan.wording import Argument, Phrase

#: Seconds that a program of T steps may be expected to take, and the least and the largest T.
_RUN_SECONDS, _LEAST_STEPS, _MOST_STEPS = 0.1, 64, 1024
#: Steps of the chunks of the programs that are timed.
_CHUNKS, _QUICK_CHUNKS = (1, 4, 16, 64), (4, 16)
_QUICK_ROUNDS, _QUICK_UNCERTAINTY = 3, 0.1
#: Segments of a nested schedule; steps between states of remote memory.
_SEGMENTS, _STEPS_BETWEEN = 4, 1
#: The steps of the first program; the share of the limit that estimates may take.
_PILOT_STEPS = 32
_LEAST_SECONDS = 1e-9
#: Bytes that C libraries give to one run after another. Larger buffers are new in each run, and the time to
#: touch them is long and varies.
_REUSED_BYTES = 24 * 2**20
#: States that leave a program whose messages are timed.
_STATES = 96


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A program to compile and to time, and what it does."""

    compile: Callable[[], CompiledLoop]
    work: ProgramWork
    #: The schedule of a whole program, whose memory is looked at; None for parts of one.
    whole: Schedule | None = None


def calibrate_jax(
    spec: CellSpec,
    *,
    batch: int,
    steps: int,
    threads: int,
    name: str = "my-workload",
    profile_name: str = "my-machine",
    tape: str = "residuals",
    repeats: int = 5,
    tolerance: float = 0.1,
    seed: int = 0,
    quick: bool = False,
    max_seconds: float | None = None,
    announce: Callable[[str], None] | None = None,
    keep: Callable[[Workload], None] | None = None,
    progress: Progress | None = None,
) -> Calibrated:
    """Measure a cell of JAX and return a workload and a profile.

    Programs of whole schedules are compiled and timed in rounds; times of steps and actions have the least
    squares over them. Sizes come from shapes, and the workspace from the compiler's analysis.

    Arguments:
        spec: the cell and its sizes.
        batch: the number of samples.
        steps: T of the workload.
        threads: the number of threads that JAX runs with (``set_threads``).
        name: the name of the workload.
        profile_name: the name of the profile.
        tape: the kind of tapes (docs/jax.md).
        repeats: the number of rounds.
        tolerance: the result is ``noisy`` if the rounds of a time spread by more than half of this share.
        seed: the seed of weights and data.
        quick: whether to measure fewer programs in three rounds; times are then known to 10 % at best.
        max_seconds: the time that it may take by an estimate; None means no limit.
        announce: called with a line on how long it takes.
        keep: called with the workload that ``count_jax`` would return, as soon as sizes are counted.
        progress: called with the time done and the time expected, in milliseconds.

    Raises InputError, also if it takes longer than ``max_seconds``.
    """
    network = build_jax_network(spec, batch=batch, seed=seed)
    measuring = _Measuring(
        network=network,
        sizes=choose_sizes(count_jax_sizes(network), tape=tape),
        threads=threads,
        rounds=_QUICK_ROUNDS if quick else repeats,
        sizes_of_chunks=_QUICK_CHUNKS if quick else _CHUNKS,
    )
    if keep is not None:
        assumed = assume_times(measuring.sizes)
        keep(make_counted(spec, measuring.sizes, assumed, batch=batch, steps=steps, name=name))
    measuring.prepare(max_seconds=max_seconds, announce=announce)
    measuring.run(progress)
    times, transfers = measuring.fit(), measuring.time_messages()
    calibration = make_calibration(
        times,
        transfer_uncertainty=max(transfers.spread.values()),
        machine=processor_name(),
        device="cpu",
        repeats=measuring.rounds,
        least=_QUICK_UNCERTAINTY if quick else 0.0,
        threads=threads,
        jax=jax.__version__,
        tape=tape,
        seed=seed,
        clock=choose_jax_clock(threads)[1],
    )
    left_out = (f"quick: {_QUICK_ROUNDS} rounds of few programs",) if quick else ()
    return Calibrated(
        workload=make_measured(
            spec,
            measuring.sizes,
            times,
            calibration,
            basis=_time_basis(calibration, times),
            batch=batch,
            steps=steps,
            name=name,
            timed_on=profile_name,
            remark=f"tapes of {measuring.tape}",
        ),
        profile=_make_profile(measuring.sizes, transfers, calibration, name=profile_name),
        workspace_residual=measuring.sizes.residual,
        steps=times,
        transfers=transfers,
        # A quick calibration promises little, and its uncertainty says how little.
        noisy=None if quick else judge_noise(times, tolerance=tolerance),
        left_out=left_out,
    )


@dataclass(kw_only=True)
class _Measuring:
    """Compiles programs of one cell, and runs them in rounds."""

    network: JaxNetwork
    sizes: CompiledSizes
    threads: int
    rounds: int
    sizes_of_chunks: tuple[int, ...]
    chunks: tuple[int, ...] = ()
    jobs: list[_Job] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    timed: TimedPrograms = field(default_factory=lambda: TimedPrograms(works=()))

    @property
    def tape(self) -> Tape:
        """The kind of tapes."""
        return self.sizes.tape

    def prepare(self, *, max_seconds: float | None, announce: Callable[[str], None] | None) -> None:
        """Choose the programs by the time of a short one. Raises InputError if all take too long."""
        pilot = make_schedule("base", steps=_PILOT_STEPS)
        first = compile_gradient(self.network, pilot, steps=_PILOT_STEPS, tape=self.tape)
        first.call()
        each = min(first.measure_seconds(perf_counter) for _ in range(3)) / _PILOT_STEPS
        length = int(min(_MOST_STEPS, max(_LEAST_STEPS, _RUN_SECONDS / each))) // _LEAST_STEPS * _LEAST_STEPS
        self.chunks = tuple(one for one in self.sizes_of_chunks if one * _SEGMENTS <= length)
        self.jobs = self._list_jobs(length)
        # A schedule takes less than twice the time of base.
        runs = [2 * length * each] * len(self.jobs) * (self.rounds + 1)
        self.expected = [*[first.compile_seconds] * len(self.jobs), *runs]
        total = sum(self.expected) + 4 * first.compile_seconds
        if max_seconds is not None and total > SHARE * max_seconds:
            raise InputError(
                f"measuring this cell takes {format_wait(total)}, and may take {describe_limit(max_seconds)}",
                field="max_seconds",
                value=max_seconds,
                accepted=Phrase(
                    "a smaller batch or fewer neurons, or ",
                    Argument("max_seconds", math.ceil(total / SHARE)),
                ),
            )
        if announce is not None:
            announce(f"{format_wait(total)}: {self.rounds} rounds of {len(self.jobs)} compiled programs")

    def _list_jobs(self, length: int) -> list[_Job]:
        within = _REUSED_BYTES // self.sizes.tape_bytes // _PILOT_STEPS * _PILOT_STEPS
        kept = min(length, max(_PILOT_STEPS, within))
        base = make_schedule("base", steps=kept)
        schedules = [base]
        for chunk in self.chunks:
            segment = max(2 * chunk, length // _SEGMENTS // chunk * chunk)
            schedules.append(make_schedule("standard", steps=length, chunk_size=chunk))
            schedules.append(make_schedule("nested", steps=length, chunk_size=chunk, segment_size=segment))
        # Two lengths tell the time of a step from that of a call.
        forward, longer = (
            _Job(
                compile=partial(compile_forward, self.network, make_schedule("base", steps=steps)),
                work=ProgramWork.forward(steps),
            )
            for steps in (length // _SEGMENTS, length)
        )
        parts = [
            longer,
            _Job(
                compile=partial(compile_sweep, self.network, base, tape=self.tape),
                work=ProgramWork.of(base, sweep=True),
            ),
        ]
        wholes = [
            _Job(
                compile=partial(compile_gradient, self.network, one, steps=one.steps, tape=self.tape),
                work=ProgramWork.of(one),
                whole=one,
            )
            for one in schedules
        ]
        return [*parts, *wholes, forward]

    def run(self, progress: Progress | None) -> None:
        """Compile the programs, look at their memory, and time them in rounds, the first of which warms up."""
        counter = RunCounter(seconds=self.expected, progress=progress)
        programs = []
        for job in self.jobs:
            programs.append(job.compile())
            counter.count()
        self.timed = TimedPrograms(works=[job.work for job in self.jobs])
        for number in range(self.rounds + 1):
            taken = []
            for program in programs:
                taken.append(program.measure(self.clock))
                counter.count()
            if number:
                self.timed.rounds.append([seconds for seconds, _ in taken])
                self.timed.pages.append([pages for _, pages in taken])
        counter.end()
        memory = [
            (job.whole, one.memory_bytes)
            for job, one in zip(self.jobs, programs, strict=True)
            if job.whole is not None
        ]
        self.sizes = self.sizes.with_programs(memory)

    @property
    def clock(self) -> Callable[[], float]:
        """The clock of the programs."""
        return choose_jax_clock(self.threads)[0]

    def fit(self) -> ActionTimes:
        """Return the times of steps and actions."""
        # Parts, base, the schedules of each chunk, standard and nested, and a shorter forward pass.
        shown_by = {"forward_seconds": 0, "recorded_seconds": 1, "backward_seconds": 2, "recompute_seconds": -2}
        return self.timed.fit(chunks=self.chunks, shown_by=shown_by)

    def time_messages(self) -> TransferTimes:
        """Return the seconds of a state that leaves a program, and of one that comes back.

        They are differences between programs with remote and with local checkpoints: each state is a message
        of its own, an ordered callback.
        """
        steps = _STATES * _STEPS_BETWEEN
        far, near = (
            make_schedule(strategy, steps=steps, chunk_size=_STEPS_BETWEEN)
            for strategy in ("remote", "standard")
        )
        seconds: dict[str, list[float]] = {WRITE: [], READ: []}
        programs = [
            make(self.network, schedule, tape=self.tape)
            for make in (compile_sweep, partial(compile_gradient, steps=steps))
            for schedule in (far, near)
        ]
        moved = ProgramWork.of(near).saves
        for number in range(self.rounds + 1):
            far_sweep, near_sweep, far_whole, near_whole = (
                one.measure_seconds(perf_counter) for one in programs
            )
            if number:
                seconds[WRITE].append(far_sweep - near_sweep)
                seconds[READ].append(far_whole - near_whole - far_sweep + near_sweep)
        found = {
            way: Sample(values=tuple(max(one, _LEAST_SECONDS) / moved for one in values))
            for way, values in seconds.items()
        }
        return TransferTimes(
            message_seconds=0.0,
            write_seconds=found[WRITE].median,
            read_seconds=found[READ].median,
            spread={way: one.spread for way, one in found.items()},
            misfit=0.0,
        )


def _time_basis(calibration: Calibration, times: ActionTimes) -> dict[str, Basis]:
    chunks = ", ".join(map(str, times.chunks))
    fitted = Basis(
        kind="measured",
        why=f"fit over compiled programs in chunks of {chunks} steps, off by {format_share(times.misfit)} "
        f"(root mean square), {calibration.clock} on {calibration.threads_text}, medians of rounds",
    )
    return dict.fromkeys((*TIMES, *ACTION_TIMES), fitted)


def _make_profile(
    sizes: CompiledSizes, transfers: TransferTimes, calibration: Calibration, *, name: str
) -> HardwareProfile:
    today = calibration.date[:10]
    moved = f"callbacks with a state of {format_bytes(sizes.state_bytes)} each, by the difference of programs"
    memory = host_memory_bytes()

    def source(text: str, note: str | None = None) -> Source:
        return Source(grade="M", source=text, date=today, note=note)

    def rate(way: str) -> tuple[float, Source]:
        spread = format_share(transfers.spread[way])
        value = round_digits(transfers.rate(way, state_bytes=sizes.state_bytes))
        return value, source(moved, f"effective at this size; spread {spread}")

    (write, from_write), (read, from_read) = rate(WRITE), rate(READ)
    return HardwareProfile(
        name=name,
        description=f"{calibration.machine}, {calibration.threads_text}, {calibration.framework}; remote "
        "memory is host memory outside of the program",
        local_bytes=memory,
        headroom=HEADROOM,
        remote_bytes=memory,
        write_bytes_per_second=write,
        read_bytes_per_second=read,
        latency_seconds=0.0,
        synchronisation_seconds=0.0,
        overlaps_compute=False,
        sources={
            "local_bytes": source("as the system reports"),
            "headroom": Source(grade="X", assumption=HEADROOM_ASSUMPTION, date=today),
            "remote_bytes": source("as the system reports", "the local memory once more: both count together"),
            "write_bytes_per_second": from_write,
            "read_bytes_per_second": from_read,
            "latency_seconds": source(moved, "contained in the rates: each state is a message"),
            "synchronisation_seconds": source(moved, "contained in the rates"),
        },
    )
