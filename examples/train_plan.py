"""Training with a plan file, made by `ckptplan calibrate --cell gru` and `ckptplan optimize -o plan.json`.

With --compile, pieces of its steps run as compiled code.
"""

import re
import sys

import torch
from torch.nn.functional import cross_entropy, one_hot

import ckptplan
from ckptplan.torch import bptt
from ckptplan.torch.adapters import TorchCell

compiled, files = (
    16 if "--compile" in sys.argv else False,
    [word for word in sys.argv[1:] if word != "--compile"],
)
if len(files) != 1:
    sys.exit("usage: train_plan.py PLAN [--compile]")
try:
    plan = ckptplan.load_plan(files[0])
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

    def loss(t, output):
        return cross_entropy(readout(output), target)

    result = bptt(cell, signal, None, loss, plan=plan, compile=compiled)
    optimizer.zero_grad()
    result.loss.backward()
    torch.nn.utils.clip_grad_norm_(cell.parameters(), 1.0)
    optimizer.step()
    print(f"{step:3d}  loss {result.loss.item() / plan.steps:.3f}")
