"""Implements BPTT-ISM, which memorises internal states (tapes) only (Gruslys et al. 2016)."""

from ckptplan.strategies.memorising import Memorising


class BpttIsm(Memorising):
    """BPTT-ISM of the paper, executed under the laws of docs/schedule-format.md."""

    name = "bptt-ism"
    rank = 22
    hidden = False
    internal = True


STRATEGY = BpttIsm()
