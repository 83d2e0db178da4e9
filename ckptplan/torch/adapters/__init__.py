"""Adapts cells of other packages to ``cell(state, x) -> (state, output)``.

No other package is imported here: an adapter calls the module that it is given, and recognises the classes of
its package by their names. An adapter can be copied, pickled and saved like any module.
"""

from ckptplan.torch.adapters.adapter import TorchCell
from ckptplan.torch.adapters.norse_cells import NorseCell
from ckptplan.torch.adapters.snntorch_cells import SnnTorchCell
from ckptplan.torch.adapters.spikingjelly_cells import SpikingJellyCell

__all__ = ["NorseCell", "SnnTorchCell", "SpikingJellyCell", "TorchCell"]
