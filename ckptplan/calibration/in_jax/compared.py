"""Compares a plan's predictions with what JAX counts: bytes, compiled memory, executed steps and gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ckptplan
from ckptplan.calibration.in_jax.networks import JaxNetwork
from ckptplan.calibration.in_jax.programs import CompiledLoop, compile_gradient
from ckptplan.calibration.in_jax.sizes import CompiledSizes
from ckptplan.calibration.validation import Row, Verdict
from ckptplan.cost.case import Case
from ckptplan.jax.tapes import Tape
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.simulator import play


def compare_sizes(plan: Plan, sizes: CompiledSizes, *, memory_bytes: int, tolerance: float) -> list[Row]:
    """Return rows of sizes and peaks; ``memory_bytes`` are those of the compiled program."""
    units = plan.profile.units
    costs = Case(workload=plan.workload, profile=plan.profile).costs
    trace = play(
        ckptplan.actions(plan), costs=costs.model_copy(update={"overlaps_compute": False}), budget=None
    )
    table = sizes.table(lambda: ckptplan.actions(plan), steps=plan.steps)
    # A unit's share of a state, or of a tape, is rounded up to whole bytes.
    slack = 0.0 if units == 1 else 1 / min(costs.state_bytes, costs.tape_bytes)
    quantities = {
        "state": (costs.state_bytes * units, sizes.state_bytes),
        "checkpoints and tapes": (
            (trace.local_peak_bytes - costs.resident_bytes) * units,
            table.buffer_bytes,
        ),
        "remote peak": (trace.remote_peak_bytes, table.remote_slots * sizes.state_bytes),
    }
    predicted = plan.predicted.local_peak_bytes * units
    calibrated = plan.workload.calibration is not None and plan.workload.calibration.jax is not None
    return [
        *(
            Row.exact(name, predicted=one, measured=other, unit="bytes", slack=slack)
            for name, (one, other) in quantities.items()
        ),
        Row.exact("local peak", predicted=predicted, measured=memory_bytes, unit="bytes", slack=tolerance)
        if calibrated
        # The resident bytes of another machine do not apply here.
        else Row(
            quantity="local peak",
            unit="bytes",
            predicted=predicted,
            measured=memory_bytes,
            verdict=Verdict.OTHER_MACHINE,
        ),
    ]


def count_row(plan: Plan, network: JaxNetwork, *, tape: Tape) -> Row:
    """Run a program whose step counts its executions, and return the row of steps that ran again."""
    executed = [0]

    def count() -> None:
        executed[0] += 1

    def step(parameters: Any, state: Any, x: Any) -> tuple[Any, Any]:
        jax.debug.callback(count)
        return network.step(parameters, state, x)

    # Steps that are computed again from products do not run as a whole.
    kind: Tape = "states" if tape == "states" else "residuals"
    compile_gradient(replace(network, step=step), plan, steps=plan.steps, tape=kind).call()
    jax.effects_barrier()
    # A kept state is run once more before it is reversed, which is a part of its backward.
    again = executed[0] - plan.steps * (2 if kind == "states" else 1)
    return Row.exact("steps run again", predicted=plan.predicted.recomputed_steps, measured=again, unit="count")


def compare_gradients(
    plan: Plan, network: JaxNetwork, program: CompiledLoop, *, reference: Schedule | None
) -> tuple[Row, str | None]:
    """Return the row of gradients, and a note if they had to be compared in double precision.

    Whether a neuron at its threshold fires may depend on rounding, and then all that follows it does. In double
    precision that is next to impossible.
    """
    steps, plain = plan.steps, reference is None
    single = _gradient_row(compile_gradient(network, reference, steps=steps), program, plain=plain)
    if single.verdict is not Verdict.OFF:
        return single, None
    with jax.enable_x64(True):
        double = network.in_double()
        expected = compile_gradient(double, reference, steps=steps)
        row = _gradient_row(expected, compile_gradient(double, plan, steps=steps), plain=plain)
    if row.verdict is Verdict.OFF:
        return single, None
    return row, (
        f"in single precision the gradients differ by {single.measured:.3g}, and in double precision they "
        "agree, which is shown: rounding decided whether a neuron at its threshold fires"
    )


def _gradient_row(expected: CompiledLoop, found: CompiledLoop, *, plain: bool) -> Row:
    """Return the largest difference of gradients, relative to the largest gradient of the same parameter.

    Sums are formed in another order, so at least half of the digits of the type must agree.
    """
    shares = [0.0]
    agree = True
    for one, other in zip(_gradients(expected), _gradients(found), strict=True):
        scale, difference = float(jnp.abs(one).max()), float(jnp.abs(one - other).max())
        shares.append(difference / scale if scale else difference)
        agree &= shares[-1] <= float(np.finfo(one.dtype).eps) ** 0.5
    worst = math.inf if any(map(math.isnan, shares)) else max(shares)
    verdict = Verdict.OK if agree and worst < math.inf else Verdict.OFF
    if not plain and verdict is Verdict.OK:
        verdict = Verdict.UNCHECKED
    return Row(quantity="gradient difference", unit="share", predicted=0.0, measured=worst, verdict=verdict)


def _gradients(program: CompiledLoop) -> Sequence[Any]:
    _, gradients = program.call()
    return jax.tree.leaves(gradients)
