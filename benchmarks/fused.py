"""PyTorch's recurrent layers over a long sequence, as they are and within a limit of memory, side by side.

One thread, forward and backward with a loss over all outputs, T = 1,024, batch 32, 128 inputs, 128 neurons.
Times are processor time, since other programs share the machine. Run: python -m benchmarks.fused
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.record import write
from ckptplan.torch.meters import LiveBytes
from ckptplan.torch.wrapping.fused import FusedSequence
from ckptplan.units import format_bytes

STEPS, BATCH, SIZE, ROUNDS = 1_024, 32, 128, 5
#: The limit, as a share of what the layers take by themselves.
SHARE = 0.15


@dataclass(frozen=True)
class Network:
    """Layers to compare."""

    name: str
    make: Callable[..., torch.nn.RNNBase]
    layers: int
    bidirectional: bool = False


NETWORKS = (
    Network("LSTM, 2 layers", torch.nn.LSTM, 2),
    Network("GRU, 2 layers", torch.nn.GRU, 2),
    Network("LSTM, bidirectional", torch.nn.LSTM, 1, bidirectional=True),
)


def train(net: Any, inputs: torch.Tensor, weights: torch.Tensor) -> None:
    """Compute the gradients of a loss over all outputs, which keeps no more than their gradient."""
    outputs, _ = net(inputs)
    (outputs * weights).sum().backward()


def measure_live(net: Any, *job: torch.Tensor) -> int:
    """Return the peak of live tensors, without parameters and inputs."""
    net.zero_grad()
    with LiveBytes() as live:
        train(net, *job)
    return int(live.peak)


def compare_gradients(plain: torch.nn.Module, ours: torch.nn.Module, *job: torch.Tensor) -> float:
    """Return the largest difference of a gradient, as a share of its largest entry."""
    found = []
    for net in (plain, ours):
        net.zero_grad()
        train(net, *job)
        found.append([parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None])
    pairs = zip(*found, strict=True)
    return max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)


def time_in_turn(nets: dict[str, torch.nn.Module], *job: torch.Tensor) -> dict[str, list[float]]:
    """Time each network in each round, in an order that rotates."""
    times: dict[str, list[float]] = {name: [] for name in nets}
    names = list(nets)
    gc.disable()
    for round_ in range(ROUNDS):
        shift = round_ % len(names)
        for name in (*names[shift:], *names[:shift]):
            nets[name].zero_grad()
            start = time.process_time()
            train(nets[name], *job)
            times[name].append(time.process_time() - start)
    gc.enable()
    return times


def compare(network: Network) -> dict[str, Any]:
    """Measure a network as it is and within the limit."""
    torch.manual_seed(0)
    net = network.make(SIZE, SIZE, num_layers=network.layers, bidirectional=network.bidirectional)
    width = SIZE * (2 if network.bidirectional else 1)
    job = torch.randn(STEPS, BATCH, SIZE), torch.randn(STEPS, BATCH, width)
    live = measure_live(net, *job)
    limit = int(SHARE * live)
    ours = FusedSequence(net, memory=limit)
    start = time.process_time()
    train(ours, *job)
    first = time.process_time() - start
    times = time_in_turn({"plain": net, "ours": ours}, *job)
    ratios = [one / other for one, other in zip(times["ours"], times["plain"], strict=True)]
    chosen = ours.latest[0]
    return {
        "plain_seconds": statistics.median(times["plain"]),
        "seconds": statistics.median(times["ours"]),
        "ratio": statistics.median(ratios),
        "ratio_of_least": min(times["ours"]) / min(times["plain"]),
        "first_seconds": first,
        "plain_live_bytes": live,
        "limit_bytes": limit,
        "live_bytes": measure_live(ours, *job),
        "gradient_difference": compare_gradients(net, ours, *job),
        "piece": chosen.piece,
        "plan_steps": chosen.plan.steps,
    }


def document(results: dict[str, Any]) -> str:
    """Return the results as a table for a page."""
    rows = [
        "| layers | plain | within the limit | ratio | plain, live tensors | limit | live tensors | piece "
        "| gradients differ by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in results["networks"].items():
        sizes = " | ".join(
            format_bytes(one[field]) for field in ("plain_live_bytes", "limit_bytes", "live_bytes")
        )
        rows.append(
            f"| {name} | {one['plain_seconds']:.2f} s | {one['seconds']:.2f} s | {one['ratio']:.2f} | {sizes} "
            f"| {one['piece']} | {one['gradient_difference']:.0e} |"
        )
    return "\n".join(rows)


def main() -> None:
    """Print a table with a row for each network."""
    torch.set_num_threads(1)
    found = {network.name: compare(network) for network in NETWORKS}
    sizes = {"steps": STEPS, "batch": BATCH, "inputs": SIZE, "neurons": SIZE, "rounds": ROUNDS}
    results = {**sizes, "share": SHARE, "networks": found}
    print(document(results))
    write("fused", results)


if __name__ == "__main__":
    main()
