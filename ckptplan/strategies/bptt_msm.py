"""Memorisation of hidden or internal states, whichever costs less (Gruslys et al. 2016)."""

from ckptplan.strategies.memorising import Memorising


class BpttMsm(Memorising):
    """BPTT-MSM of the paper, executed under the laws of docs/schedule-format.md."""

    name = "bptt-msm"
    rank = 23
    hidden = True
    internal = True


STRATEGY = BpttMsm()
