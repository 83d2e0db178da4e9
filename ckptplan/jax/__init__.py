"""Executes plans in JAX, each as one small compiled program: ``scan`` returns the outputs, ``bptt`` the loss.

This package needs the extra ``jax``. No other package of ckptplan imports it at start-up.
"""

from __future__ import annotations

from ckptplan.errors import MissingExtra

try:
    import jax as _jax  # noqa: F401 - what everything below needs
except ImportError as error:
    raise MissingExtra("jax", package="jax") from error

from ckptplan.jax.api import bptt, plan_for, scan
from ckptplan.jax.while_loop import while_loop

__all__ = ["bptt", "plan_for", "scan", "while_loop"]


def __dir__() -> list[str]:
    return sorted(__all__)
