"""Grids and sweeps from Python: their grammar, their rows, and what they refuse."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptplan
from ckptplan.cost.case import Case
from ckptplan.errors import InputError, quote_value
from ckptplan.model.network import Network
from ckptplan.model.workload import DERIVED
from ckptplan.paper.setting import load_paper_setting
from ckptplan.report.fields import list_plan_columns, make_plan_row
from ckptplan.strategies.registry import strategy_of
from ckptplan.studies.axes import (
    BYTES,
    COUNT,
    LIMIT,
    RATE,
    Grid,
    all_axes,
    find_axis,
    make_grid,
    read_values,
)
from ckptplan.studies.sweep import make_sweep

SNN = load_paper_setting().workload
IPU = ckptplan.load_profile("ipu-mk2")
PLAIN = ckptplan.Workload(
    name="plain", steps=300, state_bytes=100, tape_bytes=100, forward_seconds=1, backward_seconds=1,
    recompute_seconds=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("T=256:2048:x2", (256, 512, 1024, 2048)),
        ("T=256:2000:x2", (256, 512, 1024)),
        ("T=1:10:x1.3", (1, 2, 3, 4, 5, 6, 8)),
        ("T=100:400:+100", (100, 200, 300, 400)),
        ("T=7:7:+1", (7,)),
        ("batch=30,60,120", (30, 60, 120)),
        ("local-bytes=1KiB:1MiB:n3", (1024, 32768, 1048576)),
        ("local-bytes=256KiB,624 KiB", (262144, 638976)),
        ("remote_bytes=16GiB,unbounded", (2**34, None)),
        ("write_bytes_per_second=5GB/s:80GB/s:x2", (5e9, 1e10, 2e10, 4e10, 8e10)),
        ("recompute-ratio=0.1:0.5:+0.1", (0.1, 0.2, 0.3, 0.4, 0.5)),
        ("recompute-ratio=30%,2", (0.3, 2.0)),
        ("latency=0:1us:+500ns", (0.0, 5e-7, 1e-6)),
    ],
)
def test_a_range_holds_both_ends_and_no_rounding_errors(text: str, values: tuple[Any, ...]) -> None:
    assert [tuple(each) for each in make_grid([text]).values] == [values]


#: Numbers as anybody might write them, and as nobody would: subnormal, huge, next to each other.
WRITTEN = st.one_of(
    st.floats(0, exclude_min=True, allow_infinity=False, allow_nan=False),
    st.integers(-320, 308).map(lambda power: float(f"1e{power}")),
)


@given(
    start=WRITTEN,
    stop=WRITTEN,
    how=st.one_of(
        WRITTEN.map("x{!r}".format),
        WRITTEN.map("+{!r}".format),
        st.floats(1, 2).map("x{!r}".format),
        st.integers(0, 50).map("n{}".format),
    ),
)
def test_a_range_of_any_numbers_is_values_or_an_error(start: float, stop: float, how: str) -> None:
    """Values within the ends, each a number; an error names the range."""
    low, high = sorted((start, stop))
    text = f"{low!r}:{high!r}:{how}"
    told: InputError | None = None
    values: Sequence[float | None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckptplan.studies.axes.MOST_POINTS", 5_000)
        try:
            values = read_values(find_axis("recompute-ratio"), text)
        except InputError as error:
            told = error
    assert all(low * (1 - 1e-9) <= float(value or 0) <= high for value in values)
    assert bool(values) == (told is None)
    assert told is None or (told.field == "recompute-ratio" and quote_value(text) in told.message)


def test_the_last_axis_runs_fastest() -> None:
    grid = make_grid({"T": [1, 2], "batch": "10,20,30"})
    assert [grid.point(i) for i in range(len(grid))] == [(1, 10), (1, 20), (1, 30), (2, 10), (2, 20), (2, 30)]


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (["T=5:4:x2"], "T: '5:4:x2' is not a range"),
        (["T=4:5:x1"], "T: '4:5:x1' is not a range"),
        (["T=4:5:x0.5"], "T: '4:5:x0.5' is not a range"),
        (["T=4:5:xinf"], "T: '4:5:xinf' is not a range"),
        (["T=4:5:xtwo"], "T: '4:5:xtwo' is not a range"),
        (
            ["T=4:5"],
            "T: '4:5' is not a range (accepted: START:STOP:xFACTOR, START:STOP:+STEP or START:STOP:nCOUNT, "
            "with START up to STOP, a factor above 1, a step above 0 and a count from 2; or values",
        ),
        (["T=4:9:n1"], "T: '4:9:n1' is not a range"),
        (["T=4:9:n2.5"], "T: '4:9:n2.5' is not a range"),
        (["latency=0:1:+0"], "latency: '0:1:+0' is not a range"),
        (
            ["latency=0:1:x2"],
            "latency: '0:1:x2' has ends too far apart (accepted: a START above zero, and a STOP",
        ),
        (["remote-bytes=1:unbounded:x2"], "remote-bytes: '1:unbounded:x2' is not a range"),
        (["T="], "T: '' is not accepted (accepted: whole numbers from 1 to 1,000,000,000,000)"),
        ({"T": []}, "T: has no values"),
        ({"T": [1.5]}, "T: 1.5 is not accepted (accepted: whole numbers from 1 to 1,0"),
        ({"T": [True]}, "T: True is not accepted (accepted: whole numbers from 1 to 1,0"),
        ({"T": [10**12 + 1]}, "T: 1000000000001 is not accepted (accepted: whole numbers from 1 to 1,0"),
        ([f"T=1:{'9' * 400}:x2"], "is not accepted (accepted: whole numbers from 1 to 1,000,000,000,000)"),
        ([f"batch=1:{'9' * 5000}:n3"], "is not accepted (accepted: whole numbers from 1 to 1,000,000,000,000)"),
        (["T=3,3"], "T: 3 is given twice (accepted: each value once)"),
        (["T"], "over: 'T' has no values (accepted: as T=256:65536:x2)"),
        (["units=1"], "units: is not an input that can be varied."),
        (["local-bytes=5 KB"], "local-bytes: '5 KB' has the unknown unit 'KB'. Say 'kB' for 1,000"),
        (["recompute-ratio=0"], "recompute-ratio: '0' is not a ratio (accepted: a number above zero"),
        (["T=1:100000000:+1"], "T: '1:100000000:+1' has more than 10,000,000 values (accepted: up to 10,"),
        (["T=1:100:n20000000"], "T: '1:100:n20000000' has more than 10,000,000 values"),
        (["latency=0:1:+1e-320"], "latency: '0:1:+1e-320' has more than 10,000,000 values"),
        (
            ["latency=1e-320:1:x2"],
            "latency: '1e-320:1:x2' has ends too far apart (accepted: a START above zero, and a STOP up to 1e",
        ),
        (["latency=1e-320:1:n9"], "latency: '1e-320:1:n9' has ends too far apart"),
        (["recompute-ratio=1e-310:1e300:x2"], "'1e-310:1e300:x2' has ends too far apart"),
        (["recompute-ratio=1e-310:1e300:n3"], "'1e-310:1e300:n3' has ends too far apart"),
        (["T=1", "steps=2"], "T: is given twice (accepted: each input once)"),
        (
            ["bandwidth=1,2", "write_bytes_per_second=1"],
            "write-bytes-per-second: sets profile.write_bytes_per_second, as bandwidth does",
        ),
    ],
)
def test_what_is_no_grid_is_told_by_field_value_and_what_is_accepted(over: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make_grid(over)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("over", "wishes", "message"),
    [
        (["batch=1,2"], {"workloads": [SNN, PLAIN]}, "batch: workload 'plain' has no network description"),
        (["T=64,1000000000000", "state-bytes=1PB"], {}, "are more than 2**62 bytes in all"),
        (["forward-seconds=0,1us"], {}, "forward-seconds: 0.0 is not accepted"),
        (["T=1,2000000000000"], {}, "T: '2000000000000' is not accepted"),
        (
            ["T=1:5000:+1", "batch=1:5000:+1"],
            {"profiles": [IPU, ckptplan.load_profile("ipu-mk1")]},
            "over: 2 profiles x 5,000 T x 5,000 batch = 50,000,000 rows are too many (accepted: up to 10,0",
        ),
        (["T=1,2"], {"profiles": [IPU, IPU]}, "profiles: 'ipu-mk2' is given twice"),
        (["T=1,2"], {"profiles": []}, "profiles: has none"),
        (["T=1,2"], {"workloads": 3}, "workloads: 3 is not a Workload"),
        (["T=1,2"], {"workloads": "paper"}, "there is no workload 'paper'"),
        (["remote-bytes=1,2"], {"remote_bytes": 5}, "remote_bytes: is both varied by the grid and set"),
    ],
)
def test_what_is_no_sweep_is_told_before_it_begins(over: Any, wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        ckptplan.sweep(over, **{"workloads": SNN, "profiles": IPU, **wishes})
    assert message in str(caught.value)


@pytest.mark.parametrize("objective", ["time", "memory", "balanced"])
@pytest.mark.parametrize("model", ["exact", "paper"])
def test_a_row_says_what_optimize_says(objective: str, model: str) -> None:
    """With the columns of a plan's row, which they are written as."""
    wishes: dict[str, Any] = {"objective": objective, "model": model, "local_bytes": "400 KiB"}
    chosen = ["closed"] if model == "exact" else ["paper"]
    for row in ckptplan.sweep({"T": [300, 1500, 2500]}, workloads=SNN, profiles=IPU, **wishes):
        best = ckptplan.compare(SNN.with_steps(row["steps"]), IPU, strategies=chosen, **wishes)
        plan = next(iter(best.values()))
        if isinstance(plan, ckptplan.Infeasible):
            least = min(one.need for one in best.values() if isinstance(one, ckptplan.Infeasible))
            assert (row["fits"], row["binding"], row["need"]) == (False, plan.binding, least)
            continue
        for name in list_plan_columns():
            value = make_plan_row(plan).get(name)
            expected = {"": None, "true": True, "false": False, None: None}.get(value, value)
            assert row[name] == expected, name


def test_a_row_of_solved_strategies_has_the_proof() -> None:
    (row,) = ckptplan.sweep({"T": [1000]}, workloads=SNN, profiles=IPU, strategies=["optimal", "double"])
    plan = ckptplan.optimize(SNN.with_steps(1000), IPU, strategies=["optimal", "double"])
    assert plan.bound is not None
    assert (row["strategy"], row["least_seconds"], row["gap"]) == (
        plan.strategy, plan.bound.least_seconds, plan.bound.gap,
    )  # fmt: skip


def test_an_interrupted_search_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """``optimize`` shows the best so far; a row, or a sample, would be wrong."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(strategy_of("optimal")), "solve", interrupted)
    chosen = ["double", "optimal"]
    with pytest.raises(KeyboardInterrupt):
        list(ckptplan.sweep({"T": [300]}, workloads=SNN, profiles=IPU, strategies=chosen, local_bytes="250 kB"))
    with pytest.raises(KeyboardInterrupt):
        ckptplan.sensitivity(SNN.with_steps(300), IPU, strategies=chosen, local_bytes="250 kB")


def test_rows_come_while_it_goes_on() -> None:
    """The first of a million."""
    rows = ckptplan.sweep({"T": "1:1000000:+1"}, workloads=SNN, profiles=IPU)
    assert [row["steps"] for row in islice(rows, 3)] == [1, 2, 3]


@pytest.mark.parametrize("name", list(all_axes()))
def test_an_axis_reads_the_value_that_it_put(name: str) -> None:
    """For inputs that the workload and the profile have."""
    axis = find_axis(name)
    value: Any = 3 if axis.kind in (COUNT, BYTES, LIMIT, RATE) else 0.5
    case = Case(workload=SNN, profile=IPU)
    changed = axis.put(case, value)
    assert all(abs(float(now or 0) - value) < 1e-9 for now in axis.now(changed))
    assert changed != case
    assert find_axis(axis.column) is axis
    assert find_axis(name.replace("-", "_")) is axis


def test_what_is_derived_follows_what_it_is_derived_from() -> None:
    """The ratio is of the forward time beside it, whichever comes first."""
    over = {"recompute-ratio": [0.5], "forward-seconds": ["2 us"], "state-bytes": [10], "batch": [60]}
    sweep = make_sweep(over, workloads=SNN, profiles=IPU)
    workload = sweep.grid.put(*sweep.block(0, 1).points[0]).workload
    assert (workload.recompute_seconds, workload.state_bytes, workload.tape_bytes) == (1e-6, 10, 480)


def test_sweeps_that_differ_have_different_names() -> None:
    """Also where only the network differs, whose sizes are the same until it is varied."""
    assert SNN.network is not None
    half = {"dtype": "float16", "state_values": 2, "tape_values": 2}
    weights = SNN.network.sizes(units=1472)["resident_bytes"] - SNN.network.other_resident_bytes
    half["other_resident_bytes"] = SNN.network.other_resident_bytes + weights - weights // 2
    network = {**dict(SNN.network), **half}
    plain = {name: value for name, value in dict(SNN).items() if name not in (*DERIVED, "batch", "network")}
    other = ckptplan.Workload(**plain, network=Network(**network))
    grids: list[Any] = [{"T": [1, 2]}, {"T": [1, 3]}, {"T": [1]}, {"batch": [1, 2]}]
    found = [make_sweep(over, workloads=SNN, profiles=IPU).identity for over in grids]
    found += [
        make_sweep(grids[0], workloads=other, profiles=IPU).identity,
        make_sweep(grids[0], workloads=SNN, profiles=IPU, objective="memory").identity,
        make_sweep(grids[0], workloads=SNN, profiles=IPU, local_bytes=700_000).identity,
    ]
    assert len(set(found)) == len(found)
    assert make_sweep(["T=1:2:+1"], workloads=SNN, profiles=IPU).identity == found[0]


def test_rows_with_other_columns_are_another_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a version with other strategies began is not continued with different columns."""
    before = make_sweep(["T=1,2"], workloads=SNN, profiles=IPU).identity
    monkeypatch.setattr("ckptplan.studies.sweep.plan_columns", lambda: {"strategy": "text"})
    assert make_sweep(["T=1,2"], workloads=SNN, profiles=IPU).identity != before


def test_an_empty_grid_has_one_point() -> None:
    assert len(Grid(axes=(), values=())) == 1
