"""Keeps tensors in pages of bytes: small ones side by side, and in a file what has no room in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from mmap import mmap
from tempfile import TemporaryFile
from typing import Any

import torch

#: The bytes of a page in memory, and of the first and the largest in files: they double, as each is open.
_PAGE, _FIRST, _LARGEST = 2**18, 2**16, 2**28
_ALIGNMENT = 16


class Pages:
    """Copies tensors into pages of bytes, each of which lives as long as a tensor in it.

    Small tensors that stay would fragment the heap: an allocator cannot merge the memory freed around a small
    block. Each further chunk of states would then take new memory from the system (2 MiB for every 64 steps of
    a small network).

    Arguments:
        in_file: whether pages are those of temporary files, if some can be written.
    """

    def __init__(self, *, in_file: bool = False) -> None:
        self._in_file = in_file
        self._page: torch.Tensor | None = None
        self._used, self._size = 0, _FIRST

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor in a page; on the CPU if it is one of a file."""
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            return tensor.clone()
        size = tensor.nbytes
        if self._page is None or self._used + size > len(self._page):
            self._page, self._used = self._make(size, tensor.device), 0
        place = self._page[self._used : self._used + size]
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def _make(self, size: int, device: torch.device) -> torch.Tensor:
        if self._in_file:
            try:
                page = _map_file(max(size, self._size))
            except OSError:
                # There is no folder, or no room in it.
                self._in_file = False
            else:
                self._size = min(2 * self._size, _LARGEST)
                return page
        return torch.empty(max(size, _PAGE), dtype=torch.uint8, device=device)


def _map_file(size: int) -> torch.Tensor:
    """Return the bytes of a temporary file, which goes with them. Raises OSError."""
    with TemporaryFile() as file:
        # A disk that is full is an error here, and a signal once the bytes are mapped.
        for start in range(0, size, _PAGE):
            file.write(bytes(min(_PAGE, size - start)))
        file.flush()
        return torch.frombuffer(mmap(file.fileno(), size), dtype=torch.uint8)


@contextmanager
def keep_tapes_in_file(known: Iterable[torch.Tensor]) -> Iterator[None]:
    """Let graphs keep what they save in a file until the end of the block, but for the memory of known tensors.

    Raises RuntimeError for what forbids that, as transforms of ``torch.func`` do.
    """
    spared, pages = {one.untyped_storage().data_ptr() for one in known}, Pages(in_file=True)

    def pack(tensor: torch.Tensor) -> Any:
        plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized
        # Backward passes may see how a tensor lies in memory.
        dense = plain and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
        if not dense or not tensor.numel() or tensor.untyped_storage().data_ptr() in spared:
            return tensor
        return pages.keep(tensor.detach()), tensor.device

    def unpack(kept: Any) -> torch.Tensor:
        return kept if isinstance(kept, torch.Tensor) else kept[0].to(kept[1])

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
