"""A decoder with attention over an encoder's memory, which is computed before the loop.

    python examples/libraries/attention_decoder.py

The cell uses the encoder's memory as a variable. Its gradients reach the encoder without being named. The limit
is for the decoder's loop; the encoder takes its memory beside it.
"""

import torch
from compare import compare
from torch import nn
from torch.nn.functional import cross_entropy

from ckptplan.torch import bptt

MEMORY = "6 MB"
SOURCE, TARGET, BATCH, VOCABULARY, WIDTH = 48, 256, 8, 100, 64


class Translator(nn.Module):
    """An encoder, and a decoder that attends to the encoder's outputs in each step."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.GRU(WIDTH, WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.cell = nn.LSTMCell(2 * WIDTH, WIDTH)
        self.head = nn.Linear(2 * WIDTH, VOCABULARY)

    def encode(self, source):
        return self.encoder(self.embed(source))[0].transpose(0, 1)  # (B, SOURCE, WIDTH)

    def step(self, memory, state, token):
        hidden, cell, context = state
        hidden, cell = self.cell(torch.cat([self.embed(token), context], -1), (hidden, cell))
        scores = torch.tanh(memory + self.query(hidden).unsqueeze(1)).sum(-1)
        context = (scores.softmax(-1).unsqueeze(-1) * memory).sum(1)
        return (hidden, cell, context), self.head(torch.cat([hidden, context], -1))


torch.manual_seed(0)
model = Translator()
source = torch.randint(VOCABULARY, (SOURCE, BATCH))
target = torch.randint(VOCABULARY, (TARGET + 1, BATCH))
first = tuple(torch.zeros(BATCH, WIDTH) for _ in range(3))


def loss_of(t, scores):
    return cross_entropy(scores, target[t + 1]) / TARGET


def run_plainly():
    memory, state, total = model.encode(source), first, 0.0
    for t in range(TARGET):
        state, scores = model.step(memory, state, target[t])
        total = total + loss_of(t, scores)
    return total


def run_planned():
    memory = model.encode(source)
    return bptt(
        lambda state, token: model.step(memory, state, token), target[:-1], first, loss_of, memory=MEMORY
    ).loss


if __name__ == "__main__":
    compare(model.parameters(), {"plain": run_plainly, f"memory={MEMORY!r}": run_planned}, memory=MEMORY)
