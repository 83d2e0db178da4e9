"""A selective state-space model: a recurrence over chunks of 64 tokens, with the parallel scan inside.

    python examples/libraries/state_space.py

The plan decides which chunks keep their state, in place of torch.utils.checkpoint at segments chosen by hand.
"""

import torch
from compare import compare
from torch import nn
from torch.nn.functional import cross_entropy, softplus
from torch.utils.checkpoint import checkpoint

from ckptplan.torch import bptt

MEMORY = "24 MB"
TOKENS, CHUNK, BATCH, VOCABULARY, HEADS, WIDTH, STATES = 8192, 64, 2, 64, 4, 16, 16
SEGMENT = 8  # chunks between checkpoints by hand


class Chunk(nn.Module):
    """Takes 64 tokens and the state before them; returns the state after them and the outputs."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HEADS * WIDTH)
        self.project = nn.Linear(HEADS * WIDTH, HEADS * (2 * STATES + 1))
        self.head = nn.Linear(HEADS * WIDTH, VOCABULARY)
        self.decay = nn.Parameter(torch.linspace(-3, 0, HEADS))

    def forward(self, state, tokens):  # state: (B, HEADS, STATES, WIDTH), tokens: (CHUNK, B)
        x = self.embed(tokens.T)
        b, c, dt = self.project(x).unflatten(-1, (HEADS, -1)).split([STATES, STATES, 1], -1)
        dt = softplus(dt)
        u = x.unflatten(-1, (HEADS, WIDTH)) * dt
        # The logarithm of what is left of the state after each token.
        left = (-softplus(self.decay) * dt.squeeze(-1)).cumsum(1).transpose(1, 2)  # (B, HEADS, CHUNK)
        gaps = (left.unsqueeze(-1) - left.unsqueeze(-2)).tril().exp().tril()
        inside = torch.einsum("bihn,bjhn,bhij,bjhp->bihp", c, b, gaps, u)
        before = torch.einsum("bihn,bhnp,bhi->bihp", c, state, left.exp())
        gained = torch.einsum("bjhn,bhj,bjhp->bhnp", b, (left[..., -1:] - left).exp(), u)
        state = left[..., -1].exp()[..., None, None] * state + gained
        return state, self.head((inside + before).flatten(-2))  # (B, CHUNK, VOCABULARY)


torch.manual_seed(0)
model = Chunk()
tokens = torch.randint(VOCABULARY, (TOKENS + 1, BATCH)).cumsum(0) % VOCABULARY
inputs, targets = tokens[:-1].unflatten(0, (-1, CHUNK)), tokens[1:].unflatten(0, (-1, CHUNK))
zeros = torch.zeros(BATCH, HEADS, STATES, WIDTH)


def loss_of(index, outputs):
    return cross_entropy(outputs.flatten(0, 1), targets[index].T.flatten()) / len(inputs)


def run_segment(state, first):
    losses = []
    for index in range(first, first + SEGMENT):
        state, outputs = model(state, inputs[index])
        losses.append(loss_of(index, outputs))
    return state, torch.stack(losses).sum()


def run(call):
    state, loss = zeros, 0.0
    for first in range(0, len(inputs), SEGMENT):
        state, part = call(state, first)
        loss = loss + part
    return loss


if __name__ == "__main__":
    ways = {
        "plain": lambda: run(run_segment),
        "checkpoints by hand": lambda: run(lambda *given: checkpoint(run_segment, *given, use_reentrant=False)),
        f"memory={MEMORY!r}": lambda: bptt(model, inputs, zeros, loss_of, memory=MEMORY).loss,
    }
    compare(model.parameters(), ways, memory=MEMORY)
