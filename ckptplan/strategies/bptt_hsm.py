"""Implements BPTT-HSM, which memorises hidden states only: binomial checkpointing (Gruslys et al. 2016)."""

from ckptplan.strategies.memorising import Memorising


class BpttHsm(Memorising):
    """BPTT-HSM of the paper, executed under the laws of docs/schedule-format.md."""

    name = "bptt-hsm"
    rank = 21
    hidden = True
    internal = False


STRATEGY = BpttHsm()
