"""Runs a case under a plan, and compares its gradients with those of a plain loop."""

# ruff: noqa: NPY002

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch

from ckptplan import InputError
from ckptplan.torch import bptt
from tests.torch.impure.cases import STEPS, Case, Job
from tests.torch.support import gradients, plan_of

STRATEGIES = ("base", "standard", "double", "revolve", "optimal")


@dataclass(frozen=True)
class Outcome:
    """What became of a case: right, refused with a message, or (a fault) different."""

    kind: Literal["right", "refused", "different"]
    message: str = ""


@cache
def plan(strategy: str) -> Any:
    """A plan with room for all tapes under base, and for few of them else."""
    return plan_of(STEPS, strategy, states=100 if strategy == "base" else 16)


def run(case: Case, strategy: str) -> Outcome:
    """Return what becomes of a case under a strategy, by ``bptt``. Other errors than refusals are raised."""
    job = build(case)
    theirs = _take_gradients(job, None)
    job.finish()
    job = build(case)
    try:
        ours = _take_gradients(job, plan(strategy))
    except InputError as error:
        return Outcome("refused", str(error))
    except RuntimeError as error:
        if "between the forward and the backward pass" not in str(error):
            raise
        return Outcome("refused", str(error))
    finally:
        job.finish()
    same = all(
        float((one - other).abs().max()) <= 1e-9 * max(float(other.abs().max()), 1e-30)
        for one, other in zip(ours, theirs, strict=True)
    )
    return Outcome("right" if same else "different")


def build(case: Case) -> Job:
    """Return a job, made and run with the same random numbers each time."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    job = case.build()
    random.seed(2)
    np.random.seed(2)
    torch.manual_seed(2)
    return job


def _take_gradients(job: Job, plan: Any) -> list[torch.Tensor]:
    wanted = list_wanted(job)
    losses = {"loss": job.loss} if job.chunk_loss is None else {"chunk_loss": job.chunk_loss}
    total = _run_plain(job) if plan is None else bptt(job.cell, job.inputs, job.state, plan=plan, **losses).loss
    job.between()
    return gradients(total, wanted)


def _run_plain(job: Job) -> torch.Tensor:
    outputs, terms, state = [], [], job.state
    for step in range(STEPS):
        state, output = job.cell(state, job.inputs[step])
        outputs.append(output)
        if job.chunk_loss is None:
            terms.append(job.loss(step, output))
    return sum(terms, torch.zeros(())) if terms else job.chunk_loss(0, torch.stack(outputs))


def list_wanted(job: Job) -> list[torch.Tensor]:
    """Return the tensors whose gradients are compared."""
    states = [one for one in torch.utils._pytree.tree_leaves(job.state) if isinstance(one, torch.Tensor)]
    return [one for one in (*states, job.inputs, *job.parameters) if one.requires_grad]
