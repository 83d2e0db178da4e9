"""The shortest training loop within a memory limit: a GRU finds the channel that carries a signal."""

import torch
from torch.nn.functional import cross_entropy, one_hot

from ckptplan.torch import bptt
from ckptplan.torch.adapters import TorchCell

torch.manual_seed(0)
STEPS, BATCH = 256, 16
cell, readout = TorchCell(torch.nn.GRUCell(3, 32)), torch.nn.Linear(32, 3)
optimizer = torch.optim.Adam([*cell.parameters(), *readout.parameters()], lr=1e-2)
for step in range(20):
    target = torch.randint(3, (BATCH,))
    inputs = torch.randn(STEPS, BATCH, 3) + one_hot(target, 3)
    result = bptt(cell, inputs, None, lambda t, output: cross_entropy(readout(output), target), memory="800 kB")
    optimizer.zero_grad()
    result.loss.backward()
    optimizer.step()
    print(f"{step:3d}  loss {result.loss.item() / STEPS:.3f}")
