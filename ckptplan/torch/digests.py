"""Reduces a tensor to one number, by which it is recognised when it is computed again.

The number is a projection on a random direction, the same for tensors of the same size. A difference of two
tensors, or a permutation, changes it by about the norm of the difference, whatever its elements have in common.
Errors of rounding stay small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import nullcontext
from functools import lru_cache

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

#: What kernels that round otherwise may differ by, as a share of the norm.
_ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
#: For types that are less precise still.
_COARSEST = 0.1
#: Sums over steps that are cut otherwise are added up in another order: so many times the rounding of a type.
REORDERED = 10
#: Tensors of up to so many elements have a weight for each; rows of so many of larger ones share them.
_ROW = 2**13
#: Steps whose numbers are computed at a time, to bound the memory of copies in another type.
_STEPS = 64


def find_rounding(dtypes: Iterable[torch.dtype]) -> float:
    """Return the share of a norm that rounding in the least precise of some types may cause, 0 for integers."""
    real = [one.to_real() if one.is_complex else one for one in dtypes]
    return max((_ROUNDING.get(one, _COARSEST) for one in real if one.is_floating_point), default=0.0)


def is_close(one: float, other: float, limit: float) -> bool:
    """Return whether two numbers are equal within a limit; NaN equals itself."""
    return one == other or abs(one - other) <= limit < math.inf or (math.isnan(one) and math.isnan(other))


def project(tensor: torch.Tensor, *, waits: bool = False) -> torch.Tensor | None:
    """Return the projection as a scalar on the device: of integers an exact one of int64, else a float.

    NaN and infinities, which would hide all else, are replaced; those of a tensor on whose device one ``waits``
    without a look at the number. None for tensors whose elements cannot be added up, such as sparse ones.
    """
    weights = None if waits else _find_ready(type(tensor), tensor.dtype, tensor.device, tensor.numel())
    if weights is not None and tensor.layout is torch.strided:
        found = torch.dot(tensor.detach().reshape(-1), weights)
    elif can_project(tensor):
        flat = _flatten(tensor)
        found = _project(make_finite(flat) if waits else flat)
    else:
        return None
    return found if waits or math.isfinite(found.item()) else project_finite(tensor)


@lru_cache(maxsize=256)
def _find_ready(kind: type, dtype: torch.dtype, device: torch.device, count: int) -> torch.Tensor | None:
    """Return the weights of tensors that need no preparation, a frequent case that is handled faster."""
    is_ready = kind is torch.Tensor and device.type == "cpu" and dtype in (torch.float32, torch.float64)
    with torch.inference_mode(False):
        return _weigh(dtype, device)[:count] if is_ready and count <= _ROW else None


def project_finite(tensor: torch.Tensor) -> torch.Tensor:
    """Return the projection in fp64, a part at a time, with NaN and infinities replaced."""
    flat = _flatten(tensor)
    *rows, last = [_project_parts(row) for row in flat.split(_ROW)]
    if rows and flat.numel() % _ROW == 0:
        rows, last = [*rows, last], last.new_zeros(())
    return _project(torch.stack(rows), 1) + last if rows else last


def project_steps(stacked: torch.Tensor) -> torch.Tensor:
    """Return the projection of each step of a tensor, time first, except for rounding."""
    return torch.cat([_project_some(some) for some in stacked.detach().split(_STEPS)])


def _project_some(stacked: torch.Tensor) -> torch.Tensor:
    steps = stacked.shape[0]
    flat = _flatten(stacked)
    size = flat.numel() // steps
    if size > _ROW:
        return torch.stack([_project(make_finite(_flatten(one))) for one in stacked])
    rows = make_finite(flat).view(steps, size)
    with full_precision(flat.device):
        return _multiply_rows(rows, _weigh(flat.dtype, flat.device)[:size])


def _project_parts(row: torch.Tensor) -> torch.Tensor:
    """Return the projection of at most a row in fp64, with NaN and infinities replaced."""
    weights = _weigh(torch.float64, row.device)[: len(row)]
    numbers = [
        torch.dot(make_finite(one.double()), some) for one, some in zip(cut(row), cut(weights), strict=True)
    ]
    return torch.stack(numbers).sum() if numbers else weights.new_zeros(())


def _project(flat: torch.Tensor, level: int = 0) -> torch.Tensor:
    """Return the projection of elements; of more than a row, that of the projections of rows."""
    weights = _weigh(flat.dtype, flat.device, level)
    with full_precision(flat.device):
        if flat.numel() <= _ROW:
            return _multiply(flat, weights[: flat.numel()])
        rows = flat.numel() // _ROW
        matrix, rest = flat[: rows * _ROW].view(rows, _ROW), flat[rows * _ROW :]
        sums = _multiply_rows(matrix, weights)
        return _project(sums, level + 1) + _multiply(rest, weights[: rest.numel()])


@lru_cache(maxsize=16)
def _weigh(dtype: torch.dtype, device: torch.device, level: int = 0) -> torch.Tensor:
    """Return the weights of a row, for all tensors of a process: of either sign, none of them small."""
    # On the CPU first, whatever torch.set_default_device says.
    cpu = torch.device("cpu")
    generator = torch.Generator(cpu).manual_seed(level)
    with torch.inference_mode(False), torch.no_grad():
        if dtype.is_floating_point:
            weights = torch.rand(_ROW, dtype=torch.float64, generator=generator, device=cpu) + 0.5
            # Beside a plan that may have taken all its memory, a small type.
            weights *= torch.randint(2, (_ROW,), generator=generator, device=cpu, dtype=torch.int8) * 2 - 1
        else:
            # Products wrap around, and stay exact; odd weights lose nothing.
            weights = torch.randint(2**62, (_ROW,), generator=generator, device=cpu) * 2 + 1
        return weights.to(device=device, dtype=dtype)


def measure_norm(tensor: torch.Tensor) -> torch.Tensor:
    """Return the norm of the finite elements of a tensor as a scalar of fp64; infinities count as 1."""
    flat = _flatten(tensor)
    if flat.device.type == "cpu" and flat.is_floating_point():
        # In the usual case, no square is out of the range of the type. Longer sums would lose their last terms.
        some = [torch.linalg.vector_norm(part).item() for part in flat.split(_LONGEST)]
        if _LEAST_NORM < (norm := math.hypot(*some)) < math.inf:
            return torch.tensor(norm, dtype=torch.float64, device=flat.device)
    # On other devices, starting a kernel takes longer than such a part.
    parts = cut(flat, least=_LEAST_PART if flat.device.type == "cpu" else _LEAST_ON_DEVICE)
    norms = [torch.linalg.vector_norm(make_finite(part.double())) for part in parts]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


#: Squares of elements of a smaller norm might be zero.
_LEAST_NORM = 1e-12
#: Elements whose squares are added up in their own type.
_LONGEST = 2**20
#: Tensors are compared in so many parts, of so many elements at least: in fp64, only a part exists at a time.
_PARTS, _LEAST_PART, _LEAST_ON_DEVICE = 64, 2**11, 2**16


def cut(tensor: torch.Tensor, *, least: int = _LEAST_PART) -> tuple[torch.Tensor, ...]:
    """Return the elements of a dense tensor in parts; none of a tensor without elements."""
    flat = tensor.detach().reshape(-1)
    return flat.split(max(least, -(-len(flat) // _PARTS))) if len(flat) else ()


def _multiply(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.dot(one, other) if one.is_floating_point() else (one * other).sum()


def _multiply_rows(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.mv(rows, weights) if rows.is_floating_point() else (rows * weights).sum(1)


def can_project(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements can be added up."""
    part = _local_part(tensor)
    return part.layout is torch.strided and not part.is_quantized and not is_traceable_wrapper_subclass(part)


def _local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this process has of a tensor that is spread over several."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def _flatten(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor in their logical order, in a type that can be added up."""
    part = _local_part(tensor).detach()
    if part.is_complex():
        part = torch.view_as_real(part.resolve_conj())
    if not part.is_floating_point():
        part = part.long()
    elif part.dtype not in (torch.float32, torch.float64):
        part = part.float()
    return part.reshape(-1)


def make_finite(flat: torch.Tensor) -> torch.Tensor:
    """Return floats with NaN and infinities replaced by numbers that hardly ever occur."""
    return (
        torch.nan_to_num(flat, nan=0.8414709848, posinf=1.4142135624, neginf=-1.6180339887)
        if flat.is_floating_point()
        else flat
    )


def full_precision(device: torch.device) -> torch.autocast | nullcontext[None]:
    """Return a context without autocast."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device_type=device.type, enabled=False)
    return nullcontext()
