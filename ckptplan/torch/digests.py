"""Reduces a tensor to one number, by which it is recognised when it is computed again.

The number is a projection on a fixed random direction. A difference of two tensors, or a permutation, changes
it by about the norm of the difference, whatever its elements have in common. Errors of rounding stay small.
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
#: Tensors of up to so many elements have a weight for each; rows of larger ones share weights.
_DIRECT, _ROW = 2**14, 2**12
#: Steps whose numbers are computed at a time, to bound the memory of copies in another type.
_STEPS = 64


def find_rounding(dtypes: Iterable[torch.dtype]) -> float:
    """Return the share of a norm that rounding in the least precise of some types may cause, 0 for integers."""
    real = [one.to_real() if one.is_complex else one for one in dtypes]
    return max((_ROUNDING.get(one, _COARSEST) for one in real if one.is_floating_point), default=0.0)


def is_close(one: float, other: float, limit: float) -> bool:
    """Return whether two numbers are equal within a limit; NaN equals itself."""
    return one == other or abs(one - other) <= limit < math.inf or (math.isnan(one) and math.isnan(other))


class Projections:
    """Projections on random directions, which are the same for tensors of the same size.

    NaN and infinities, which would hide all else, are always replaced if ``finite``. Otherwise the caller looks
    at a number, and asks again with ``project_finite``.
    """

    def __init__(self, *, finite: bool = False) -> None:
        self.finite = finite
        self._weights: dict[tuple[torch.dtype, torch.device, int], torch.Tensor] = {}
        #: The weights of tensors that need no preparation, a frequent case that is handled faster.
        self._ready: dict[tuple[type, torch.dtype, torch.device, int], torch.Tensor] = {}

    def project(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a scalar on the device of a tensor: of integers an exact one of int64, else a float.

        None for tensors whose elements cannot be added up, such as sparse and quantised ones.
        """
        key = type(tensor), tensor.dtype, tensor.device, tensor.numel()
        weights = self._ready.get(key)
        if weights is not None:
            return torch.dot(tensor.detach().reshape(-1), weights)
        if not can_project(tensor):
            return None
        flat = _flatten(tensor)
        if _is_ready(tensor) and not self.finite:
            self._ready[key] = self._direction(flat, flat.numel())
        return self._project(_make_finite(flat) if self.finite else flat)

    def project_finite(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the projection in fp64, with NaN and infinities replaced."""
        return self._project(_make_finite(_flatten(tensor).double()))

    def project_steps(self, stacked: torch.Tensor) -> torch.Tensor:
        """Return the projection of each step of a tensor, time first, except for rounding."""
        return torch.cat([self._project_some(some) for some in stacked.detach().split(_STEPS)])

    def _project_some(self, stacked: torch.Tensor) -> torch.Tensor:
        steps = stacked.shape[0]
        flat = _flatten(stacked)
        size = flat.numel() // steps
        if size > _DIRECT:
            return torch.stack([self._project(_make_finite(_flatten(one))) for one in stacked])
        rows = _make_finite(flat).view(steps, size)
        with _full_precision(flat.device):
            weights = self._direction(flat, size)
            return torch.mv(rows, weights) if flat.is_floating_point() else (rows * weights).sum(1)

    def _project(self, flat: torch.Tensor) -> torch.Tensor:
        with _full_precision(flat.device):
            if flat.numel() <= _DIRECT:
                return _multiply(flat, self._direction(flat, flat.numel()))
            rows = flat.numel() // _ROW
            weights = self._direction(flat, _ROW)
            matrix, rest = flat[: rows * _ROW].view(rows, _ROW), flat[rows * _ROW :]
            sums = torch.mv(matrix, weights) if flat.is_floating_point() else (matrix * weights).sum(1)
            total = _multiply(sums, self._direction(flat, rows + 1)[1:])
            return total + _multiply(rest, self._direction(flat, _DIRECT)[: rest.numel()])

    def _direction(self, like: torch.Tensor, size: int) -> torch.Tensor:
        """Return the weights of tensors of some size: of either sign, none of them small."""
        key = like.dtype, like.device, size
        weights = self._weights.get(key)
        if weights is None:
            weights = self._weights[key] = _make_direction(size, like.is_floating_point()).to(like)
        return weights


@lru_cache(maxsize=16)
def _make_direction(size: int, real: bool) -> torch.Tensor:
    """Return weights of either sign, none of them small; those of integers are odd."""
    # On the CPU, whatever torch.set_default_device says.
    cpu = torch.device("cpu")
    generator = torch.Generator(cpu).manual_seed(size)
    with torch.inference_mode(False), torch.no_grad():
        if real:
            weights = torch.rand(size, dtype=torch.float64, generator=generator, device=cpu) + 0.5
            return weights * (torch.randint(2, (size,), generator=generator, device=cpu) * 2 - 1)
        # Products wrap around, and stay exact; odd weights lose nothing.
        return torch.randint(2**62, (size,), generator=generator, device=cpu) * 2 + 1


def measure_norm(tensor: torch.Tensor) -> torch.Tensor:
    """Return the norm of the finite elements of a tensor as a scalar of fp64; infinities count as 1."""
    parts = [torch.linalg.vector_norm(_make_finite(part.double())) for part in cut(_flatten(tensor))]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(parts)) if parts else torch.zeros(())
    return norm


#: Tensors are compared in so many parts, of so many elements at least: in fp64, only a part exists at a time.
_PARTS, _LEAST_PART = 64, 2**11


def cut(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the elements of a dense tensor in parts; none of a tensor without elements."""
    flat = tensor.detach().reshape(-1)
    return flat.split(max(_LEAST_PART, -(-len(flat) // _PARTS))) if len(flat) else ()


def _is_ready(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.float64)
        and tensor.numel() <= _DIRECT
    )


def _multiply(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.dot(one, other) if one.is_floating_point() else (one * other).sum()


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


def _make_finite(flat: torch.Tensor) -> torch.Tensor:
    """Return floats with NaN and infinities replaced by numbers that hardly ever occur."""
    return (
        torch.nan_to_num(flat, nan=0.8414709848, posinf=1.4142135624, neginf=-1.6180339887)
        if flat.is_floating_point()
        else flat
    )


def _full_precision(device: torch.device) -> torch.autocast | nullcontext[None]:
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device_type=device.type, enabled=False)
    return nullcontext()
