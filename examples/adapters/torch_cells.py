"""RNNCell, GRUCell and LSTMCell of torch.nn under plans. Install: pip install ".[torch]"."""

import torch
from torch.nn.functional import cross_entropy, one_hot

import ckptplan
from ckptplan.torch import bptt
from ckptplan.torch.adapters import TorchCell

STEPS, BATCH, UNITS = 64, 16, 32
VALUES = BATCH * UNITS * 4  # bytes, with one value for each unit
machine = ckptplan.load_profile("nvidia-h200")
# Values of a unit in a state, and in the tape of a step (what autograd saves for the step and its loss).
for name, in_state, in_tape in (("RNNCell", 1, 2), ("GRUCell", 1, 8), ("LSTMCell", 2, 8)):
    torch.manual_seed(0)
    cell, readout = TorchCell(getattr(torch.nn, name)(3, UNITS)), torch.nn.Linear(UNITS, 3)
    workload = ckptplan.Workload(
        name=name, steps=STEPS, units=1, state_bytes=in_state * VALUES, tape_bytes=in_tape * VALUES,
        forward_seconds=1e-4, backward_seconds=2e-4, recompute_seconds=1e-4,
    )  # fmt: skip
    plan = ckptplan.optimize(workload, machine, local_bytes="100 kB")
    base = ckptplan.optimize(workload, machine, strategies=["base"]).predicted.local_peak_bytes
    print(f"{name}, {plan.strategy}: {plan.predicted.local_peak_bytes:,} bytes; base {base:,}")
    optimizer = torch.optim.Adam([*cell.parameters(), *readout.parameters()], lr=1e-2)
    for step in range(15):
        target = torch.randint(3, (BATCH,))
        inputs = torch.randn(STEPS, BATCH, 3) + one_hot(target, 3)
        result = bptt(cell, inputs, None, lambda t, output: cross_entropy(readout(output), target), plan=plan)
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        print(f"{step:3d}  loss {result.loss.item() / STEPS:.3f}")
