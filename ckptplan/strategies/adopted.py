"""Writes settings of closed forms as decisions, so that a solved strategy can return one as its schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ckptplan.cost.arrays import Integers
from ckptplan.errors import InputError
from ckptplan.model.record import Parameters
from ckptplan.model.split import FORMS, Choice, Split, Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.growing import growth_ratio
from ckptplan.schedule.actions import Action
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.closed_form import SIZE_NAMES, ClosedForm
from ckptplan.strategies.protocol import Strategy
from ckptplan.strategies.registry import closed_form_of


class FormSetting(NamedTuple):
    """A setting of a closed form, as the schedule of a strategy that adopts it."""

    strategy: ClosedForm
    parameters: Parameters
    steps: int

    def actions(self) -> Iterator[Action]:
        """Yield the actions of the schedule."""
        return self.strategy.actions(self.parameters, steps=self.steps)


def is_adoptable(strategy: Strategy) -> bool:
    """Return whether the schedules of a strategy can be written as decisions."""
    return not strategy.is_closed_form or strategy.name in FORMS


def adopt_answer(answer: Answer, *, strategy: Strategy, least_seconds: float | None) -> Answer:
    """Return the answer of an adoptable strategy as that of ``strategy``, with the bound that this one proved.

    A setting of a closed form becomes a schedule with a single decision, which names the form.
    """
    if not answer.strategy.is_closed_form:
        return replace(answer, strategy=strategy, least_seconds=least_seconds)
    costs, given = answer.solved_at, answer.parameters
    values = [value for name, value in given.items() if name not in SIZE_NAMES]
    length, count = (*values, 0, 0)[:2]
    decision = Split(
        where=Where.UNSTORED,
        steps=costs.steps,
        units=0,
        choice=Choice(answer.strategy.name),
        length=length,
        count=count,
    )
    columns = adopt_columns(given, count=1, costs=costs)
    return replace(
        answer,
        strategy=strategy,
        parameters=Parameters({name: int(column[0]) for name, column in columns.items()}),
        schedule=(decision,),
        solved=answer.totals(costs),
        least_seconds=least_seconds,
        notes=(),
        gap=0.0,
    )


def adopt_columns(
    given: Mapping[str, Integers] | Parameters, *, count: int, costs: StepCosts
) -> dict[str, Integers]:
    """Return the parameters of ``count`` settings as those of a solved schedule; columns of shape (n,)."""
    p, q = growth_ratio(state=costs.state_bytes, tape=costs.tape_bytes)
    lengths = next((np.asarray(column) for name, column in given.items() if name not in SIZE_NAMES), 1)
    sizes = {"chunk_size": np.maximum(1, lengths), "state_units": p, "tape_units": q, "local_units": 1}
    return {name: np.broadcast_to(np.asarray(value, dtype=np.int64), count) for name, value in sizes.items()}


def read_setting(parameters: Parameters, splits: Sequence[Split], *, steps: int) -> FormSetting | None:
    """Return the setting that a plan's only decision names, None if the plan has a tree of decisions.

    Raises InputError if the closed form has no such setting.
    """
    if not splits or splits[0].choice not in FORMS:
        return None
    if len(splits) > 1 or splits[0].steps != steps:
        raise InputError(
            f"{splits[0].choice} is the decision about all {steps:,} steps, and the only one",
            field="splits",
            accepted="the decisions that ckptplan wrote; make a new plan",
        )
    strategy = closed_form_of(splits[0].choice)
    values = iter((splits[0].length, splits[0].count))
    chosen = Parameters(
        {name: parameters[name] if name in SIZE_NAMES else next(values) for name in strategy.parameter_names}
    )
    strategy.check(chosen, steps=steps)
    return FormSetting(strategy, chosen, steps)
