"""Traces keep the Trace Event Format, as its documentation gives it: phases X, i, C and M and their fields.

The events of one plan are in tests/golden/trace.json.
"""

import io
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

import ckptplan
from ckptplan import Plan, Trace
from ckptplan.report.chrome_trace import ChromeTrace
from ckptplan.schedule.actions import Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.simulator import play
from ckptplan.schedule.timeline import Event, kind_of
from tests.support import plain_costs, small_plan

#: Phase -> fields that it must have, and those that it may have.
FIELDS: Mapping[str, tuple[set[str], set[str]]] = {
    "X": ({"name", "ph", "ts", "dur", "pid", "tid"}, {"cat", "args"}),
    "i": ({"name", "ph", "ts", "pid", "tid", "s"}, {"cat", "args"}),
    "C": ({"name", "ph", "ts", "pid", "args"}, set()),
    "M": ({"name", "ph", "pid", "tid", "args"}, set()),
}


def traced(plan: Plan) -> tuple[dict[str, Any], Trace]:
    file = io.StringIO()
    chrome = ChromeTrace(file, process="a plan", about={"steps": plan.steps}, resident_bytes=7)
    trace = ckptplan.simulate(plan, sink=chrome.add)
    chrome.close()
    return json.loads(file.getvalue()), trace


CASES = [
    ("remote", "ipu-mk2", "230 kB"),
    ("hierarchical", "ipu-mk2", "230 kB"),
    ("double", "ipu-mk2", "230 kB"),
    ("base", "ipu-mk2", "300 kB"),
    ("standard", "ipu-mk2", "240 kB"),
    ("nested", "ipu-mk2", "240 kB"),
    ("remote", "nvidia-h200", "345 MB"),
    ("hierarchical", "nvidia-h200", "350 MB"),
]


@pytest.mark.parametrize(("name", "profile", "local_bytes"), CASES)
def test_a_trace_is_a_legal_trace(name: str, profile: str, local_bytes: str) -> None:
    """Fields, no overlap on a track, counters in order of time, and the simulator's totals."""
    document, trace = traced(small_plan(name, profile=profile, local_bytes=local_bytes))
    assert document.keys() == {"displayTimeUnit", "otherData", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events = document["traceEvents"]
    for event in events:
        needed, allowed = FIELDS[event["ph"]]
        assert needed <= event.keys() <= needed | allowed
        assert event.get("s", "t") in ("g", "p", "t")
        assert all(isinstance(event.get(field, 0), int | float) for field in ("ts", "dur", "pid", "tid"))
        assert event.get("dur", 0) >= 0
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert named == {1: "compute", 2: "copy engine: write", 3: "copy engine: read"}
    for track in named:
        bars = sorted(
            (round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000))
            for event in events
            if event["ph"] == "X" and event["tid"] == track
        )
        assert all(before[1] <= after[0] for before, after in pairwise(bars))
    ends = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    assert max(ends) / 1e6 == pytest.approx(trace.seconds, abs=1e-9)
    for counter, peak in (
        ("local memory", trace.local_peak_bytes),
        ("remote memory", trace.remote_peak_bytes),
    ):
        values = [event for event in events if event["ph"] == "C" and event["name"] == counter]
        assert max(event["args"]["bytes"] for event in values) == peak
        assert all(before["ts"] <= after["ts"] for before, after in pairwise(values))
        assert values[0]["ts"] == 0


def test_beside_compute_a_transfer_counts_from_its_issue_and_a_wait_for_it_is_a_bar_of_its_own() -> None:
    """The counter rises with the start of the first write, long before its end."""
    document, trace = traced(small_plan("remote", profile="cpu-nvme", local_bytes="345 MB"))
    events = document["traceEvents"]
    waits = [event["dur"] for event in events if event["name"] == "wait"]
    assert sum(waits) / 1e6 == pytest.approx(trace.stall_seconds, abs=1e-9 * len(waits))
    assert trace.stall_seconds > 0
    write = next(event for event in events if event["name"] == "write")
    counts = [event for event in events if event["name"] == "remote memory"]
    assert write["dur"] > 0
    assert [event["ts"] for event in counts[:2]] == [0, write["ts"]]


def test_actions_are_told_as_in_schedule_files() -> None:
    document, _ = traced(small_plan("hierarchical", local_bytes="226 kB"))
    first = next(event for event in document["traceEvents"] if event["name"] == "write")
    assert first["args"]["action"] == "transfer"
    assert first["args"]["source"] == "local"


def test_a_run_that_is_partly_new_counts_as_forward() -> None:
    events: list[Event] = []
    local = Tier.LOCAL
    play(
        [
            *(Save(0, local), Advance(0, 1), Load(0, local), Advance(0, 2), Load(0, local), Advance(0, 2)),
            *(Record(2, 3), Backward(2, 3), Load(0, local), Record(0, 2), Backward(0, 2), Free(0, local)),
        ],
        costs=plain_costs(3),
        sink=events.append,
    )
    runs = [kind_of(event) for event in events if isinstance(event.action, Advance)]
    assert runs == ["forward", "forward", "recompute"]
    assert [event.recomputed_steps for event in events if isinstance(event.action, Advance)] == [0, 1, 2]
