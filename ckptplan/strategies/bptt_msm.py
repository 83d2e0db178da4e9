"""Implements BPTT-MSM, which memorises hidden or internal states (Gruslys et al. 2016)."""

from ckptplan.strategies.memorising import Memorising


class BpttMsm(Memorising):
    """BPTT-MSM of the paper, executed under the laws of docs/schedule-format.md."""

    name = "bptt-msm"
    rank = 23
    hidden = True
    internal = True


STRATEGY = BpttMsm()
