"""The networks of SpikingJelly's sequential Fashion-MNIST example: a column of the picture is a time step."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import nn

from ckptplan.torch import wrap

torch.manual_seed(0)
model = "feedback"
steps = 112
batch_size = 128

digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
images = F.interpolate(images, (28, steps)).squeeze(1)  # [N, H, W]
labels = torch.tensor(digits.target)


class PlainNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(
            layer.Linear(28, 32),
            neuron.IFNode(surrogate_function=surrogate.ATan()),
            layer.Linear(32, 10),
            neuron.IFNode(surrogate_function=surrogate.ATan()),
        )

    def forward(self, x):
        return self.fc(x).mean(0)


class StatefulSynapseNet(PlainNet):
    def __init__(self):
        super().__init__()
        self.fc.insert(2, layer.SynapseFilter(tau=2.0, learnable=True))


class FeedBackNet(PlainNet):
    def __init__(self):
        super().__init__()
        node = neuron.IFNode(surrogate_function=surrogate.ATan(), detach_reset=True)
        self.fc[1] = layer.LinearRecurrentContainer(node, in_features=32, out_features=32, bias=True)


net = {"plain": PlainNet, "stateful synapse": StatefulSynapseNet, "feedback": FeedBackNet}[model]()
functional.set_step_mode(net, step_mode="s")
net.fc = wrap(net.fc, memory="5 MB")
optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
for step in range(20):
    batch = torch.randint(len(images), (batch_size,))
    img, label = images[batch], labels[batch]
    img = img.permute(2, 0, 1)  # [W, N, H] is [T, N, H]
    optimizer.zero_grad()
    out_fr = net(img)
    loss = F.mse_loss(out_fr, F.one_hot(label, 10).float())
    loss.backward()
    optimizer.step()
    functional.reset_net(net)
    print(f"{step:3d}  loss {loss.item():.4f}")
