"""The picture shows every bar, tells colours apart and refuses what nobody could read."""

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import pytest

import ckptplan
from ckptplan import InputError, Plan
from ckptplan.report import gantt, style
from ckptplan.report.charts import Scale
from ckptplan.report.gantt import Detail, Gantt
from ckptplan.report.picture import picture_format
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.simulator import play
from tests.support import plain_costs, small_plan


def drawn(plan: Plan, path: Path, *, schedule: Iterable[Action] | None = None) -> str:
    picture = Gantt(plan)
    ckptplan.simulate(plan, schedule=schedule, sink=picture.add)
    picture.draw().save(str(path))
    return path.read_text(errors="replace")


def test_a_picture_says_what_is_seen(tmp_path: Path) -> None:
    text = drawn(small_plan(), tmp_path / "p.svg")
    for words in (
        "double (chunk_size 6, remote_chunk_size 18): 924.7 us, +100.7 % over base",
        "remote memory, peak 4.043 MiB",
        "paper-snn on ipu-mk2, T = 64",
        *("forward", "recompute", "record (keeps tapes)", "backward", "write", "read", "tapes held"),
        *("local checkpoint", "remote checkpoint", "time step", "time (us)", "budget 224.6 KiB", "4.043 MiB"),
    ):
        assert words in text


def test_what_does_not_happen_is_not_in_the_legend(tmp_path: Path) -> None:
    text = drawn(small_plan("base", local_bytes="300 kB"), tmp_path / "p.svg")
    assert "backward" in text
    for words in ("recompute", "write", "read", "checkpoint", "remote"):
        assert words not in text


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_formats(suffix: str, start: bytes, tmp_path: Path) -> None:
    """Drawn twice, it is the same file."""
    plan = small_plan("remote", profile="nvidia-h200", local_bytes="345 MB")
    drawn(plan, tmp_path / f"one.{suffix}")
    drawn(plan, tmp_path / f"two.{suffix}")
    content = (tmp_path / f"one.{suffix}").read_bytes()
    assert content.startswith(start)
    assert content == (tmp_path / f"two.{suffix}").read_bytes()


def test_a_picture_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'a.gif' .*\.png, \.svg, \.pdf"):
        picture_format("a.gif")
    assert not list(tmp_path.iterdir())


def test_too_many_bars_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gantt, "MOST_ACTIONS", 50)
    with pytest.raises(InputError, match=r"more than 50 actions, too many for a picture.*a shorter sequence"):
        ckptplan.simulate(small_plan(), sink=Gantt(small_plan()).add)


def test_colours_can_be_told_apart_in_all_common_kinds_of_colour_vision() -> None:
    """Distances in CIELAB after a simulation of protanopia and deuteranopia (Machado et al. 2009)."""
    colours = list(style.EVENT_COLOURS.values())
    for matrix in (IDENTITY, PROTANOPIA, DEUTERANOPIA):
        seen = [lab(transformed(linear(colour), matrix)) for colour in colours]
        for one, other in combinations(seen, 2):
            assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 10


IDENTITY = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
PROTANOPIA = ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052))
DEUTERANOPIA = ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969))
XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.95047, 1.0, 1.08883)
Triple = tuple[float, ...]


def linear(colour: str) -> Triple:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def transformed(colour: Triple, matrix: tuple[Triple, ...]) -> Triple:
    return tuple(max(0.0, sum(a * b for a, b in zip(row, colour, strict=True))) for row in matrix)


def lab(colour: Triple) -> Triple:
    def root(value: float) -> float:
        return float(value ** (1 / 3)) if value > 0.008856 else 7.787 * value + 16 / 116

    x, y, z = (root(part / white) for part, white in zip(transformed(colour, XYZ), WHITE, strict=True))
    return (116 * y - 16, 500 * (x - y), 200 * (y - z))


def test_tapes_that_are_consumed_in_parts_are_held_until_their_part_is() -> None:
    picture = Gantt(small_plan())
    local = Tier.LOCAL
    play(
        (
            *(Save(0, local), Advance(0, 2), Record(2, 4), Backward(3, 4), Backward(2, 3)),
            *(Load(0, local), Free(0, local), Record(0, 2), Backward(0, 2)),
        ),
        costs=plain_costs(4),
        sink=picture.add,
    )
    assert picture._tapes == [
        [(3.0, 3), (4.0, 4), (4.0, 4), (6.0, 3)],
        [(2.0, 2), (3.0, 3), (6.0, 3), (8.0, 2)],
        [(8.0, 0), (10.0, 2), (10.0, 2), (14.0, 0)],
    ]
    assert picture._checkpoints == {local: [(0.0, 8.0, 0)]}
    assert not picture._open_tapes
    assert not picture._stored


def test_states_that_move_in_one_message_are_followed(tmp_path: Path) -> None:
    plan = small_plan("hierarchical", local_bytes="226 kB")
    text = drawn(plan, tmp_path / "p.svg")
    assert "local checkpoint" in text
    picture = Gantt(plan)
    trace = ckptplan.simulate(plan, sink=picture.add)
    assert len(picture._checkpoints[Tier.REMOTE]) == trace.remote_writes
    bars = picture.finish(Detail()).bars
    assert sum(kind == "write" for kind, *_ in bars) == trace.remote_writes
    assert not picture._stored


def test_local_memory_rises_and_falls_with_the_tapes(tmp_path: Path) -> None:
    """From what is resident up to the peak at the end of the last record, and down again."""
    plan = small_plan("base", local_bytes="300 kB")
    picture = Gantt(plan)
    trace = ckptplan.simulate(plan, sink=picture.add)
    half, end = trace.seconds / 2, trace.seconds
    expected = [(0.0, 222_144), (0.0, 222_144), (half, trace.local_peak_bytes)]
    expected += [(half, trace.local_peak_bytes), (end, 222_144)]
    memory = picture.finish(Detail()).memory
    assert [local for _, local, _ in memory] == [local for _, local in expected]
    assert [time for time, _, _ in memory] == pytest.approx([time for time, _ in expected])
    drawn(plan, tmp_path / "p.png")


def test_a_run_goes_down_and_a_backward_goes_up() -> None:
    """And a state that moves stays level; the chart of a page has the same lines as the picture."""
    plan = small_plan()
    picture = Gantt(plan)
    ckptplan.simulate(plan, sink=picture.add)
    marks = {one.label.split()[0]: one.rows for one in gantt._mark_bars(picture.finish(Detail()))}
    assert set(marks) == {"forward", "recompute", "record", "backward", "write", "read"}
    for kind in ("forward", "recompute", "record"):
        assert all(row["x"] < row["x2"] and row["y"] < row["y2"] for row in marks[kind])
    assert all(row["x"] < row["x2"] and row["y"] > row["y2"] for row in marks["backward"])
    assert all(row["x"] < row["x2"] and row["y"] == row["y2"] for row in (*marks["write"], *marks["read"]))


def test_axes_are_in_units_of_time_and_steps_downwards() -> None:
    plan = small_plan()
    picture = Gantt(plan)
    trace = ckptplan.simulate(plan, sink=picture.add)
    [steps], [local], [remote] = picture.draw().rows
    assert isinstance(steps.y, Scale)
    assert (steps.y.low, steps.y.high) == (64, 0)
    assert (steps.x.low, steps.x.high) == pytest.approx((0, trace.seconds * 1e6))
    held = [(row["x"], row["y"]) for row in next(one.rows for one in local.marks if one.kind == "line")]
    assert max(x for x, _ in held) == pytest.approx(trace.seconds * 1e6)
    assert (min(y for _, y in held), max(y for _, y in held)) == (222_144, trace.local_peak_bytes)
    line = next(one for one in remote.marks if one.kind == "line")
    assert max(row["y"] for row in line.rows) == trace.remote_peak_bytes
    bars = [row for one in steps.marks if one.kind == "span" for row in one.rows]
    assert max(row["x2"] for row in bars) == pytest.approx(trace.seconds * 1e6)
    assert max(max(row["y"], row.get("y2", 0)) for row in bars) == 64
