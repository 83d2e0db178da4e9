"""SpikingJelly in multi-step mode. Install: pip install "spikingjelly==2.0.0".

    python examples/libraries/spikingjelly_multi_step.py

The change to a program is one line: net = wrap(net, memory=...). Multi-step mode is detected.
"""

import torch
from compare import compare
from spikingjelly.activation_based import functional, layer, neuron
from torch.nn.functional import cross_entropy

from ckptplan.torch import wrap

MEMORY = "4 MB"
STEPS, BATCH, INPUTS, NEURONS, CLASSES = 1024, 16, 16, 64, 4

torch.manual_seed(0)
net = torch.nn.Sequential(
    layer.Linear(INPUTS, NEURONS),
    neuron.LIFNode(detach_reset=True),
    layer.Linear(NEURONS, NEURONS),
    neuron.ParametricLIFNode(detach_reset=True),
    layer.Linear(NEURONS, CLASSES),
)
functional.set_step_mode(net, "m")
data = 2 * (torch.rand(STEPS, BATCH, INPUTS) < 0.3).float()
target = torch.randint(CLASSES, (BATCH,))
wrapped = wrap(net, memory=MEMORY)


def loss_of(net):
    functional.reset_net(net)
    return cross_entropy(net(data).mean(0), target)


if __name__ == "__main__":
    compare(
        net.parameters(),
        {"plain": lambda: loss_of(net), f"memory={MEMORY!r}": lambda: loss_of(wrapped)},
        memory=MEMORY,
    )
    print(wrapped.plan)
