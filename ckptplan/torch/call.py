"""A call of ``bptt`` or ``unroll``: its arguments, checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.execution.advice import MARGIN
from ckptplan.execution.online import OnlineSchedule
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.actions import Action, Record
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.place import OffloadPlace, read_offload
from ckptplan.torch.cell_calls import ClosedCell
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.compile_options import read_compile
from ckptplan.torch.graphs import SeeGradient
from ckptplan.torch.inputs import Sequence, make_sequence
from ckptplan.torch.parameters import Parameters, list_parameters
from ckptplan.torch.surroundings.walk import MOST_COPIED
from ckptplan.torch.survey import Survey
from ckptplan.torch.trees import Leaves, flatten

Cell = Callable[[Any, Any], tuple[Any, Any]]
#: Called with each action when it is done, and with its executor.
Observer = Callable[[Action, Any], None]
#: Whether steps that run again are compared with what they were; ``"always"`` rehearses them in each call.
Verify: TypeAlias = bool | Literal["always"]
#: The losses that are given, by the names of their arguments.
Losses: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class OpenSchedule(Schedule):
    """The actions of a sequence that ends when something happens; ``steps`` are those known to come.

    Whoever executes them asks ``ends`` after each step of the sweep.
    """

    online: OnlineSchedule
    #: Called with the state and the steps that have run.
    ends: Callable[[Any, int], bool]

    @classmethod
    def of(cls, online: OnlineSchedule, known: int, ends: Callable[[Any, int], bool]) -> OpenSchedule:
        """Return the schedule of which so many steps are known to come."""
        return cls(
            steps=known,
            actions=partial(online.actions, lambda done: done == known),
            online=online,
            ends=ends,
        )

    def check(self) -> None:
        """Do nothing: what ``online`` makes is legal."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of ``bptt`` or ``unroll``; the fields are their arguments. Raises InputError."""

    cell: Cell
    inputs: Any
    state: Any
    plan: Plan | Schedule
    #: None for ``unroll``, whose outputs are kept.
    losses: Losses = field(default_factory=dict)
    parameters: Parameters = ()
    #: A folder for remote checkpoints, or the place that ``offload`` names; None for host memory.
    remote_dir: str | os.PathLike[str] | OffloadPlace | None = None
    replay_randomness: bool = True
    verify: Verify = True
    schedule: Iterable[Action] | None = None
    observer: Observer | None = None
    strict: bool = False
    #: Whether the plan's sizes are compared with those of the cell.
    compares_sizes: bool = True
    #: How pieces are compiled (``Compile``), or the piece itself; None if steps run as they are written.
    compile: Any = None
    #: What ``last`` of a ``ChunkCell`` returned for the steps before these, None at the first step.
    before: Any = None
    #: Watches sizes, where the plan was made for a limit.
    survey: Survey | None = None
    #: Sees the gradients of the parameters, of which nothing is kept then. For plans with one recording.
    see_gradient: SeeGradient | None = None
    #: Bytes of copies of what steps reach that lie in memory.
    room: int = MOST_COPIED
    #: The plan whose steps are compiled pieces; ``plan`` has its actions for time steps.
    pieced: Plan | None = None

    def __post_init__(self) -> None:
        check_plan(self.plan)
        if not callable(self.cell):
            raise InputError(
                f"{quote_value(self.cell)} cannot be called", field="cell", accepted="cell(state, x)"
            )
        if not (isinstance(self.verify, bool) or self.verify == "always"):
            raise InputError(
                f"is {quote_value(self.verify)}", field="verify", accepted="True, False or 'always'"
            )
        if not isinstance(self.remote_dir, str | os.PathLike | OffloadPlace | None):
            raise InputError(f"is {quote_value(self.remote_dir)}", field="remote_dir", accepted="a folder")
        if isinstance(self.plan, Schedule) and self.schedule is None:
            # A plan's actions are legal by construction; others could silently give wrong gradients.
            self.plan.check()
            if isinstance(self.cell, ChunkCell) and self.plan.drops_caches:
                raise InputError(
                    f"keeps the caches of some steps only, and {type(self.cell).__name__} keeps those of all",
                    field="plan",
                    accepted="Advance(start, stop) without cached=",
                )
        if self.limit is not None:
            object.__setattr__(self, "room", min(self.room, leave_room(self.limit)))
        # Read once: module.parameters() is an iterator.
        object.__setattr__(self, "parameters", list_parameters(self.parameters))

    @property
    def measured(self) -> Call:
        """The call as it is measured: steps as they are written, all on the device, and nobody looks on."""
        return replace(self, compile=None, remote_dir=None, observer=None, schedule=None)

    @property
    def told(self) -> Plan | Schedule:
        """The plan that its caller is told of: the latest one; of compiled pieces, the one that counts them."""
        if self.survey is not None:
            return self.survey.plan
        return self.plan if self.pieced is None else self.pieced

    @cached_property
    def sequence(self) -> Sequence:
        """The inputs as a sequence."""
        asked_by = "plan" if isinstance(self.plan, Plan) else "schedule"
        return make_sequence(self.inputs, steps=self.plan.steps, asked_by=asked_by)

    @cached_property
    def place(self) -> OffloadPlace:
        """Where remote checkpoints go."""
        if isinstance(self.remote_dir, OffloadPlace):
            return self.remote_dir
        folder = None if self.remote_dir is None else Path(self.remote_dir)
        return OffloadPlace(folder=folder, field="remote_dir")

    @cached_property
    def planned(self) -> Schedule:
        """The actions of the plan."""
        return schedule_of(self.plan) if isinstance(self.plan, Plan) else self.plan

    @cached_property
    def things(self) -> dict[str, object]:
        """The cell, the losses, and what makes the inputs, if they are made: all that may keep something."""
        made = {"inputs": self.inputs} if callable(self.inputs) else {}
        return {"cell": self.cell, **self.losses, **made}

    @property
    def code(self) -> tuple[Any, ...]:
        """What tells ``things`` from others; a lambda that a loop makes anew is the same one."""
        return tuple((name, _find_code(one)) for name, one in self.things.items())

    @cached_property
    def leaves(self) -> Leaves:
        """The tensors of the state and the inputs."""
        return (*flatten(self.state)[0], *self.sequence.leaves)

    @cached_property
    def device(self) -> torch.device:
        """The device on which the cell will probably run, from its arguments."""
        modules = [one for one in (self.cell, *self.losses.values()) if isinstance(one, torch.nn.Module)]
        tensors = [
            *(*self.leaves, *self.parameters),
            *(parameter for module in modules for parameter in module.parameters()),
        ]
        devices = [tensor.device for tensor in tensors]
        accelerators = [device for device in devices if device.type != "cpu"]
        return (accelerators or devices or [torch.device("cpu")])[0]

    @property
    def is_closed(self) -> bool:
        """Whether the cell reaches nothing but its arguments, so that it needs no trial."""
        return isinstance(self.cell, ClosedCell)

    @property
    def is_limited(self) -> bool:
        """Whether the plan was made for a limit of memory."""
        if self.schedule is not None:
            return False
        return self.plan.workload.limited if isinstance(self.plan, Plan) else self.survey is not None

    @property
    def limit(self) -> int | None:
        """The local bytes that a plan may take which was made for a limit; None for others."""
        if not isinstance(self.plan, Plan) or not self.is_limited:
            return None
        goal, profile = self.plan.goal, self.plan.profile
        return profile.local_bytes if goal.local_bytes is None else goal.local_bytes

    @property
    def runs_again(self) -> bool:
        """Whether steps run again or in pieces, and not once each, in order, as in a plain loop."""
        first = next(iter(self.planned), None) if self.schedule is None else None
        in_pieces = "chunk_loss" in self.losses or self.compile is not None
        return in_pieces or not (isinstance(first, Record) and first.stop == self.plan.steps)

    @property
    def runs_as_planned(self) -> bool:
        """Whether it can run twice: an observer sees each action once, a schedule is given once."""
        return self.schedule is None and self.observer is None


def _find_code(thing: Any) -> Any:
    while isinstance(thing, partial):
        thing = thing.func
    return getattr(thing, "__code__", type(thing))


def leave_room(limit: int) -> int:
    """Return the bytes of a limit for a snapshot of what steps reach: a part of those that a plan leaves."""
    return min(limit // (4 * MARGIN), MOST_COPIED)


def check_plan(plan: object) -> None:
    """Raise InputError if something is no plan."""
    if not isinstance(plan, Plan | Schedule):
        raise InputError(
            f"{quote_value(plan)} is not a plan",
            field="plan",
            value=plan,
            accepted="a Plan, as from ckptplan.optimize(...) or ckptplan.load_plan(path); a ckptplan.Schedule",
        )


def read_options(plan: object, memory: object, **options: Any) -> dict[str, Any]:
    """Return arguments of ``unroll``, of which some may be missing, as fields of ``Call``.

    Raises InputError for arguments that contradict each other, or that would have no effect.
    """
    # Read once: module.parameters() is an iterator.
    options["parameters"] = list_parameters(options.get("parameters", ()))
    if memory is not None and plan is not None:
        raise InputError("is given together with plan", field="memory", accepted="one of the two")
    for name, why in (
        (
            "remote_dir",
            "a plan for a limit of memory keeps nothing remote, unless offload names the place",
        ),
        ("schedule", "other actions than those that are planned need not keep the limit"),
    ):
        if memory is not None and options.get(name) is not None:
            raise InputError(
                f"is given together with memory: {why}",
                field=name,
                accepted=f"plan=... with {name}, or memory{' with offload' if name == 'remote_dir' else ''}",
            )
    if isinstance(plan, Schedule) and options.get("strict"):
        raise InputError(
            "has no effect: a Schedule has no sizes to compare with those of the cell",
            field="strict",
            accepted="strict=False, or a Plan",
        )
    options["compile"] = read_compile(options.get("compile"))
    place = read_offload(options.pop("offload", None), plan=plan, memory=memory)
    return options if place is None else {**options, "remote_dir": place}


def check_losses(*, loss: object, chunk_loss: object, final_loss: object) -> dict[str, Any]:
    """Return the losses that are given, by the names of their arguments. Raises InputError."""
    if loss is not None and chunk_loss is not None:
        raise InputError("is given together with loss", field="chunk_loss", accepted="one of the two")
    if loss is None and chunk_loss is None and final_loss is None:
        raise InputError("is missing", field="loss", accepted="loss, chunk_loss or final_loss")
    given = {"loss": loss, "chunk_loss": chunk_loss, "final_loss": final_loss}
    losses = {name: one for name, one in given.items() if one is not None}
    for name, function in losses.items():
        if not callable(function):
            raise InputError(f"{quote_value(function)} cannot be called", field=name, accepted="a function")
    return losses
