"""PyTorch's recurrent layers over a long sequence, as they are and within a limit of memory, side by side.

One thread, forward and backward with a loss over all outputs, T = 1,024, batch 32, 128 inputs, 128 neurons; the
limit is 0.15 of what the layers take by themselves. Run: python -m benchmarks.fused
"""

from __future__ import annotations

import copy
import statistics
from functools import partial
from typing import Any

import torch

from benchmarks.harness import DOCS, MIB, Setting, find_difference, find_ratio, main, time_in_turn
from benchmarks.variants import measure_peak
from ckptplan.torch import wrap

#: The limit, as a share of what the layers take by themselves.
SHARE = 0.15
#: Layers, with the options that make them.
NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "LSTM, 2 layers": (torch.nn.LSTM, {"num_layers": 2}),
    "GRU, 2 layers": (torch.nn.GRU, {"num_layers": 2}),
    "LSTM, bidirectional": (torch.nn.LSTM, {"bidirectional": True}),
}


def train(net: Any, inputs: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of a loss over all outputs, which keeps no more than their gradient."""
    outputs, _ = net(inputs)
    return list(torch.autograd.grad((outputs * weights).sum(), list(net.parameters())))


def compare(name: str, setting: Setting) -> dict[str, Any]:
    """Measure a network as it is and within the limit."""
    torch.manual_seed(0)
    steps, batch, size = setting.pick((64, 4, 16), (1024, 32, 128), (1024, 256, 512))
    make, options = NETWORKS[name]
    net: Any = make(size, size, **options)
    width = size * (2 if options.get("bidirectional") else 1)
    job = torch.randn(steps, batch, size), torch.randn(steps, batch, width)
    live = measure_peak(partial(train, net, *job))
    limit = int(setting.pick(0.6, SHARE, SHARE) * live)
    ours: Any = wrap(copy.deepcopy(net), memory=limit)
    first = time_in_turn({"first": partial(train, ours, *job)}, rounds=1)["first"][0]
    runs = {"plain": partial(train, net, *job), "ours": partial(train, ours, *job)}
    times = time_in_turn(runs, rounds=setting.pick(1, 5, 5))
    return {
        "plain_seconds": statistics.median(times["plain"]),
        "seconds": statistics.median(times["ours"]),
        "ratio": find_ratio(times, "ours", "plain"),
        "first_seconds": first,
        "plain_live_bytes": live,
        "limit_bytes": limit,
        "live_bytes": measure_peak(partial(train, ours, *job)),
        "gradient_difference": find_difference(train(ours, *job), train(net, *job)),
    }


def run(setting: Setting) -> dict[str, Any]:
    """Measure each network."""
    return {name: setting.attempt(name, partial(compare, name, setting)) for name in NETWORKS}


def document(results: dict[str, Any]) -> str:
    """Return the results as a list for a page."""
    lines = []
    for name, one in results.items():
        if "ratio" not in one:
            lines.append(f"- {name}: {one['status']}")
            continue
        sizes = (one[key] / MIB for key in ("live_bytes", "plain_live_bytes"))
        live, plain = (f"{size:.0f}" for size in sizes)
        lines.append(
            f"- {name}: {one['ratio']:.2f} of the plain time ({one['plain_seconds']:.2f} s), "
            f"{live} of {plain} MiB"
        )
    return "\n".join(lines) + "\n"


PAGES = {DOCS / "measured.md": document}

if __name__ == "__main__":
    main("fused", run, PAGES, about=__doc__)
