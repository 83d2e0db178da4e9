"""Norse's memory task: a network with adaptive thresholds stores a bit and recalls it later."""

import torch
from norse.torch import LICell, LSNNParameters, LSNNRecurrentCell

from ckptplan.torch import scan

torch.manual_seed(0)
seq_length = 25  # time steps for each of 8 phases: a bit comes in each, one is to be stored, and recalled later
population_size = 5
batch_size = 64


def draw_batch():
    """Spikes of (two values of the bit, store, recall), and the bit that was stored."""
    bits = torch.randint(2, (batch_size, 8))
    store, recall = torch.randint(4, (batch_size,)), torch.randint(4, 8, (batch_size,))
    everyone = torch.arange(batch_size)
    pattern = torch.zeros(batch_size, 8, 4)
    pattern[..., :2] = torch.nn.functional.one_hot(bits, 2)
    pattern[everyone, store, 2] = 1
    pattern[everyone, recall] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    rates = pattern.repeat_interleave(population_size, 2).repeat_interleave(seq_length, 1)
    return (torch.rand_like(rates) < 0.2 * rates).float(), recall, bits[everyone, store]


class MemoryNet(torch.nn.Module):
    def __init__(self, input_features, hidden_features, output_features):
        super().__init__()
        self.layer = LSNNRecurrentCell(input_features, hidden_features, LSNNParameters(alpha=100.0), dt=0.01)
        self.dropout = torch.nn.Dropout(p=0.2)
        self.linear = torch.nn.Linear(hidden_features, output_features)
        self.readout = LICell(dt=0.01)

    def forward(self, x):
        def step(state, x_step):
            sl, sr = state
            spikes, sl = self.layer(x_step, sl)
            spikes = self.linear(self.dropout(spikes))
            _, sr = self.readout(spikes, sr)
            return (sl, sr), sr.v

        return scan(step, (None, None), x.transpose(0, 1), memory="2 MB")[1]


model = MemoryNet(4 * population_size, 40, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-5)
for step in range(10):
    xs, recall, ys = draw_batch()
    readouts = model(xs).unflatten(0, (8, seq_length)).mean(1)
    loss = torch.nn.functional.cross_entropy(readouts[recall, torch.arange(batch_size)], ys)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step:3d}  loss {loss.item():.4f}")
