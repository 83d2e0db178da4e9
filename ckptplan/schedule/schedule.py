"""A schedule to execute: its actions, and the little else that a runtime has to know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ckptplan.errors import InputError, quote_value
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Action
from ckptplan.schedule.simulator import play
from ckptplan.units import MAX_STEPS


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What ``ckptplan.torch.bptt`` executes where there is no plan.

    ``actions`` are those of docs/schedule-format.md: a list, or a function that returns them afresh each time.
    Raises InputError for fields that are not accepted; ``check`` says whether the actions are legal.
    """

    #: T: the time steps of the sequence.
    steps: int
    actions: Callable[[], Iterable[Action]] | Iterable[Action]
    #: Steps of a regular chunk: a ``ChunkCell`` may run that many at a time.
    chunk_size: int = 1
    #: Whether transfers may run while steps do.
    overlaps: bool = False
    #: States that fit local memory, of which a ``ChunkCell`` may work on a share; None: no limit.
    local_states: int | None = None

    def __post_init__(self) -> None:
        _check_count("steps", self.steps)
        _check_count("chunk_size", self.chunk_size)
        if self.local_states is not None:
            _check_count("local_states", self.local_states)
        if not isinstance(self.overlaps, bool):
            raise InputError(
                f"{quote_value(self.overlaps)} is not accepted",
                field="overlaps",
                value=self.overlaps,
                accepted="True or False",
            )
        _check_actions(self.actions)

    def __iter__(self) -> Iterator[Action]:
        """Return the actions, from the first one."""
        return iter(self.actions() if callable(self.actions) else self.actions)

    def check(self) -> None:
        """Play the actions. Raises IllegalAction for the first one that breaks a law."""
        costs = StepCosts(
            steps=self.steps,
            state_bytes=1,
            tape_bytes=1,
            remote_state_bytes=1,
            forward_seconds=0,
            backward_seconds=0,
            recompute_seconds=0,
        )
        play(self, costs=costs)


def _check_count(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_STEPS:
        raise InputError(
            f"{quote_value(value)} is not accepted", field=field, value=value, accepted="a whole number from 1"
        )


def _check_actions(value: object) -> None:
    if isinstance(value, Iterator):
        reason = "is an iterator, which one run uses up"
    elif isinstance(value, str) or not (callable(value) or isinstance(value, Iterable)):
        reason = f"{quote_value(value)} holds no actions"
    else:
        return
    raise InputError(reason, field="actions", accepted="a list of actions, or a function that returns them")
