"""Digests of tensors: two numbers by which a tensor is recognised when it is computed again.

The first number is a projection on a fixed random direction. If two tensors differ, their projections differ by
about the norm of the difference, whatever their elements have in common. The second number is the norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy
import torch
from torch import Tensor

from ckptplan.torch.state.nests import has_memory

#: The share of its norm by which rounding may change a tensor.
_ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
#: The elements of a row of weights; larger tensors are reduced row by row.
_ROW = 2**11


def find_rounding(dtypes: Iterable[torch.dtype]) -> float:
    """Return the rounding error of the least precise of ``dtypes``, as a share of a norm."""
    real = (dtype.to_real() if dtype.is_complex else dtype for dtype in dtypes)
    return max((_ROUNDING.get(dtype, 0.1) for dtype in real if dtype.is_floating_point), default=0.0)


@lru_cache(maxsize=64)
def make_weights(dtype: torch.dtype, device: torch.device, level: int = 0) -> Tensor:
    """Return the weights of a row: numbers of either sign, between 0.5 and 1.5."""
    generator = numpy.random.default_rng(level)
    weights = generator.uniform(0.5, 1.5, _ROW) * generator.choice((-1.0, 1.0), _ROW)
    # An array is none of the tensors that are counted while the first call of a process is measured.
    array = weights if dtype is torch.float64 else weights.astype(numpy.float32)
    with torch.inference_mode(False), torch.no_grad():
        return torch.from_numpy(array).to(device=device, dtype=dtype)


def repeat_weights(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the weights of a row, repeated or cut to ``count`` numbers."""
    weights = make_weights(dtype, device)
    return weights[:count] if count <= _ROW else weights.repeat(-(-count // _ROW))[:count]


def digest(tensor: Tensor) -> tuple[float, float]:
    """Return the projection and the norm of a tensor; fixed numbers replace NaN and infinities."""
    if _has_no_numbers(tensor):
        return 0.0, 0.0
    flat = flatten_numbers(tensor)
    norm = float(torch.linalg.vector_norm(flat))
    if not math.isfinite(norm):
        norm = float(torch.linalg.vector_norm(_replace_infinite(flat)))
    return _project_finite(flat), norm


def project(tensor: Tensor) -> float:
    """Return the projection of a tensor, as ``digest`` does."""
    return 0.0 if _has_no_numbers(tensor) else _project_finite(flatten_numbers(tensor))


def project_rows(tensor: Tensor) -> Tensor:
    """Return the projection of each row of a tensor, as a vector. A row has one index of the first axis."""
    rows = _list_rows(tensor)
    weights = make_weights(rows.dtype, rows.device)
    if rows.shape[1] % _ROW:
        return rows.mv(repeat_weights(rows.shape[1], rows.dtype, rows.device)).double().cpu()
    # The weights repeat after each _ROW numbers.
    return rows.view(-1, _ROW).mv(weights).view(len(rows), -1).sum(1).double().cpu()


def measure_rows(tensor: Tensor) -> Tensor:
    """Return the norm of each row of a tensor, as a vector. A row has one index of the first axis."""
    norms: Tensor = torch.linalg.vector_norm(_list_rows(tensor), dim=1)
    return norms.double().cpu()


def _list_rows(tensor: Tensor) -> Tensor:
    return flatten_numbers(tensor).view(len(tensor), -1)


def _has_no_numbers(tensor: Tensor) -> bool:
    return tensor.is_quantized or tensor.is_meta or not has_memory(tensor)


def _project_finite(flat: Tensor) -> float:
    projection = _project(flat)
    return projection if math.isfinite(projection) else _project(_replace_infinite(flat))


def _replace_infinite(flat: Tensor) -> Tensor:
    return torch.nan_to_num(flat.double(), nan=0.84147, posinf=1.41421, neginf=-1.61803)


def flatten_numbers(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor, local ones for a DTensor, as a vector of floats without a graph."""
    flat = tensor.detach()
    flat = getattr(flat, "_local_tensor", flat)
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj())
    if flat.dtype not in (torch.float32, torch.float64):
        flat = flat.float() if flat.is_floating_point() else flat.double()
    return flat.reshape(-1)


def _project(flat: Tensor, level: int = 0) -> float:
    weights = make_weights(flat.dtype, flat.device, level)
    count = flat.numel()
    if count <= _ROW:
        return float(torch.dot(flat, weights[:count]))
    rows = count // _ROW
    tail = flat[rows * _ROW :]
    sums = torch.mv(flat[: rows * _ROW].view(rows, _ROW), weights)
    return _project(sums, level + 1) + float(torch.dot(tail, weights[: tail.numel()]))
