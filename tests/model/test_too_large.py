"""Networks that are too large, or too small for their layers, are named by what was typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ckptplan
from ckptplan import InputError
from ckptplan.cost.case import Case
from tests.security.program import run_all

HUGE = 10**9


def test_sizes_that_cannot_be_counted_name_the_network_that_gives_them() -> None:
    workload = ckptplan.load_workload("gru").with_batch(HUGE)
    with pytest.raises(
        InputError, match=r"^network: 1,000,000,000 neurons and batch 1,000,000,000 on 1 unit have"
    ):
        workload.with_neurons(HUGE)


def test_work_and_times_that_cannot_be_counted_name_the_network() -> None:
    workload = ckptplan.load_workload("lstm-stack").with_batch(HUGE).with_neurons(10**8)
    profile = ckptplan.load_profile("raspberry-pi-5")
    with pytest.raises(InputError, match=r"^network: .* operations in a backward step, more than 1e\+24"):
        _ = workload.step_operations
    slow = ckptplan.load_workload("lstm-stack").with_batch(10**8).with_neurons(10**7)
    with pytest.raises(
        InputError, match=r"^network: a step of lstm-stack on raspberry-pi-5 may take .* s, over"
    ):
        _ = Case(workload=slow, profile=profile).timed


def test_the_search_for_neurons_begins_at_one_for_each_layer() -> None:
    """Three layers have three neurons at least: the search tries no network that cannot exist."""
    workload = ckptplan.load_workload("lstm-stack").with_steps(16)
    profile = ckptplan.load_profile("raspberry-pi-5")
    found = ckptplan.largest("neurons", workload, profile, strategies=["base"])["base"]
    assert found.value > 1000
    none = ckptplan.largest("neurons", workload, profile, strategies=["base"], local_bytes="1 kB")["base"]
    assert none.value == 0
    with pytest.raises(ckptplan.Infeasible):
        ckptplan.optimize(workload, profile, local_bytes="1 kB")


def test_messages_name_options_that_exist(tmp_path: Path) -> None:
    """Every option of a message is one of the command, and no size is blamed that nobody gave."""
    cases = (
        ("optimize", "--workload", "lstm-stack", "--neurons", "1"),
        ("optimize", "--workload", "gru", "--batch", str(HUGE), "--neurons", str(HUGE)),
        ("compare", "--workload", "lstm-stack", "--batch", str(HUGE), "--neurons", "100000000"),
    )
    helps = run_all(*((name, "--help") for name in ("optimize", "compare")), folder=tmp_path)
    known = {word for done in helps.done for word in re.findall(r"--[a-zA-Z][\w-]*", done.out)}
    for case, done in zip(cases, run_all(*cases, folder=tmp_path).done, strict=True):
        assert done.code == 2, case
        assert set(re.findall(r"--[a-zA-Z][\w-]*", done.err)) <= known
        assert re.match(r"ckptplan: (network|--neurons|--batch): ", done.err), done.err
