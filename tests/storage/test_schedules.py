"""Schedule files: what is written is read back, and what is wrong is told by line and name."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptplan
from ckptplan import IllegalAction, InputError, Plan
from ckptplan.model.record import Parameters
from ckptplan.paper.setting import load_paper_setting
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.storage.schedules import ACTIONS, ScheduleFormat, load_schedule, schedule_lines
from ckptplan.storage.schemas import file_schema
from ckptplan.units import MAX_STEPS
from tests.support import small_plan

HEAD = {"kind": "ckptplan.schedule", "schema_version": 1, "steps": 4}

numbers = st.integers(0, MAX_STEPS)
tiers = st.sampled_from(Tier)
any_action = st.one_of(
    st.builds(Advance, numbers, numbers, st.none() | numbers),
    st.builds(Record, numbers, numbers),
    st.builds(Backward, numbers, numbers),
    st.builds(Save, numbers, tiers),
    st.builds(Load, numbers, tiers),
    st.builds(Free, numbers, tiers),
    st.builds(
        Transfer, st.lists(numbers, min_size=1, max_size=5, unique=True).map(tuple), source=tiers, target=tiers
    ),
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return small_plan()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("schedules")


@pytest.mark.parametrize("format_", get_args(ScheduleFormat))
@given(actions=st.lists(any_action, max_size=8))
def test_what_is_written_is_read_back(format_: ScheduleFormat, folder: Path, actions: list[Action]) -> None:
    file = folder / "any"
    file.write_text("".join(schedule_lines(actions, head=HEAD, format_=format_)))
    assert list(load_schedule(file)) == actions


@given(actions=st.lists(any_action, max_size=4))
def test_each_line_keeps_the_schema(actions: list[Action]) -> None:
    schema = file_schema("schedule")
    jsonschema.Draft202012Validator.check_schema(schema)
    for line in schedule_lines(actions, head=HEAD, format_="jsonl"):
        jsonschema.validate(json.loads(line), schema)


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    validator = jsonschema.Draft202012Validator(file_schema("schedule"))
    for line in BROKEN_LINES:
        assert not validator.is_valid(json.loads(line)), line


@pytest.mark.parametrize("name", ["s.jsonl", "s.csv"])
def test_a_saved_schedule_plays_at_its_predicted_cost(name: str, plan: Plan, tmp_path: Path) -> None:
    count = ckptplan.save_schedule(plan, tmp_path / name)
    assert list(ckptplan.load_schedule(tmp_path / name)) == list(ckptplan.actions(plan))
    trace = ckptplan.simulate(plan, schedule=tmp_path / name)
    assert (trace.actions, trace.seconds) == (count, plan.predicted.seconds)
    assert len((tmp_path / name).read_text().splitlines()) == count + 1


def test_the_head_says_whose_schedule_it_is(plan: Plan, tmp_path: Path) -> None:
    ckptplan.save_schedule(plan, tmp_path / "s", command="a command")
    head = json.loads((tmp_path / "s").read_text().partition("\n")[0])
    assert head == {
        "kind": "ckptplan.schedule",
        "schema_version": 1,
        "version": ckptplan.__version__,
        "command": "a command",
        "strategy": plan.strategy,
        "parameters": dict(plan.parameters),
        "steps": 64,
        "workload": {"name": "paper-snn", "hash": plan.workload.hash},
        "profile": {"name": "ipu-mk2", "hash": plan.profile.hash},
    }


BROKEN_LINES = {
    '{"action": "forward", "start": 0, "stop": 4}': "line 3: action: 'forward' is not an action",
    '{"action": "recrod", "start": 0, "stop": 4}': "Did you mean 'record'?",
    '{"action": ["save"], "state": 0}': r"action: \['save'\] is not an action",
    '{"start": 0, "stop": 4}': "line 3: action: None is not an action",
    '{"action": "record", "start": 0}': "line 3: stop: is missing .*record has start, stop",
    '{"action": "record", "start": 0, "stop": 4, "tier": "local"}': "line 3: tier: is not a field of record",
    '{"action": "record", "start": 0, "stop": "4"}': "line 3: stop: '4' is not a step",
    '{"action": "record", "start": 0, "stop": true}': "line 3: stop: True is not a step",
    '{"action": "record", "start": -1, "stop": 4}': "line 3: start: -1 is not a step",
    '{"action": "advance", "start": 0, "stop": 4, "cached": -1}': "line 3: cached: -1 is not a step",
    '{"action": "record", "start": 0, "stop": 4, "cached": 1}': "line 3: cached: is not a field of record",
    '{"action": "save", "state": 0, "tier": "disk"}': "line 3: tier: 'disk' is not a tier .*local or remote",
    '{"action": "transfer", "states": 3, "source": "local", "target": "remote"}': "states: 3 is not a list",
    '{"action": "transfer", "states": [1.5], "source": "local", "target": "remote"}': "1.5 is not a step",
}


@pytest.mark.parametrize(("line", "message"), BROKEN_LINES.items(), ids=range(len(BROKEN_LINES)))
def test_a_wrong_line_is_refused_by_name_and_line(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text("\n".join([json.dumps(HEAD), '{"action":"save","state":0,"tier":"local"}', line]))
    with pytest.raises(InputError, match=message) as caught:
        list(load_schedule(file))
    assert str(caught.value).startswith(f"{file}: line 3: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3: is not valid JSON"),
        ("", "line 3: is empty"),
        ("[1]", r"line 3: holds \[1\], not a JSON object"),
        ('{"action": "save", "action": "save"}', "line 3: action: is given twice"),
        ('{"action": "record", "start": 0, "stop": 9223372036854775808}', "line 3: stop: 9223372036854775808"),
    ],
)
def test_what_is_no_action_at_all_is_refused_too(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    save = '{"action":"save","state":0,"tier":"local"}'
    file.write_text("\n".join([json.dumps(HEAD), save, line, save]))
    with pytest.raises(InputError, match=message):
        list(load_schedule(file))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("advance,0,4", "line 2: has 3 cells .*8: action,start,stop"),
        ("advance,0,x,,,,,", "line 2: stop: 'x' is not a step"),
        ("advance,0,²,,,,,", "line 2: stop: '²' is not a step"),
        (f"advance,0,{'9' * 30},,,,,", "line 2: stop: '999"),
        ("jump,0,1,,,,,", "line 2: action: 'jump' is not an action"),
        ("transfer,,,,,0 b,local,remote", "line 2: states: 'b' is not a step"),
        ("", "line 2: has 0 cells"),
    ],
)
def test_a_wrong_row_is_refused_by_name_and_line(row: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    file.write_text(f"action,start,stop,state,tier,states,source,target\n{row}\nadvance,0,1,,,,,\n")
    with pytest.raises(InputError, match=message):
        list(load_schedule(file))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({**HEAD, "kind": "ckptplan.plan"}, "line 1: kind: 'ckptplan.plan' is not a schedule"),
        ({**HEAD, "schema_version": 2}, "line 1: schema_version: this ckptplan does not read version 2"),
        ({"kind": "ckptplan.schedule", "schema_version": 1}, "line 1: steps: None is not a step"),
        ({**HEAD, "steps": 5}, "line 1: steps: the schedule is for 5 steps, the plan for 4 "),
        ({"action": "advance"}, "line 1: kind: None is not a schedule"),
        ("time,event", "line 1: 'time,event' is not the first line of a schedule"),
    ],
)
def test_a_file_that_is_no_schedule_of_the_plan_is_refused(head: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "s"
    file.write_text((head if isinstance(head, str) else json.dumps(head)) + "\n")
    with pytest.raises(InputError, match=message):
        list(load_schedule(file, steps=4))


def test_what_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bytes").write_bytes(json.dumps(HEAD).encode() + b"\n\xff\xfe\n")
    (tmp_path / "long").write_text("x" * 100)
    (tmp_path / "empty").touch()
    monkeypatch.setattr("ckptplan.storage.schedules._MOST_CHARACTERS", 80)
    for name, message in {
        "missing": "No such file",
        "a\0b": "no file can have this name",
        "bytes": r"bytes: after line \d+: is not UTF-8 text",
        "long": "line 1: is too long",
        "empty": "line 1: '' is not the first line of a schedule",
        ".": "directory",
    }.items():
        with pytest.raises(InputError, match=message):
            list(load_schedule(tmp_path / name))


def test_an_illegal_order_is_told_by_line(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    ckptplan.save_schedule(plan, file)
    lines = file.read_text().splitlines(keepends=True)
    without = "".join(line for number, line in enumerate(lines, start=1) if number != 3)
    file.write_text(without)
    with pytest.raises(IllegalAction, match=r"s\.jsonl: line 3: save\(state=10, tier=remote\)") as caught:
        ckptplan.simulate(plan, schedule=file)
    assert (caught.value.line, caught.value.number, caught.value.source) == (3, 2, str(file))
    assert caught.value.law == "a save stores the working state"


def test_a_missing_end_is_told_behind_the_last_line(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    count = ckptplan.save_schedule(plan, file)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(IllegalAction, match="the end: every step is reversed: steps 0 to 3 are not") as caught:
        ckptplan.simulate(plan, schedule=file)
    assert caught.value.line == count + 1


def test_an_unknown_format_is_refused(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'xml' is not a schedule format .*jsonl, csv"):
        ckptplan.save_schedule(plan, tmp_path / "s", format="xml")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_the_old_file(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text("old")

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ckptplan.save_schedule(plan, file, progress=stop)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_progress_ends_at_all_steps(plan: Plan) -> None:
    told: list[tuple[int, int]] = []
    ckptplan.simulate(plan, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (64 + 86 + 64,) * 2


def test_every_action_has_a_name_in_files() -> None:
    assert list(ACTIONS) == ["advance", "record", "backward", "save", "load", "free", "transfer"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s.jsonl", "s.csv"])
def test_long_messages_go_out_and_come_back(name: str, tmp_path: Path) -> None:
    """Far more characters than Python's own reader of CSV takes in one cell."""
    plan = ckptplan.optimize(
        load_paper_setting().workload.with_steps(100_000),
        ckptplan.load_profile("ipu-mk2"),
        strategies=["hierarchical"],
        local_bytes="100 MB",
        remote_bytes="unbounded",
    )
    parameters = Parameters(chunk_size=1, nb_local=40_000)
    plan = plan.model_copy(update={"parameters": parameters})
    ckptplan.save_schedule(plan, tmp_path / name)
    assert list(ckptplan.load_schedule(tmp_path / name)) == list(ckptplan.actions(plan))


def test_standard_input_may_start_with_a_byte_order_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeff" + json.dumps(HEAD) + '\n{"action": "jump"}\n'))
    with pytest.raises(InputError, match="standard input: line 2: action: 'jump' is not an action"):
        list(load_schedule("-"))


def test_whole_numbers_may_be_floats(tmp_path: Path) -> None:
    """As languages write them that have no other numbers."""
    file = tmp_path / "s.jsonl"
    file.write_text(json.dumps(HEAD) + '\n{"action": "advance", "start": 0.0, "stop": 4.0}\n')
    assert list(load_schedule(file)) == [Advance(0, 4)]


def test_another_files_trouble_is_not_blamed_on_this_one(plan: Plan, tmp_path: Path) -> None:
    def log(*_: int) -> None:
        (tmp_path / "missing" / "log").open()

    with pytest.raises(FileNotFoundError, match="missing/log"):
        ckptplan.save_schedule(plan, tmp_path / "s.jsonl", progress=log)
    assert not list(tmp_path.iterdir())


def test_quoted_cells_and_blank_lines_at_the_end_are_accepted(plan: Plan, tmp_path: Path) -> None:
    """As spreadsheets and editors write them."""
    ckptplan.save_schedule(plan, tmp_path / "s.CSV")
    rows = (tmp_path / "s.CSV").read_text().splitlines()
    quoted = [",".join(f'"{cell}"' for cell in row.split(",")) for row in rows]
    (tmp_path / "quoted").write_text("\r\n".join(quoted) + "\r\n\r\n\n")
    assert list(ckptplan.load_schedule(tmp_path / "quoted")) == list(ckptplan.actions(plan))


def test_a_quoted_cell_that_is_too_long_is_refused(plan: Plan, tmp_path: Path) -> None:
    """In the first line and in later ones: Python's reader has a limit of its own."""
    cell = '"' + "a" * 131_073 + '"\n'
    ckptplan.save_schedule(plan, tmp_path / "s.csv")
    (tmp_path / "later.csv").write_text((tmp_path / "s.csv").read_text() + cell)
    (tmp_path / "first.csv").write_text(cell)
    for name in ("first.csv", "later.csv"):
        with pytest.raises(InputError, match="is not a row of CSV"):
            list(ckptplan.load_schedule(tmp_path / name))


def test_an_unknown_field_is_named_in_a_short_message(plan: Plan, tmp_path: Path) -> None:
    ckptplan.save_schedule(plan, tmp_path / "s.jsonl")
    with (tmp_path / "s.jsonl").open("a") as file:
        file.write(json.dumps({"action": "advance", "k" * 1_000_000: 1}) + "\n")
    with pytest.raises(InputError, match="is not a field of advance") as refused:
        list(ckptplan.load_schedule(tmp_path / "s.jsonl"))
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "call", [ckptplan.actions, ckptplan.simulate, lambda plan: ckptplan.save_schedule(plan, "s")]
)
def test_what_is_no_plan_is_refused(call: Callable[[Any], object]) -> None:
    with pytest.raises(InputError, match=r"'plan\.json' is not a Plan"):
        call("plan.json")
