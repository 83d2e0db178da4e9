"""Training with a plan file, made by `ckptplan calibrate --cell gru` and `ckptplan optimize -o plan.json`."""

import re
import sys

import torch
from torch.nn.functional import cross_entropy, one_hot

import ckptplan
from ckptplan.torch import bptt
from ckptplan.torch.adapters import TorchCell

if len(sys.argv) != 2:
    sys.exit("usage: train_plan.py PLAN")
try:
    plan = ckptplan.load_plan(sys.argv[1])
except ckptplan.InputError as error:
    sys.exit(f"train_plan.py: {error}")
sizes = re.fullmatch(r"gru\(inputs=(\d+), neurons=(\d+)\)", plan.workload.cell or "")
if sizes is None:
    sys.exit(f"train_plan.py: this script trains gru(...), but the plan is for the cell {plan.workload.cell}")
torch.manual_seed(0)
torch.set_num_threads(1)  # as in the calibration
batch, inputs, neurons = plan.workload.batch, int(sizes[1]), int(sizes[2])
cell, readout = TorchCell(torch.nn.GRUCell(inputs, neurons)), torch.nn.Linear(neurons, inputs)
optimizer = torch.optim.Adam([*cell.parameters(), *readout.parameters()], lr=3e-3)
print(f"{plan.strategy}, T = {plan.steps:,}: {plan.predicted.local_peak_bytes:,} bytes predicted")
for step in range(20):
    target = torch.randint(4, (batch,))
    signal = torch.randn(plan.steps, batch, inputs) + 2 * one_hot(target, inputs)
    result = bptt(cell, signal, None, lambda t, output: cross_entropy(readout(output), target), plan=plan)
    optimizer.zero_grad()
    result.loss.backward()
    torch.nn.utils.clip_grad_norm_(cell.parameters(), 1.0)
    optimizer.step()
    print(f"{step:3d}  loss {result.loss.item() / plan.steps:.3f}")
