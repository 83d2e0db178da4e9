"""All claims, in the order of the paper's sections."""

from __future__ import annotations

from ckptplan.paper import methods, results, study
from ckptplan.paper.claim import Claim
from ckptplan.paper.setting import Setting


def claims(setting: Setting) -> tuple[Claim, ...]:
    """Return every claim with the model's number, computed for ``setting``."""
    return tuple(make(setting) for make in (*methods.CLAIMS, *results.CLAIMS, *study.CLAIMS))
