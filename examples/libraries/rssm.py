"""The world model of Dreamer: a recurrent state-space model with a KL divergence at each step.

    python examples/libraries/rssm.py

The loop's body becomes the cell, and its losses become ``loss(t, output)``. Samples are drawn in the cell:
steps that run again draw the same ones.
"""

import torch
from compare import compare
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import mse_loss, softplus

from ckptplan.torch import bptt

MEMORY = "3 MB"
STEPS, BATCH, PIXELS, ACTIONS, DETERMINISTIC, STOCHASTIC = 128, 16, 64, 4, 64, 16


class WorldModel(nn.Module):
    """A step: an action and an observation; the state is (deterministic, stochastic)."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(PIXELS, 64), nn.ELU())
        self.cell = nn.GRUCell(STOCHASTIC + ACTIONS, DETERMINISTIC)
        self.prior = nn.Linear(DETERMINISTIC, 2 * STOCHASTIC)
        self.posterior = nn.Linear(DETERMINISTIC + 64, 2 * STOCHASTIC)
        self.decoder = nn.Sequential(nn.Linear(DETERMINISTIC + STOCHASTIC, 64), nn.ELU(), nn.Linear(64, PIXELS))

    def forward(self, state, x):
        deterministic, stochastic = state
        action, observation = x
        deterministic = self.cell(torch.cat([stochastic, action], -1), deterministic)
        prior = make_normal(self.prior(deterministic))
        seen = torch.cat([deterministic, self.encoder(observation)], -1)
        posterior = make_normal(self.posterior(seen))
        stochastic = posterior.rsample()
        decoded = self.decoder(torch.cat([deterministic, stochastic], -1))
        loss = kl_divergence(posterior, prior).sum(-1).mean() + mse_loss(decoded, observation)
        return (deterministic, stochastic), loss / STEPS


def make_normal(numbers):
    mean, scale = numbers.chunk(2, -1)
    return Normal(mean, softplus(scale) + 0.1)


torch.manual_seed(0)
model = WorldModel()
data = (torch.randn(STEPS, BATCH, ACTIONS), torch.randn(STEPS, BATCH, PIXELS))
first = (torch.zeros(BATCH, DETERMINISTIC), torch.zeros(BATCH, STOCHASTIC))


def run_plainly():
    state, total = first, 0.0
    for x in zip(*data, strict=True):
        state, loss = model(state, x)
        total = total + loss
    return total


if __name__ == "__main__":
    planned = lambda: bptt(model, data, first, lambda _, loss: loss, memory=MEMORY).loss  # noqa: E731
    compare(model.parameters(), {"plain": run_plainly, f"memory={MEMORY!r}": planned}, memory=MEMORY)
