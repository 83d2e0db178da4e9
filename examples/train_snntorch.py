"""The shortest training loop of a spiking network: snnTorch neurons find the busiest channel."""

import snntorch
import torch
from torch.nn.functional import cross_entropy, one_hot

from ckptplan.torch import bptt
from ckptplan.torch.adapters import SnnTorchCell

torch.manual_seed(0)
STEPS, BATCH = 256, 16
cell = SnnTorchCell(snntorch.Leaky(beta=0.95), torch.nn.Linear(3, 32))
readout = torch.nn.Linear(32, 3)
optimizer = torch.optim.Adam([*cell.parameters(), *readout.parameters()], lr=5e-2)
for step in range(20):
    target = torch.randint(3, (BATCH,))
    spikes = (torch.rand(STEPS, BATCH, 3) < 0.1 + 0.7 * one_hot(target, 3)).float()
    result = bptt(cell, spikes, None, lambda t, output: cross_entropy(readout(output), target), memory="400 kB")
    optimizer.zero_grad()
    result.loss.backward()
    optimizer.step()
    print(f"{step:3d}  loss {result.loss.item() / STEPS:.3f}")
