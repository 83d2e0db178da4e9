"""Says in words what a limit of memory cost a call: the plan that was chosen, and only what does help."""

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

#: One in this many bytes of a limit is left for what is not counted.
MARGIN = 50
#: The first axis is much shorter than the second if it is at most one in so many of it.
_SHORT = 4
#: So many times their bytes, the gradients of parameters take with any batch: sums, those of a step, copies.
_GRADIENTS = 5
#: Smaller shares of a job are no advice.
_LEAST_SHARE = 0.05
#: Overheads above this one are a reason to name what may help, if it is so many times as quick.
DEAR, _WORTH = 1.0, 1.2
#: The field of ``estimate_basis`` that says what remote memory bought.
OFFLOAD = "offload"


def leave_margin(limit: int) -> int:
    """Return the bytes of a limit that a plan may take."""
    return limit - limit // MARGIN


def find_limit(need: float) -> int:
    """Return a limit of three digits of which a plan may take so many bytes."""
    least = math.ceil(need * MARGIN / (MARGIN - 1)) + 1
    digits = 10 ** max(0, len(str(least)) - 3)
    return int(-(-least // digits) * digits)


def name_limit(need: float, *, like: int) -> int:
    """Return the least limit of which a plan may take so many bytes, as it is named beside another."""
    return parse_bytes(format_limit(find_limit(need), like=like))


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
    """Return the error for a limit within which no plan fits: the least that is enough, and what else helps.

    Arguments:
        infeasible: why there is no plan; its ``need`` is the least.
        request: the request, for which shorter sequences and remote memory are tried.
        memory: the limit as it was given.
        limit: the limit in bytes.
        gradients: the bytes of the gradients of parameters, which do not grow with the batch.
        parts: what the need consists of.
        tried: the bytes that a first call takes to try its steps, 0 if it does not.
        shape: the shape of the inputs, time first; () if it is not known.
    """
    needed = format_limit(find_limit(max(infeasible.need, tried)), like=limit)
    least = parse_bytes(needed)
    later = format_limit(find_limit(infeasible.need), like=limit)
    if later != needed:
        parts = f" in a new process, where its first steps are tried; afterwards {later} are enough{parts}"
    ways = [f'at least memory="{needed}" ({least:,} bytes)']
    ways += _name_quicker(infeasible, least=least, like=limit)
    # The workspace may shrink with the batch, or grow a little, as less of it lies where tapes were.
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
    """Return the limit of a quick plan, in words, if that of the ``least`` limit is slow."""
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
    """Return a plan, the quicker one of those without and with off-chip memory, that says what this bought."""
    texts = [
        f"local only: {'does not fit' if local is None else f'{local.predicted.overhead:+.0%}'}",
        f"remote in {place}: {remote.predicted.overhead:+.0%}",
    ]
    text = "; ".join(reversed(texts) if plan is remote else texts)
    note = BasisEntry(field=OFFLOAD, kind="derived", text=text)
    return plan.model_copy(update={"estimate_basis": (*plan.estimate_basis, note)})


def describe_choice(plan: Plan, limit: int) -> str:
    """Return what was chosen and what it costs, in a line."""
    settings = ", ".join(f"{name} {value}" for name, value in plan.parameters.items())
    bought = "".join(f" ({entry.text})" for entry in plan.estimate_basis if entry.field == OFFLOAD)
    return (
        f"{plan.strategy}{f' ({settings})' if settings else ''} for {format_things(plan.steps, 'step')}: "
        f"{format_bytes(plan.predicted.local_peak_bytes, like=limit)} of {format_bytes(limit, like=limit)}, "
        f"{plan.predicted.overhead:+.0%} time over plain backpropagation{bought}"
    )


def advise_offload(local: Plan, remote: Plan | None) -> str:
    """Return what ``offload=`` would save, by the best plan at the assumed rate; '' if that is little."""
    if remote is None or _WORTH * remote.predicted.seconds > local.predicted.seconds:
        return ""
    return (
        f"this plan takes {local.predicted.overhead:+.0%} time over plain backpropagation. With offload= (a "
        f"folder, or 'host') it would take about {remote.predicted.overhead:+.0%}, at an assumed "
        f"{ASSUMED_RATE / 1e9:g} GB/s"
    )


def _helps_remote(request: Request) -> bool:
    """Return whether a plan fits that keeps checkpoints in remote memory."""
    question: Question = request.question().replace(strategies=("remote", "double", "hierarchical"))
    return question.least_remote_bytes() is not None


def _doubt_order(shape: Sequence[int]) -> str:
    """Return a question if inputs look as if the batch came before time, '' otherwise."""
    if len(shape) < 3 or shape[0] * _SHORT > shape[1]:
        return ""
    return (
        f". Time is the first axis, so these inputs have {format_things(shape[0], 'time step')} and a batch of "
        f"{shape[1]:,}: if the batch comes first, exchange the two"
    )
