"""A SpikingJelly network of LIF neurons. Install: pip install ".[torch]" "spikingjelly>=2.0"."""

import torch
from spikingjelly.activation_based.neuron import LIFNode
from torch.nn.functional import cross_entropy, one_hot

import ckptplan
from ckptplan.torch import bptt
from ckptplan.torch.adapters import SpikingJellyCell

STEPS, BATCH, UNITS = 64, 16, 32
VALUES = BATCH * UNITS * 4  # bytes, with one value for each unit
machine = ckptplan.load_profile("nvidia-h200")
torch.manual_seed(0)
cell = SpikingJellyCell(torch.nn.Sequential(torch.nn.Linear(3, UNITS), LIFNode()))
readout = torch.nn.Linear(UNITS, 3)
workload = ckptplan.Workload(
    # A unit has one value in a state and at most five in the tape of a step, loss included.
    name="lif", steps=STEPS, units=1, state_bytes=VALUES, tape_bytes=5 * VALUES,
    forward_seconds=1e-4, backward_seconds=2e-4, recompute_seconds=1e-4,
)  # fmt: skip
plan = ckptplan.optimize(workload, machine, local_bytes="100 kB")
base = ckptplan.optimize(workload, machine, strategies=["base"]).predicted.local_peak_bytes
print(f"LIFNode, {plan.strategy}: {plan.predicted.local_peak_bytes:,} bytes; base {base:,}")
optimizer = torch.optim.Adam([*cell.parameters(), *readout.parameters()], lr=5e-2)
for step in range(15):
    target = torch.randint(3, (BATCH,))
    spikes = (torch.rand(STEPS, BATCH, 3) < 0.1 + 0.8 * one_hot(target, 3)).float()
    state = cell.initial_state()
    result = bptt(cell, spikes, state, lambda t, output: cross_entropy(readout(output), target), plan=plan)
    optimizer.zero_grad()
    result.loss.backward()
    optimizer.step()
    print(f"{step:3d}  loss {result.loss.item() / STEPS:.3f}")
