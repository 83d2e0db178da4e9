"""A differentiable solver: RK4 for a neural differential equation, with a loss of the final state.

    python examples/libraries/solver.py

A step of the cell is a step of the solver. Gradients are those of the steps, not those of an adjoint equation.
"""

import torch
from compare import compare
from torch import nn

from ckptplan.torch import bptt

MEMORY = "2 MB"
STEPS, BATCH, WIDTH, END = 500, 32, 32, 10.0


class Field(nn.Module):
    """The derivative of the state at a time."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))

    def forward(self, time, state):
        return self.layers(torch.cat([state, time.expand(len(state), 1)], -1))


torch.manual_seed(0)
field, length = Field(), END / STEPS
start = torch.randn(BATCH, 2)
target = start @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
times = length * torch.arange(STEPS)


def step(state, time):
    """Return the state after a step of RK4, and no output."""
    first = field(time, state)
    second = field(time + length / 2, state + length / 2 * first)
    third = field(time + length / 2, state + length / 2 * second)
    fourth = field(time + length, state + length * third)
    return state + length / 6 * (first + 2 * second + 2 * third + fourth), None


def loss_of(state):
    return (state - target).square().mean()


def run_plainly():
    state = start
    for time in times:
        state, _ = step(state, time)
    return loss_of(state)


if __name__ == "__main__":
    planned = lambda: bptt(step, times, start, final_loss=loss_of, memory=MEMORY).loss  # noqa: E731
    compare(field.parameters(), {"plain": run_plainly, f"memory={MEMORY!r}": planned}, memory=MEMORY)
