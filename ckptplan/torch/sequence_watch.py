"""Watches the surroundings of a cell and a loss while a sequence runs.

What steps write and never read, as running statistics and records, is written once: by the first sweep. What
they read is hidden state, and refused, also if they begin to write it only after the first two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Generators
from ckptplan.torch.held_graphs import guard_leftovers
from ckptplan.torch.probe import Probed
from ckptplan.torch.recognise import StaleFindingsError
from ckptplan.torch.rehearsal import Rehearsal
from ckptplan.torch.surroundings.holders import ArrayHolder, CacheHolder, GradientHolder, Holder, TensorHolder
from ckptplan.torch.surroundings.snapshot import Place, Snapshot, is_put_back, list_changes, put_back
from ckptplan.torch.trees import detach_state, holds_graph
from ckptplan.torch.trial import (
    HiddenState,
    list_names,
    refuse_changed_parameters,
    refuse_lost_changes,
)

#: Makes what takes the step that begins with a state, given its number and what it finds.
MakeStep: TypeAlias = Callable[[Any, int, Snapshot], Rehearsal]


class SequenceWatch:
    """The surroundings of one sequence, from before its first step until its gradients are there.

    Arguments:
        probed: what is known of the steps, and of what the cell and the losses can reach.
        generators: the random generators.
        make_step: makes what takes a step aside.
        runs_again: whether steps run again.
        rehearses: whether a step in the middle of the sequence is taken in other surroundings, too.
        may_begin_again: whether a sequence may begin again in which steps begin late to count or to draw.
        replayed: the numbers of the random generators that steps that run again find as they were.
        slots: the places of a ``SlotCell``, which whoever calls it sets when the sweep is done.
    """

    def __init__(
        self,
        *,
        probed: Probed,
        generators: Generators,
        make_step: MakeStep,
        runs_again: bool,
        rehearses: bool,
        may_begin_again: bool,
        replayed: frozenset[int],
        slots: frozenset[tuple[int, Any]] = frozenset(),
    ) -> None:
        found = probed.found
        self._surroundings = probed.surroundings
        self._before: Snapshot | None = probed.before
        self._roots, self._make_step, self._rehearses = probed.roots, make_step, rehearses
        self._made = set(found.made)
        #: The places that hold tensors with a graph after a step.
        self.with_graph = set(found.with_graph)
        #: What steps are known to change; None if no step runs again.
        self._known = set(found.changed) if runs_again else None
        #: Whether all must be known, since there was no trial in this call.
        self._is_recalled = probed.recalled
        self._may_begin_again, self._replayed = may_begin_again, replayed
        #: What the sweep changed.
        self.swept: tuple[Place, ...] = ()
        #: Where something may change without a word: the ids of objects, with keys.
        self.changing = slots
        #: Whether the sweep changed what no earlier call had, and what could not be put back for a trial.
        self.is_stale = False
        #: Whether all is as it was before the first step, after a refusal.
        self.restored = False
        #: Called if the backward pass refuses the sequence.
        self.when_refused: Callable[[], object] = int
        #: The holders that the sweep made.
        self._new: list[Holder] = []
        self._generators = generators
        self._drawn = generators.state()
        #: A step that was taken in the middle of the sequence.
        self._taken: Rehearsal | None = None
        #: How often steps began to run again, and whether others than the steps had changed something.
        self._begun, self._suspects = 0, True
        #: The contents, before the first step, of the holders that the sweep changed.
        self._changed: Snapshot = {}
        #: The contents at the end of the sweep, of what steps do not change.
        self._left: Snapshot = {}

    def check(self, state: Any, step: int) -> None:
        """Take ``step``, which runs next, from ``state``, here and in other surroundings. Raises InputError.

        Networks are more active here than at the start.
        """
        before = self._before
        if not self._rehearses or before is None:
            return
        surroundings, generators = self._surroundings, self._generators
        now = surroundings.take(copies=True, since=before)
        places = list_changes(before, now)
        self._refuse_unknown(places, before)
        now = {**now, **surroundings.take(copies=True, of=surroundings.find_more(places))}
        refuse_lost_changes(surroundings, places)
        with generators.aside():
            taken = self._taken = self._make_step(detach_state(state), step, now)
            try:
                _ = taken.usual
                self.with_graph |= {one for one in places if holds_graph(one.value)}
                # What the first step alone makes is there for all later ones.
                others = [one for one in self._leave_out_counts(places) if one not in self._made]
                if others:
                    taken.compare(before, others)
            finally:
                put_back(now)

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
        # What is set back differs also if the sweep left it as it had found it.
        changed = self._leave_out_counts(self._list_changes())
        if self._begun == 1:
            # From here on, steps that run again change it, too.
            self.changing |= {(id(one.holder.thing), one.key) for one in self._known or ()}
            self._left = _leave_out(self._left, self.changing)
        self._suspects = bool(changed)
        if not changed and taken is None:
            return
        present = surroundings.take(copies={one.holder for one in self.swept})
        with self._generators.aside(), torch.enable_grad():
            try:
                if changed:
                    again = self._make_step(state, step, present)
                    self._refuse_changes(again, changed)
                if taken is not None:
                    # Also if nothing changed that can be found.
                    end = surroundings.take(copies=True, since=taken.world)
                    taken.compare(end, self._leave_out_counts(list_changes(taken.world, end)))
            except HiddenState as error:
                theirs = [place for place in error.places if place not in self.swept]
                if not theirs:
                    raise
                raise _make_changed_error(theirs) from error
            finally:
                put_back(present)

    def _refuse_changes(self, step: Rehearsal, places: list[Place]) -> None:
        """Raise InputError if a step gives something else with what others changed than without."""
        as_left, now = step.play_in(self._left, places), step.play_in()
        if now is None or as_left is None or step.describe_difference(as_left, now):
            raise _make_changed_error(places)

    def guard(self) -> None:
        """Let what other steps left with a graph refuse a gradient: steps are recorded, which may use it."""
        guard_leftovers(self.with_graph, with_graph=self.with_graph, roots=self._roots)

    def end_sweep(self) -> None:
        """Find what the sweep changed. Raises InputError if steps read it."""
        surroundings, before = self._surroundings, self._before
        assert before is not None  # noqa: S101 - a sweep ends once
        now = surroundings.take(since=before)
        changed = list_changes(before, now)
        self._refuse_unknown(changed, before, ended=True)
        now = {**now, **surroundings.take(of=surroundings.find_more(changed))}
        refuse_changed_parameters(changed)
        self.swept = tuple(changed)
        self.changing |= {(id(place.holder.thing), place.key) for place in changed}
        self._new = [
            one
            for one in surroundings.holders
            if one not in before and (not isinstance(one, TensorHolder) or one.small)
        ]
        # Steps may leave in the end what they found, and change it all the same.
        moved = (*changed, *(one for one in self._known or () if one.holder in before))
        self._changed = {place.holder: before[place.holder] for place in moved}
        guard_leftovers(changed, with_graph=self.with_graph, roots=self._roots)
        # Guards were put into containers, those that steps made, too: no numbers of tensors have changed.
        containers = (one for one in surroundings.holders if not isinstance(one, TensorHolder))
        self._left = _leave_out({**now, **surroundings.take(of=containers)} if changed else now, self.changing)

    def _refuse_unknown(self, changed: list[Place], before: Snapshot, *, ended: bool = False) -> None:
        """Raise InputError for changes that neither the first steps nor an earlier call showed.

        If all can be put back, the sequence begins again. If this call had a trial, it does so if later steps
        began to count, or to draw from another random generator, which shows when the sweep has ``ended``:
        checkpoints have to know where that stood. If not, it does so with a trial; if that cannot be, the next
        call has one.
        """
        if self._known is None:
            return
        unknown = [place for place in changed if place not in self._known]
        draws = ended and bool(self._generators.moved_since(self._drawn) - self._replayed)
        if not self._is_recalled:
            late = tuple(place for place in unknown if place.has_number)
            can_return = all(one.holder.can_write(before[one.holder]) for one in changed)
            if draws or (ended and late and can_return and self._may_begin_again):
                error = StaleFindingsError(
                    "a later step began to count, or to draw random numbers from another generator, after a "
                    "change that cannot be put back",
                    field="cell or loss",
                )
                error.places = late
                raise error
            return
        lost = [place for place in unknown if not place.holder.can_write(before[place.holder])]
        self.is_stale = bool(lost)
        caches = [place.name for place in lost if isinstance(place.holder, CacheHolder)]
        if caches:
            raise InputError(
                f"a step fills {list_names(caches)} without a graph, and none did in earlier calls: what it "
                "held cannot be put back for a trial",
                field="cell or loss",
                accepted="caches of tensors that are empty before each call, or hold all that steps ask for",
            )
        if draws or (unknown and not lost):
            raise StaleFindingsError("a step changed what none had changed before", field="cell or loss")

    def _leave_out_counts(self, places: Iterable[Place]) -> list[Place]:
        """Return places without those that steps find as they were when they run again."""
        known = self._known or ()
        return [place for place in places if not (place in known and place.is_set_back)]

    @contextmanager
    def sweep(self) -> Iterator[None]:
        """Run the first sweep; after an InputError, leave everything as it was before the first step."""
        try:
            yield
        except InputError:
            if self._before is not None:
                put_back(self._before)
                self.restored = is_put_back(self._before)
            self._generators.restore(self._drawn)
            raise
        finally:
            self._before = None

    @contextmanager
    def rerun(self, changed: Sequence[str]) -> Iterator[None]:
        """Run steps again, and leave what they write as it is; after InputError, as before the sequence.

        Errors say what others changed since the sweep: what is known to be ``changed``, and what is found.
        """
        present = self._surroundings.take(copies=True, of=(*self._changed, *self._new))
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
            put_back(present)

    def _list_changes(self) -> list[Place]:
        """Return the places that others than the steps changed since the sweep."""
        return list_changes(self._left, _leave_out({one: one.read() for one in self._left}, self.changing))


def _make_changed_error(places: list[Place]) -> InputError:
    return InputError(
        _describe_changes(places),
        field="cell or loss",
        accepted="what steps read as it was in the forward pass until the backward pass is done",
    )


def _describe_changes(places: list[Place], others: Sequence[str] = ()) -> str:
    """Return what changed since the sweep, as text; nothing if nothing did."""
    names = [*others, *([list_names(one.name for one in places)] if places else [])]
    if not names:
        return ""
    return (
        f"{', '.join(names)} changed between the forward and the backward pass, so that steps cannot be run "
        "again as they were"
    )


def _leave_out(contents: Snapshot, changing: Iterable[tuple[int, Any]]) -> Snapshot:
    """Return contents without places that may change, gradients, and copies of numbers."""
    keys: dict[int, set[Any]] = {}
    for number, key in changing:
        keys.setdefault(number, set()).add(key)
    found: dict[Holder, Any] = {}
    for holder, content in contents.items():
        without = keys.get(id(holder.thing), ())
        if isinstance(content, dict) and without:
            found[holder] = {key: value for key, value in content.items() if key not in without}
        elif None not in without and not isinstance(holder, GradientHolder | ArrayHolder):
            found[holder] = replace(content, copy=None) if isinstance(holder, TensorHolder) else content
    return found
