"""The shortest training loop of a spiking network: snnTorch neurons find the busiest channel."""

import snntorch
import torch
from torch.nn.functional import cross_entropy, one_hot

import ckptplan
from ckptplan.torch import bptt
from ckptplan.torch.adapters import SnnTorchCell

torch.manual_seed(0)
STEPS, BATCH = 256, 16
cell = SnnTorchCell(snntorch.Leaky(beta=0.95), torch.nn.Linear(3, 32))
readout = torch.nn.Linear(32, 3)
workload = ckptplan.Workload(
    name="snn", steps=STEPS, units=1, state_bytes=BATCH * 32 * 4, tape_bytes=4 * BATCH * 32 * 4,
    forward_seconds=1e-4, backward_seconds=2e-4, recompute_seconds=1e-4,
)  # fmt: skip
plan = ckptplan.optimize(workload, ckptplan.load_profile("nvidia-h200"), local_bytes=200_000)
optimizer = torch.optim.Adam([*cell.parameters(), *readout.parameters()], lr=5e-2)
for step in range(20):
    target = torch.randint(3, (BATCH,))
    spikes = (torch.rand(STEPS, BATCH, 3) < 0.1 + 0.7 * one_hot(target, 3)).float()
    result = bptt(cell, spikes, None, lambda t, output: cross_entropy(readout(output), target), plan=plan)
    optimizer.zero_grad()
    result.loss.backward()
    optimizer.step()
    print(f"{step:3d}  loss {result.loss.item() / STEPS:.3f}")
