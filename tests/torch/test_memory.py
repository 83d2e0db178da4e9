"""Memory that runs out, buffers that are used again, and a look at what is read next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ckptplan
from ckptplan.execution.lookahead import Lookahead, Message
from ckptplan.schedule.actions import Load, Tier, Transfer
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch import OutOfMemory, bptt
from tests.torch.limit_tables import mean_square
from tests.torch.support import plan_of

#: A limit on the memory of the process, as a container or a batch system sets one.
SCRIPT = """
import resource, sys, torch, ckptplan
from ckptplan.torch import bptt
from ckptplan.torch.device.memory import OutOfMemory
from tests.torch.support import plan_of

torch.set_num_threads(1)
STATE = 4 * 2**20
def cell(state, x):
    state = torch.tanh(state + x.sum())
    return state, state
plan = plan_of(200, "base", states=1000, alpha=1, state_bytes=STATE)
inputs = torch.zeros(200, 1, requires_grad=True)
def run(plan):
    bptt(cell, inputs, torch.zeros(STATE // 4), lambda _, one: one[0], plan=plan).loss.backward()
run(plan_of(200, "standard", states=60, alpha=1, state_bytes=STATE))  # everything is imported and warm
before = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (before + 400 * 2**20, resource.RLIM_INFINITY))
try:
    run(plan)
except OutOfMemory as error:
    print(error)
    assert 380 * 2**20 < error.available < 800 * 2**20, error.available
    budget = int(str(error).split("local_bytes=")[1].split()[0])
    run(ckptplan.optimize(plan.workload, plan.profile, strategies=["closed"], local_bytes=budget))
    print("went on")
"""


#: A calibration has no plan: it executes schedules of its own.
CALIBRATION = """
import resource, torch
from ckptplan.torch import footprint
from ckptplan.model.cell_spec import CellSpec
from ckptplan.torch.cells import build_torch_network
from ckptplan.torch.device.memory import OutOfMemory

torch.set_num_threads(1)
network = build_torch_network(CellSpec(name="gru", inputs=8, neurons=512), batch=512, device="cpu", seed=0)
before = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (before + 100 * 2**20, resource.RLIM_INFINITY))
try:
    footprint.measure_bytes(network)
except OutOfMemory as error:
    print(error)
    assert error.details()["predicted"] is None
"""


def limited(script: str) -> list[str]:
    """What a script prints that limits the memory of its own process."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        # Freed blocks go back to the system, so that what is available has no holes.
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "MALLOC_MMAP_THRESHOLD_": "65536",
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_memory_that_runs_out_says_what_would_fit() -> None:
    """In a real process with a real limit; what the plan held is free again, and a smaller plan runs."""
    message, end = limited(SCRIPT)
    assert end == "went on"
    assert message.startswith("memory ran out: the plan predicts 800 MiB of local memory")
    assert "a plan for local_bytes=" in message
    assert "should fit: " in message
    assert "can't allocate memory" in message


def test_memory_that_runs_out_in_a_calibration_names_no_plan_that_was_never_made() -> None:
    (message,) = limited(CALIBRATION)
    assert message.startswith("memory ran out: nothing is predicted without a plan, ")
    assert "are available; a smaller batch, or a schedule that keeps less at a time, needs less (" in message
    assert "can't allocate memory" in message
    assert "TiB" not in message


@pytest.mark.parametrize("when", ["forward", "backward", "base"])
def test_memory_that_runs_out_is_explained_wherever_it_does(when: str) -> None:
    plan = plan_of(40, "base" if when == "base" else "standard", states=999 if when == "base" else 20)
    module, calls = torch.nn.Linear(5, 5), list[torch.Tensor]()

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(x)
        # The trial takes fewer steps than that.
        is_backward = torch._C._current_graph_task_id() != -1
        if is_backward if when == "backward" else len(calls) > 30:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        state = torch.tanh(module(x) + state)
        return state, state

    inputs, state = torch.randn(40, 4, 5), torch.zeros(4, 5)
    with pytest.raises(OutOfMemory, match="memory ran out: the plan predicts"):
        bptt(cell, inputs, state, mean_square, plan=plan, verify=False).loss.backward()


def test_other_errors_stay_what_they_are() -> None:
    from ckptplan.torch.device.memory import explain_exhaustion

    with pytest.raises(RuntimeError, match="shapes"), explain_exhaustion(plan_of(8), torch.device("cpu")):
        raise RuntimeError("shapes do not match")


@pytest.mark.parametrize("strategy", all_strategies())
def test_the_next_read_is_known_and_no_action_is_lost(strategy: str) -> None:
    plan = plan_of(40, strategy, states=90 if strategy == "base" else 20)
    whole = list(ckptplan.actions(plan))

    def read(place: int) -> Message | None:
        for action in whole[place:]:
            match action:
                case Load(number, Tier.REMOTE):
                    return Message((number,))
                case Transfer(numbers, Tier.REMOTE, _, caches):
                    return Message(numbers, caches)
        return None

    actions = Lookahead(iter(whole))
    for place, action in enumerate(whole):
        assert actions.next_message() == read(place)
        assert next(actions) == action
    assert list(actions) == []
