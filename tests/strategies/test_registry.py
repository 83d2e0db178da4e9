"""Strategies are found by name, in the order that breaks ties."""

import pytest

from ckptplan.errors import InputError
from ckptplan.model.record import Parameters
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.registry import all_strategies, closed_form_of, select_strategies
from tests.support import CLOSED, plain_costs


def test_order_is_that_of_the_tie_break() -> None:
    assert list(all_strategies()) == [
        *("base", "standard", "remote", "hierarchical", "double", "nested", "growing", "double-growing"),
        *("revolve", "disk-revolve", "periodic", "optimal", "bptt-hsm", "bptt-ism", "bptt-msm"),
    ]


def test_ranks_are_unique() -> None:
    ranks = [strategy.rank for strategy in all_strategies().values()]
    assert len(set(ranks)) == len(ranks)


def test_names_and_groups() -> None:
    assert [s.name for s in select_strategies(["double", "base", "double"])] == ["base", "double"]
    assert [s.name for s in select_strategies(["paper"])] == [
        "base",
        "standard",
        "remote",
        "hierarchical",
        "double",
    ]
    assert [s.name for s in select_strategies(["closed"])] == list(CLOSED)
    # Some schedules of closed forms are not among its own.
    assert {s.name for s in select_strategies(["optimal"])} == {*CLOSED, "optimal"}
    assert [s.name for s in select_strategies(["all"])] == list(all_strategies())


@pytest.mark.parametrize("names", [["dobule"], ["", "base"], []])
def test_unknown_or_no_names_are_refused(names: list[str]) -> None:
    with pytest.raises(InputError, match="strategies"):
        select_strategies(names)


def test_a_misspelling_is_told() -> None:
    with pytest.raises(InputError, match="Did you mean 'double'"):
        select_strategies(["dobule"])


def test_parameters_of_another_strategy_are_refused() -> None:
    with pytest.raises(InputError, match="standard takes chunk_size"):
        closed_form_of("standard").cost(Parameters(nb_local=3), costs=plain_costs(5))


@pytest.mark.parametrize("name", sorted(CLOSED))
def test_only_strategies_that_move_states_have_parameters_of_remote_memory(name: str) -> None:
    strategy = CLOSED[name]
    assert strategy.moves_states or not any("remote" in parameter for parameter in strategy.parameter_names)


@pytest.mark.parametrize("name", sorted(CLOSED))
def test_only_strategies_with_irregular_settings_say_which_are_regular(name: str) -> None:
    says_which = type(CLOSED[name]).is_regular is not ClosedForm.is_regular
    assert CLOSED[name].always_regular == (not says_which)


def test_nested_is_not_in_the_paper() -> None:
    nested = closed_form_of("nested")
    with pytest.raises(InputError, match="prints no equation"):
        nested.cost(Parameters(chunk_size=1, segment_size=2), costs=plain_costs(5), model="paper")
