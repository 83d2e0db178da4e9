"""Executes plans in PyTorch: ``unroll`` returns the outputs, ``bptt`` only the loss.

**The idea.** The state of a step consists of the values that the step passes on and of every place that it
changes: an attribute, a variable, an element of a container, the numbers of a buffer, a random generator. The
package *lifts* such places into the state. It saves them in checkpoints and restores them before steps run
again. Gradients flow through them as through the state that a cell passes on itself.

docs/architecture.md follows a call from ``bptt(...)`` to its gradients.

The package needs the extra ``torch``. Apart from the calibration, nothing in ckptplan imports it.
"""

from __future__ import annotations

from ckptplan.errors import MissingExtra, PlanMismatch

try:
    import torch as _torch  # noqa: F401 - every import below needs it
except ImportError as error:
    raise MissingExtra("torch", package="torch") from error

from ckptplan.storage.place import Offload
from ckptplan.torch.api import Result, bptt, check, measured_sizes, plan_for, scan, unroll
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.compile_options import Compile, CompileFallback
from ckptplan.torch.device.memory import OutOfMemory
from ckptplan.torch.fit.measure import Sizes
from ckptplan.torch.lif import LIF
from ckptplan.torch.spiking import SpikingLayer
from ckptplan.torch.stack import ChunkStack
from ckptplan.torch.wrapping.replace import wrap_layers
from ckptplan.torch.wrapping.wrap import wrap

__all__ = [
    "LIF",
    "ChunkCell",
    "ChunkStack",
    "Compile",
    "CompileFallback",
    "Offload",
    "OutOfMemory",
    "PlanMismatch",
    "Result",
    "Sizes",
    "SpikingLayer",
    "bptt",
    "check",
    "measured_sizes",
    "plan_for",
    "scan",
    "unroll",
    "wrap",
    "wrap_layers",
]


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return [*__all__, "adapters", "lightning", "online", "surrogates"]
