"""Keeps small long-lived tensors together, so that they do not fragment the heap.

An allocator cannot merge the memory freed around a small block that stays. Each further chunk of states would
then take new memory from the system (2 MiB for every 64 steps of a small network).
"""

from __future__ import annotations

import torch

_PAGE = 2**18
_ALIGNMENT = 8


class Pages:
    """Copies tensors into pages of bytes. A page lives as long as a tensor in it."""

    def __init__(self) -> None:
        self._page: torch.Tensor | None = None
        self._used = 0

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor in a page."""
        size = tensor.nbytes
        if self._page is None or self._used + size > len(self._page):
            self._page = torch.empty(max(size, _PAGE), dtype=torch.uint8, device=tensor.device)
            self._used = 0
        place = self._page[self._used : self._used + size]
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def close(self) -> None:
        """Start a new page; existing copies remain valid."""
        self._page = None
