"""Parts of a sweep: each row is in one of them, and a merge that lacks any of them says which."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptplan
from ckptplan.errors import InputError
from ckptplan.studies.shards import Shard, parse_shard
from ckptplan.studies.sweep import iterate_rows, make_sweep

SNN = ckptplan.load_workload("paper-snn")
IPU = ckptplan.load_profile("ipu-mk2")


@given(st.data(), st.integers(1, 40))
def test_each_row_is_in_one_part(data: st.DataObject, count: int) -> None:
    """In order within the part, and no part has a block more than another."""
    total = data.draw(st.integers(count, 5_000))
    shards = [Shard(number=number, count=count, total=total) for number in range(1, count + 1)]
    rows = [[shard.row(place) for place in range(len(shard))] for shard in shards]
    assert all(some == sorted(some) and some for some in rows)
    assert sorted(chain.from_iterable(rows)) == list(range(total))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= shards[0].block


def test_parts_of_a_long_sweep_are_counted_and_not_listed() -> None:
    shards = [Shard(number=number, count=100, total=10**9) for number in range(1, 101)]
    assert sum(map(len, shards)) == 10**9
    assert shards[41].row(len(shards[41]) - 1) < 10**9


def test_a_part_has_the_rows_of_the_whole_and_says_which_part_it_is() -> None:
    over = {"T": "64:2048:x2", "batch": [30, 60]}
    whole = [row for rows in iterate_rows(make_sweep(over, workloads=SNN, profiles=IPU)) for row in rows]
    for number in (1, 2):
        sweep = make_sweep(over, workloads=SNN, profiles=IPU, shard=(number, 2))
        part = [row for rows in iterate_rows(sweep) for row in rows]
        assert {row["sweep"] for row in part} == {f"{whole[0]['sweep']}:{number}/2:12"}
        rows = [{**row, "sweep": whole[0]["sweep"]} for row in part]
        assert rows == whole[number - 1 :: 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", "'3' is not a part of a sweep (accepted: NUMBER/COUNT, as 3/64, counted from 1)"),
        ("a/b", "'a/b' is not a part of a sweep"),
        ("0/4", "'0/4' is out of range"),
        ("5/4", "'5/4' is out of range"),
        ("1/100001", "'1/100001' is out of range"),
    ],
)
def test_what_is_no_part_is_told(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_shard(text)
    assert message in str(caught.value)
    assert parse_shard(" 3/64") == (3, 64)


def test_a_sweep_of_more_rows_than_a_file_holds_is_planned_in_parts() -> None:
    """A limit of the file, not of the grid: the first rows of one of a thousand parts are there at once."""
    over = {"T": "1:100000:+1", "batch": "1:1000:+1", "latency": "0:9us:+1us"}
    with pytest.raises(
        InputError, match=r"100,000 T x 1,000 batch x 10 latency = 1,000,000,000 rows are too ma"
    ):
        make_sweep(over, workloads=SNN, profiles=IPU)
    sweep = make_sweep(over, workloads=SNN, profiles=IPU, shard=(1000, 1000))
    assert len(next(iterate_rows(sweep))) == 1
    assert 990_000 < len(sweep) < 1_010_000


def test_more_parts_than_rows_are_refused() -> None:
    with pytest.raises(InputError, match="shard: 4 parts of 3 rows would be empty ones"):
        make_sweep(["T=1,2,3"], workloads=SNN, profiles=IPU, shard=(1, 4))
