"""A convolutional spiking network as in snnTorch's tutorial 6, on scikit-learn's digits."""

import snntorch as snn
import snntorch.functional as SF
import torch
from sklearn.datasets import load_digits
from snntorch import surrogate, utils
from torch import nn

torch.manual_seed(0)
num_steps = 100
batch_size = 8
beta = 0.9
spike_grad = surrogate.fast_sigmoid(slope=25)

digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
images = nn.functional.interpolate(images, (28, 28))
labels = torch.tensor(digits.target)

net = nn.Sequential(
    nn.Conv2d(1, 12, 5),
    nn.MaxPool2d(2),
    snn.Leaky(beta=beta, spike_grad=spike_grad, init_hidden=True),
    nn.Conv2d(12, 64, 5),
    nn.MaxPool2d(2),
    snn.Leaky(beta=beta, spike_grad=spike_grad, init_hidden=True),
    nn.Flatten(),
    nn.Linear(64 * 4 * 4, 10),
    snn.Leaky(beta=beta, spike_grad=spike_grad, init_hidden=True, output=True),
)


def forward_pass(net, num_steps, data):
    spk_rec, mem_rec = [], []
    utils.reset(net)
    for step in range(num_steps):
        spk_out, mem_out = net(data)
        spk_rec.append(spk_out)
        mem_rec.append(mem_out)
    return torch.stack(spk_rec), torch.stack(mem_rec)


optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, betas=(0.9, 0.999))
loss_fn = SF.ce_rate_loss()
for step in range(20):
    batch = torch.randint(len(images), (batch_size,))
    data, targets = images[batch], labels[batch]
    spk_rec, mem_rec = forward_pass(net, num_steps, data)
    loss = loss_fn(spk_rec, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step:3d}  loss {loss.item():.4f}")
