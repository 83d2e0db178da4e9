"""What actions cost besides their steps, and when the recursions that charge them cover every schedule."""

from __future__ import annotations

from typing import NamedTuple

from ckptplan.model.step_costs import StepCosts


class ActionCosts(NamedTuple):
    """Seconds of each run of steps, recorded chunk, local save and local load."""

    advance: float = 0.0
    chunk: float = 0.0
    save: float = 0.0
    load: float = 0.0

    @classmethod
    def of(cls, costs: StepCosts) -> ActionCosts:
        """Return the costs of actions that a job has."""
        return cls(
            advance=costs.advance_seconds,
            chunk=costs.chunk_seconds,
            save=costs.save_seconds,
            load=costs.load_seconds,
        )

    def covered(self, *, write: float, read: float) -> bool:
        """Return whether local saves and loads are cheap enough for the recursions.

        Otherwise a detour by way of remote memory can replace one: a state is written and fetched back instead
        of saved, or written and read instead of loaded (docs/optimality.md).
        """
        return (
            self.save <= write + self.load and self.load <= write + read and min(self.save, self.load) <= read
        )

    def hold(self, *, write: float, read: float) -> float:
        """Return the cost of a local copy of a state that is due to be read: fetched, or read and saved."""
        return min(self.save, self.load) if self.covered(write=write, read=read) else self.save

    def lowered(self, *, write: float, read: float) -> ActionCosts:
        """Return costs that are no higher and that the recursions cover, for a lower bound."""
        if self.covered(write=write, read=read):
            return self
        return self._replace(save=min(self.save, write), load=min(self.load, read))


#: Actions that cost nothing, as in the paper.
FREE = ActionCosts()
