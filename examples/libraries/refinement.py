"""Refinement as in RAFT: a convolutional GRU improves an optical flow, with a loss in each round.

    python examples/libraries/refinement.py

The input of a round is the weight of its loss. Features of both images are computed before the loop.
"""

import torch
from compare import compare
from torch import nn
from torch.nn.functional import grid_sample

from ckptplan.torch import bptt

MEMORY = "16 MB"
ROUNDS, BATCH, SIZE, WIDTH, DECAY = 32, 2, 32, 24, 0.9


class Refiner(nn.Module):
    """A round: compare the features of the first image with those of the second one, moved by the flow."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, padding=1), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        )
        self.gates = nn.Conv2d(3 * WIDTH + 2, 2 * WIDTH, 3, padding=1)
        self.candidate = nn.Conv2d(3 * WIDTH + 2, WIDTH, 3, padding=1)
        self.flow = nn.Conv2d(WIDTH, 2, 3, padding=1)

    def step(self, features, state, weight):
        hidden, flow = state
        ours, theirs = features
        flow = flow.detach()  # as in RAFT
        moved = grid_sample(theirs, GRID + flow.permute(0, 2, 3, 1), align_corners=True)
        x = torch.cat([ours, ours * moved, flow], 1)
        update, reset = self.gates(torch.cat([hidden, x], 1)).sigmoid().chunk(2, 1)
        candidate = torch.tanh(self.candidate(torch.cat([reset * hidden, x], 1)))
        hidden = (1 - update) * hidden + update * candidate
        flow = flow + self.flow(hidden)
        return (hidden, flow), weight * (flow - TRUTH).abs().mean()


torch.manual_seed(0)
axis = torch.linspace(-1, 1, SIZE)
GRID = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)
TRUTH = 0.1 * torch.randn(BATCH, 2, 1, 1).expand(-1, -1, SIZE, SIZE)
images = torch.rand(2, BATCH, 3, SIZE, SIZE)
weights = DECAY ** torch.arange(ROUNDS - 1, -1, -1)
first = (torch.zeros(BATCH, WIDTH, SIZE, SIZE), torch.zeros(BATCH, 2, SIZE, SIZE))
model = Refiner()


def run_plainly():
    features, state, total = [model.features(image) for image in images], first, 0.0
    for weight in weights:
        state, loss = model.step(features, state, weight)
        total = total + loss
    return total


def run_planned():
    features = [model.features(image) for image in images]
    return bptt(
        lambda state, weight: model.step(features, state, weight),
        weights,
        first,
        lambda _, loss: loss,
        memory=MEMORY,
    ).loss


if __name__ == "__main__":
    compare(model.parameters(), {"plain": run_plainly, f"memory={MEMORY!r}": run_planned}, memory=MEMORY)
