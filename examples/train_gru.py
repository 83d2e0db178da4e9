"""The shortest training loop under a plan: a GRU finds the channel that carries a signal."""

import torch
from torch.nn.functional import cross_entropy, one_hot

import ckptplan
from ckptplan.torch import bptt
from ckptplan.torch.adapters import TorchCell

torch.manual_seed(0)
STEPS, BATCH = 256, 16
cell, readout = TorchCell(torch.nn.GRUCell(3, 32)), torch.nn.Linear(32, 3)
workload = ckptplan.Workload(
    name="gru", steps=STEPS, units=1, state_bytes=BATCH * 32 * 4, tape_bytes=8 * BATCH * 32 * 4,
    forward_seconds=1e-4, backward_seconds=2e-4, recompute_seconds=1e-4,
)  # fmt: skip
plan = ckptplan.optimize(workload, ckptplan.load_profile("nvidia-h200"), local_bytes=300_000)
optimizer = torch.optim.Adam([*cell.parameters(), *readout.parameters()], lr=1e-2)
for step in range(20):
    target = torch.randint(3, (BATCH,))
    inputs = torch.randn(STEPS, BATCH, 3) + one_hot(target, 3)
    result = bptt(cell, inputs, None, lambda t, output: cross_entropy(readout(output), target), plan=plan)
    optimizer.zero_grad()
    result.loss.backward()
    optimizer.step()
    print(f"{step:3d}  loss {result.loss.item() / STEPS:.3f}")
