"""Impure cells and losses by family. The families register their cases when this package is imported."""

from tests.torch.impure import (  # noqa: F401
    between,
    functions,
    gradients,
    losses,
    modules,
    randomness,
    records,
    spiking,
    statistics,
    world,
)
