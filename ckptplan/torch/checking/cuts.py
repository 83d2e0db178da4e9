"""Compares two time steps in one call with two calls, for modules that take many time steps a call.

A sequence runs in pieces, so a call may be cut anywhere. Layers that read several time steps at once give other
results then: BatchNorm in training mode, or neurons that weigh the last steps of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ckptplan.errors import InputError
from ckptplan.torch.checking.trial import PlainLoop, run_plain_steps, weigh
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.scope import Scope
from ckptplan.torch.state.digests import find_rounding
from ckptplan.torch.state.nests import is_differentiable, list_leaves
from ckptplan.torch.state.reach import MAX_SNAPSHOT_BYTES, is_generator

#: The time steps that are compared, and the share of its norm by which a gradient may differ: in spiking
#: networks, rounding may move a spike of a later step, but hardly of these.
COMPARED_STEPS, _TOLERANCE = 2, 1e-3


def weigh_outputs(_: int, output: Any) -> Tensor:
    """Return a loss of a time step, whose gradient with respect to the outputs has many values."""
    terms = [weigh(leaf) for leaf in list_leaves(output) if is_differentiable(leaf)]
    return torch.stack([term.real.float() for term in terms]).sum() if terms else torch.zeros(())


def check_cuts(make_call: Callable[[int], Call]) -> None:
    """Raise InputError if two time steps in one call give other gradients than two calls.

    Nothing is compared if the module draws random numbers, which depend on the cut. All changes are undone.

    Arguments:
        make_call: returns the call with pieces of a length, with the loss ``weigh_outputs``.
    """
    loops: list[PlainLoop] = []
    for length in (1, COMPARED_STEPS):
        call = make_call(length)
        call = replace(call, inputs=call.inputs.take_first(COMPARED_STEPS // length))
        scope = Scope.of(call)
        scope.start = scope.reach.take_snapshot(
            all_digests=True, copied_bytes=MAX_SNAPSHOT_BYTES, copies_large=True
        )
        with torch.enable_grad():
            loops.append(run_plain_steps(call, scope))
        if any(is_generator(part.place) for part in scope.lifted):
            return
    apart, together = loops
    tolerance = max(_TOLERANCE, 100 * find_rounding(apart.dtypes))
    pairs = zip(apart.names, apart.gradients, together.gradients, strict=False)
    for name, (first, first_norm), (second, second_norm) in pairs:
        size = max(first_norm, second_norm)
        if max(abs(first - second), abs(first_norm - second_norm)) > tolerance * size:
            raise InputError(
                f"gives {name} another gradient if {COMPARED_STEPS} time steps are one call than if they are "
                f"{COMPARED_STEPS} calls. A layer reads several time steps of a call at once, such as "
                "BatchNorm in training mode",
                field="net",
                accepted="wrap_layers(net, memory=...), which leaves such layers outside; or net.eval()",
            )
