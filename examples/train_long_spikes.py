"""A spiking layer recalls what it was shown 100,000 steps ago, by full backpropagation through all of them.

    pip install ".[torch]"
    python examples/train_long_spikes.py                 # some minutes on one core
    python examples/train_long_spikes.py --steps 5000    # some seconds

One of two cues is shown for ten steps. Then another channel fires now and then, which disturbs the membranes.
In the last ten steps a probe asks for the cue. Learning means to recall the cue, and to ignore what came
between. The plan says of which steps spikes are kept, and which run in full again (docs/cache.md).
"""

import argparse
import logging
import time

import torch
from torch.nn.functional import cross_entropy

from ckptplan.torch import LIF, bptt, plan_for
from ckptplan.units import format_bytes

NEURONS, BATCH, CUE_STEPS = 32, 16, 10
#: Two cues, the channel that disturbs, and the probe.
CUES, NOISE, PROBE = (0, 1), 2, 3


class Trials:
    """Inputs of the steps of some trials, which are made when they are needed."""

    def __init__(self, steps, cues, seed):
        self.steps, self.cues, self.seed = steps, cues, seed

    def __call__(self, start, stop):
        """Return the inputs of steps start..stop-1, the same ones whenever they are asked for."""
        made = torch.zeros(stop - start, len(self.cues), 4)
        made[: max(0, CUE_STEPS - start), torch.arange(len(self.cues)), self.cues] = 1
        made[max(0, self.steps - CUE_STEPS - start) :, :, PROBE] = 1
        for step in range(max(100, start + -start % 100), min(stop, self.steps - CUE_STEPS), 100):
            generator = torch.Generator().manual_seed(self.seed + step)
            made[step - start, :, NOISE] = (torch.rand(len(self.cues), generator=generator) < 0.5).float()
        return made


def main():
    """Train, and print what the plan kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--memory", default="1 MB")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("ckptplan.torch").setLevel(logging.INFO)
    torch.manual_seed(0)
    cell = LIF(4, NEURONS, decay=1.0, threshold=1.0, slope=5.0, recurrent=False)
    readout = torch.nn.Linear(NEURONS, 2)
    with torch.no_grad():
        cell.weight[:, CUES] = 0.08 * torch.randn(NEURONS, 2)
        # As often as it fires, the disturbance moves a membrane by a part of the threshold.
        cell.weight[:, NOISE] = 30 / options.steps * torch.randn(NEURONS)
        cell.weight[:, PROBE] = 0.1
    groups = [{"params": [cell.weight], "lr": 2e-2}, {"params": readout.parameters(), "lr": 2e-1}]
    optimizer = torch.optim.Adam(groups)
    for batch in range(options.batches):
        cues = torch.randint(2, (BATCH,))
        inputs = Trials(options.steps, cues, seed=batch * options.steps)

        def loss(step, spikes, cues=cues):
            """Return the loss of the last steps; zero before."""
            if step < options.steps - CUE_STEPS:
                return spikes.new_zeros(())
            return cross_entropy(readout(spikes), cues) / CUE_STEPS

        began = time.perf_counter()
        state = cell.initial_state(BATCH)
        if not batch:
            plan = plan_for(cell, inputs, state, loss, memory=options.memory, steps=options.steps)
        result = bptt(cell, inputs, state, loss, plan=plan)
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        seconds = time.perf_counter() - began
        print(f"batch {batch + 1}: loss {result.loss.item():.3f}, {seconds:.1f} s", flush=True)
    sizes = plan.workload
    kept = plan.parameters.get("cached_steps", options.steps)
    again, in_full = plan.predicted.recomputed_steps, plan.predicted.recomputed_without_cache
    print(
        f"{plan.strategy}: the spikes of {kept:,} steps stay, {again:,} run again, of which {in_full:,} in full"
    )
    needed = options.steps * (sizes.tape_bytes + sizes.cache_bytes)
    print(f"a plain loop would keep at least {format_bytes(needed)}")


if __name__ == "__main__":
    main()
