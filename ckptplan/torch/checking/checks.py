"""Checks that users ask for: a sequence under a plan, and the cuts of a sequence into pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ckptplan.errors import InputError
from ckptplan.torch.checking.derivatives import Derivatives, differentiate, weigh, weigh_results
from ckptplan.torch.checking.trial import run_plain_steps
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.constants import Constants
from ckptplan.torch.run.scope import Scope
from ckptplan.torch.state.digests import find_rounding
from ckptplan.torch.state.nests import is_differentiable, list_leaves
from ckptplan.torch.state.reach import is_generator

#: A gradient is a sum over steps. It may differ by this many times the rounding of one tensor.
_SUM_ROUNDING = 100
#: The time steps that are compared, and the share of its norm by which a gradient may differ: in spiking
#: networks, rounding may move a spike of a later step, but hardly of these.
COMPARED_STEPS, _CUT_TOLERANCE = 2, 1e-3


def check_gradients(
    call: Call,
    scope: Scope,
    run_plain: Callable[[Call], Any],
    run_planned: Callable[[Call], Any],
    *,
    tolerance: float | None = None,
) -> bool:
    """Run a call twice, and print how far each gradient under a plan differs from that of a plain loop.

    Arguments:
        call: the call.
        scope: the scope of the call, with the traits that its trial observed.
        run_plain: runs a call as a plain loop, and returns its ``Results``.
        run_planned: runs a call under the plan.
        tolerance: the share of its norm by which a gradient may differ; None to derive it from the data type.

    Returns True. Raises InputError for the first gradient that differs by more.
    """
    scope.begin()

    def run(run_copy: Callable[[Call], Any]) -> Derivatives:
        def run_weighed(copied: Call, _: Constants) -> tuple[Sequence[Tensor], Any, int]:
            results = run_copy(copied)
            return weigh_results(copied, results.tensors), results.state, copied.inputs.steps

        return differentiate(call, scope, run_weighed)

    with torch.enable_grad():
        plain, planned = run(run_plain), run(run_planned)
    if not plain.has_gradients:
        raise InputError(
            "has nothing that requires a gradient", field="cell", accepted="parameters, or inputs with one"
        )
    differing: tuple[str, float] | None = None
    for name, dtype, share, _ in plain.list_differences(planned):
        is_same = share <= (_SUM_ROUNDING * find_rounding((dtype,)) if tolerance is None else tolerance)
        print(f"{name}: differs by {share:.1e} of its norm{'' if is_same else '  <- differs'}")  # noqa: T201
        if not is_same and differing is None:
            differing = name, share
    print(f"loss: {planned.total:.9g}, plain loop {plain.total:.9g}")  # noqa: T201 - it reports, as documented
    if differing is not None:
        name, share = differing
        raise InputError(
            f"the gradient of {name} under the plan differs from that of a plain loop by {share:.1g} of its "
            "norm",
            field="cell or loss",
            accepted="a cell that keeps what it needs from step to step in its state or in attributes; an "
            "issue, with this cell, if it does",
        )
    return True


def weigh_outputs(_: int, output: Any) -> Tensor:
    """Return a loss of a time step, whose gradient with respect to the outputs has many values."""
    terms = [weigh(leaf) for leaf in list_leaves(output) if is_differentiable(leaf)]
    return torch.stack([term.real.float() for term in terms]).sum() if terms else torch.zeros(())


def check_cuts(cut: Callable[..., Call]) -> None:
    """Raise InputError if two time steps in one call give other gradients than two calls.

    A sequence of a module that takes many time steps a call runs in pieces, so that a call may be cut anywhere.
    Layers that read several time steps at once give other results then: BatchNorm in training mode, or neurons
    that weigh the last steps of a call. Nothing is compared if the module draws random numbers, which depend on
    the cut. All changes are undone.

    Arguments:
        cut: ``cut(length, count=n)`` returns the call with its first n pieces of a length, and with the loss
            ``weigh_outputs``.
    """
    runs: list[Derivatives] = []
    for length in (1, COMPARED_STEPS):
        call = cut(length, count=COMPARED_STEPS // length)
        scope = Scope.of(call)
        scope.begin()
        with torch.enable_grad():
            runs.append(run_plain_steps(call, scope))
        if any(is_generator(part.place) for part in scope.lifted):
            return
    apart, together = runs
    tolerance = max(_CUT_TOLERANCE, _SUM_ROUNDING * find_rounding(apart.dtypes))
    for name, _, share, _ in apart.list_differences(together):
        if share > tolerance:
            raise InputError(
                f"gives {name} another gradient if {COMPARED_STEPS} time steps are one call than if they are "
                f"{COMPARED_STEPS} calls. A layer reads several time steps of a call at once, such as "
                "BatchNorm in training mode",
                field="net",
                accepted="wrap_layers(net, memory=...), which leaves such layers outside; or net.eval()",
            )
