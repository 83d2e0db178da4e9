"""Keeps the recurrent layers of a LightningModule within a limit of memory, by a callback of its Trainer.

This module needs the extra ``lightning``. Nothing else in ckptplan imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from ckptplan.errors import InputError, MissingExtra

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import rank_zero_info
except ImportError as error:
    raise MissingExtra("lightning", package="lightning") from error

from ckptplan.storage.place import OffloadTo
from ckptplan.torch.fit.choose import read_limit
from ckptplan.torch.wrapping.replace import wrap_layers
from ckptplan.torch.wrapping.wrapped import Wrapped

__all__ = ["BatchTooLarge", "MemoryLimit"]


class BatchTooLarge(RuntimeError):  # noqa: N818 - what it is, not what it says
    """No plan fits the limit. Lightning's batch finders take this error for memory that ran out."""


class MemoryLimit(Callback):
    """Wrap the recurrent layers of a model before it is trained, as ``wrap_layers``, and log their plans.

    Checkpoints are the same with and without this callback, since the names in ``state_dict`` stay. Layers must
    exist when the model is constructed. Layers that ``configure_model`` and ``setup`` make come too late.

    Arguments:
        memory: the limit that all layers share: bytes, text as "4 GB", or "auto" for 70 % of free memory.
        modules: names of layers, or of modules with layers inside, as in ``named_modules()``; None for all.
        offload: as for ``wrap``.

    ``Trainer.fit`` raises InputError if the model has no such layer, and BatchTooLarge if no plan fits.
    """

    def __init__(
        self, memory: int | str = "auto", *, modules: Iterable[str] | None = None, offload: OffloadTo = None
    ) -> None:
        self._options: dict[str, Any] = {
            "memory": memory,
            "modules": None if modules is None else list(modules),
            "offload": offload,
        }
        self._model: LightningModule | None = None
        self._layers: dict[str, Wrapped] = {}
        self._logged: set[str] = set()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Wrap the layers, before parameters are loaded or given to an optimizer."""
        if stage != "fit" or pl_module is self._model:
            return
        options = self._options
        if options["memory"] == "auto":
            # The model is still in host memory, so its device does not count.
            options = {**options, "memory": read_limit("auto", trainer.strategy.root_device)}
        before = {name: module for name, module in pl_module.named_modules() if isinstance(module, Wrapped)}
        try:
            with redirect_stdout(StringIO()) as replaced:
                wrap_layers(pl_module, **options)
            _log(replaced.getvalue().rstrip())
        except InputError:
            if not before:
                raise
            _log(f"{', '.join(before)}: wrapped before, with the limit of that time")
        self._model = pl_module
        self._layers = {
            name: module for name, module in pl_module.named_modules() if isinstance(module, Wrapped)
        }
        for layer in self._layers.values():
            if not isinstance(layer.forward, _ForBatchFinders):
                vars(layer)["forward"] = _ForBatchFinders(layer.forward)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Log each plan once."""
        for name, layer in self._layers.items():
            text = f"{name}: {layer.plan}"
            if layer.plan is not None and text not in self._logged:
                self._logged.add(text)
                _log(text)


class _ForBatchFinders:
    """The forward pass of a layer, which raises BatchTooLarge if no plan fits."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward

    def __call__(self, *args: Any, **options: Any) -> Any:
        try:
            return self._forward(*args, **options)
        except InputError as error:
            if error.field != "memory":
                raise
            # Batch finders recognise the errors of allocators by their text.
            raise BatchTooLarge(f"{error} (DefaultCPUAllocator: can't allocate memory)") from error


def _log(text: str) -> None:
    rank_zero_info(f"ckptplan: {text}")
