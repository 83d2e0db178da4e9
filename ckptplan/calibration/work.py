"""Counts what a time step of a cell computes, moves and starts: the operations from which times are estimated.

The cell runs under real schedules, as when it is timed, and every kernel that PyTorch starts is seen, those of
cells with a chunk engine of their own included. Products are counted as PyTorch's flop counter counts them. Any
other kernel counts one operation for each number that it writes, and bytes are those of the tensors that a
kernel reads and writes; views take nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.calibration.pilot import PilotTimes
from ckptplan.calibration.runs import observe_actions
from ckptplan.model.network import ITEM_BYTES, Operations
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Action, Advance, Backward, Record
from ckptplan.torch.executor import Executor

#: Steps of the chunks that are counted, and of those of a cell whose steps take long. What an action does
#: besides its steps is the same for both sizes.
_CHUNKS, _SHORT_CHUNKS = (2, 4), (1, 2)
#: Seconds that the runs may be expected to take: above the first, short chunks run; above the second, none.
#: Looking at each kernel takes longer than most kernels.
_LONG_SECONDS, _MOST_SECONDS = 1.0, 5.0
#: Parts of the names of kernels that hold products which PyTorch's counter does not know.
_OPAQUE = ("rnn", "lstm", "gru", "sparse", "spmm", "quantized")


@dataclass(frozen=True, kw_only=True)
class KernelWork:
    """What some kernels compute, read and write, and how many they are."""

    flops: float = 0.0
    bytes: float = 0.0
    kernels: float = 0.0

    def __sub__(self, other: KernelWork) -> KernelWork:
        return KernelWork(
            flops=self.flops - other.flops,
            bytes=self.bytes - other.bytes,
            kernels=self.kernels - other.kernels,
        )

    def over(self, count: int) -> KernelWork:
        """Return the work of each of ``count`` equal parts, none of it negative."""
        return KernelWork(
            flops=max(0.0, self.flops / count),
            bytes=max(0.0, self.bytes / count),
            kernels=max(0.0, self.kernels / count),
        )


@dataclass(frozen=True, kw_only=True)
class CountedWork:
    """The operations of a step, and the kernels whose products could not be counted."""

    operations: Operations
    unknown: tuple[str, ...]

    @property
    def why(self) -> str:
        """How the numbers were obtained, and what they leave out."""
        return (
            "products as PyTorch's flop counter counts them, one operation for each number of other kernels"
            + (f"; products within {', '.join(self.unknown)} are not counted" if self.unknown else "")
        )


class WorkCounter(TorchDispatchMode):
    """Adds up the work of all kernels that start within it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = KernelWork()
        self.unknown: set[str] = set()
        #: FLOPs of products by the type of their numbers.
        self.products: dict[torch.dtype, float] = defaultdict(float)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a kernel and count it."""
        given = kwargs or {}
        found = func(*args, **given)
        if not _is_view(func):
            self._add(func, args, given, found)
        return found

    def _add(self, func: Any, args: tuple[Any, ...], given: dict[str, Any], found: Any) -> None:
        written = list(_tensors(found))
        if not written:
            return
        read = list(_tensors((args, given)))
        # The formulas are those of dense products.
        sparse = any(one.layout is not torch.strided for one in read)
        formula = None if sparse else flop_registry.get(func._overloadpacket)
        if "embedding_bag" in str(func):
            # A sum of some rows of a matrix, as a product with spikes is.
            flops = float(args[1].numel() * args[0].shape[-1])
        elif formula is not None:
            flops = float(formula(*args, **given, out_val=found))
            self.products[written[0].dtype] += flops
        else:
            flops = float(sum(one.numel() for one in written))
            if sparse or any(part in str(func) for part in _OPAQUE):
                self.unknown.add(str(func._overloadpacket))
        self.work = KernelWork(
            flops=self.work.flops + flops,
            bytes=self.work.bytes + sum(map(_size, (*read, *written))),
            kernels=self.work.kernels + 1,
        )


def _is_view(func: Any) -> bool:
    """Return whether an operation returns another view of what it was given, which starts no kernel."""
    returns = func._schema.returns
    return any(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _size(tensor: torch.Tensor) -> int:
    """Return the bytes that are behind a tensor: a number that is repeated counts once."""
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.element_size()
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


@dataclass
class _WorkByAction:
    """An observer that takes the work of each action, by its kind and its steps."""

    counter: WorkCounter
    found: dict[type[Action], list[KernelWork]] = field(default_factory=lambda: defaultdict(list))
    _before: KernelWork = field(default_factory=KernelWork)

    def __call__(self, action: Action, _: Executor) -> None:
        """Take the work since the action before."""
        now = self.counter.work
        self.found[type(action)].append(now - self._before)
        self._before = now


def count_work(network: MeasuredNetwork, *, pilot: PilotTimes) -> CountedWork | str:
    """Count the work of a forward and of a backward step; return why not if it is not counted."""
    if network.piece is not None:
        return "operations were not counted, as compiled pieces do not show theirs"
    chunks = _CHUNKS if _expect_seconds(pilot, _CHUNKS) < _LONG_SECONDS else _SHORT_CHUNKS
    if _expect_seconds(pilot, chunks) > _MOST_SECONDS:
        return "operations were not counted, as a step takes too long"
    counter = WorkCounter()
    short, long = (_count_chunks(network, counter, chunk) for chunk in chunks)
    more = chunks[1] - chunks[0]
    forward, backward = ((long[kind] - short[kind]).over(more) for kind in (Advance, Backward))
    return CountedWork(
        operations=Operations(
            dtype=_name_type(network, counter),
            forward_flops=forward.flops,
            backward_flops=backward.flops,
            forward_bytes=forward.bytes,
            backward_bytes=backward.bytes,
            forward_kernels=forward.kernels,
            backward_kernels=backward.kernels,
        ),
        unknown=tuple(sorted(counter.unknown)),
    )


def _expect_seconds(pilot: PilotTimes, chunks: tuple[int, int]) -> float:
    return 3 * sum(chunks) * pilot.step_seconds


def _count_chunks(network: MeasuredNetwork, counter: WorkCounter, chunk: int) -> dict[type[Action], KernelWork]:
    """Return the work of an action of ``chunk`` steps, by its kind: that of the last of each kind.

    The first ones also set up what later ones find.
    """
    schedule = make_schedule("standard", steps=3 * chunk, chunk_size=chunk)
    inputs = network.inputs(schedule.steps)
    counter.work = KernelWork()
    observer = _WorkByAction(counter)
    with counter:
        observe_actions(network, inputs, plan=schedule, observer=observer)
    assert {Advance, Record, Backward} <= set(observer.found)  # noqa: S101 - as the schedule has them
    return {kind: works[-1] for kind, works in observer.found.items()}


def _name_type(network: MeasuredNetwork, counter: WorkCounter) -> Any:
    """Return the type of numbers that most products have, else that of the parameters."""
    most = max(counter.products, key=lambda dtype: counter.products[dtype], default=network.parameters[0].dtype)
    name = str(most).removeprefix("torch.")
    return name if name in ITEM_BYTES else "float32"
