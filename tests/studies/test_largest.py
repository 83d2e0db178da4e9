"""``ckptplan.largest``: the largest T, batch and network that fit, and no larger one does."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptplan
from ckptplan import Infeasible, InputError, Workload, units
from ckptplan.model.network import Network
from ckptplan.paper.setting import load_paper_setting
from ckptplan.planning.request import Request
from ckptplan.search.question import find_reason
from tests.support import CLOSED

PAPER = load_paper_setting().workload
IPU = ckptplan.load_profile("ipu-mk2")
H200 = ckptplan.load_profile("nvidia-h200")
#: An overhead at the limit may be above it by the last bits of two sums.
ROUNDING = 1e-12


def fits(workload: Workload, strategy: str, **wishes: object) -> bool:
    """Whether a plan exists, asked of the planner itself."""
    try:
        ckptplan.optimize(workload, IPU, strategies=[strategy], **wishes)  # type: ignore[arg-type]
    except Infeasible:
        return False
    return True


def test_the_largest_sequences_of_the_paper() -> None:
    """The paper's grid: base 400, Standard 2,000 (the next point does not fit), Remote and Double 4,000."""
    found = {name: reach.value for name, reach in ckptplan.largest("T", PAPER, IPU).items()}
    assert found["base"] == 400
    assert 3_200 <= found["standard"] <= 3_300
    assert found["remote"] == found["double"] == 4_396
    assert list(found.values()) == sorted(found.values(), reverse=True)


@pytest.mark.parametrize("name", CLOSED)
@given(
    overhead=st.none() | st.floats(0, 3),
    local=st.integers(216_000, 235_000),
    state=st.integers(100, 2_000),
    tape=st.integers(100, 2_000),
    synchronisation=st.sampled_from([0.0, 1.5e-6, 1e-3]),
    overlaps=st.booleans(),
)
def test_no_larger_sequence_fits(
    name: str, overhead: float | None, local: int, state: int, tape: int, synchronisation: float, overlaps: bool
) -> None:
    """Looked for one after the other, from the longest that memory could ever hold."""
    workload = Workload(
        **{
            **dict(PAPER),
            "network": None,
            "state_bytes": state,
            "tape_bytes": tape,
            "resident_bytes_per_step": 200,
        }
    )
    profile = ckptplan.HardwareProfile(
        **{
            **{field: getattr(IPU, field) for field in type(IPU).model_fields},
            "synchronisation_seconds": synchronisation,
            "overlaps_compute": overlaps,
        }
    )
    reach = ckptplan.largest(
        "T", workload, profile, strategies=[name], max_overhead=overhead, local_bytes=local
    )[name]
    longest = max(0, (local - workload.resident_bytes) // 200)

    def planned(steps: int) -> bool:
        request = Request.of(
            workload.with_steps(steps),
            profile,
            command="",
            strategies=[name],
            max_overhead=overhead,
            local_bytes=local,
        )
        return request.question().best() is not None

    expected = next((steps for steps in range(longest + 1, 0, -1) if planned(steps)), 0)
    assert reach.value == expected
    assert reach.proved
    if reach.plan is not None:
        assert reach.plan.steps == expected
        assert reach.plan.predicted.overhead <= (float("inf") if overhead is None else overhead + ROUNDING)


@pytest.mark.parametrize(
    ("quantity", "name"), list(itertools.product(["batch", "neurons"], ["base", "double"]))
)
@pytest.mark.parametrize("overhead", [None, 0.3])
def test_the_largest_batch_and_network(quantity: str, name: str, overhead: float | None) -> None:
    """The value fits and the next one does not; with a limit of overhead, none of the next hundred."""
    workload = PAPER.with_steps(300)
    reach = ckptplan.largest(quantity, workload, IPU, strategies=[name], max_overhead=overhead)[name]
    change = workload.with_batch if quantity == "batch" else workload.with_neurons
    assert reach.plan is not None
    assert reach.plan.workload == change(reach.value)
    beyond = range(1, 2 if overhead is None else 100)
    assert not any(fits(change(reach.value + more), name, max_overhead=overhead) for more in beyond)
    assert reach.bound_by == ("max_overhead" if overhead is not None and name == "double" else "local_bytes")


@pytest.mark.parametrize(("batch", "local"), [(12, 19_857), (7, 19_857), (12, 21_000)])
def test_a_larger_network_may_need_less_where_chunks_grow_with_the_sizes(batch: int, local: int) -> None:
    """Rounded up to bytes, M_s / M_a passes 2, and chunks grow twice as much: nothing is proved."""
    fields = {**dict(PAPER), "basis": {}, "batch": None}
    for name in ("state_bytes", "tape_bytes", "resident_bytes", "resident_bytes_per_step"):
        del fields[name]
    network = Network(neurons=3000, layers=3, batch=batch, state_values=2, other_resident_bytes=1000)
    workload = Workload(**{**fields, "network": network, "steps": 300})
    reach = ckptplan.largest("neurons", workload, IPU, strategies="growing", local_bytes=local)["growing"]
    assert not reach.proved
    assert fits(workload.with_neurons(reach.value), "growing", local_bytes=local)
    beyond = range(reach.value + 1, reach.value + 100)
    assert not any(fits(workload.with_neurons(more), "growing", local_bytes=local) for more in beyond)


@pytest.mark.parametrize("overhead", [None, "25%"])
@pytest.mark.parametrize("deadline", ["1 us", "5 ms", "40 ms"])
def test_the_largest_value_within_a_deadline_is_the_last_one_whose_plan_keeps_it(
    deadline: str, overhead: str | None
) -> None:
    """Within limits on the memory, on the overhead, and on the time of a batch."""
    ask: dict[str, Any] = {"max_overhead": overhead, "strategies": "closed"}
    reaches = ckptplan.largest("T", "paper-snn", "ipu-mk2", deadline=deadline, **ask)
    seconds = units.parse_seconds(deadline)
    assert reaches.deadline == seconds
    for name, reach in reaches.items():
        assert reach.proved
        plan = reach.plan
        assert (plan is None) == (reach.value == 0)
        if plan is not None:
            assert plan.predicted.seconds <= seconds * (1 + 1e-9)
        try:
            further = ckptplan.optimize(
                "paper-snn", "ipu-mk2", steps=reach.value + 1, strategies=name, max_overhead=overhead
            )
        except Infeasible:
            assert reach.bound_by != "deadline"
        else:
            assert reach.bound_by == "deadline"
            assert further.predicted.seconds > seconds


def test_a_sequence_fits_if_its_chunks_do_with_any_number_of_caches() -> None:
    """Growing chunks are fewer with more caches, which may need less memory than the fewest."""
    longest = ckptplan.largest("T", "paper-snn", "ipu-mk2", strategies="growing")["growing"]
    assert longest.value == 88_240
    assert longest.plan is not None
    assert longest.plan.parameters.cached_steps > longest.plan.parameters.chunk_size


def test_what_bounds_nothing_is_told() -> None:
    """Remote with unbounded remote memory and nothing that grows with T."""
    workload = Workload(
        **{**dict(PAPER), "network": None, "state_bytes": 1, "tape_bytes": 1, "resident_bytes_per_step": 0}
    )
    reach = ckptplan.largest("T", workload, IPU, strategies=["remote"], remote_bytes="unbounded")["remote"]
    assert reach.value == 10**12
    assert reach.bound_by is None


def test_where_not_even_one_step_fits() -> None:
    reach = ckptplan.largest("T", PAPER, IPU, strategies=["base"], local_bytes="100 KiB")["base"]
    assert (reach.value, reach.plan, reach.bound_by) == (0, None, "local_bytes")
    assert reach.infeasible is not None


def test_a_solved_strategy_is_not_said_to_be_proved() -> None:
    found = ckptplan.largest(
        "T", PAPER, IPU, strategies=["growing", "optimal"], local_bytes="230 kB", max_overhead="10%"
    )
    assert found["optimal"].value >= found["growing"].value
    assert not found["optimal"].proved
    assert found["growing"].proved


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    ckptplan.largest("T", PAPER, IPU, strategies="paper", progress=lambda *where: told.append(where))
    done, totals = zip(*told, strict=True)
    assert set(totals) == {5_000}
    assert list(done) == sorted(set(done))
    assert {0, 1_000, 2_000, 3_000, 4_000, 5_000} <= set(done)
    assert len(done) > 20


def test_progress_is_told_while_a_strategy_is_solved() -> None:
    """A table of the longest sequence takes its time; whoever watches sees it fill."""
    told: list[tuple[int, int]] = []
    a100 = ckptplan.load_profile("nvidia-a100-80gb")
    ckptplan.largest("T", PAPER, a100, strategies=["bptt-msm"], progress=lambda *where: told.append(where))
    done = [done for done, _ in told]
    assert done == sorted(set(done))
    assert (done[0], done[-1]) == (0, 1_000)
    assert max(after - before for before, after in itertools.pairwise(done)) <= 200


def test_what_is_too_long_to_be_solved_says_how_long_may_be() -> None:
    """Room for one checkpoint: tables can be filled for so many steps."""
    name = "bptt-msm"
    a100 = ckptplan.load_profile("nvidia-a100-80gb")
    request = Request.of(PAPER.with_steps(563_844), a100, command="", strategies=[name], headroom=0)
    question = request.question()
    missing = find_reason(question, subject=name)
    assert missing.binding == "steps"
    most = int(missing.need)

    def is_solved(steps: int) -> bool:
        return question.replace(costs=question.costs.model_copy(update={"steps": steps})).fits()

    assert 0 < most < 563_844
    assert is_solved(most)
    assert not is_solved(most + 1)


def test_bad_questions_are_refused() -> None:
    with pytest.raises(InputError, match=r"'baatch' is not a quantity\. Did you mean 'batch'"):
        ckptplan.largest("baatch", PAPER, IPU)
    plain = Workload(**{**dict(PAPER), "network": None})
    with pytest.raises(InputError, match="has no network description"):
        ckptplan.largest("neurons", plain, IPU)


def test_plans_name_all_strategies_that_were_compared() -> None:
    reaches = ckptplan.largest("T", PAPER, IPU, strategies=["standard", "double"])
    plans = [reach.plan for reach in reaches.values() if reach.plan is not None]
    assert [plan.goal.strategies for plan in plans] == [("standard", "double")] * 2


def test_a_plan_exactly_at_the_limit_of_overhead_fits_for_every_command() -> None:
    """Six seconds more than sixty are 10 %, which floats make 0.10000000000000009."""
    workload = Workload(
        name="edge", steps=5, state_bytes=1, tape_bytes=1, chunk_workspace_bytes=1,
        forward_seconds=10, backward_seconds=2, recompute_seconds=3,
    )  # fmt: skip
    profile = IPU.replace_numbers(local_bytes=5)
    wishes = {"strategies": ["standard"], "max_overhead": "10%"}
    plan = ckptplan.optimize(workload, profile, **wishes)  # type: ignore[arg-type]
    assert plan.predicted.seconds == 66
    assert plan.predicted.overhead > 0.1
    reach = ckptplan.largest("T", workload, profile, **wishes)["standard"]  # type: ignore[arg-type]
    assert reach.value >= 5
    assert len(ckptplan.pareto(workload, profile, **wishes)) == 2  # type: ignore[arg-type]
