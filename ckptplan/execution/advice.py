"""Describes the plan chosen for a memory limit, and suggests changes that help if the limit is too small."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ckptplan.errors import Infeasible, InputError
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import BasisEntry
from ckptplan.planning.request import Request
from ckptplan.search.question import Question
from ckptplan.storage.place import ASSUMED_RATE
from ckptplan.units import format_bytes, format_limit, format_things, parse_bytes

#: One in this many bytes of a limit is left free, for bytes that are not counted.
MARGIN = 50
#: The inputs may have the batch first if the second axis is at least this many times as long as the first.
_SHORT = 4
#: Bytes that do not shrink with the batch, in multiples of the gradients: sums, gradients of a step, copies.
_GRADIENTS = 5
#: Smaller shares of a batch or a limit are not suggested.
_LEAST_SHARE = 0.05
#: Plans with a larger overhead are slow. A change is suggested if it makes them this many times as fast.
DEAR, _WORTH = 1.0, 1.2
#: The field of ``estimate_basis`` that compares the plans with and without remote memory.
OFFLOAD = "offload"


def leave_margin(limit: int) -> int:
    """Return the bytes of a limit that a plan may take, without the margin."""
    return limit - limit // MARGIN


def find_limit(need: float) -> int:
    """Return the least limit of three digits that leaves ``need`` bytes for a plan."""
    least = math.ceil(need * MARGIN / (MARGIN - 1)) + 1
    digits = 10 ** max(0, len(str(least)) - 3)
    return int(-(-least // digits) * digits)


def refuse_limit(
    infeasible: Infeasible,
    request: Request,
    *,
    memory: object,
    limit: int,
    gradients: int,
    parts: str,
    tried: int = 0,
    shape: Sequence[int] = (),
) -> InputError:
    """Return the error for a limit within which no plan fits, with the least limit and other suggestions.

    Arguments:
        infeasible: why there is no plan; its ``need`` is the least number of bytes.
        request: the request, for which shorter sequences and remote memory are tried.
        memory: the limit as the caller gave it.
        limit: the limit in bytes.
        gradients: the bytes of the gradients of parameters, which do not grow with the batch.
        parts: the parts of the need, in words.
        tried: the bytes that a first call needs to try its steps, 0 if it does not try any.
        shape: the shape of the inputs, time first; () if it is not known.
    """
    needed = format_limit(find_limit(max(infeasible.need, tried)), like=limit)
    least = parse_bytes(needed)
    later = format_limit(find_limit(infeasible.need), like=limit)
    if later != needed:
        parts = f" in a new process, where its first steps are tried; afterwards {later} are enough{parts}"
    ways = [f'at least memory="{needed}" ({least:,} bytes)']
    ways += _name_quicker(infeasible, least=least, like=limit)
    # The workspace may shrink with the batch, or grow a little, since less of it can reuse the memory of tapes.
    fixed = max(request.case.workload.workspace_bytes, _GRADIENTS * gradients)
    share = (limit - fixed) / (least - fixed) if least > fixed else 0.0
    if share >= _LEAST_SHARE:
        ways.append(f"a batch of at most about {math.floor(100 * share)}% of this one")
    elif limit > max(_GRADIENTS * gradients, _LEAST_SHARE * least):
        ways.append("perhaps a much smaller batch")
    steps = [suggestion["value"] for suggestion in infeasible.suggestions if suggestion["change"] == "steps"]
    if steps:
        share = max(steps) / request.case.workload.steps
        ways.append(f"a sequence of about {math.floor(100 * share)}% of this one (truncated BPTT)")
    if _helps_remote(request):
        ways.append("a plan with remote memory")
    return InputError(
        f"{format_bytes(limit, like=limit)} are too little: this call needs {needed}{parts}"
        f"{_doubt_order(shape)}",
        field="memory",
        value=memory,
        accepted=" or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways),
    )


def _name_quicker(infeasible: Infeasible, *, least: int, like: int) -> list[str]:
    """Return a limit with a quick plan, in words, if the plan at the ``least`` limit is slow."""
    plans = [suggestion for suggestion in infeasible.suggestions if suggestion["change"] == "local_bytes"]
    limit, overhead = min(
        (
            (find_limit(suggestion["value"]), suggestion["overhead"])
            for suggestion in plans
            if suggestion["overhead"] <= DEAR
        ),
        default=(0, 0.0),
    )
    if limit <= least:
        return []
    price = f"{overhead:+.0%} time over plain backpropagation"
    return [f'memory="{format_limit(limit, like=like)}" for a plan that takes about {price}']


def note_offload(plan: Plan, *, local: Plan | None, remote: Plan, place: str) -> Plan:
    """Return ``plan`` with a note that compares the plans without (``local``) and with off-chip memory."""
    texts = [
        f"local only: {'does not fit' if local is None else f'{local.predicted.overhead:+.0%}'}",
        f"remote in {place}: {remote.predicted.overhead:+.0%}",
    ]
    text = "; ".join(reversed(texts) if plan is remote else texts)
    note = BasisEntry(field=OFFLOAD, kind="derived", text=text)
    return plan.model_copy(update={"estimate_basis": (*plan.estimate_basis, note)})


def describe_choice(plan: Plan, limit: int) -> str:
    """Return the strategy of a plan, its memory and its time, in a line."""
    settings = ", ".join(f"{name} {value}" for name, value in plan.parameters.items())
    bought = "".join(f" ({entry.text})" for entry in plan.estimate_basis if entry.field == OFFLOAD)
    return (
        f"{plan.strategy}{f' ({settings})' if settings else ''} for {format_things(plan.steps, 'step')}: "
        f"{format_bytes(plan.predicted.local_peak_bytes, like=limit)} of {format_bytes(limit, like=limit)}, "
        f"{plan.predicted.overhead:+.0%} time over plain backpropagation{bought}"
    )


def advise_offload(local: Plan, remote: Plan | None) -> str:
    """Return advice to use ``offload=``, by the best plan at the assumed rate; '' if it would save little."""
    if remote is None or _WORTH * remote.predicted.seconds > local.predicted.seconds:
        return ""
    return (
        f"this plan takes {local.predicted.overhead:+.0%} time over plain backpropagation. With offload= (a "
        f"folder, or 'host') it would take about {remote.predicted.overhead:+.0%}, at an assumed "
        f"{ASSUMED_RATE / 1e9:g} GB/s"
    )


def _helps_remote(request: Request) -> bool:
    """Return whether a plan with remote checkpoints would fit."""
    question: Question = request.question().replace(strategies=("remote", "double", "hierarchical"))
    return question.least_remote_bytes() is not None


def _doubt_order(shape: Sequence[int]) -> str:
    """Return a hint if the shape of the inputs looks as if the batch came before time, '' otherwise."""
    if len(shape) < 3 or shape[0] * _SHORT > shape[1]:
        return ""
    return (
        f". Time is the first axis, so these inputs have {format_things(shape[0], 'time step')} and a batch of "
        f"{shape[1]:,}: if the batch comes first, exchange the two"
    )
