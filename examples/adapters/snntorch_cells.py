"""Leaky neurons of snnTorch, feed-forward and recurrent. Install: pip install ".[snntorch]"."""

import snntorch
import torch
from torch.nn.functional import cross_entropy, one_hot

import ckptplan
from ckptplan.torch import bptt
from ckptplan.torch.adapters import SnnTorchCell

STEPS, BATCH, UNITS = 64, 16, 32
VALUES = BATCH * UNITS * 4  # bytes, with one value for each unit
machine = ckptplan.load_profile("nvidia-h200")
torch.manual_seed(0)
leaky, recurrent = snntorch.Leaky(beta=0.9), snntorch.RLeaky(beta=0.9, linear_features=UNITS)
# Values of a unit in a state, and in the tape of a step (what autograd saves for the step and its loss).
for neuron, in_state, in_tape in ((leaky, 1, 4), (recurrent, 2, 4)):
    cell, readout = SnnTorchCell(neuron, torch.nn.Linear(3, UNITS)), torch.nn.Linear(UNITS, 3)
    workload = ckptplan.Workload(
        name="snn", steps=STEPS, units=1, state_bytes=in_state * VALUES, tape_bytes=in_tape * VALUES,
        forward_seconds=1e-4, backward_seconds=2e-4, recompute_seconds=1e-4,
    )  # fmt: skip
    plan = ckptplan.optimize(workload, machine, local_bytes="100 kB")
    base = ckptplan.optimize(workload, machine, strategies=["base"]).predicted.local_peak_bytes
    print(f"{type(neuron).__name__}, {plan.strategy}: {plan.predicted.local_peak_bytes:,} bytes; base {base:,}")
    optimizer = torch.optim.Adam([*cell.parameters(), *readout.parameters()], lr=5e-2)
    for step in range(15):
        target = torch.randint(3, (BATCH,))
        spikes = (torch.rand(STEPS, BATCH, 3) < 0.1 + 0.8 * one_hot(target, 3)).float()
        result = bptt(cell, spikes, None, lambda t, output: cross_entropy(readout(output), target), plan=plan)
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        print(f"{step:3d}  loss {result.loss.item() / STEPS:.3f}")
