"""Counts the operations of a time step, and measures the peaks of the machine, to estimate times elsewhere.

The cell runs under real schedules, as when it is timed. The counter sees every kernel that PyTorch starts,
including the kernels of a ``ChunkCell``. Products are counted as PyTorch's flop counter counts them. Any other
kernel counts one operation for each number that it writes. The bytes of a kernel are the bytes of the tensors
that it reads and writes. Views count nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ckptplan.cost.roofline import name_peak
from ckptplan.execution.backend import Pace, Roofline
from ckptplan.model.network import ITEM_BYTES, Operations
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Action, Advance, Backward
from ckptplan.torch.backend import TorchNetwork, TorchProgram
from ckptplan.torch.device.meters import choose_clock
from ckptplan.torch.run.executor import Executor

#: Steps of the two chunks whose difference is counted, and of shorter chunks for a cell with long steps. The
#: work of an action besides its steps is the same for both chunks.
_CHUNKS, _SHORT_CHUNKS = (2, 4), (1, 2)
#: Limits for the expected seconds of the runs: above the first, short chunks run; above the second, none.
#: Inspecting a kernel takes longer than most kernels.
_LONG_SECONDS, _MOST_SECONDS = 1.0, 5.0
#: Parts of the names of kernels that hold products which PyTorch's counter does not know.
_OPAQUE = ("rnn", "lstm", "gru", "sparse", "spmm", "quantized")


#: Rows of the square matrices whose product is timed, and bytes of the tensor that is copied.
_ROWS = {"cpu": 1024, "cuda": 8192}
_COPIED = {"cpu": 64 * 2**20, "cuda": 2**30}
#: How many kernels are started in a row.
_KERNELS = 1000
#: The quickest of this many runs counts, as the run that was disturbed least.
_RUNS = 4
#: The FLOPs of some kernels, the bytes that they read and write, and the number of kernels.
KernelWork = npt.NDArray[np.float64]


class WorkCounter(TorchDispatchMode):
    """Adds up the work of all kernels that start within it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: KernelWork = np.zeros(3)
        #: Kernels whose products could not be counted.
        self.unknown: set[str] = set()
        #: FLOPs of products by the type of their numbers.
        self.products: dict[torch.dtype, float] = defaultdict(float)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a kernel and count it."""
        options = kwargs or {}
        result = func(*args, **options)
        if not _is_view(func):
            self._add(func, args, options, result)
        return result

    def _add(self, func: Any, args: tuple[Any, ...], options: dict[str, Any], result: Any) -> None:
        written = list(_tensors(result))
        if not written:
            return
        read = list(_tensors((args, options)))
        # The formulas are those of dense products.
        sparse = any(tensor.layout is not torch.strided for tensor in read)
        formula = None if sparse else flop_registry.get(func._overloadpacket)
        if "embedding_bag" in str(func):
            # A sum of some rows of a matrix, as a product with spikes is.
            flops = float(args[1].numel() * args[0].shape[-1])
        elif formula is not None:
            flops = float(formula(*args, **options, out_val=result))
            self.products[written[0].dtype] += flops
        else:
            flops = float(sum(tensor.numel() for tensor in written))
            if sparse or any(part in str(func) for part in _OPAQUE):
                self.unknown.add(str(func._overloadpacket))
        self.work = self.work + np.array([flops, sum(map(_size, (*read, *written))), 1])


def _is_view(func: Any) -> bool:
    """Return whether an operation returns a view of an argument, so that it starts no kernel."""
    returns = func._schema.returns
    return any(value.alias_info is not None and not value.alias_info.is_write for value in returns)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _size(tensor: torch.Tensor) -> int:
    """Return the bytes of memory of a tensor. A number that an expanded tensor repeats counts once."""
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.element_size()
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def count_work(network: TorchNetwork, *, pace: Pace) -> tuple[Operations | None, str]:
    """Count the work of a forward and a backward step; return it and how, or None and the reason."""
    if network.piece is not None:
        return None, "operations were not counted, as compiled pieces do not show theirs"
    chunks = _CHUNKS if _expect_seconds(pace, _CHUNKS) < _LONG_SECONDS else _SHORT_CHUNKS
    if _expect_seconds(pace, chunks) > _MOST_SECONDS:
        return None, "operations were not counted, as a step takes too long"
    counter = WorkCounter()
    short, long = (_count_chunks(network, counter, chunk) for chunk in chunks)
    added_steps = chunks[1] - chunks[0]
    work: dict[str, Any] = {
        f"{way}_{name}": float(number)
        for way, kind in (("forward", Advance), ("backward", Backward))
        for name, number in zip(
            ("flops", "bytes", "kernels"), np.maximum(0, (long[kind] - short[kind]) / added_steps), strict=True
        )
    }
    unknown = (
        f"; products within {', '.join(sorted(counter.unknown))} are not counted" if counter.unknown else ""
    )
    why = "products as PyTorch's flop counter counts them, one operation for each number of other kernels"
    return Operations(dtype=_name_type(network, counter), **work), why + unknown


def _expect_seconds(pace: Pace, chunks: tuple[int, int]) -> float:
    return 3 * sum(chunks) * pace.step_seconds


def _count_chunks(network: TorchNetwork, counter: WorkCounter, chunk: int) -> dict[type[Action], KernelWork]:
    """Return the work of the last action of each kind, with ``chunk`` steps each.

    The first actions of a kind also set up data that later actions use.
    """
    schedule = make_schedule("standard", steps=3 * chunk, chunk_size=chunk)
    program, work = TorchProgram(network, schedule), dict[type[Action], KernelWork]()
    before = counter.work

    def take(action: Action, _: Executor) -> None:
        """Store the work since the last action."""
        nonlocal before
        work[type(action)], before = counter.work - before, counter.work

    with counter:
        program.observe(take)
    return work


def _name_type(network: TorchNetwork, counter: WorkCounter) -> Any:
    """Return the data type of most products, or of the parameters if there are no products."""
    most = max(counter.products, key=lambda dtype: counter.products[dtype], default=network.parameters[0].dtype)
    name = str(most).removeprefix("torch.")
    return name if name in ITEM_BYTES else "float32"


def measure_roofline(network: TorchNetwork, *, pace: Pace) -> Roofline:
    """Measure the peaks of the machine and count the operations of a step.

    The peaks are those of large products and copies, which real steps do not reach. The share that the steps
    of a cell reach is its efficiency (``cost/roofline.py``).
    """
    operations, why = count_work(network, pace=pace)
    dtypes = {"float32"} if operations is None else {operations.dtype, "float32"}
    device = network.device
    rows, size = _ROWS[device.type], _COPIED[device.type]
    peaks = {}
    with torch.no_grad():
        for name in sorted(dtypes):
            factor = torch.ones(rows, rows, dtype=getattr(torch, name), device=device)
            out = torch.empty_like(factor)
            rate = 2 * rows**3 / _time_least(partial(torch.mm, factor, factor, out=out), device)
            peaks[name_peak(name)] = rate, f"product of two matrices of {rows:,} x {rows:,}"
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        rate = 2 * size / _time_least(partial(target.copy_, source), device)
        peaks["local_bytes_per_second"] = rate, f"copy of {size // 2**20:,} MiB, read and written"
        number = torch.zeros(1, device=device)

        def start_many() -> None:
            for _ in range(_KERNELS):
                torch.add(number, number)

        starting = _time_least(start_many, device) / _KERNELS
        peaks["launch_seconds"] = starting, f"a sum of two numbers, {_KERNELS:,} in a row"
    described = {field: (peak, f"{how}, the quickest of {_RUNS}") for field, (peak, how) in peaks.items()}
    return Roofline(peaks=described, operations=operations, why=why)


def _time_least(run: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of the quickest run, after a first run that warms up."""
    clock = choose_clock(device)
    seconds = []
    for _ in range(_RUNS + 1):
        began = clock()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(clock() - began)
    return max(min(seconds[1:]), 1e-9)
