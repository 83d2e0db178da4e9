"""A wave equation in NumPy with its adjoint by hand: the gradient of a misfit for the speed at each point.

No framework: ``ckptplan.execute`` calls the methods below in the order of a plan. Checkpoints of the remote
tier are files. Run it with: python examples/wave_adjoint.py
"""

import tempfile
from pathlib import Path

import numpy as np

import ckptplan

STEPS, POINTS, DT = 600, 400, 0.5
x = np.linspace(0, 1, POINTS)
speed = 1.0 + 0.2 * np.sin(9 * x)
start = np.exp(-(((x - 0.3) / 0.03) ** 2))


def laplace(u):
    """Return the second difference with fixed ends; it is its own transpose."""
    padded = np.pad(u, 1)
    return padded[:-2] - 2 * u + padded[2:]


def step(state, speed):
    """u(t+1) = 2 u(t) - u(t-1) + (dt c)^2 u_xx(t)."""
    before, now = state
    return now, 2 * now - before + (DT * speed) ** 2 * laplace(now)


class Wave:
    """The working state, its gradient, tapes and checkpoints: what the callbacks of a plan work on."""

    def __init__(self, speed, folder):
        self.speed, self.folder = speed, Path(folder)
        self.state, self.gradient = (start, start), None
        self.of_speed = np.zeros(POINTS)
        self.tapes, self.kept, self.misfit = {}, {}, 0.0

    def advance(self, first, stop):
        for _ in range(first, stop):
            self.state = step(self.state, self.speed)

    def record(self, first, stop):
        for t in range(first, stop):
            # The adjoint of a step needs the field that the Laplacian was taken of, and nothing else.
            self.tapes[t] = self.state[1]
            self.state = step(self.state, self.speed)

    def backward(self, first, stop):
        if self.gradient is None:
            # The misfit: the energy of the right half at the end.
            end = np.where(x > 0.5, self.state[1], 0.0)
            self.misfit, self.gradient = 0.5 * np.sum(end**2), (np.zeros(POINTS), end)
        for t in reversed(range(first, stop)):
            of_now, of_next = self.gradient
            self.of_speed += of_next * 2 * DT**2 * self.speed * laplace(self.tapes.pop(t))
            self.gradient = -of_next, of_now + 2 * of_next + laplace((DT * self.speed) ** 2 * of_next)
        self.state = None

    def save(self, state, tier):
        if tier == "remote":
            np.save(self.folder / f"{state}.npy", np.stack(self.state))
        else:
            self.kept[state] = self.state

    def load(self, state, tier):
        self.state = tuple(np.load(self.folder / f"{state}.npy")) if tier == "remote" else self.kept[state]

    def free(self, state, tier):
        if tier == "remote":
            (self.folder / f"{state}.npy").unlink()
        else:
            del self.kept[state]

    def transfer(self, states, source, target):
        for state in states:
            if target == "remote":
                np.save(self.folder / f"{state}.npy", np.stack(self.kept[state]))
            else:
                self.kept[state] = tuple(np.load(self.folder / f"{state}.npy"))
            self.free(state, source)


def solve(speed, plan):
    """Return the misfit and its gradient for the speed."""
    with tempfile.TemporaryDirectory() as folder:
        wave = Wave(speed, folder)
        ckptplan.execute(
            plan,
            advance=wave.advance,
            record=wave.record,
            backward=wave.backward,
            save=wave.save,
            load=wave.load,
            free=wave.free,
            transfer=wave.transfer,
        )
        left = [*Path(folder).iterdir(), *wave.kept, *wave.tapes]
    if left:
        raise RuntimeError(f"a plan leaves nothing behind, and this one left {left}")
    return wave.misfit, wave.of_speed


workload = ckptplan.Workload(
    name="wave",
    steps=STEPS,
    units=1,
    state_bytes=2 * 8 * POINTS,
    tape_bytes=8 * POINTS,
    forward_seconds=2e-5,
    backward_seconds=4e-5,
    recompute_seconds=2e-5,
)
machine = ckptplan.HardwareProfile(
    name="laptop",
    local_bytes=2**40,
    write_bytes_per_second=1e9,
    read_bytes_per_second=1e9,
    latency_seconds=1e-4,
)
plain = ckptplan.optimize(workload, machine, strategies=["base"])
misfit, gradient = solve(speed, plain)
print(f"all tapes: {plain.predicted.local_peak_bytes / 1024:.0f} KiB, misfit {misfit:.6f}")

for strategies, local_bytes in ((["nested"], "256 KiB"), (["optimal"], "160 KiB"), (["double"], "96 KiB")):
    plan = ckptplan.optimize(workload, machine, strategies=strategies, local_bytes=local_bytes)
    _, found = solve(speed, plan)
    size = plan.predicted.local_peak_bytes / 1024
    print(f"{plan.strategy}: {size:.0f} KiB, {plan.predicted.overhead:+.0%} time, same gradient:", end=" ")
    print(np.array_equal(found, gradient))

# The adjoint against a finite difference along a random direction.
direction, small = np.random.default_rng(0).standard_normal(POINTS), 1e-6
change = (solve(speed + small * direction, plain)[0] - solve(speed - small * direction, plain)[0]) / (2 * small)
print(f"finite difference {change:.6e}, adjoint {gradient @ direction:.6e}")
