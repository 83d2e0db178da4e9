"""A recurrent spiking network learns handwritten digits, within a budget that plain BPTT cannot meet.

    pip install ".[torch]" scikit-learn
    python examples/train_digits.py            # under a plan
    python examples/train_digits.py --plain    # plain backpropagation through time

The 8 x 8 images of scikit-learn's digits are presented row by row: for 64 steps each row makes 8 channels
spike, and 8 more channels encode the number of the row, 512 steps in all. Every spike votes for a digit, and
the state carries the sum of the votes: the loss is not a sum over time (docs/runtime-cells.md).
"""

import argparse
import sys
import time

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch.nn.functional import cross_entropy

import ckptplan
from ckptplan.torch import LIF, bptt, measured_sizes
from ckptplan.torch.device.meters import LiveBytes
from ckptplan.units import format_bytes

ROWS, STEPS_A_ROW, CLASSES = 8, 64, 10
STEPS = ROWS * STEPS_A_ROW
#: One level of memory: checkpoints stay in the same memory as the network.
HOST = ckptplan.HardwareProfile(
    name="host",
    local_bytes=2**40,
    write_bytes_per_second=1e10,
    read_bytes_per_second=1e10,
    latency_seconds=1e-6,
)


class Network(torch.nn.Module):
    """Spiking neurons, and the votes of their spikes so far: state (membranes, votes)."""

    def __init__(self, neurons):
        super().__init__()
        self.lif, self.readout = LIF(2 * ROWS, neurons, slope=40.0), torch.nn.Linear(neurons, CLASSES)
        with torch.no_grad():
            self.lif.weight.mul_(2)
            self.lif.recurrent_weight.mul_(0.1)

    def start(self, batch):
        """Return membranes at rest and zero votes."""
        return self.lif.initial_state(batch), torch.zeros(batch, CLASSES)

    def forward(self, state, x):
        """Run a step and add the votes of its spikes."""
        membranes, votes = state
        membranes, spikes = self.lif(membranes, x)
        return (membranes, votes + self.readout(spikes) / STEPS_A_ROW), spikes


def digits(samples, seed):
    """Return training images and digits, then test images and digits; a seed fixes the split."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        print("scikit-learn is not installed; install it with: pip install scikit-learn", file=sys.stderr)
        sys.exit(2)
    images, target = (torch.as_tensor(one) for one in load_digits(return_X_y=True))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    images, target = images[order].float().view(-1, ROWS, ROWS) / 16, target[order]
    return images[360 : 360 + samples], target[360 : 360 + samples], images[:360], target[:360]


def spikes_of(images, generator):
    """Return spikes of shape (STEPS, batch, 16): the pixels of a row, and its number."""
    pixels = images.transpose(0, 1)
    row = torch.eye(ROWS).unsqueeze(1).expand(ROWS, len(images), ROWS)
    rates = 0.3 * torch.cat([pixels, row], dim=2).repeat_interleave(STEPS_A_ROW, dim=0)
    return (torch.rand(rates.shape, generator=generator) < rates).float()


def loss_of(network, spikes, target, plan, *, compiled=False):
    """Return the loss, by plain BPTT if there is no plan."""
    state = network.start(len(target))
    if plan is not None:
        last = lambda state: cross_entropy(state[1], target)  # noqa: E731
        return bptt(network, spikes, state, final_loss=last, plan=plan, compile=8 if compiled else None).loss
    for x in spikes.unbind(0):
        state, _ = network(state, x)
    return cross_entropy(state[1], target)


def measured_workload(network, batch):
    """Return the workload of a batch: sizes are counted; only the ratios of the times matter here."""
    last = lambda state: state[1].square().sum()  # noqa: E731
    sizes = measured_sizes(network, torch.zeros(2, batch, 2 * ROWS), network.start(batch), final_loss=last)
    return ckptplan.Workload(
        name="digits", steps=STEPS, units=1, batch=batch, **vars(sizes),
        forward_seconds=1e-4, backward_seconds=2e-4, recompute_seconds=1e-4,
    )  # fmt: skip


def accuracy(network, images, target):
    state = network.start(len(images))
    with torch.no_grad():
        for x in spikes_of(images, torch.Generator().manual_seed(1)).unbind(0):
            state, _ = network(state, x)
    return (state[1].argmax(1) == target).float().mean().item()


def live_peak(network, batch, plan):
    """Return the peak bytes of live tensors while one batch is trained."""
    spikes, target = torch.zeros(STEPS, batch, 2 * ROWS), torch.zeros(batch, dtype=torch.int64)
    with LiveBytes() as meter:
        loss_of(network, spikes, target, plan).backward()
    network.zero_grad()
    return meter.peak


def train(network, plan, options, data):
    images, target, test_images, test_target = data
    generator = torch.Generator().manual_seed(options.seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    batches = options.epochs * -(-len(images) // options.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, batches)
    columns = "{task.description}", BarColumn(), "{task.completed}/{task.total}", TimeRemainingColumn()
    with Progress(
        *(TextColumn(one) if isinstance(one, str) else one for one in columns),
        disable=not Console().is_terminal, transient=True,
    ) as progress:  # fmt: skip
        bar = progress.add_task("training", total=batches)
        for epoch in range(options.epochs):
            for some in torch.randperm(len(images), generator=generator).split(options.batch):
                loss = loss_of(
                    network, spikes_of(images[some], generator), target[some], plan, compiled=options.compile
                )
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                progress.update(bar, advance=1, description=f"epoch {epoch + 1}, loss {loss.item():.3f}")
            right = accuracy(network, test_images, test_target)
            progress.console.print(f"epoch {epoch + 1:2d}  loss {loss.item():.3f}  test accuracy {right:.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--plan", metavar="FILE", help="execute this plan, which must have 512 steps")
    how.add_argument("--plain", action="store_true", help="plain backpropagation through time")
    parser.add_argument("--compile", action="store_true", help="compile pieces of 8 steps of a plan")
    parser.add_argument("--local-bytes", default="4 MB", help="the budget (default: 4 MB)")
    for name, default in (("epochs", 16), ("batch", 64), ("neurons", 96), ("samples", 1437), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    for name in ("epochs", "batch", "neurons", "samples"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: is {getattr(options, name)} (accepted: a whole number from 1)")
    data = digits(options.samples, options.seed)
    torch.manual_seed(options.seed)
    network = Network(options.neurons)
    try:
        workload = measured_workload(network, options.batch)
        base = ckptplan.optimize(workload, HOST, strategies=["base"]).predicted
        plan = ckptplan.load_plan(options.plan) if options.plan else None
        if plan is None and not options.plain:
            plan = ckptplan.optimize(workload, HOST, local_bytes=options.local_bytes, remote_bytes=0)
        print(f"base needs {format_bytes(base.local_peak_bytes)} for checkpoints and tapes")
        if plan is not None:
            predicted = plan.predicted
            print(
                f"plan: {plan.strategy} {dict(plan.parameters)}, {format_bytes(predicted.local_peak_bytes)}, "
                f"{predicted.overhead:+.0%} time"
            )
        peak = live_peak(network, options.batch, plan)
        print(f"measured peak of live tensors, gradients included: {format_bytes(peak)}", flush=True)
        start = time.perf_counter()
        train(network, plan, options, data)
    except ckptplan.CkptplanError as error:
        parser.error(str(error))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
