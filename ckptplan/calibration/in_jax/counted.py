"""Makes workloads of cells of JAX from shapes alone: nothing is run or compiled, and times are assumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.in_jax.networks import build_jax_network
from ckptplan.calibration.in_jax.sizes import CompiledSizes, choose_sizes, count_jax_sizes
from ckptplan.calibration.workloads import complete_times, make_counted
from ckptplan.model.progress import Progress
from ckptplan.model.workload import Workload


def count_jax(
    spec: CellSpec,
    *,
    batch: int,
    steps: int,
    threads: int,
    name: str = "my-workload",
    tape: str = "residuals",
    seed: int = 0,
    times: Mapping[str, float] | None = None,
    max_seconds: float | None = None,
    announce: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Workload:
    """Count the bytes of a cell of JAX from shapes, and return a workload whose times are assumed.

    The arguments are those of ``calibrate_jax``; ``times`` are fields of a workload, from which the others
    follow. Nothing takes long, so threads, limit and progress make no difference. Raises InputError.
    """
    del threads, max_seconds, announce, progress
    given = complete_times(times) if times else None
    sizes = choose_sizes(count_jax_sizes(build_jax_network(spec, batch=batch, seed=seed)), tape=tape)
    return make_counted(spec, sizes, given or assume_times(sizes), batch=batch, steps=steps, name=name)


def assume_times(sizes: CompiledSizes) -> dict[str, tuple[float, str]]:
    """Return the times that a step may take, with their origin."""
    why = "operations of the traced step, at assumed rates"
    return {field: (float(f"{value:.2g}"), why) for field, value in sizes.assumed_seconds.items()}
