"""Records the measured timeline of an executed plan, as events of the simulator."""

from __future__ import annotations

import torch

from ckptplan.execution.events import Frontier, track_of
from ckptplan.schedule.actions import Action, Tier
from ckptplan.schedule.timeline import Event
from ckptplan.torch.clock import Clock, choose_clock
from ckptplan.torch.executor import Executor


class Timeline:
    """An observer of ``bptt`` and ``unroll`` that records when each action began and ended.

    Actions are measured one by one: on a device, each is waited for, so that copies do not overlap compute
    while they are measured. Time between the forward and the backward pass is excluded. Without
    ``counts_bytes``, no bytes are counted, since inspecting a recorded graph slows its backward pass down.
    Times are those of ``choose_clock`` unless a clock is given.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        resident_bytes: int = 0,
        counts_bytes: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.clock = clock or choose_clock(device)
        self._device, self._resident, self._counts = device, resident_bytes, counts_bytes
        self._frontier = Frontier()
        self._elapsed = 0.0

    def __call__(self, action: Action, executor: Executor) -> None:
        """Record an action that is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        start, self._elapsed = self._elapsed, self._elapsed + self.clock() - executor.began
        local = remote = 0
        if self._counts:
            local = executor.stores[Tier.LOCAL].bytes + sum(tape.bytes for tape in executor.tapes)
            remote = executor.stores[Tier.REMOTE].bytes
        self.events.append(
            Event(
                start=start,
                end=self._elapsed,
                track=track_of(action),
                action=action,
                held_at=self._elapsed,
                local_bytes=self._resident + local,
                remote_bytes=remote,
                recomputed_steps=self._frontier.pass_over(action),
            )
        )
