"""Surrogate derivatives of spikes, named as in snnTorch, SpikingJelly, Norse and Spyx.

A spike is a step function of x, the distance of the membrane to its threshold. Its derivative is zero nearly
everywhere, so the backward pass uses the derivative of a smooth function (Neftci, Mostafa and Zenke 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ckptplan.errors import InputError


class Surrogate(Protocol):
    """The derivative that the backward pass takes for the derivative of a spike."""

    def derivative(self, distance: torch.Tensor) -> torch.Tensor:
        """Return the derivative at each distance to the threshold, in a new tensor of the same shape."""


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise InputError(f"is {value}", field=name, value=value, accepted="a number above 0")


@dataclass(frozen=True)
class FastSigmoid:
    """1 / (1 + slope |x|)^2 (Zenke and Ganguli 2018). Raises InputError."""

    slope: float = 25.0

    def __post_init__(self) -> None:
        _check_positive("slope", self.slope)

    def derivative(self, distance: torch.Tensor) -> torch.Tensor:
        """Return the derivative at each distance."""
        return distance.abs().mul_(self.slope).add_(1).pow_(-2)


@dataclass(frozen=True)
class ATan:
    """alpha / 2 / (1 + (pi / 2 alpha x)^2), of an arctangent (Fang et al. 2021). Raises InputError."""

    alpha: float = 2.0

    def __post_init__(self) -> None:
        _check_positive("alpha", self.alpha)

    def derivative(self, distance: torch.Tensor) -> torch.Tensor:
        """Return the derivative at each distance."""
        return (distance * (math.pi / 2 * self.alpha)).square_().add_(1).reciprocal_().mul_(self.alpha / 2)


@dataclass(frozen=True)
class Boxcar:
    """1 / width for |x| < width / 2, else 0. Raises InputError."""

    width: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("width", self.width)

    def derivative(self, distance: torch.Tensor) -> torch.Tensor:
        """Return the derivative at each distance."""
        return (distance.abs() < self.width / 2).to(distance.dtype).div_(self.width)


def fast_sigmoid(slope: float = 25.0) -> Surrogate:
    """Return ``1 / (1 + slope |x|)^2``, as ``snntorch.surrogate.fast_sigmoid``."""
    return FastSigmoid(slope)


def superspike(beta: float = 100.0) -> Surrogate:
    """Return ``1 / (1 + beta |x|)^2``, as ``superspike`` of Norse: a fast sigmoid that is steeper."""
    return FastSigmoid(beta)


def atan(alpha: float = 2.0) -> Surrogate:
    """Return alpha / 2 / (1 + (pi / 2 alpha x)^2), as ``atan`` of snnTorch and ``ATan`` of SpikingJelly."""
    return ATan(alpha)


def boxcar(width: float = 1.0) -> Surrogate:
    """Return 1 / width within half a width of the threshold, as ``boxcar`` of Spyx."""
    return Boxcar(width)


class Spike(torch.autograd.Function):
    """The step function, with the derivative of a surrogate."""

    @staticmethod
    def forward(ctx: Any, distance: torch.Tensor, surrogate: Surrogate) -> torch.Tensor:
        """Return ones above the threshold."""
        ctx.save_for_backward(distance)
        ctx.surrogate = surrogate
        return (distance > 0).to(distance.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Multiply by the derivative of the surrogate."""
        (distance,) = ctx.saved_tensors
        return gradients[0] * ctx.surrogate.derivative(distance), None
