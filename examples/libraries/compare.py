"""Prints the peak of live tensors, the time and the gradients of several ways to compute a loss."""

import time

import torch

from ckptplan.torch.device.meters import LiveBytes
from ckptplan.units import format_bytes, parse_bytes

SEED, CALLS = 1, 3


def measure(parameters, make_loss):
    """Return the gradients of a loss, the peak in bytes and the seconds. The first call makes the plan."""

    def run():
        torch.manual_seed(SEED)  # all ways draw the same numbers
        return torch.autograd.grad(make_loss(), parameters)

    with LiveBytes() as live:
        run()
        gradients = run()
    seconds = []
    for _ in range(CALLS):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return gradients, live.peak, min(seconds)


def compare(parameters, ways, *, memory):
    """Measure each way, and compare its gradients with the gradients of the first one.

    Arguments:
        parameters: the parameters whose gradients are wanted.
        ways: by name, a function that computes the loss.
        memory: the limit, in whose units sizes are shown.
    """
    parameters, expected = [each for each in parameters if each.requires_grad], None
    print(f"{'way':<22}{'peak':>10}{'time':>10}  gradients differ by")
    for name, make_loss in ways.items():
        gradients, peak, seconds = measure(parameters, make_loss)
        expected = gradients if expected is None else expected
        pairs = zip(gradients, expected, strict=True)
        differ = max(float((ours - theirs).norm() / theirs.norm()) for ours, theirs in pairs)
        size = format_bytes(peak, like=parse_bytes(memory))
        print(f"{name:<22}{size:>10}{1000 * seconds:>7.0f} ms  {differ:.0e}")
