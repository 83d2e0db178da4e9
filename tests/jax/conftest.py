"""Tests of the JAX runtime compare in double precision."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def slow_plans_are_fine() -> None:
    """Tests of tight limits take slow plans; one test is about their warning."""
    warnings.filterwarnings("ignore", message="memory=.* is enough for a slow plan")
