"""The paper's job: what it answers, and what it refuses."""

import pytest

import ckptplan
from ckptplan.paper.setting import PaperSetting, load_paper_setting

PAPER = load_paper_setting()


def test_it_is_the_built_in_workload_on_the_papers_machine() -> None:
    assert (PAPER.workload.name, PAPER.profile.name) == ("paper-snn", "ipu-mk2")
    assert (PAPER.workload.batch, PAPER.neurons / PAPER.profile.units) == (120, 2)


def test_the_best_setting_is_the_planners() -> None:
    for strategy in ("remote", "double"):
        plan = ckptplan.optimize(PAPER.workload, PAPER.profile, strategies=[strategy])
        best = PAPER.best(strategy)
        assert (best.parameters, best.seconds) == (plan.parameters, plan.predicted.seconds)
        assert best.local_peak_bytes == plan.predicted.local_peak_bytes
        assert best.overhead == pytest.approx(plan.predicted.overhead)
        assert plan.predicted.paper is not None
        assert best.printed.seconds == plan.predicted.paper.seconds


def test_what_does_not_fit_has_no_best_setting() -> None:
    with pytest.raises(ckptplan.Infeasible, match="base does not fit"):
        PAPER.best("base")


def test_a_workload_without_a_network_has_no_model_size() -> None:
    plain = ckptplan.Workload(
        name="plain", steps=10, state_bytes=1, tape_bytes=1,
        forward_seconds=1, backward_seconds=1, recompute_seconds=1,
    )  # fmt: skip
    with pytest.raises(ckptplan.InputError, match="'plain' has no network description"):
        _ = PaperSetting(workload=plain, profile=PAPER.profile).neurons
