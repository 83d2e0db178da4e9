"""Executes plans in PyTorch: ``unroll`` returns the outputs, ``bptt`` only the loss.

The extra ``torch`` is needed; apart from the calibration, nothing in ckptplan imports this package.
"""

from __future__ import annotations

from ckptplan.errors import MissingExtra, PlanMismatch

try:
    import torch as _torch  # noqa: F401 - what everything below needs
except ImportError as error:
    raise MissingExtra("torch", package="torch") from error

from ckptplan.storage.place import Offload
from ckptplan.torch.api import bptt, plan_for, scan, unroll
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.compile_options import Compile
from ckptplan.torch.compiling.steps import CompileFallback
from ckptplan.torch.lif import LIF
from ckptplan.torch.measurement import measured_sizes
from ckptplan.torch.memory import OutOfMemory
from ckptplan.torch.run import Result
from ckptplan.torch.survey import Sizes
from ckptplan.torch.wrapping.wrap import wrap

__all__ = [
    "LIF",
    "ChunkCell",
    "Compile",
    "CompileFallback",
    "Offload",
    "OutOfMemory",
    "PlanMismatch",
    "Result",
    "Sizes",
    "bptt",
    "measured_sizes",
    "plan_for",
    "scan",
    "unroll",
    "wrap",
]
