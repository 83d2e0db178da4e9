"""Chooses the quickest plan for measured steps and a limit of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product, takewhile
from typing import Any

import torch

from ckptplan import HardwareProfile, Workload
from ckptplan.errors import Infeasible, InputError
from ckptplan.execution.advice import DEAR, advise_offload, leave_margin, note_offload, refuse_limit
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import BasisEntry
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import Basis
from ckptplan.planning.optimize import rank_strategies
from ckptplan.planning.playback import schedule_of
from ckptplan.planning.request import Request
from ckptplan.schedule.actions import Advance, Backward, Free, Record, Save, Tier, Transfer
from ckptplan.storage.memory import round_down
from ckptplan.storage.place import Link, assume_link
from ckptplan.torch.device.memory import available_bytes
from ckptplan.torch.fit.measure import Measurement
from ckptplan.torch.run_call import POSTPONED, SINGLE_STEPS, is_postponed
from ckptplan.units import format_bytes, parse_limit

#: The share of what the device has free that ``memory="auto"`` takes: the rest is for fragmentation, the first
#: step of the optimizer, and other programs.
AUTO_SHARE = 0.7
#: The strategies that keep nothing remote.
_STRATEGIES = ("base", "standard", "nested", "growing", "revolve")
#: The strategies that move single states, and the one that moves several in a message.
_REMOTE_STRATEGIES = ("remote", "double", "double-growing", "periodic")
_BATCH_STRATEGIES = ("hierarchical",)
#: A mean of squares of all outputs takes so many times their bytes: outputs, gradients, and what it makes.
MADE_OF_OUTPUTS = 5
#: Times are measured once: of plans whose times differ by less, the plan that takes less memory is chosen.
_ABOUT = 1.02
#: Budgets that are tried to find a plan that leaves room for a loss of the outputs.
_TRIES = 4
_SUMS = (
    "ckptplan.torch.bptt of a cell, or bptt of a wrapped network that keeps its state; "
    'wrap(lstm, outputs="last") returns the last output alone'
)


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The memory that other sequences of the same call take.

    Arguments:
        sequences: the sequences that run one after another before all are reversed, this one included.
        kept: the bytes that the others keep beside their states and tapes.
        later: the bytes of their gradients.
        outputs: the bytes of the outputs of the call; None for those of this sequence.
    """

    sequences: int = 1
    kept: int = 0
    later: int = 0
    outputs: int | None = None


#: A call of one sequence.
ALONE = Beside()


@dataclass(frozen=True, kw_only=True)
class Space:
    """The memory of a call, and what is there beside checkpoints, tapes and the tensors of a step.

    Arguments:
        limit: the bytes that the call may take.
        kept: the bytes that are there all the time.
        later: the bytes that are there in the backward pass, as gradients of inputs.
        working: the bytes that steps may work with beside what was measured.
        keeps_caches: whether the caches of all steps have to stay.
        outputs: the bytes of the outputs that are returned; 0 if the call returns a loss.
        tried: the bytes that the trial of a first call takes; 0 in later calls.
        sequences: the sequences whose states and tapes are there together.
        links: ways to keep checkpoints off the device.
    """

    limit: int
    kept: int = 0
    later: int = 0
    working: int = 0
    keeps_caches: bool = False
    outputs: int = 0
    tried: int = 0
    sequences: int = 1
    links: tuple[Link, ...] = ()

    @property
    def resident(self) -> int:
        """The bytes that a plan counts for the whole sequence: outputs and their gradients, too."""
        return self.kept + self.later + 2 * self.outputs

    def find_excess(self, plan: Plan) -> int:
        """Return the bytes by which a plan passes the limit between the forward and the backward pass.

        There the caller makes a loss of the outputs. A mean of squares is assumed. Zero or less if the plan has
        room for the loss.
        """
        if not self.outputs:
            return 0
        # There are the states before and after the last steps, too. The first state is the caller's.
        sizes, states, recorded, cached = plan.workload, 2, 0, 0
        for action in takewhile(lambda action: not isinstance(action, Backward), schedule_of(plan)):
            match action:
                case Save(number, Tier.LOCAL):
                    states += number > 0
                case Free(number, Tier.LOCAL):
                    states -= number > 0
                case Transfer(moved, Tier.LOCAL, _, caches):
                    states -= sum(number > 0 for number in moved)
                    cached -= 0 if caches is None else caches[1] - caches[0]
                case Advance(start, stop, kept):
                    cached += stop - start if kept is None else kept
                case Record(start, stop):
                    recorded += stop - start
                    cached += stop - start
        tapes = 0 if is_postponed(plan) else recorded
        made = cached * sizes.cache_bytes + self.kept + MADE_OF_OUTPUTS * self.outputs
        return made + states * sizes.state_bytes + tapes * sizes.tape_bytes - self.limit


def read_limit(memory: object, device: torch.device) -> int:
    """Return a limit of memory in bytes. Raises InputError."""
    if memory == "auto":
        free = available_bytes(device)
        if free is None:
            raise InputError(
                "cannot be found out on this system", field="memory", accepted="a size, as '2 GiB'"
            )
        # What a sequence of the same shapes had free before should give the same plan again.
        return round_down(int(AUTO_SHARE * free))
    return parse_limit(memory, field="memory", or_else=", or 'auto'")


def choose_plan(measurement: Measurement, steps: int, space: Space) -> Plan:
    """Return the quickest plan for measured steps that has room for a loss of the outputs, if any plan has.

    Arguments:
        measurement: what the steps take.
        steps: T.
        space: the memory of the call.

    Raises Infeasible if no plan fits.
    """
    return _choose(measurement.repeat(space.sequences), steps, replace(space, tried=0))


@lru_cache(maxsize=1024)
def _choose(measurement: Measurement, steps: int, space: Space) -> Plan:
    make = partial(_make_request, measurement, steps, space)
    best = _search(make, space.links)
    if best is None:
        # It raises, and says what would help.
        best = rank_strategies(make(), only_best=True).best()
    plans = _list_with_room(best, measurement, space)
    room, less = leave_margin(space.limit), 0
    for _ in range(_TRIES - 1):
        excess = space.find_excess(plans[-1])
        if excess <= 0:
            break
        # Less memory is no help to a plan that keeps all tapes: the next plan does not.
        if plans[-1].strategy != "base":
            less = room - plans[-1].predicted.local_peak_bytes + excess
        if less >= room - space.resident:
            break
        smaller = _search(partial(make, less=less, at_once=False), space.links)
        if smaller is None:
            break
        plans += _list_with_room(smaller, measurement, space)
    return _pick(plans, space)


def _search(make: Callable[..., Request], links: tuple[Link, ...]) -> Plan | None:
    """Return the quickest plan, which says what links bought; None if no plan fits."""
    local, remote = _find_best(make()), _plan_remote(make, links)
    if remote is None:
        return local
    plan, place = remote
    quicker = plan if local is None or plan.predicted.seconds < local.predicted.seconds else local
    return note_offload(quicker, local=local, remote=plan, place=place)


def _find_best(request: Request) -> Plan | None:
    ranking = rank_strategies(request, only_best=True)
    return ranking.best() if ranking.answers else None


def _plan_remote(make: Callable[..., Request], links: tuple[Link, ...]) -> tuple[Plan, str] | None:
    """Return the quickest plan that uses a link, and its place; None if no plan fits.

    Transfers beside compute need two buffers, which may be better spent on checkpoints.
    """
    remote_plans: list[tuple[Plan, str]] = []
    for link, overlaps, batches in product(links, (True, False), (True, False)):
        if link.overlaps or not overlaps:
            plan = _find_best(make(link=link, overlaps=overlaps, batches=batches))
            if plan is not None:
                remote_plans.append((plan, link.place))
    return min(remote_plans, key=lambda pair: pair[0].predicted.seconds, default=None)


def _list_with_room(plan: Plan, measurement: Measurement, space: Space) -> list[Plan]:
    """Return a plan, after it the same plan with its last recording postponed if that is what leaves room."""
    last = [action for action in _list_sweep(plan) if isinstance(action, Record)][-1]
    if space.find_excess(plan) <= 0 or not last.start:
        return [plan]
    return [_postpone(plan, last.stop - last.start, measurement), plan]


def _list_sweep(plan: Plan) -> list[Any]:
    return list(takewhile(lambda action: not isinstance(action, Backward), schedule_of(plan)))


def _postpone(plan: Plan, steps: int, measurement: Measurement) -> Plan:
    """Return a plan whose last recording is postponed, which runs so many steps once more."""
    added_seconds = steps * measurement.replay_seconds + measurement.save_seconds + measurement.load_seconds
    predicted = plan.predicted
    seconds = predicted.seconds + added_seconds
    postponed = replace(
        predicted,
        seconds=seconds,
        overhead=(1 + predicted.overhead) * seconds / predicted.seconds - 1,
        recomputed_steps=predicted.recomputed_steps + steps,
        recomputed_without_cache=predicted.recomputed_without_cache + steps * (not measurement.cache_bytes),
    )
    note = BasisEntry(
        field=POSTPONED,
        kind="derived",
        text=f"the last {steps} steps run without a tape, and are recorded when gradients arrive, so that the "
        "loss of the outputs finds room",
    )
    entries = (*plan.estimate_basis, note)
    return plan.model_copy(update={"predicted": postponed, "estimate_basis": entries})


def note_single_steps(plan: Plan) -> Plan:
    """Return a plan that says that there is room for the outputs of one step at a time."""
    note = BasisEntry(
        field=SINGLE_STEPS, kind="derived", text="outputs and adjoints are there for one step at a time"
    )
    return plan.model_copy(update={"estimate_basis": (*plan.estimate_basis, note)})


def _pick(plans: list[Plan], space: Space) -> Plan:
    """Return the quickest plan with room for a loss of the outputs; if none has room, the plan with most."""
    excess = {id(plan): max(0, space.find_excess(plan)) for plan in plans}
    fitting = [plan for plan in plans if not excess[id(plan)]] or plans
    enough = _ABOUT * min(plan.predicted.seconds for plan in fitting)
    quick = (plan for plan in fitting if plan.predicted.seconds <= enough)
    return min(quick, key=lambda plan: (excess[id(plan)], plan.predicted.local_peak_bytes))


def refuse(
    error: Infeasible, measurement: Measurement, steps: int, space: Space, *, shape: tuple[int, ...]
) -> InputError:
    """Return the error for a limit that is too small, which names the least limit with which all calls fit.

    Arguments:
        error: why no plan fits.
        measurement: what the steps take.
        steps: T.
        space: the memory of the call.
        shape: the shape of the inputs, time first; () if it is not known.
    """
    measurement = measurement.repeat(space.sequences)
    inside, kept = (
        format_bytes(size, like=space.limit) for size in (measurement.workspace_bytes, space.resident)
    )
    parts = f", of which {inside} are gradients and the tensors of a step"
    if space.resident:
        what = "outputs and gradients of the sequence" if space.outputs else "kept for the whole sequence"
        parts += f", {kept} {what}"
        if space.outputs and space.resident > space.limit:
            parts += f", more than the limit: a loss that is a sum over time needs none with {_SUMS}"
    return refuse_limit(
        error,
        _make_request(measurement, steps, space),
        memory=space.limit,
        limit=space.limit,
        gradients=measurement.parameter_bytes,
        parts=parts,
        tried=space.tried,
        shape=shape,
    )


def find_costs(measurement: Measurement, space: Space) -> StepCosts:
    """Return the costs of a step, and what is there beside it."""
    return _make_request(measurement, 1, space).case.costs


def advise(plan: Plan, measurement: Measurement, space: Space) -> str:
    """Return what ``offload=`` would save at an assumed rate, if that is much; '' if it is not."""
    if plan.predicted.overhead <= DEAR or space.links:
        return ""
    make = partial(_make_request, measurement.repeat(space.sequences), plan.steps, space)
    remote = _plan_remote(make, (assume_link(measurement.state_bytes, plan.steps),))
    return advise_offload(plan, None if remote is None else remote[0])


def _make_request(
    measurement: Measurement,
    steps: int,
    space: Space,
    *,
    less: int = 0,
    at_once: bool = True,
    link: Link | None = None,
    overlaps: bool = False,
    batches: bool = False,
) -> Request:
    """Return the request for a plan that takes so much ``less`` than the limit.

    ``at_once`` allows for a plan that records all steps at once. With a ``link``, states move in ``batches`` or
    singly, and beside compute if it ``overlaps``.
    """
    counted: dict[str, Any] = {
        "state_bytes": measurement.state_bytes,
        "tape_bytes": measurement.tape_bytes,
        "resident_bytes_per_step": -(-space.resident // steps),
        "cache_bytes": measurement.cache_bytes,
        # The first state, or a state that was read singly, is no checkpoint, and alive until it was used.
        "workspace_bytes": measurement.workspace_bytes
        + space.working
        + (0 if link is None else measurement.state_bytes),
    }
    timed: dict[str, Any] = {
        "forward_seconds": measurement.forward_seconds,
        "recompute_seconds": measurement.replay_seconds,
        "record_overhead_seconds": max(0.0, measurement.record_seconds - measurement.replay_seconds),
        "backward_seconds": measurement.backward_seconds,
        "chunk_seconds": measurement.chunk_seconds,
        "save_seconds": measurement.save_seconds,
        "load_seconds": measurement.load_seconds,
    }
    basis = {
        **dict.fromkeys(
            counted, Basis(kind="measured", why=f"counted in the first {measurement.steps} steps of the call")
        ),
        **dict.fromkeys(
            timed,
            Basis(kind="measured", why=f"timed once over the first {measurement.steps} steps of the call"),
        ),
    }
    workload = Workload(name="call", steps=steps, units=1, **counted, **timed, limited=True, basis=basis)
    strategies = _STRATEGIES if at_once else _STRATEGIES[1:]
    if link is None:
        profile = HardwareProfile(name="memory-limit", local_bytes=space.limit, remote_bytes=0)
    else:
        # Batches move what was saved on the device. Single states are saved and loaded as they move.
        message = 0.0 if batches else (measurement.save_seconds + measurement.load_seconds) / 2
        profile = link.make_profile(space.limit, overlaps=overlaps, message_seconds=message)
    return Request.of(
        workload,
        profile,
        # The rest is for what is not tensors of the cell: numbers by which steps are recognised, generators.
        local_bytes=leave_margin(space.limit) - less,
        strategies=strategies if link is None else _BATCH_STRATEGIES if batches else _REMOTE_STRATEGIES,
        cache="all" if space.keeps_caches else None,
        command="ckptplan.torch.plan_for",
    )
