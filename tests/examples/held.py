"""Run a script, and write to a file how many bytes of saved tensors autograd held at most: its tapes.

``python held.py FILE SCRIPT``. Parameters are left out.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import ClassVar

import torch

#: Where a script has its plan.
MADE = ("plan", "result", "net")


class Held:
    """A saved tensor. One that is saved several times counts once."""

    times: ClassVar[Counter[tuple[int, int]]] = Counter()
    now = most = 0

    def __init__(self, tensor: torch.Tensor) -> None:
        # Detached: a graph that nobody reverses would hold itself.
        self.tensor, self.key = tensor.detach(), (tensor.data_ptr(), tensor.nbytes)
        Held.times[self.key] += 1
        if Held.times[self.key] == 1:
            Held.now += tensor.nbytes
            Held.most = max(Held.most, Held.now)

    def __del__(self) -> None:
        Held.times[self.key] -= 1
        if not Held.times[self.key]:
            Held.now -= self.tensor.nbytes


def pack(tensor: torch.Tensor) -> torch.Tensor | Held:
    """Keep track of a tensor that is no parameter, nor a transposed one."""
    whole = tensor if tensor._base is None else tensor._base
    return tensor if isinstance(whole, torch.nn.Parameter) else Held(tensor)


def unpack(saved: torch.Tensor | Held) -> torch.Tensor:
    return saved.tensor if isinstance(saved, Held) else saved


if __name__ == "__main__":
    file, script = sys.argv[1:]
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        names = runpy.run_path(script, run_name="__main__")
    # Of scripts that give a limit of memory, the plan that was made for it.
    plan = next(names[name] if name == "plan" else names[name].plan for name in MADE if name in names)
    base = plan.workload.steps * plan.workload.tape_bytes
    facts = {"held": Held.most, "budget": plan.goal.local_bytes, "base": base}
    Path(file).write_text(json.dumps(facts))
