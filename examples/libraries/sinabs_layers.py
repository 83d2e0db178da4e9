"""sinabs, whose layers take (batch, time, ...). Install: pip install "sinabs==3.1.3".

    python examples/libraries/sinabs_layers.py

The change to a program is one line: net = wrap(net, memory=..., multi_step=True, time_dim=1).
"""

import sinabs
import sinabs.layers
import torch
from compare import compare
from torch.nn.functional import cross_entropy

from ckptplan.torch import wrap

MEMORY = "4 MB"
STEPS, BATCH, INPUTS, NEURONS, CLASSES = 512, 16, 16, 64, 4

torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(INPUTS, NEURONS),
    sinabs.layers.LIF(tau_mem=20.0),
    torch.nn.Linear(NEURONS, NEURONS),
    sinabs.layers.ExpLeak(tau_mem=20.0),
    torch.nn.Linear(NEURONS, CLASSES),
)
data = 2 * (torch.rand(BATCH, STEPS, INPUTS) < 0.3).float()
target = torch.randint(CLASSES, (BATCH,))
wrapped = wrap(net, memory=MEMORY, multi_step=True, time_dim=1)


def loss_of(net):
    sinabs.reset_states(net)
    return cross_entropy(net(data).mean(1), target)


if __name__ == "__main__":
    compare(
        net.parameters(),
        {"plain": lambda: loss_of(net), f"memory={MEMORY!r}": lambda: loss_of(wrapped)},
        memory=MEMORY,
    )
    print(wrapped.plan)
