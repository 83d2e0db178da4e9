"""Sequences of unknown length beside other rules, and beside equinox's while loop in as much memory.

Rules: advances over Revolve, which knows T, with one tape at a time, for every T from 10 to 5,000. Wang, Moin
and Iaccarino's rule (2009), and multiples of a stride that doubles when the slots are full. Loops: the
processor time of a gradient by that of the peer, in turn. ckptplan holds as many states as its program has room
for in the bytes of the peer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.harness import DOCS, Setting, find_ratio, main, pivot, tabulate, time_in_turn
from ckptplan.recursion.online import Snapshots, count_advances
from ckptplan.recursion.revolve import count_recomputed

SLOTS = (5, 10, 30)
#: Of checkpoint_schedules: steps between the states that stay, and the states within such a period.
PERIODS, EXTRA = (10, 30, 100, 300), 9


def hold_by_rule(slots: int, steps: int) -> Iterator[list[int]]:
    """Yield the states that ``ckptplan.online`` holds when the sequence ends after 1, 2, ... steps."""
    snapshots = Snapshots(slots)
    for state in range(1, steps + 1):
        yield snapshots.held
        snapshots.offer(state)


def hold_by_level(slots: int, steps: int) -> Iterator[list[int]]:
    """Yield the same of Wang, Moin and Iaccarino: a state goes if a later one has a higher level."""
    held, levels = [0], [steps]
    for state in range(1, steps + 1):
        yield held
        if len(held) == slots:
            top, gone = -1, None
            for place in range(slots - 1, 0, -1):
                if levels[place] < top:
                    gone = place
                    break
                top = max(top, levels[place])
            level = 0 if gone is not None else levels[-1] + 1
            place = slots - 1 if gone is None else gone
            del held[place], levels[place]
        else:
            level = 0
        held.append(state)
        levels.append(level)


def hold_by_stride(slots: int, steps: int) -> Iterator[list[int]]:
    """Yield the same of multiples of a stride that doubles when the slots are full."""
    held, stride = [0], 1
    for state in range(1, steps + 1):
        yield held
        while state % stride == 0:
            if len(held) < slots:
                held.append(state)
                break
            held, stride = held[::2], 2 * stride


RULES: dict[str, Callable[[int, int], Iterator[list[int]]]] = {
    "ckptplan.online": hold_by_rule,
    "Wang, Moin and Iaccarino": hold_by_level,
    "doubling strides": hold_by_stride,
}


def compare_rules(steps: int) -> dict[str, dict[str, float]]:
    """Return the worst and the mean factor of each rule, for each number of slots."""
    found = {}
    for slots in SLOTS:
        for name, hold in RULES.items():
            factors = [
                count_advances(held, length, slots=slots) / count_recomputed(length, chunk=1, slots=slots)
                for length, held in enumerate(hold(slots, steps), start=1)
                if length >= 10
            ]
            found[f"{name}, {slots}"] = {"worst": max(factors), "mean": sum(factors) / len(factors)}
    return found


def compare_two_level(steps: int) -> list[dict[str, float]]:
    """Return the runs of a step under checkpoint_schedules' schedule for unknown T, and ours in as many states.

    It keeps a state each ``period`` steps, so that its storage grows with T, and ``EXTRA`` more in a period.
    """
    found = []
    for period in PERIODS:
        runs, states = count_two_level(period, steps)
        snapshots = Snapshots(states)
        for state in range(1, steps):
            snapshots.offer(state)
        ours = steps + count_advances(snapshots.settle(steps), steps, slots=states)
        found.append({"period": period, "states": states, "theirs": runs / steps, "ours": ours / steps})
    return found


def count_two_level(period: int, steps: int) -> tuple[int, int]:
    """Return how many steps their schedule runs for a sequence of so many, and the states that it holds."""
    from checkpoint_schedules import EndReverse, Forward, Move, StorageType, TwoLevelCheckpointSchedule

    schedule = TwoLevelCheckpointSchedule(period, EXTRA, binomial_storage=StorageType.DISK)
    runs, most, held = 0, 0, set[int]()
    for action in schedule:
        match action:
            case Forward():
                stop = min(action.n1, steps)
                runs += stop - action.n0
                if action.write_ics:
                    held.add(action.n0)
                if schedule.max_n is None and stop == steps:
                    schedule.finalize(steps)
            case Move():
                held.discard(action.n)
            case EndReverse():
                break
        most = max(most, len(held))
    return runs, most


def compare_loops(steps: int, slots: int, rounds: int) -> dict[str, float]:
    """Return the bytes of the programs of both while loops, and our processor time by equinox's."""
    import jax
    import jax.numpy as jnp
    from equinox.internal import while_loop as rival

    from ckptplan.jax import while_loop

    weights, start = jnp.eye(128) * 0.99, jnp.ones((32, 128))

    def compile_(loop: Callable[..., Any]) -> Any:
        def lose(weights: Any) -> Any:
            def body(state: Any) -> Any:
                return state[0] + 1, jnp.tanh(state[1] @ weights)

            return loop(lambda state: state[0] < steps, body, (jnp.int32(0), start), max_steps=steps)[1].sum()

        return jax.jit(jax.grad(lose)).lower(weights).compile()

    theirs = compile_(partial(rival, kind="checkpointed", checkpoints=slots))
    spare = _count_bytes(theirs) - _count_bytes(compile_(partial(while_loop, slots=slots)))
    ours = compile_(partial(while_loop, slots=slots + spare // start.nbytes))
    programs: dict[str, Any] = {"ckptplan": ours, "equinox": theirs}
    jobs = {name: partial(_run, program, weights) for name, program in programs.items()}
    for job in jobs.values():
        job()
    times = time_in_turn(jobs, rounds=rounds)
    sizes = {name: _count_bytes(program) for name, program in programs.items()}
    return {
        "time_over_equinox": find_ratio(times, "ckptplan", "equinox"),
        **{f"{name}_bytes": size for name, size in sizes.items()},
    }


def _run(program: Any, weights: Any) -> object:
    return program(weights).block_until_ready()


def _count_bytes(program: Any) -> int:
    return int(program.memory_analysis().temp_size_in_bytes)


def run(setting: Setting) -> dict[str, Any]:
    """Return the factors of the rules, and the loops beside each other."""
    steps, rounds = (200, 1) if setting.small else (5000, 5)
    lengths = (50,) if setting.small else (250, 1000)
    loops = {
        f"{length}, {slots}": compare_loops(length, slots, rounds)
        for length in lengths
        for slots in (5, 10, 30)
    }
    return {"rules": compare_rules(steps), "two_level": compare_two_level(steps), "loops": loops}


def document(results: dict[str, Any]) -> str:
    """Return the results as tables for a page."""
    rules = ((*name.rsplit(", ", 1), found) for name, found in results["rules"].items())
    loops = ((*name.split(", "), found) for name, found in results["loops"].items())
    parts = [
        pivot(
            "advances over Revolve: worst, mean",
            (
                (rule, f"{slots} slots", f"{found['worst']:.2f}, {found['mean']:.2f}")
                for rule, slots, found in rules
            ),
        ),
        tabulate(
            results["two_level"],
            ("period", "period"),
            ("states held", "states"),
            ("runs of a step, theirs", "theirs", "{:.2f}"),
            ("ours", "ours", "{:.2f}"),
        ),
        pivot(
            "time over equinox's",
            (
                (f"T = {steps}", f"{slots} checkpoints", f"{found['time_over_equinox']:.2f}")
                for steps, slots, found in loops
            ),
        ),
    ]
    return "\n\n".join(parts) + "\n"


PAGES = {DOCS / "online.md": document}

if __name__ == "__main__":
    main("online", run, PAGES, about=__doc__)
