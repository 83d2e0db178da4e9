"""Measures the memory of tensors in bytes of real storages: the present amount and the peak."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts each storage that operations create inside the context, for as long as it exists.

    Storages created before are not counted. Operations take several times as long, so do not measure time
    inside.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation and count the storages that it returns."""
        # Storages of the arguments were created outside, unless they are already counted.
        for value in tree_iter((args, kwargs)):
            for storage in _list_storages(value):
                self._meet(storage)
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            for storage in _list_storages(value):
                self._count(storage)
        return result

    def _meet(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._alive and key not in self._known:
            self._known[key] = weakref.ref(storage, lambda _: self._known.pop(key))

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._alive or key in self._known:
            return
        size = storage.nbytes()

        def gone(_: object) -> None:
            self.now -= size
            del self._alive[key]

        self._alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)


def _list_storages(value: object) -> list[torch.UntypedStorage]:
    """Return the storages of a tensor: of a sparse one those of its parts."""
    if not isinstance(value, torch.Tensor):
        return []
    if value.layout is torch.sparse_coo:
        return [part.untyped_storage() for part in (value._indices(), value._values())]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [part.untyped_storage() for part in (value.crow_indices(), value.col_indices(), value.values())]
    return [value.untyped_storage()] if value.layout is torch.strided else []
