"""Keeps small tensors side by side in pages of bytes."""

from __future__ import annotations

import torch

#: The bytes of the first page, and of the largest: they double.
_FIRST, _LARGEST = 2**12, 2**18
_ALIGNMENT = 16


class Pages:
    """Copies tensors into pages of bytes, each of which lives as long as a tensor in it.

    Small tensors that stay would fragment the heap: an allocator cannot merge the memory freed around a small
    block. Each further chunk of states would then take new memory from the system (2 MiB for every 64 steps of
    a small network).
    """

    def __init__(self) -> None:
        self._page: torch.Tensor | None = None
        self._used, self._size = 0, _FIRST

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor in a page."""
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            return tensor.clone()
        size = tensor.nbytes
        if self._page is None or self._used + size > len(self._page):
            self._page = torch.empty(max(size, self._size), dtype=torch.uint8, device=tensor.device)
            self._used, self._size = 0, min(2 * self._size, _LARGEST)
        place = self._page[self._used : self._used + size]
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)
