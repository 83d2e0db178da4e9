"""Equations (1) to (13): by cases that can be checked by hand, and each decision on its gaps."""

import re
from pathlib import Path

import numpy as np
import pytest

import ckptplan
from ckptplan.cost import paper
from ckptplan.model.record import Parameters
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.registry import all_strategies, select_strategies
from tests.support import plain_costs

#: With f = 1, o = 0.5, b = 2 and r = 0.25, T_fwd + T_bwd = 3.5 T, T_refwd = 0.25 T and T_standard = 3.75 T.
#: A state is written in 3 and read in 5 seconds: T_c = 4 and T_s = 0.5, T_c + T_s = 4.5.
#: M_s = 10, M_a = 30, M_others = 7, and a state takes 1,000 bytes of remote memory.
PRINTED_COSTS = {
    "state_bytes": 10, "tape_bytes": 30, "resident_bytes": 7, "remote_state_bytes": 1000,
    "forward_seconds": 1.0, "backward_seconds": 2.0, "record_overhead_seconds": 0.5,
    "recompute_seconds": 0.25,
    "write_seconds": 3.0, "read_seconds": 5.0, "message_seconds": 0.5,
}  # fmt: skip
#: Strategy, setting, T -> seconds, local bytes and remote bytes by the printed equations.
PRINTED: list[tuple[str, dict[str, int], int, tuple[float, int, int]]] = [
    # (2) M_a T + M_others. Base has no messages and runs no step again.
    ("base", {}, 10, (35.0, 30 * 10 + 7, 0)),
    ("base", {}, 1, (3.5, 30 + 7, 0)),
    # (1) ceil(T / c) checkpoints, (4) c M_a + checkpoints M_s + M_others, (5) T_standard.
    ("standard", {"chunk_size": 1}, 10, (37.5, 1 * 30 + 10 * 10 + 7, 0)),
    ("standard", {"chunk_size": 4}, 10, (37.5, 4 * 30 + 3 * 10 + 7, 0)),
    ("standard", {"chunk_size": 5}, 10, (37.5, 5 * 30 + 2 * 10 + 7, 0)),
    ("standard", {"chunk_size": 1}, 1, (3.75, 30 + 10 + 7, 0)),
    # (6) c M_a + 1 M_s + M_others, (7) T_standard + 2 (T_c + T_s) checkpoints.
    ("remote", {"chunk_size": 4}, 10, (37.5 + 2 * 4.5 * 3, 4 * 30 + 10 + 7, 3000)),
    ("remote", {"chunk_size": 5}, 10, (37.5 + 2 * 4.5 * 2, 5 * 30 + 10 + 7, 2000)),
    ("remote", {"chunk_size": 6}, 13, (48.75 + 2 * 4.5 * 3, 6 * 30 + 10 + 7, 3000)),
    ("remote", {"chunk_size": 10}, 10, (37.5 + 2 * 4.5 * 1, 10 * 30 + 10 + 7, 1000)),
    # (8) c M_a + q M_s + M_others; (9) T_standard + T_c states + T_s N_c with (10) mended (D1):
    # N_c = 2 (ceil(checkpoints / q) - 1) messages, which move 2 (checkpoints - q) states.
    ("hierarchical", {"chunk_size": 1, "nb_local": 5}, 10, (37.5 + 4 * 10 + 0.5 * 2, 30 + 50 + 7, 5000)),
    ("hierarchical", {"chunk_size": 2, "nb_local": 2}, 10, (37.5 + 4 * 6 + 0.5 * 4, 60 + 20 + 7, 3000)),
    ("hierarchical", {"chunk_size": 3, "nb_local": 1}, 10, (37.5 + 4 * 6 + 0.5 * 6, 90 + 10 + 7, 3000)),
    ("hierarchical", {"chunk_size": 1, "nb_local": 3}, 13, (48.75 + 4 * 20 + 0.5 * 8, 30 + 30 + 7, 10_000)),
    # As many slots as checkpoints, and more slots: nothing moves.
    ("hierarchical", {"chunk_size": 4, "nb_local": 3}, 10, (37.5, 120 + 30 + 7, 0)),
    ("hierarchical", {"chunk_size": 5, "nb_local": 4}, 10, (37.5, 150 + 40 + 7, 0)),
    # (11) c M_a + ceil(rc / c) M_s + M_others, (12) T_standard + T_refwd + (T_c + T_s) N_c,
    # (13) N_c = 2 ceil(T / rc).
    ("double", {"chunk_size": 2, "remote_chunk_size": 4}, 10, (40.0 + 4.5 * 6, 60 + 20 + 7, 3000)),
    ("double", {"chunk_size": 3, "remote_chunk_size": 5}, 10, (40.0 + 4.5 * 4, 90 + 20 + 7, 2000)),
    ("double", {"chunk_size": 4, "remote_chunk_size": 4}, 13, (52.0 + 4.5 * 8, 120 + 10 + 7, 4000)),
    ("double", {"chunk_size": 2, "remote_chunk_size": 10}, 10, (40.0 + 4.5 * 2, 60 + 50 + 7, 1000)),
]


def closed_form(name: str) -> ClosedForm:
    strategy = all_strategies()[name]
    assert isinstance(strategy, ClosedForm)
    return strategy


@pytest.mark.parametrize(("name", "setting", "steps", "expected"), PRINTED)
def test_a_strategy_costs_what_the_printed_equations_say(
    name: str, setting: dict[str, int], steps: int, expected: tuple[float, int, int]
) -> None:
    costs = plain_costs(steps, **PRINTED_COSTS)
    cost = closed_form(name).cost(Parameters(setting), costs=costs, model="paper")
    assert (cost.seconds[0], cost.local_peak_bytes[0], cost.remote_peak_bytes[0]) == expected


def test_the_table_has_each_strategy_of_the_paper() -> None:
    assert {name for name, *_ in PRINTED} == {strategy.name for strategy in select_strategies(["paper"])}


def test_eq_3_state_of_the_paper() -> None:
    """Batch 120, 2 neurons a tile, fp32: 960 bytes."""
    assert paper.state_bytes(batch_size=120, num_neurons=2, value_bytes=4) == 960


def test_eq_10_communications_are_mended() -> None:
    """Printed, 64 checkpoints with 16 local ones would need -24 communications (decision D1)."""
    assert 2 * (64 / 16 - 16) == -24
    assert paper.communications_hierarchical(nb_checkpoints=64, nb_local=16) == 2 * (4 - 1)
    assert paper.states_hierarchical(nb_checkpoints=64, nb_local=16) == 2 * 48


def test_eq_10_as_printed_would_make_hierarchical_the_quickest() -> None:
    """The page on equations has these numbers: hierarchical with chunk_size 14, nb_local 17, beside double."""
    base, recompute, state, start = 4096 * 7.2e-6, 4096 * 0.36e-6, 70.656e-6, 1.5e-6
    printed = 2 * (4096 / 14 / 17 - 17)
    assert base + recompute + printed * (17 * state + start) == pytest.approx(31.47e-3, abs=5e-6)
    double = ckptplan.optimize("paper-snn", "ipu-mk2", steps=4096, model="paper")
    assert double.strategy == "double"
    assert double.predicted.paper is not None
    assert double.predicted.paper.seconds == pytest.approx(35.04e-3, abs=5e-6)


def test_the_printed_peak_of_remote_has_one_state_more() -> None:
    """Decision D4: a schedule moves a checkpoint by way of the working state."""
    costs, setting = plain_costs(64), Parameters(chunk_size=8)
    remote = closed_form("remote")
    printed = remote.cost(setting, costs=costs, model="paper")
    exact = remote.cost(setting, costs=costs)
    assert printed.local_peak_bytes[0] - exact.local_peak_bytes[0] == costs.state_bytes


@pytest.mark.parametrize(
    ("name", "setting", "recomputed"),
    [
        ("standard", Parameters(chunk_size=8), 8),
        ("remote", Parameters(chunk_size=8), 8),
        # Equation (12) runs every step again twice: 2 T, where the schedule runs 2 T - rc - (s - 1) c - c.
        ("double", Parameters(chunk_size=4, remote_chunk_size=16), 16 + 3 * 4 + 4),
    ],
)
def test_the_last_chunk_needs_no_checkpoint(name: str, setting: Parameters, recomputed: int) -> None:
    """Decision D5: the paper counts n checkpoints and T steps, a schedule has n - 1 and T - c."""
    costs = plain_costs(64)
    printed = closed_form(name).cost(setting, costs=costs, model="paper")
    exact = closed_form(name).totals(setting, costs=costs)
    kept = printed.local_peak_bytes[0] - exact.local_peak_bytes
    assert kept == costs.state_bytes
    moved = 0 if name == "standard" else 2 * (paper.times(costs)["T_c"] + costs.message_seconds)
    assert printed.seconds[0] - exact.seconds == pytest.approx(recomputed * costs.recompute_seconds + moved)


def test_each_decision_is_on_the_page_and_at_its_equation() -> None:
    page = (Path(__file__).parents[2] / "docs/equations.md").read_text()
    named = set(re.findall(r"^- \*\*(D\d),", page, re.M))
    assert named == set(re.findall(r"D\d(?=[:,])", Path(str(paper.__file__)).read_text()))
    assert named == {f"D{number}" for number in range(6)}


def test_arrays_give_what_scalars_give() -> None:
    chunks = np.arange(1, 50)
    checkpoints = paper.nb_checkpoints(T=100, chunk_size=chunks)
    assert checkpoints.tolist() == [paper.nb_checkpoints(T=100, chunk_size=c) for c in range(1, 50)]
    calls = paper.communications_hierarchical(nb_checkpoints=checkpoints, nb_local=7)
    assert calls.tolist() == [
        paper.communications_hierarchical(nb_checkpoints=int(n), nb_local=7) for n in checkpoints
    ]
