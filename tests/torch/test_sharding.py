"""Two real processes: gradients are reduced as in a plain loop that is wrapped the same, or refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

RIGHT = (
    "fsdp",
    "fsdp, frozen",
    "fsdp, method",
    "fsdp, layers",
    "fsdp, resharded",
    "fsdp of a part, no_grad",
    "ddp",
    "ddp, static",
    "ddp of the cell",
    "ddp of a part",
    "ddp, wrapped network",
    "ddp, wrapped network, unused",
    "ddp of a part, unused",
    "dp",
    "dp of a part",
)
REFUSED_BEFORE = ("fsdp of a part, refused before",)
FSDP1 = ("fsdp1", "fsdp1, original parameters")
DTENSORS = ("tensor parallel", "dtensor, replicated", "dtensor, sharded", "dtensor, sharded, and its data")
#: What is refused, with the name that the refusal gives.
REFUSED = {
    "fsdp of the cell": "Model.cell is sharded by itself (fully_shard)",
    "fsdp of the cell and all": "FSDPModel.cell is sharded by itself (fully_shard)",
    "fsdp of a part": "Cell.up is sharded by itself (fully_shard)",
    "fsdp of a part and all": "Cell.up is sharded by itself (fully_shard)",
    "fsdp of the head and all": "FSDPModel.head is sharded by itself (fully_shard)",
    "fsdp of the cell, method": "FSDPModel.cell is sharded by itself (fully_shard)",
    "ddp of a part, static": "Cell.up is DistributedDataParallel with static_graph=True",
    "fsdp1 of a part": "Cell.up is FullyShardedDataParallel (FSDP1)",
}


def outcomes(cases: tuple[str, ...], folder: Path) -> list[dict[str, Any]]:
    """What each of two processes found."""
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-W", "ignore", "-m", "tests.torch.two_processes"),
                *(str(rank), str(folder / "store"), str(folder / f"{rank}.json"), *cases),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, trouble = process.communicate()
            assert process.returncode == 0, trouble
    finally:
        for process in processes:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


@pytest.mark.parametrize(
    "cases", [RIGHT, REFUSED_BEFORE, FSDP1, DTENSORS], ids=["wrappers", "refused", "FSDP1", "DTensors"]
)
def test_gradients_are_those_of_a_plain_loop_that_is_wrapped_the_same(
    cases: tuple[str, ...], tmp_path: Path
) -> None:
    for found in outcomes(cases, tmp_path):
        for case in cases:
            assert not isinstance(found[case], str), (case, found[case])
            assert found[case], case
            assert "missing" not in found[case], case
            assert max(found[case]) < 1e-12, case


def test_what_would_not_be_reduced_is_refused_by_name(tmp_path: Path) -> None:
    for found in outcomes(tuple(REFUSED), tmp_path):
        for case, name in REFUSED.items():
            assert isinstance(found[case], str), (case, found[case])
            assert name in found[case], (case, found[case])
            assert "around" in found[case], case
            assert "calls bptt or unroll" in found[case], case
