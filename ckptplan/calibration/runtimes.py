"""Opens the runtime of a cell: its backend, its network, and the bench that measures it."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from ckptplan.calibration.bench import Bench
from ckptplan.errors import InputError
from ckptplan.execution.backend import Backend, Pace
from ckptplan.model.cell_spec import Announce, CellSpec
from ckptplan.storage.remote_folder import make_parent
from ckptplan.studies.workers import count_cores


def open_backend(
    spec: CellSpec,
    *,
    device: str = "cpu",
    thread_count: int | None = None,
    tape: str | None = None,
    remote_dir: str | os.PathLike[str] | None = None,
) -> Backend:
    """Return the backend that runs a cell. Raises InputError, and MissingExtra if it is not installed.

    Arguments:
        spec: the cell, whose name determines the runtime.
        device: 'cpu' or 'cuda'; cells of JAX are measured on processors only.
        thread_count: the number of threads; None keeps the current number.
        tape: the kind of tapes in JAX (docs/jax.md); None is 'residuals', or the kind of a plan.
        remote_dir: the folder of remote checkpoints, made if it is missing; None for host memory, which is
            the only choice for cells of JAX.
    """
    if spec.runtime == "torch":
        if tape is not None:
            raise InputError(
                "is for cells of JAX", field="tape", value=tape, accepted=f"the cell jax:{spec.name}"
            )
        folder = None if remote_dir is None else make_parent(remote_dir).resolve()
        import_module("ckptplan.torch")  # raises MissingExtra
        from ckptplan.torch.backend import TorchBackend

        return TorchBackend(device=device, thread_count=thread_count, remote_dir=folder)
    if device != "cpu":
        raise InputError(
            "cells of JAX are measured on processors only", field="device", value=device, accepted="cpu"
        )
    if remote_dir is not None:
        raise InputError(
            "is for cells of PyTorch: in JAX, remote checkpoints are in host memory",
            field="remote_dir",
            value=str(remote_dir),
            accepted="a cell of JAX without a folder",
        )
    # JAX reads the number of threads when it is imported.
    threads = set_threads(thread_count)
    import_module("ckptplan.jax")  # raises MissingExtra
    from ckptplan.jax.backend import JaxBackend

    return JaxBackend(threads=threads, tape=tape)


def build_network(
    backend: Any, spec: CellSpec, *, batch: int, seed: int, announce: Announce | None = None
) -> Any:
    """Return the network of a spec; the seed determines weights and data. Raises InputError.

    Arguments:
        backend: the backend that ``open_backend`` returned for the spec.
        spec: the cell.
        batch: the number of samples.
        seed: the seed.
        announce: called with a line if the cell is compiled.
    """
    if spec.runtime == "jax":
        from ckptplan.jax.cells import build_jax_network

        return build_jax_network(spec, batch=batch, seed=seed)
    from ckptplan.torch.cells import build_torch_network

    return build_torch_network(
        spec,
        batch=batch,
        device=backend.device.type,
        seed=seed,
        remote_dir=backend.remote_dir,
        announce=announce,
    )


def open_bench(
    backend: Any, spec: CellSpec, network: Any, pace: Pace, *, is_quick: bool = False, **options: Any
) -> Bench:
    """Return the bench that measures a network. ``options`` are further arguments of ``TorchBench``."""
    if spec.runtime == "jax":
        from ckptplan.calibration.jax_bench import JaxBench

        return JaxBench(backend, network, pace, is_quick=is_quick)
    from ckptplan.calibration.torch_bench import TorchBench

    return TorchBench(backend, network, pace, is_quick=is_quick, **options)


#: The flag that limits XLA to one thread.
_FLAG = "xla_cpu_multi_thread_eigen=false"
_ONE_THREAD = f"--{_FLAG}"


def set_threads(count: int | None) -> int:
    """Set and return the number of threads of JAX. None keeps the current number.

    Raises InputError if JAX has already been imported with another number.
    """
    flags, given = os.environ.get("XLA_FLAGS", "").split(), os.environ.get("NPROC", "")
    current = 1 if _ONE_THREAD in flags else int(given) if given.isdecimal() and int(given) else count_cores()
    if count is None or count == current:
        return current
    if "jax" in sys.modules:
        raise InputError(
            f"JAX runs with {current} already, which cannot be changed any more",
            field="thread_count",
            value=count,
            accepted=f"{current}, or NPROC={count} in the environment before JAX is imported"
            + (f" together with XLA_FLAGS={_ONE_THREAD}" if count == 1 else ""),
        )
    os.environ["NPROC"] = str(count)
    if count == 1:
        os.environ["XLA_FLAGS"] = " ".join((*flags, _ONE_THREAD))
    return count
