"""Defines an executable schedule: its actions, and the settings that a runtime needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ckptplan.errors import InputError, quote_value
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Action, Advance, Transfer
from ckptplan.schedule.simulator import play
from ckptplan.units import MAX_STEPS


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule that ``ckptplan.torch.bptt`` executes without a plan.

    ``actions`` are those of docs/schedule-format.md: a list, or a function that returns a new iterable each
    time. Raises InputError for fields that are not accepted; ``check`` verifies that the actions are legal.
    """

    #: T, the number of time steps of the sequence.
    steps: int
    actions: Callable[[], Iterable[Action]] | Iterable[Action]
    #: Steps of a regular chunk; a ``ChunkCell`` may run that many at a time.
    chunk_size: int = 1
    #: Whether transfers may overlap compute.
    overlaps: bool = False
    #: States that fit in local memory, of which a ``ChunkCell`` may use a share; None means no limit.
    local_states: int | None = None

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_count("chunk_size", self.chunk_size)
        if self.local_states is not None:
            check_count("local_states", self.local_states)
        if not isinstance(self.overlaps, bool):
            raise InputError(
                f"{quote_value(self.overlaps)} is not accepted",
                field="overlaps",
                value=self.overlaps,
                accepted="True or False",
            )
        _check_actions(self.actions)

    def __iter__(self) -> Iterator[Action]:
        """Return an iterator over the actions, from the first one."""
        return iter(self.actions() if callable(self.actions) else self.actions)

    @property
    def drops_caches(self) -> bool:
        """Whether a run keeps the caches of some of its steps only; this reads the whole schedule."""
        return any(isinstance(action, Advance) and action.cached is not None for action in self)

    @property
    def moves_caches(self) -> bool:
        """Whether caches move to remote memory; this reads the whole schedule."""
        return any(isinstance(action, Transfer) and action.caches is not None for action in self)

    def unit_costs(self) -> StepCosts:
        """Return costs without real sizes and times: one byte for each state and tape, no seconds."""
        return StepCosts(
            steps=self.steps,
            state_bytes=1,
            tape_bytes=1,
            remote_state_bytes=1,
            forward_seconds=0,
            backward_seconds=0,
            recompute_seconds=0,
        )

    def check(self) -> None:
        """Simulate the actions. Raises IllegalAction for the first one that breaks a law."""
        play(self, costs=self.unit_costs())


def check_count(field: str, value: object, *, least: int = 1) -> None:
    """Raise InputError unless a value is a whole number of steps or states, of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_STEPS:
        raise InputError(
            f"{quote_value(value)} is not accepted",
            field=field,
            value=value,
            accepted=f"a whole number from {least}",
        )


def _check_actions(value: object) -> None:
    if isinstance(value, Iterator):
        reason = "is an iterator, which can be run only once"
    elif isinstance(value, str) or not (callable(value) or isinstance(value, Iterable)):
        reason = f"{quote_value(value)} is not a collection of actions"
    else:
        return
    raise InputError(reason, field="actions", accepted="a list of actions, or a function that returns them")
