"""Finds strategies by name: in every module of this package that defines ``STRATEGIES``."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module

import ckptplan.strategies
from ckptplan.errors import InputError, did_you_mean, quote_value
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.protocol import Splits, Strategy

#: Names of several strategies, each with a description and whether a strategy belongs to it.
GROUPS: Mapping[str, tuple[str, Callable[[Strategy], bool]]] = {
    "paper": ("those of the paper", lambda strategy: strategy.printed is not None),
    "regular": ("those that loops with fixed strides run", lambda strategy: strategy.always_regular),
    "closed": (
        "those that a few parameters determine, which answer at once",
        lambda strategy: strategy.is_closed_form,
    ),
    "all": ("every strategy", lambda _: True),
}


@cache
def all_strategies() -> Mapping[str, Strategy]:
    """Return every strategy by name, in the order that breaks ties."""
    modules = [
        import_module(f"ckptplan.strategies.{info.name}")
        for info in pkgutil.iter_modules(ckptplan.strategies.__path__)
    ]
    strategies = [strategy for module in modules for strategy in getattr(module, "STRATEGIES", ())]
    return {strategy.name: strategy for strategy in sorted(strategies, key=lambda strategy: strategy.rank)}


@cache
def all_parameters() -> tuple[str, ...]:
    """Return the names of all parameters of all strategies, in the order of the strategies."""
    strategies = all_strategies().values()
    names = (name for strategy in strategies for name in strategy.parameter_names)
    return tuple(dict.fromkeys([*names, *(name for strategy in strategies for name in strategy.cache_names)]))


def strategy_of(name: str) -> Strategy:
    """Return the strategy called ``name``. Raises InputError, which suggests a similar name."""
    strategies = all_strategies()
    if name not in strategies:
        raise _unknown(name, strategies, field="strategy")
    return strategies[name]


#: Closed forms for which earlier versions wrote decisions into plans, as for solved strategies.
_LISTED_BEFORE = ("disk-revolve", "periodic")


def reader_of(name: str, splits: Splits) -> Strategy:
    """Return the strategy that reads the schedule of a plan, which names a strategy. Raises InputError.

    A plan of ``_LISTED_BEFORE`` with decisions is read as one of ``optimal``, which reads any decisions.
    """
    return strategy_of("optimal" if splits is not None and name in _LISTED_BEFORE else name)


def closed_form_of(name: str) -> ClosedForm:
    """Return the closed form called ``name``. Raises InputError if the strategy is not a closed form."""
    strategy = strategy_of(name)
    if not isinstance(strategy, ClosedForm):
        names = ", ".join(name for name, strategy in all_strategies().items() if strategy.is_closed_form)
        raise InputError(f"{name} has no closed form", field="strategy", value=name, accepted=names)
    return strategy


def describe_strategies() -> dict[str, str]:
    """Return each strategy and each group of strategies with a description."""
    texts = {name: (type(strategy).__doc__ or "").strip() for name, strategy in all_strategies().items()}
    about = {name: text.partition("\n")[0].rstrip(".") for name, text in texts.items()}
    return about | {name: text for name, (text, _) in GROUPS.items()}


def select_strategies(names: Iterable[str] | None) -> list[Strategy]:
    """Return the strategies called ``names``, or of the groups called so (``GROUPS``), in order.

    None selects all strategies except those that another one always equals or beats. The closed forms come with
    a strategy that needs them beside it (``optimal``), so that nobody gets a slower plan.

    Raises InputError for an unknown name, and if no name is given.
    """
    strategies = all_strategies()
    if names is None:
        return [strategy for strategy in strategies.values() if strategy.by_default]
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")]
    wanted: set[str] = set()
    for name in names:
        if name not in strategies and name not in GROUPS:
            raise _unknown(name, (*strategies, *GROUPS), field="strategies")
        if name in GROUPS:
            wanted.update(member for member, strategy in strategies.items() if GROUPS[name][1](strategy))
        else:
            wanted.add(name)
    if any(strategies[name].beside_closed_forms for name in wanted):
        wanted.update(name for name, strategy in strategies.items() if strategy.is_closed_form)
    if not wanted:
        raise InputError("no strategy is named", field="strategies", accepted=", ".join((*strategies, *GROUPS)))
    return [strategy for name, strategy in strategies.items() if name in wanted]


def _unknown(name: object, known: Iterable[str], *, field: str) -> InputError:
    return InputError(
        f"there is no strategy {quote_value(name)}.{did_you_mean(str(name), known)}",
        field=field,
        value=name,
        accepted=", ".join(known),
    )
