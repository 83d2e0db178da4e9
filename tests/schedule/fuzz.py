"""Random legal schedules: any order of actions that the laws allow, not only what strategies make."""

from __future__ import annotations

from random import Random

from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer

LOCAL, REMOTE = Tier.LOCAL, Tier.REMOTE


class Walk:
    """Takes random legal actions until every step is reversed and nothing is left."""

    def __init__(self, random: Random, steps: int) -> None:
        self.random = random
        self.position: int | None = 0
        self.adjoint = steps
        self.taped: set[int] = set()
        self.stored: dict[Tier, set[int]] = {LOCAL: set(), REMOTE: set()}
        self.actions: list[Action] = []

    def choices(self) -> list[Action]:
        found: list[Action] = []
        if self.position is not None:
            stop = self.position
            while stop < self.adjoint:
                stop += 1
                found.append(Advance(self.position, stop))
                if self.taped.isdisjoint(range(self.position, stop)):
                    found.append(Record(self.position, stop))
            found += [Save(self.position, tier) for tier in Tier if self.position not in self.stored[tier]]
        start = self.adjoint
        while start and start - 1 in self.taped:
            start -= 1
            found += [Backward(start, self.adjoint)] * 3
        for tier, other in ((LOCAL, REMOTE), (REMOTE, LOCAL)):
            found += [Load(state, tier) for state in self.stored[tier]]
            found += [Free(state, tier) for state in self.stored[tier]]
            movable = sorted(self.stored[tier] - self.stored[other])
            if movable:
                some = self.random.sample(movable, self.random.randint(1, len(movable)))
                found.append(Transfer(tuple(some), tier, other))
        return found

    def take(self, action: Action) -> None:
        self.actions.append(action)
        if isinstance(action, Advance | Record):
            self.position = action.stop
            if isinstance(action, Record):
                self.taped.update(range(action.start, action.stop))
        elif isinstance(action, Backward):
            self.taped.difference_update(range(action.start, action.stop))
            self.adjoint, self.position = action.start, None
        elif isinstance(action, Save):
            self.stored[action.tier].add(action.state)
        elif isinstance(action, Load):
            self.position = action.state
        elif isinstance(action, Free):
            self.stored[action.tier].discard(action.state)
        else:
            self.stored[action.source].difference_update(action.states)
            self.stored[action.target].update(action.states)


def random_schedule(seed: int, steps: int) -> list[Action]:
    """A legal schedule of ``steps`` steps; state 0 stays stored until the end, so that none is stuck."""
    walk = Walk(Random(seed), steps)  # noqa: S311 - no secret
    walk.take(Save(0, LOCAL))
    while walk.adjoint and len(walk.actions) < 60:
        choices = [action for action in walk.choices() if not (isinstance(action, Free) and action.state == 0)]
        walk.take(walk.random.choice(choices))
    while walk.adjoint:  # enough wandering
        step = walk.adjoint - 1
        if step not in walk.taped:
            walk.take(Load(0, LOCAL if 0 in walk.stored[LOCAL] else REMOTE))
            if step:
                walk.take(Advance(0, step))
            walk.take(Record(step, step + 1))
        walk.take(Backward(step, step + 1))
    for tier in Tier:
        for state in sorted(walk.stored[tier]):
            walk.take(Free(state, tier))
    return walk.actions
