"""Watches the surroundings of a cell and a loss while a sequence runs.

What steps write and never read, as running statistics and records, is written once: by the first sweep. What
they read is hidden state, and refused, also if they begin to write it only after the first two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Generators, RandomState
from ckptplan.torch.counts import has_number, is_set_back
from ckptplan.torch.held_graphs import guard_leftovers
from ckptplan.torch.probe import Probed
from ckptplan.torch.recognise import HeldPlace, StaleFindingsError
from ckptplan.torch.rehearsal import Rehearsal, Seen
from ckptplan.torch.surroundings.holders import ArrayHolder, CacheHolder, Content, GradientHolder, TensorHolder
from ckptplan.torch.surroundings.snapshot import Place, Snapshot, Surroundings, holds_graph
from ckptplan.torch.trial import (
    HiddenState,
    detach_state,
    list_names,
    refuse_changed_parameters,
    refuse_lost_changes,
)

#: Makes what takes the step that begins with a state, given its number and the generators' states there.
MakeStep: TypeAlias = Callable[[Any, int, RandomState], Rehearsal]


@dataclass(frozen=True)
class _Taken:
    """A step that was taken in the middle of a sequence, what it gave, and what it found."""

    step: Rehearsal
    seen: Seen
    world: Snapshot


class LateCountsError(InputError):
    """A step changed numbers in some places that the first steps had left alone."""

    places: tuple[HeldPlace, ...]


class SequenceWatch:
    """The surroundings of one sequence, from before its first step until its gradients are there.

    Arguments:
        probed: what is known of the steps, and of what the cell and the losses can reach.
        generators: the random generators.
        make_step: makes what takes a step aside.
        runs_again: whether steps run again.
        rehearses: whether a step in the middle of the sequence is taken in other surroundings, too.
    """

    def __init__(
        self,
        *,
        probed: Probed,
        generators: Generators,
        make_step: MakeStep,
        runs_again: bool,
        rehearses: bool,
    ) -> None:
        found = probed.found
        self._surroundings = probed.surroundings
        self._before: Snapshot | None = probed.before
        self._roots, self._make_step, self._rehearses = probed.roots, make_step, rehearses
        self._made = _identify(found.made)
        self._with_graph = set(self._surroundings.list_places(found.with_graph))
        #: What steps changed in earlier calls, if there was no trial in this one and all must be known.
        self._expected = _identify(found.changed) if probed.recalled and runs_again else None
        #: What steps are known to change; None if no step runs again.
        self._known = _identify(found.changed) if runs_again else None
        #: Whether a sequence in which steps begin to count late may begin again.
        self.may_begin_again = False
        #: What the sweep changed.
        self.swept: tuple[HeldPlace, ...] = ()
        self._swept_places: list[Place] = []
        #: Whether the sweep changed what no earlier call had, and what could not be put back for a trial.
        self.is_stale = False
        #: Whether all is as it was before the first step, after a refusal.
        self.restored = False
        #: Called if the backward pass refuses the sequence.
        self.when_refused: Callable[[], object] = int
        #: The numbers of holders that the sweep made.
        self._new: list[int] = []
        self._generators = generators
        self._drawn = generators.state()
        self._taken: _Taken | None = None
        #: How often steps began to run again, and whether others than the steps had changed something.
        self._begun, self._suspects = 0, True
        #: The contents, before the first step, of the holders that the sweep changed.
        self._changed: dict[int, Content] = {}
        #: The contents at the end of the sweep, of what steps do not change.
        self._left: dict[int, Content] = {}
        #: The ids of tensors that steps write.
        self.written: frozenset[int] = frozenset()

    def check(self, state: Any, step: int) -> None:
        """Take ``step``, which runs next, from ``state``, here and in other surroundings. Raises InputError.

        Networks are more active here than at the start.
        """
        before = self._before
        if not self._rehearses or before is None:
            return
        surroundings, generators = self._surroundings, self._generators
        now = surroundings.take(copies=True, since=before)
        places = surroundings.list_changes(before, now)
        self._refuse_stale(places, before)
        if surroundings.find_more(places):
            now = surroundings.take(copies=True, since=now)
        refuse_lost_changes(surroundings, places)
        with generators.aside():
            taken = self._make_step(detach_state(state), step, generators.state())
            try:
                seen = taken.play()
                self._with_graph |= {one for one in places if holds_graph(surroundings.value_of(one))}
                # What the first step alone makes is there for all later ones.
                others = self._leave_out_counts(places)
                others = [one for one in others if surroundings.identify(one) not in self._made]
                if others:
                    contents = dict(enumerate(before))
                    taken.compare(world=now, others=contents, usual=seen, places=others)
            finally:
                surroundings.put_back(now)
        self._taken = _Taken(taken, seen, now)

    def check_again(self, state: Any, step: int) -> None:
        """Look for changes since the sweep; ``step`` is the first one that runs again, from ``state``.

        If others than the steps changed something, it is taken aside with and without that, and so are some of
        those where steps begin to run again later. The step of ``check`` is taken in what the sequence left.
        Raises InputError if one gives something else.
        """
        self._begun += 1
        if not self._suspects or self._begun & (self._begun - 1):
            # The first, the second, the fourth: few, though there may be many.
            return
        surroundings, taken = self._surroundings, self._taken
        self._taken = None
        changed = self._list_changes()
        self._suspects = bool(changed)
        if not changed and taken is None:
            return
        present = surroundings.take()
        with self._generators.aside(), torch.enable_grad():
            try:
                if changed:
                    again = self._make_step(state, step, self._generators.state())
                    self._refuse_changes(again, present, changed)
                if taken is not None:
                    # Also if nothing changed that can be found.
                    end = surroundings.take(copies=True, since=taken.world)
                    places = self._leave_out_counts(surroundings.list_changes(taken.world, end))
                    contents = dict(enumerate(end))
                    taken.step.compare(world=taken.world, others=contents, usual=taken.seen, places=places)
            except HiddenState as error:
                theirs = [place for place in error.places if place not in self._swept_places]
                if not theirs:
                    raise
                raise InputError(
                    _describe_changes(theirs), field="cell or loss", accepted=_UNCHANGED
                ) from error
            finally:
                surroundings.put_back(present)

    def _refuse_changes(self, step: Rehearsal, present: Snapshot, places: list[Place]) -> None:
        """Raise InputError if a step gives something else with what others changed than without."""
        as_left, now = step.play_in(present, self._left, places), step.play_in(present, {}, [])
        if now is None or as_left is None or step.describe_difference(as_left, now):
            raise InputError(_describe_changes(places), field="cell or loss", accepted=_UNCHANGED)

    @property
    def with_graph(self) -> list[HeldPlace]:
        """The places that hold tensors with a graph after a step: holders with keys."""
        return [(self._surroundings.holders[place.holder], place.key) for place in self._with_graph]

    def guard(self) -> None:
        """Let what other steps left with a graph refuse a gradient: steps are recorded, which may use it."""
        guard_leftovers(self._surroundings, self._with_graph, with_graph=self._with_graph, roots=self._roots)

    def end_sweep(self) -> None:
        """Find what the sweep changed. Raises InputError if steps read it."""
        surroundings, before = self._surroundings, self._before
        assert before is not None  # noqa: S101 - a sweep ends once
        now = surroundings.take(since=before)
        known = len(before)
        changed = surroundings.list_changes(before, now)
        self._refuse_stale(changed, before)
        self._begin_again(changed, before)
        if surroundings.find_more(changed):
            now = surroundings.take(since=now)
        refuse_changed_parameters(surroundings, changed)
        self.swept = tuple((surroundings.holders[place.holder], place.key) for place in changed)
        self._new = [
            number
            for number, holder in enumerate(surroundings.holders[known:], known)
            if not isinstance(holder, TensorHolder) or holder.small
        ]
        self._changed = {place.holder: before[place.holder] for place in changed}
        self._swept_places = changed
        guard_leftovers(surroundings, changed, with_graph=self._with_graph, roots=self._roots)
        values = (surroundings.value_of(place) for place in changed)
        self.written = frozenset(id(one) for one in values if isinstance(one, torch.Tensor))
        # Guards are put into containers that steps made, too.
        self._left = _leave_out(surroundings, surroundings.take(since=now) if changed else now, changed)

    def _refuse_stale(self, changed: list[Place], before: Snapshot) -> None:
        """Raise InputError for changes that an earlier call did not show.

        If all can be put back, the sequence begins again, with a trial; else the next call has one.
        """
        surroundings = self._surroundings
        unexpected = self._list_unexpected(changed)
        lost = [place for place in unexpected if not surroundings.can_return(place, before)]
        self.is_stale = bool(lost)
        caches = [place for place in lost if isinstance(surroundings.holders[place.holder], CacheHolder)]
        if caches:
            raise InputError(
                f"a step fills {list_names(caches)} without a graph, and none did in earlier calls: what it "
                "held cannot be put back for a trial",
                field="cell or loss",
                accepted="caches of tensors that are empty before each call, or hold all that steps ask for",
            )
        if unexpected and not lost:
            raise StaleFindingsError("a step changed what none had changed before", field="cell or loss")

    def _begin_again(self, changed: list[Place], before: Snapshot) -> None:
        """Raise LateCountsError if a later step began to count: checkpoints have to know where it stood."""
        can_return = self._surroundings.can_return
        if (
            self._known is None
            or not self.may_begin_again
            or not all(can_return(one, before) for one in changed)
        ):
            return
        late = [place for place in changed if self._surroundings.identify(place) not in self._known]
        if found := [place for place in late if has_number(self._surroundings, place)]:
            error = LateCountsError("counts in a later step", field="cell or loss")
            error.places = tuple((self._surroundings.holders[one.holder], one.key) for one in found)
            raise error

    def _leave_out_counts(self, places: Iterable[Place]) -> list[Place]:
        """Return places without those that steps find as they were when they run again."""
        known = self._known or ()
        return [
            place
            for place in places
            if not (self._surroundings.identify(place) in known and is_set_back(self._surroundings, place))
        ]

    def _list_unexpected(self, changed: list[Place]) -> list[Place]:
        if self._expected is None:
            return []
        return [place for place in changed if self._surroundings.identify(place) not in self._expected]

    @contextmanager
    def sweep(self) -> Iterator[None]:
        """Run the first sweep; after an InputError, leave everything as it was before the first step."""
        try:
            yield
        except InputError:
            if self._before is not None:
                self._surroundings.put_back(self._before)
                self.restored = self._surroundings.is_put_back(self._before)
            self._surroundings.write_places(self._changed)
            self._generators.restore(self._drawn)
            raise
        finally:
            self._before = None

    @contextmanager
    def rerun(self, changed: Sequence[str]) -> Iterator[None]:
        """Run steps again, and leave what they write as it is; after InputError, as before the sequence.

        Errors say what others changed since the sweep: what is known to be ``changed``, and what is found.
        """
        present = self._surroundings.read_places((*self._changed, *self._new))
        try:
            yield
        except Exception as error:
            since = _describe_changes(self._list_changes(), changed[:1])
            if isinstance(error, InputError):
                present = self._changed
                self.when_refused()
                if since and since not in error.message:
                    raise InputError(
                        f"{since}: {error.message}", field=error.field, accepted=error.accepted
                    ) from error
            elif since:
                error.add_note(f"ckptplan: {since}")
            raise
        finally:
            self._surroundings.write_places(present)

    def _list_changes(self) -> list[Place]:
        """Return the places that others than the steps changed since the sweep."""
        holders = self._surroundings.holders
        present = {number: holders[number].read() for number in self._left}
        return [
            Place(number, key, holders[number].name_of(key))
            for number, content in _leave_out(self._surroundings, present, self._swept_places).items()
            for key in holders[number].list_changes(self._left[number], content)
        ]


_UNCHANGED = "what steps read as it was in the forward pass until the backward pass is done"


def _describe_changes(places: list[Place], others: Sequence[str] = ()) -> str:
    """Return what changed since the sweep, as text; nothing if nothing did."""
    names = [*others, *([list_names(places)] if places else [])]
    if not names:
        return ""
    return (
        f"{', '.join(names)} changed between the forward and the backward pass, so that steps cannot be run "
        "again as they were"
    )


def _identify(places: Iterable[HeldPlace]) -> frozenset[tuple[Any, Any]]:
    return frozenset((holder.identity, key) for holder, key in places)


def _leave_out(
    surroundings: Surroundings, contents: Snapshot | Mapping[int, Content], changed: Collection[Place]
) -> dict[int, Content]:
    """Return contents without places that steps change, gradients, and copies of numbers."""
    numbered = contents if isinstance(contents, Mapping) else dict(enumerate(contents))
    keys: dict[int, set[Any]] = {}
    for place in changed:
        keys.setdefault(place.holder, set()).add(place.key)
    found: dict[int, Content] = {}
    for number, content in numbered.items():
        holder = surroundings.holders[number]
        if isinstance(holder, GradientHolder | ArrayHolder):
            continue
        if number not in keys:
            found[number] = content.without_copy() if isinstance(holder, TensorHolder) else content
        elif isinstance(content, dict):
            found[number] = {key: value for key, value in content.items() if key not in keys[number]}
    return found
