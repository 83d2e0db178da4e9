"""Equations (1) to (13): each by a case that can be checked by hand, and each decision on its gaps."""

import re
from pathlib import Path

import numpy as np
import pytest

from ckptplan.cost import paper
from ckptplan.model.record import Parameters
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.registry import all_strategies
from tests.support import plain_costs

SIZES = {"M_s": 10, "M_a": 10, "M_others": 7}


def closed_form(name: str) -> ClosedForm:
    strategy = all_strategies()[name]
    assert isinstance(strategy, ClosedForm)
    return strategy


def test_eq_1_number_of_checkpoints_rounds_up() -> None:
    assert paper.nb_checkpoints(T=4096, chunk_size=64) == 64
    assert paper.nb_checkpoints(T=4097, chunk_size=64) == 65


def test_eq_2_base_memory() -> None:
    assert paper.memory_base(T=5, M_a=10, M_others=7) == 57


def test_eq_3_state_of_the_paper() -> None:
    """Batch 120, 2 neurons a tile, fp32: 960 bytes."""
    assert paper.state_bytes(batch_size=120, num_neurons=2, value_bytes=4) == 960


def test_eq_4_standard_memory() -> None:
    assert paper.memory(chunk_size=8, checkpoints=4, **SIZES) == 10 * (8 + 4) + 7


def test_eq_5_standard_time() -> None:
    """Ten steps of f = 1, b = 2 and r = 0.1 seconds."""
    assert paper.standard_seconds(plain_costs(10, recompute_seconds=0.1)) == 31.0


def test_eq_6_remote_memory() -> None:
    assert paper.memory(chunk_size=8, checkpoints=1, **SIZES) == 10 * (8 + 1) + 7


def test_eq_7_remote_time() -> None:
    """Each checkpoint goes one way and comes back: T_c is one way (decision D2)."""
    assert paper.time(T_standard=31.0, T_c=2.0, T_s=0.5, states=8, N_c=8) == 31 + 2 * 2.5 * 4


def test_eq_8_hierarchical_memory() -> None:
    assert paper.memory(chunk_size=8, checkpoints=3, **SIZES) == 10 * (8 + 3) + 7


def test_eq_9_hierarchical_time() -> None:
    assert paper.time(T_standard=31.0, T_c=2.0, T_s=0.5, states=10, N_c=6) == 31 + 20 + 3


def test_eq_10_communications_are_mended() -> None:
    """Printed, 64 checkpoints with 16 local ones would need -24 communications (decision D1)."""
    assert 2 * (64 / 16 - 16) == -24
    assert paper.communications_hierarchical(nb_checkpoints=64, nb_local=16) == 2 * (4 - 1)
    assert paper.communications_hierarchical(nb_checkpoints=5, nb_local=16) == 0
    assert paper.states_hierarchical(nb_checkpoints=64, nb_local=16) == 2 * 48
    assert paper.states_hierarchical(nb_checkpoints=5, nb_local=16) == 0


def test_eq_11_double_memory() -> None:
    assert paper.memory(chunk_size=8, checkpoints=4, **SIZES) == 10 * (8 + 4) + 7


def test_eq_12_double_time() -> None:
    assert paper.time(T_standard=31.0, T_refwd=1.0, T_c=2.0, T_s=0.5, states=6, N_c=6) == 31 + 1 + 15


def test_eq_13_communications_of_double() -> None:
    assert paper.communications_double(T=4096, remote_chunk_size=256) == 32
    assert paper.communications_double(T=4097, remote_chunk_size=256) == 34


def test_tapes_larger_than_states_are_charged_as_tapes() -> None:
    """Decision D0: one size M_s would let a plan overrun its budget."""
    sizes = {"M_s": 10, "M_a": 30, "M_others": 0}
    assert paper.memory(chunk_size=8, checkpoints=4, **sizes) == 8 * 30 + 4 * 10


def test_a_short_batch_costs_a_whole_message() -> None:
    """Decision D1 where nb_local does not divide: batches of 1, 16, 16 and 16 of 65 checkpoints."""
    assert paper.communications_hierarchical(nb_checkpoints=65, nb_local=16) == 2 * 4
    assert paper.states_hierarchical(nb_checkpoints=65, nb_local=16) == 2 * (1 + 16 + 16 + 16)


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


def test_the_inputs_of_the_equations() -> None:
    """T_fwd holds the recording of tapes; T_c is the mean of both directions; T_refwd is an input (D3)."""
    costs = plain_costs(10, record_overhead_seconds=0.25)
    assert paper.base_seconds(costs) == 10 * (1.0 + 0.25) + 10 * 2.0
    assert paper.recompute_seconds(costs) == 10.0
    assert paper.standard_seconds(costs) == 42.5
    assert paper.times(costs)["T_c"] == 3.5
