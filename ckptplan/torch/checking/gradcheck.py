"""Compares the gradients of a whole sequence under a plan with those of a plain loop."""

from __future__ import annotations

import torch
from torch import Tensor

from ckptplan.errors import InputError
from ckptplan.torch.checking.trial import Runner, differentiate_copy
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.scope import Scope
from ckptplan.torch.state.digests import find_rounding
from ckptplan.torch.state.reach import MAX_SNAPSHOT_BYTES

#: A gradient is a sum over steps. It may differ by this many times the rounding of one tensor.
_SUM_ROUNDING = 100


def check_gradients(
    call: Call,
    scope: Scope,
    run_plain: Runner,
    run_planned: Runner,
    *,
    tolerance: float | None = None,
) -> bool:
    """Run a call twice, and print how far each gradient under a plan differs from that of a plain loop.

    Arguments:
        call: the call.
        scope: the scope of the call, with the traits that its trial observed.
        run_plain: runs a call as a plain loop.
        run_planned: runs a call under the plan.
        tolerance: the share of its norm by which a gradient may differ; None to derive it from the data type.

    Returns True. Raises InputError for the first gradient that differs by more.
    """
    scope.start = scope.reach.take_snapshot(all_digests=True, copied_bytes=MAX_SNAPSHOT_BYTES)
    with torch.enable_grad():
        plain, names, total = differentiate_copy(call, scope, run_plain)
        planned, _, planned_total = differentiate_copy(call, scope, run_planned)
    if not names:
        raise InputError(
            "has nothing that requires a gradient", field="cell", accepted="parameters, or inputs with one"
        )
    differing: tuple[str, float] | None = None
    for name, expected, actual in zip(names, plain, planned, strict=True):
        share = _find_difference(expected, actual)
        reference = expected if expected is not None else actual
        allowed = tolerance
        if allowed is None:
            allowed = 0.0 if reference is None else _SUM_ROUNDING * find_rounding((reference.dtype,))
        is_same = share <= allowed
        print(f"{name}: {_describe(expected, actual, share)}{'' if is_same else '  <- differs'}")  # noqa: T201
        if not is_same and differing is None:
            differing = name, share
    print(f"loss: {planned_total:.9g}, plain loop {total:.9g}")  # noqa: T201 - it reports, as documented
    if differing is not None:
        name, share = differing
        raise InputError(
            f"the gradient of {name} under the plan differs from that of a plain loop by {share:.1g} of its "
            "norm",
            field="cell or loss",
            accepted="a cell that keeps what it needs from step to step in its state or in attributes; an "
            "issue, "
            "with this cell, if it does",
        )
    return True


def _find_difference(plain: Tensor | None, planned: Tensor | None) -> float:
    """Return the norm of the difference of two gradients, as a share of the first norm."""
    if plain is None or planned is None:
        gradient = plain if planned is None else planned
        return 0.0 if gradient is None or not gradient.any() else 1.0
    plain, planned = (
        each.to_dense() if each.layout is not torch.strided else each for each in (plain, planned)
    )
    norm = float(torch.linalg.vector_norm(plain))
    difference = float(torch.linalg.vector_norm(plain - planned))
    return difference / norm if norm else difference


def _describe(plain: Tensor | None, planned: Tensor | None, share: float) -> str:
    if plain is None and planned is None:
        return "no gradient in either"
    return f"differs by {share:.1e} of its norm"
