"""The shortest training loop of a spiking network: snnTorch neurons find the busiest channel."""

import snntorch
import torch
from snntorch import utils
from torch.nn.functional import cross_entropy, one_hot

from ckptplan.torch import wrap

torch.manual_seed(0)
STEPS, BATCH = 256, 16
net = torch.nn.Sequential(
    torch.nn.Linear(3, 32),
    snntorch.Leaky(beta=0.95, init_hidden=True),
    torch.nn.Linear(32, 3),
    snntorch.Leaky(beta=0.95, init_hidden=True, output=True),
)
net = wrap(net, memory="400 kB", reset=utils.reset)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
for step in range(20):
    target = torch.randint(3, (BATCH,))
    data = (torch.rand(STEPS, BATCH, 3) < 0.1 + 0.7 * one_hot(target, 3)).float()
    spikes, membranes = net(data)  # all time steps at once: (T, B, ...)
    loss = cross_entropy(spikes.mean(0), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step:3d}  loss {loss.item():.3f}")
