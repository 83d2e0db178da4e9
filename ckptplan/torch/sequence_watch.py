"""Watches the surroundings of a cell and a loss while a sequence runs.

What steps write and never read, as running statistics and records, is written once: by the first sweep. What
they read is hidden state, and refused, also if they begin to write it only after the first two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Generators
from ckptplan.torch.held_graphs import guard_leftovers
from ckptplan.torch.probe import Probed
from ckptplan.torch.recognise import HeldPlace, StaleFindingsError
from ckptplan.torch.surroundings.holders import ArrayHolder, Content, GradientHolder, TensorHolder
from ckptplan.torch.surroundings.snapshot import Place, Snapshot, Surroundings, holds_graph
from ckptplan.torch.surroundings.walk import walk
from ckptplan.torch.trial import (
    StepResult,
    detach_state,
    list_names,
    refuse_changed_parameters,
    refuse_hidden_state,
    refuse_lost_changes,
)


class SequenceWatch:
    """The surroundings of one sequence, from before its first step until its gradients are there.

    Arguments:
        probed: what is known of the steps, and of what the cell and the losses can reach.
        state: the initial state.
        generators: the random generators.
        forgives_noise: whether a step that differs from itself, with nothing changed, is none of hidden state.
        checks: whether hidden state is looked for.
    """

    def __init__(
        self,
        *,
        probed: Probed,
        state: Any,
        generators: Generators,
        forgives_noise: bool,
        checks: bool = True,
    ) -> None:
        found = probed.found
        self._surroundings, self._trial = probed.surroundings, probed.trial
        self._before: Snapshot | None = probed.before
        self._roots, self._checks = probed.roots, checks
        self._with_graph = set(self._surroundings.list_places(found.with_graph))
        self._caches = _identify(found.made)
        #: What steps changed in earlier calls, if there was no trial in this one.
        self._expected = _identify(found.changed) if probed.recalled else None
        #: What the sweep changed.
        self.swept: tuple[HeldPlace, ...] = ()
        self._swept_places: list[Place] = []
        #: Whether all is as it was before the first step, after a refusal.
        self.restored = False
        #: Called if the backward pass refuses the sequence.
        self.when_refused: Callable[[], object] = int
        #: The numbers of holders that the sweep made.
        self._made: list[int] = []
        self._generators, self._forgives_noise = generators, forgives_noise
        self._drawn = generators.state()
        #: The surroundings when hidden state was looked for, and what was looked at.
        self._checked: Snapshot = ()
        self._known: set[Place] = set()
        #: A state, and the step that runs from it.
        self._start = state, 0
        #: The contents, before the first step, of the holders that the sweep changed.
        self._changed: dict[int, Content] = {}
        #: The contents at the end of the sweep, of what steps do not change.
        self._left: dict[int, Content] = {}
        #: The ids of tensors that steps write.
        self.written: frozenset[int] = frozenset()

    def check(self, state: Any, step: int) -> None:
        """Look for hidden state in what steps have changed so far; ``step`` runs next, from ``state``.

        Networks are more active here than at the start. Raises InputError.
        """
        if self._checks:
            self._start = detach_state(state), step
            self._checked = self._refuse_hidden(self._surroundings.take())

    @property
    def with_graph(self) -> list[HeldPlace]:
        """The places that hold tensors with a graph after a step: holders with keys."""
        return [(self._surroundings.holders[place.holder], place.key) for place in self._with_graph]

    def guard(self) -> None:
        """Let what other steps left with a graph refuse a gradient: steps are recorded, which may use it."""
        guard_leftovers(self._surroundings, self._with_graph, with_graph=self._with_graph, roots=self._roots)

    def end_sweep(self) -> None:
        """Find what the sweep changed. Raises InputError if steps read it."""
        surroundings, now = self._surroundings, self._surroundings.take()
        before = self._before
        assert before is not None  # noqa: S101 - a sweep ends once
        known = len(before)
        if self._checked:
            # What changes in the last steps only, be there their tapes or not.
            now = self._refuse_hidden(now)
        changed = surroundings.list_changes(before, now)
        if not self._checked:
            self._refuse_stale(changed, before)
            if surroundings.find_more(changed):
                now = surroundings.take()
        refuse_changed_parameters(surroundings, changed)
        self.swept = tuple((surroundings.holders[place.holder], place.key) for place in changed)
        self._made = [
            number
            for number, holder in enumerate(surroundings.holders[known:], known)
            if not isinstance(holder, TensorHolder) or holder.small
        ]
        self._changed = {place.holder: before[place.holder] for place in changed}
        self._swept_places = changed
        guard_leftovers(surroundings, changed, with_graph=self._with_graph, roots=self._roots)
        values = (surroundings.value_of(place) for place in changed)
        self.written = frozenset(id(one) for one in values if isinstance(one, torch.Tensor))
        self._left = _leave_out(surroundings, now, changed)

    def _refuse_stale(self, changed: list[Place], before: Snapshot) -> None:
        """Raise InputError for changes that an earlier call did not show, if all can be put back."""
        unexpected = self._list_unexpected(changed)
        if unexpected and all(self._surroundings.can_return(place, before) for place in unexpected):
            raise StaleFindingsError("a step changed what none had changed before", field="cell or loss")

    def _list_unexpected(self, changed: list[Place]) -> list[Place]:
        if self._expected is None:
            return []
        return [place for place in changed if self._identify(place) not in self._expected]

    def _identify(self, place: Place) -> tuple[Any, Any]:
        return self._surroundings.holders[place.holder].identity, place.key

    def _refuse_hidden(self, now: Snapshot) -> Snapshot:
        """Raise InputError if steps read what they changed; return the contents of all, with what they made."""
        surroundings, before = self._surroundings, self._before
        assert before is not None  # noqa: S101 - before the end of the sweep
        changed = surroundings.list_changes(before, now)
        self._refuse_stale(changed, before)
        found = surroundings.list_changes(self._checked, now)
        if surroundings.find_more(dict.fromkeys((*changed, *found))):
            now = surroundings.take()
        places = [
            place
            for place in dict.fromkeys((*changed, *found))
            if place not in self._known and self._identify(place) not in self._caches
        ]
        self._known |= set(places)
        refuse_lost_changes(surroundings, places)
        if places:
            self._try_places(now, places)
        return now

    def _try_places(self, world: Snapshot, places: list[Place]) -> None:
        surroundings, drawn = self._surroundings, self._generators.state()

        def take() -> StepResult:
            self._generators.restore(drawn)
            return self._trial.take(*self._start)

        with self._generators.aside(), torch.enable_grad():
            try:
                usual = take().detach()
                self._with_graph |= {one for one in places if holds_graph(surroundings.value_of(one))}
                refuse_hidden_state(
                    take,
                    surroundings,
                    world,
                    places,
                    usual,
                    when=" during the sequence",
                    forgives_noise=self._forgives_noise,
                )
            finally:
                surroundings.put_back(world)

    @contextmanager
    def sweep(self) -> Iterator[None]:
        """Run the first sweep; after an InputError, leave everything as it was before the first step."""
        try:
            yield
        except InputError:
            if self._before is not None:
                self._surroundings.put_back(self._before)
                self.restored = self._surroundings.holds_numbers(self._before)
            self._surroundings.write_places(self._changed)
            self._generators.restore(self._drawn)
            raise
        finally:
            self._before, self._checked = None, ()
            self._start = None, 0

    @contextmanager
    def rerun(self, changed: Sequence[str]) -> Iterator[None]:
        """Run steps again, and leave what they write as it is; after InputError, as before the sequence.

        Errors say what others changed since the sweep: what is known to be ``changed``, and what is found.
        """
        present = self._surroundings.read_places((*self._changed, *self._made))
        try:
            yield
        except Exception as error:
            since = self._describe_changes(changed)
            if isinstance(error, InputError):
                present = self._changed
                self.when_refused()
                if since:
                    raise InputError(
                        f"{since}: {error.message}", field=error.field, accepted=error.accepted
                    ) from error
            elif since:
                error.add_note(f"ckptplan: {since}")
            raise
        finally:
            self._surroundings.write_places(present)

    def _describe_changes(self, changed: Sequence[str]) -> str:
        """Return what others than the steps changed since the sweep, as text."""
        holders = self._surroundings.holders
        present = {number: holders[number].read(copies=False) for number in self._left}
        places = [
            Place(number, key, holders[number].name_of(key))
            for number, content in _leave_out(self._surroundings, present, self._swept_places).items()
            for key in holders[number].list_changes(self._left[number], content)
        ]
        names = [*changed[:1], *([list_names(places)] if places else [])]
        if not names:
            return ""
        return (
            f"{', '.join(names)} changed between the forward and the backward pass, so that steps cannot be "
            "run again as they were"
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


@contextmanager
def leave_as_found(things: Mapping[str, object], *, device: torch.device | None) -> Iterator[None]:
    """Leave what named objects can reach, and the random generators, as they were before the block."""
    reached = walk(things)
    surroundings = Surroundings(reached.holders)
    before = surroundings.take(copies=True)
    generators = Generators(device or torch.device("cpu"), wanted=True, held=reached.generators)
    with generators.aside():
        try:
            yield
        finally:
            surroundings.put_back(before)
