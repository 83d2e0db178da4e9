"""Chooses the quickest plan for measured steps and a limit of memory."""

from __future__ import annotations

import math
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

#: The share of the free memory of the device that ``memory="auto"`` takes. The rest is for fragmentation, the
#: first step of the optimizer, and other programs.
AUTO_SHARE = 0.7
#: The strategies that keep nothing remote.
_STRATEGIES = ("base", "standard", "nested", "growing", "revolve")
#: The strategies that move single states, and the strategy that moves several states in a message.
_REMOTE_STRATEGIES = ("remote", "double", "double-growing", "periodic")
_BATCH_STRATEGIES = ("hierarchical",)
#: How many times their bytes a mean of squares of all outputs takes, with gradients and other tensors.
MADE_OF_OUTPUTS = 5
#: Plans within this factor of the least time count as equally quick, since times are measured only once.
_EQUAL_FACTOR = 1.02
#: Sizes of checkpoints that are tried to find a plan that leaves room for a loss of the outputs.
_TRIES = 5
_SUMS = (
    "ckptplan.torch.bptt of a cell, or bptt of a wrapped network that keeps its state; "
    'wrap(lstm, outputs="last") returns the last output alone'
)


@dataclass(frozen=True, kw_only=True)
class OtherSequences:
    """The memory that other sequences of the same call take.

    Arguments:
        sequences: the sequences that run one after another before all are reversed, including this one.
        kept_bytes: the bytes that the other sequences keep besides their states and tapes.
        grad_bytes: the bytes of the gradients of the other sequences.
        output_bytes: the bytes of the outputs of the call; None for the outputs of this sequence.
    """

    sequences: int = 1
    kept_bytes: int = 0
    grad_bytes: int = 0
    output_bytes: int | None = None


#: A call of one sequence.
ALONE = OtherSequences()


@dataclass(frozen=True, kw_only=True)
class Space:
    """The memory limit of a call, and its memory besides checkpoints, tapes and the tensors of a step.

    Arguments:
        limit: the bytes that the call may take.
        kept_bytes: the bytes that the call holds all the time.
        grad_bytes: the bytes that the call holds in the backward pass, such as gradients of inputs.
        working: the bytes that steps may work with in addition to the measured ones.
        takes_single_steps: whether a ``ChunkCell`` works with the outputs and adjoints of one step at a time.
        keeps_caches: whether the caches of all steps have to stay.
        output_bytes: the bytes of the outputs that are returned; 0 if the call returns a loss.
        trial_bytes: the bytes that the trial of a first call takes; 0 in later calls.
        sequences: the number of sequences whose states and tapes exist at the same time.
        links: ways to keep checkpoints off the device.
    """

    limit: int
    kept_bytes: int = 0
    grad_bytes: int = 0
    working: int = 0
    takes_single_steps: bool = False
    keeps_caches: bool = False
    output_bytes: int = 0
    trial_bytes: int = 0
    sequences: int = 1
    links: tuple[Link, ...] = ()

    @property
    def resident(self) -> int:
        """The bytes that a plan counts for the whole sequence, including outputs and their gradients."""
        return self.kept_bytes + self.grad_bytes + 2 * self.output_bytes

    @property
    def loss_bytes(self) -> int:
        """The bytes that the call and the caller's loss take besides states and tapes.

        The loss is assumed to be a mean of squares of the outputs.
        """
        return self.kept_bytes + MADE_OF_OUTPUTS * self.output_bytes

    def find_excess(self, plan: Plan) -> int:
        """Return the bytes by which a plan exceeds the limit between the forward and the backward pass.

        There the caller computes a loss of the outputs, which is assumed to be a mean of squares. The result is
        zero or less if the plan has room for the loss.
        """
        if not self.output_bytes:
            return 0
        # The states before and after the last steps exist, too. The first state belongs to the caller.
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
                case Advance(start, stop, cached_steps):
                    cached += stop - start if cached_steps is None else cached_steps
                case Record(start, stop):
                    recorded += stop - start
                    cached += stop - start
        tapes = 0 if is_postponed(plan) else recorded
        held = cached * sizes.cache_bytes + self.loss_bytes
        return held + states * sizes.state_bytes + tapes * sizes.tape_bytes - self.limit


def read_limit(memory: object, device: torch.device) -> int:
    """Return a limit of memory in bytes. Raises InputError."""
    if memory == "auto":
        free = available_bytes(device)
        if free is None:
            raise InputError(
                "cannot be found out on this system", field="memory", accepted="a size, as '2 GiB'"
            )
        # Rounding makes calls of the same shapes get the same plan, although free memory varies.
        return round_down(int(AUTO_SHARE * free))
    return parse_limit(memory, field="memory", or_else=", or 'auto'")


def choose_plan(measurement: Measurement, steps: int, space: Space) -> Plan:
    """Return the quickest plan with room for a loss of the outputs, or the quickest plan if none has room.

    Arguments:
        measurement: the sizes and times of the steps.
        steps: T.
        space: the memory of the call.

    Raises Infeasible if no plan fits.
    """
    plan = _choose(measurement.repeat(space.sequences), steps, replace(space, trial_bytes=0))
    if not space.takes_single_steps:
        return plan
    return _add_note(plan, SINGLE_STEPS, "there is room for outputs and adjoints of one step at a time")


def _add_note(plan: Plan, field: str, text: str) -> Plan:
    note = BasisEntry(field=field, kind="derived", text=text)
    return plan.model_copy(update={"estimate_basis": (*plan.estimate_basis, note)})


@lru_cache(maxsize=1024)
def _choose(measurement: Measurement, steps: int, space: Space) -> Plan:
    make = partial(_make_request, measurement, steps, space)
    best = _search(make, space.links)
    if best is None:
        # This raises Infeasible, with suggestions.
        best = rank_strategies(make(), only_best=True).best()
    plans = _list_with_room(best, measurement, space)
    if space.find_excess(best) > 0:
        # While the caller computes the loss, its bytes take the place of workspace and resident bytes.
        workspace = measurement.workspace_bytes + space.working
        reserved = space.loss_bytes + 2 * measurement.state_bytes - space.resident - workspace
        reserved = min(max(0, reserved), leave_margin(space.limit) - 1)
        with_room = _search(partial(make, reserved=reserved), space.links)
        plans += [] if with_room is None else _list_with_room(with_room, measurement, space)
        plans += _list_postponed(make, measurement, space)
    return _pick(plans, space)


def _list_postponed(make: Callable[..., Request], measurement: Measurement, space: Space) -> list[Plan]:
    """Return plans whose last recording is postponed, the quickest ones with room for a loss among them.

    Such a plan may use the whole limit for its tapes, since the loss is freed before they exist, but has little
    room for checkpoints. So the search multiplies the bytes of a checkpoint by a factor, and finds plans with
    fewer checkpoints. Bisection finds the least factor with room for the loss.
    """
    room = space.limit - space.loss_bytes - 2 * measurement.state_bytes
    plans: list[Plan] = []
    # With the largest factor, checkpoints that fill the limit fill the room that the loss leaves.
    low, high = 1.0, space.limit / max(room, measurement.state_bytes)
    factor = high
    for _ in range(_TRIES):
        if (plan := _find_best(make(), make(state_factor=factor))) is None:
            low = factor
        else:
            listed = _list_with_room(plan, measurement, space)
            plans += listed
            low, high = (low, factor) if space.find_excess(listed[0]) <= 0 else (factor, high)
        factor = math.sqrt(low * high)
    return plans


def _search(make: Callable[..., Request], links: tuple[Link, ...]) -> Plan | None:
    """Return the quickest plan, with a note on what the links save; None if no plan fits."""
    local, remote = _find_best(make()), _plan_remote(make, links)
    if remote is None:
        return local
    plan, place = remote
    quicker = plan if local is None or plan.predicted.seconds < local.predicted.seconds else local
    return note_offload(quicker, local=local, remote=plan, place=place)


def _find_best(request: Request, searched: Request | None = None) -> Plan | None:
    """Return the quickest plan of a request, None if no plan fits.

    If ``searched`` is given, return its quickest plan, with the cost of that plan under ``request``.
    """
    ranking = rank_strategies(searched or request, only_best=True)
    if not ranking.answers:
        return None
    return ranking.best() if searched is None else request.plan(ranking.answers[0], proofs=())


def _plan_remote(make: Callable[..., Request], links: tuple[Link, ...]) -> tuple[Plan, str] | None:
    """Return the quickest plan that uses a link, and its place; None if no plan fits.

    Transfers that overlap compute need two buffers, whose memory may be better spent on checkpoints.
    """
    remote_plans: list[tuple[Plan, str]] = []
    for link, overlaps, batches in product(links, (True, False), (True, False)):
        if link.overlaps or not overlaps:
            plan = _find_best(make(link=link, overlaps=overlaps, batches=batches))
            if plan is not None:
                remote_plans.append((plan, link.place))
    return min(remote_plans, key=lambda pair: pair[0].predicted.seconds, default=None)


def _list_with_room(plan: Plan, measurement: Measurement, space: Space) -> list[Plan]:
    """Return a plan. If it lacks room for a loss, put it behind its copy with a postponed last recording."""
    last = [action for action in _list_sweep(plan) if isinstance(action, Record)][-1]
    if space.find_excess(plan) <= 0 or not last.start:
        return [plan]
    return [_postpone(plan, last.stop - last.start, measurement), plan]


def _list_sweep(plan: Plan) -> list[Any]:
    return list(takewhile(lambda action: not isinstance(action, Backward), schedule_of(plan)))


def _postpone(plan: Plan, steps: int, measurement: Measurement) -> Plan:
    """Return a plan whose last recording is postponed, so that its ``steps`` steps run once more."""
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
    text = (
        f"the last {steps} steps run without a tape, and are recorded when gradients arrive, so that the "
        "loss of the outputs finds room"
    )
    return _add_note(plan.model_copy(update={"predicted": postponed}), POSTPONED, text)


def _pick(plans: list[Plan], space: Space) -> Plan:
    """Return the quickest plan with room for a loss of the outputs, or else the plan with the most."""
    excess = {id(plan): max(0, space.find_excess(plan)) for plan in plans}
    fitting = [plan for plan in plans if not excess[id(plan)]] or plans
    longest = _EQUAL_FACTOR * min(plan.predicted.seconds for plan in fitting)
    quick = (plan for plan in fitting if plan.predicted.seconds <= longest)
    return min(quick, key=lambda plan: (excess[id(plan)], plan.predicted.local_peak_bytes))


def refuse(
    error: Infeasible, measurement: Measurement, steps: int, space: Space, *, shape: tuple[int, ...]
) -> InputError:
    """Return the error for a limit that is too small, which names the least limit with which all calls fit.

    Arguments:
        error: the reason why no plan fits.
        measurement: the sizes and times of the steps.
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
        kind = "outputs and gradients of the sequence" if space.output_bytes else "kept for the whole sequence"
        parts += f", {kept} {kind}"
        if space.output_bytes and space.resident > space.limit:
            parts += f", more than the limit: a loss that is a sum over time needs none with {_SUMS}"
    return refuse_limit(
        error,
        _make_request(measurement, steps, space),
        memory=space.limit,
        limit=space.limit,
        gradients=measurement.parameter_bytes,
        parts=parts,
        tried=space.trial_bytes,
        shape=shape,
    )


def find_costs(measurement: Measurement, space: Space) -> StepCosts:
    """Return the costs of a step, including the memory that a call holds besides it."""
    return _make_request(measurement, 1, space).case.costs


def advise(plan: Plan, measurement: Measurement, space: Space) -> str:
    """Return text on the time that ``offload=`` would save at an assumed rate; '' if it is little."""
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
    reserved: int = 0,
    state_factor: float = 1.0,
    link: Link | None = None,
    overlaps: bool = False,
    batches: bool = False,
) -> Request:
    """Return the request for a plan that leaves ``reserved`` bytes of the limit free.

    ``state_factor`` multiplies the bytes of a checkpoint. With a ``link``, states move in ``batches`` or
    singly, and during compute if it ``overlaps``.
    """
    counted: dict[str, Any] = {
        "state_bytes": math.ceil(state_factor * measurement.state_bytes),
        "tape_bytes": measurement.tape_bytes,
        "resident_bytes_per_step": -(-space.resident // steps),
        "cache_bytes": measurement.cache_bytes,
        # The first state, or a single state that was read, is alive until its use, but is no checkpoint.
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
    if link is None:
        profile = HardwareProfile(name="memory-limit", local_bytes=space.limit, remote_bytes=0)
    else:
        # Batches move checkpoints that the device saved. Single states are saved and loaded as they move.
        message = 0.0 if batches else (measurement.save_seconds + measurement.load_seconds) / 2
        profile = link.make_profile(space.limit, overlaps=overlaps, message_seconds=message)
    return Request.of(
        workload,
        profile,
        # The margin is for other data: numbers by which replayed steps are compared, and generators.
        local_bytes=leave_margin(space.limit) - reserved,
        strategies=_STRATEGIES if link is None else _BATCH_STRATEGIES if batches else _REMOTE_STRATEGIES,
        cache="all" if space.keeps_caches else None,
        command="ckptplan.torch.plan_for",
    )
