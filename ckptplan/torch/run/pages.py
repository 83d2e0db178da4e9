"""Keeps small tensors side by side in pages of bytes."""

from __future__ import annotations

import torch

#: The bytes of the smallest and of the largest page, and the ratio of the bytes kept already to a new page.
_SMALLEST, _LARGEST, _SHARE = 2**12, 2**18, 8
_ALIGNMENT = 16


class Pages:
    """Copies tensors into pages of bytes. A page lives as long as any tensor in it.

    Small tensors that stay would fragment the heap: an allocator cannot merge the memory freed around a small
    block. Each further chunk of states would then take new memory from the system (2 MiB for every 64 steps of
    a small network).
    """

    def __init__(self) -> None:
        self._page: torch.Tensor | None = None
        self._used = 0

    def keep(self, tensor: torch.Tensor, kept_bytes: int) -> torch.Tensor:
        """Return a copy of a tensor in a page; ``kept_bytes`` is the number of bytes kept already."""
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            return tensor.clone()
        size = tensor.nbytes
        if self._page is None or self._used + size > len(self._page):
            page_bytes = min(max(kept_bytes // _SHARE, _SMALLEST), _LARGEST)
            self._page = torch.empty(max(size, page_bytes), dtype=torch.uint8, device=tensor.device)
            self._used = 0
        place = self._page[self._used : self._used + size]
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)
