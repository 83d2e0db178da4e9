"""A plate cools until little heat is left: nobody knows how many steps that takes (docs/online.md).

No framework: the steps and their adjoint are written by hand. ``ckptplan.online`` holds eight states while the
plate cools, and plans the reversal when it has. The gradient of the heat that is left is compared with that of
a loop that keeps everything.
"""

import numpy as np

import ckptplan

SIZE, SPREAD, LOSS, LEFT = 48, 0.2, 0.002, 0.5


def neighbours(u):
    return sum(np.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1)) - 4 * u


def step(u):
    """Heat spreads, and hot places radiate more."""
    return u + SPREAD * neighbours(u) - LOSS * u**3


def step_back(u, gradient):
    """Return the gradient of the state before a step, which was ``u``."""
    return gradient + SPREAD * neighbours(gradient) - 3 * LOSS * u**2 * gradient


class Plate:
    """The working state, the gradient and the tapes."""

    def __init__(self, u):
        self.u, self.gradient, self.tapes, self.steps = u, None, {}, 0

    def advance(self, start, stop):
        for _ in range(start, stop):
            self.u = step(self.u)
            self.steps += 1

    def record(self, start, stop):
        for t in range(start, stop):
            self.tapes[t] = self.u
            self.advance(t, t + 1)

    def backward(self, start, stop):
        if self.gradient is None:
            self.gradient = self.u  # of half the sum of squares
        for t in reversed(range(start, stop)):
            self.gradient = step_back(self.tapes.pop(t), self.gradient)

    def set(self, u):
        self.u = u

    def has_cooled(self, *_):
        return np.mean(self.u**2) < LEFT


def main():
    start = np.random.default_rng(0).uniform(0, 4, (SIZE, SIZE))
    plate = Plate(start)
    schedule = ckptplan.online(8, state_bytes=start.nbytes)
    trace = ckptplan.execute(
        schedule,
        advance=plate.advance,
        record=plate.record,
        backward=plate.backward,
        state=(lambda: plate.u, plate.set),
        until=plate.has_cooled,
    )
    plain = Plate(start)
    while plain.steps == 0 or not plain.has_cooled():
        plain.record(plain.steps, plain.steps + 1)
    steps = plain.steps
    plain.backward(0, steps)
    same = np.array_equal(plate.gradient, plain.gradient)
    print(f"cooled after {steps:,} steps; {plate.steps / steps:.2f} runs of each under the schedule")
    print(f"{trace.local_peak_bytes:,} bytes in place of {steps * start.nbytes:,}; same gradient: {same}")


if __name__ == "__main__":
    main()
