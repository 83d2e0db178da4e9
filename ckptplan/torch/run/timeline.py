"""Observes a run: when each of its actions began and ended, and the bytes that it held."""

from __future__ import annotations

import torch

from ckptplan.schedule.actions import Action, Tier
from ckptplan.schedule.timeline import Event, Frontier, track_of
from ckptplan.torch.device.meters import Clock, choose_clock
from ckptplan.torch.run.executor import Executor


class Timeline:
    """An observer of ``bptt`` and ``unroll`` that records, as events, when each action began and ended.

    Actions are measured one by one. On a GPU, the observer waits for each action, so that copies do not overlap
    compute while they are measured. Time between the forward and the backward pass is excluded. Without
    ``counts_bytes``, no bytes are counted, since inspecting a recorded graph slows its backward pass down.
    Times are those of ``choose_clock`` unless a clock is given.
    """

    def __init__(self, device: torch.device, *, counts_bytes: bool = True, clock: Clock | None = None) -> None:
        self.events: list[Event] = []
        #: Peak bytes of the outputs that the cell saves for the whole sequence.
        self.saved_bytes = 0
        self.clock = clock or choose_clock(device)
        self._device, self._counts = device, counts_bytes
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
            self.saved_bytes = max(self.saved_bytes, executor.steps.saved_bytes)
        self.events.append(
            Event(
                start=start,
                end=self._elapsed,
                track=track_of(action),
                action=action,
                held_at=self._elapsed,
                local_bytes=local,
                remote_bytes=remote,
                recomputed_steps=self._frontier.pass_over(action),
            )
        )
