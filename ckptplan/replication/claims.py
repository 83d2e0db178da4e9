"""All claims, in the order of the paper's sections."""

from __future__ import annotations

from ckptplan.replication import methods, results, study
from ckptplan.replication.claim import Claim
from ckptplan.replication.setting import Setting


def claims(setting: Setting) -> tuple[Claim, ...]:
    """Return every claim with the model's number, computed for ``setting``."""
    return tuple(make(setting) for make in (*methods.CLAIMS, *results.CLAIMS, *study.CLAIMS))
