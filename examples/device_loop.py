"""A loop in the shape that accelerators with compiled programs ask for: PopTorch or PopXL, and Warp.

Each callback of ``ckptplan.execute`` would launch a program that was compiled before: here such programs are
NumPy functions, and the device is an array of slots. **Nothing of this was run on an IPU or with Warp**; the
comments say what each callback would call there, as their documentation describes it.

Run it with: python examples/device_loop.py
"""

import numpy as np

import ckptplan

STEPS, NEURONS = 96, 50
random = np.random.default_rng(0)
weights = random.standard_normal((NEURONS, NEURONS)) / np.sqrt(NEURONS)
inputs = random.standard_normal((STEPS, NEURONS))


class Device:
    """Memory that is allocated once: a working state, slots for checkpoints, and the tapes of one chunk.

    PopXL: variables of the main graph, and remote buffers (``popxl.remote_buffer``) for streaming memory.
    Warp: ``wp.zeros`` once; a captured graph (``wp.ScopedCapture``) may not allocate.
    """

    def __init__(self, *, chunk, slots, remote_slots):
        self.state = np.zeros(NEURONS)
        self.slots, self.buffer = np.zeros((slots, NEURONS)), np.zeros((remote_slots, NEURONS))
        self.tapes = np.zeros((chunk, NEURONS))
        self.gradient, self.of_weights = np.zeros(NEURONS), np.zeros_like(weights)
        self.launches = 0

    def run(self, first, count, *, keep):
        """Run ``count`` steps; the device reads inputs by their number.

        PopXL: ``popxl.Session.run`` of a program with ``ops.repeat(step_graph, count)``; inputs by a stream.
        Warp: ``wp.capture_launch`` of the graph of one chunk; the first step is in an array on the device.
        """
        self.launches += 1
        for i in range(count):
            self.state = np.tanh(weights @ self.state + inputs[first + i])
            if keep:
                self.tapes[i] = self.state

    def reverse(self, count, before):
        """Reverse a chunk. Warp: the captured graph of ``wp.Tape.backward``. PopXL: ``autodiff`` of a step."""
        self.launches += 1
        for i in reversed(range(count)):
            inner = self.gradient * (1 - self.tapes[i] ** 2)
            self.of_weights += np.outer(inner, self.tapes[i - 1] if i else before)
            self.gradient = weights.T @ inner


def train(plan):
    """Return the gradient of half the square of the final state, and the device that computed it."""
    most = {"local": set(), "remote": set()}
    places = {"local": {}, "remote": {}}
    for action in ckptplan.actions(plan):
        if isinstance(action, ckptplan.schedule.actions.Save):
            most[action.tier].add(action.state)
    chunk = plan.parameters["chunk_size"]
    device = Device(chunk=chunk, slots=len(most["local"]), remote_slots=len(most["remote"]))
    before, freed = {}, []

    def advance(start, stop):
        # A compiled program has a fixed length: a regular plan needs one for a chunk, and one for a short one.
        for first in range(start, stop, chunk):
            device.run(first, min(chunk, stop - first), keep=False)

    def record(start, stop):
        before[start] = device.state.copy()
        device.run(start, stop - start, keep=True)

    def backward(start, stop):
        if stop == STEPS:
            device.gradient = device.state.copy()
        device.reverse(stop - start, before.pop(start))

    def save(state, tier):
        # PopXL: ``ops.remote_store`` for the remote tier, a copy of variables for the local one. Warp:
        # ``wp.copy``, on a stream of its own if the plan's transfers overlap compute.
        place = places[tier][state] = len(places[tier])
        (device.slots if tier == "local" else device.buffer)[place] = device.state

    def load(state, tier):
        # PopXL: ``ops.remote_load``. Warp: ``wp.copy`` from pinned host memory (``pinned=True``).
        device.state = (device.slots if tier == "local" else device.buffer)[places[tier][state]].copy()

    def free(state, tier):
        # Nothing is returned to an allocator: the slot is only unused.
        freed.append((state, tier))

    ckptplan.execute(plan, advance=advance, record=record, backward=backward, save=save, load=load, free=free)
    return device.of_weights, device


def plainly():
    """Return the same without a plan: the state of every step is kept."""
    states = [np.zeros(NEURONS)]
    for x in inputs:
        states.append(np.tanh(weights @ states[-1] + x))
    gradient, total = states[-1], np.zeros_like(weights)
    for t in reversed(range(STEPS)):
        inner = gradient * (1 - states[t + 1] ** 2)
        total += np.outer(inner, states[t])
        gradient = weights.T @ inner
    return total


def main():
    workload = ckptplan.Workload(
        name="device-loop",
        steps=STEPS,
        units=1,
        state_bytes=8 * NEURONS,
        tape_bytes=8 * NEURONS,
        forward_seconds=1e-5,
        backward_seconds=2e-5,
        recompute_seconds=1e-5,
    )
    profile = ckptplan.HardwareProfile(
        name="device",
        local_bytes=2**30,
        write_bytes_per_second=1e9,
        read_bytes_per_second=1e9,
        latency_seconds=1e-6,
    )
    expected = plainly()
    for strategy in ("standard", "remote"):
        plan = ckptplan.optimize(workload, profile, strategies=[strategy], local_bytes="10 kB")
        found, device = train(plan)
        same = np.array_equal(found, expected)
        print(f"{strategy} {dict(plan.parameters)}: {device.launches} launches, same gradient: {same}")


main()
